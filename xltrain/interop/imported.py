"""What every reader of another program's checkpoint hands over, and the refusals that they share."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from xltrain.data.tokenizer import Tokenizer
from xltrain.errors import UsageError

SHOWN = 12
"""At most this many names of tensors are listed in a sentence; the rest are counted."""


@dataclass(frozen=True)
class Imported:
    """A model of another program, in our terms.

    format: the format's name, one of :data:`xltrain.interop.import_checkpoint.FORMATS`.
    weights: every parameter once, by our name, in the precision it was stored in.
    sections: keys of a configuration, by section: what the other program says of the model and of its segments.
    tokenizer: its vocabulary.
    initial_memory: what the other program's rows see before they have read anything: ``absent`` or ``zeros``.
    notes: what is lost or differs, a sentence each.
    """

    format: str
    weights: dict[str, Tensor]
    sections: dict[str, dict[str, Any]]
    tokenizer: Tokenizer
    initial_memory: str
    notes: tuple[str, ...] = ()


def require_names(found: Iterable[str], *, wanted: Iterable[str], ignored: Iterable[str] = (), source: Path) -> None:
    """Refuse weights of which any is missing, or has no place.

    Args:
        found: names of the tensors that are there.
        wanted: names that have to be.
        ignored: names that may be, and say nothing new: copies of tied tensors, computed tables.
        source: the file, for the sentence.

    Raises:
        UsageError: naming them.
    """
    found, wanted = set(found), set(wanted)
    missing, unexpected = sorted(wanted - found), sorted(found - wanted - set(ignored))
    faults = [f"{kind} {listed(names)}" for kind, names in (("missing", missing), ("unexpected", unexpected)) if names]
    if faults:
        raise UsageError(f"{source}: these are not the weights that its settings describe: {'; '.join(faults)}")


def listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def read_json(path: Path) -> dict[str, Any]:
    """The settings of a model.

    Raises:
        UsageError: if the file is missing, or is no JSON object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:
        raise UsageError(f"{path}: not a JSON file, or one that was cut short") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path}: holds no JSON object, but settings have names")
    return found


@dataclass(frozen=True)
class Settings:
    """Values of a model by the other program's names, with the place they were read from."""

    values: Mapping[str, Any]
    source: Path

    def count(self, *names: str) -> int:
        """A positive integer, by the first of its names that is given.

        Raises:
            UsageError: if none is given, or it is no positive integer.
        """
        name = next((name for name in names if self.values.get(name) is not None), names[0])
        value = self.values.get(name)
        if value is None:
            raise UsageError(f"{self.source}: {name} is missing, and nothing else says it; add it")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError(f"{self.source}: {name} is {value!r}; it must be a positive whole number")
        return value

    def number(self, name: str, default: float) -> float:
        """A number; ``default`` where none is given."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise UsageError(f"{self.source}: {name} is {value!r}; it must be a number")
        return float(value)

    def length(self, name: str, default: int = 0) -> int:
        """A length; whatever is negative or missing is ``default``."""
        value = int(self.number(name, default))
        return value if value > 0 else default

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name)
        return default if value is None else bool(value)

    def refuse_unless(self, name: str, allowed: Any, default: Any, why: str) -> None:
        """Refuse a setting that our model has nothing like.

        Raises:
            UsageError: if it is given and is not ``allowed``.
        """
        value = self.values.get(name, default)
        if value is not None and value != allowed:
            raise UsageError(f"{self.source}: {name} is {value!r}, and only {allowed!r} can be imported: {why}")


def vocabulary_size(settings: Settings, *names: str, rows: int, tokenizer: Tokenizer) -> None:
    """Check that settings, embedding table and tokenizer speak of one vocabulary.

    Args:
        settings: where the size is given; a size of -1, which some published files have, says nothing.
        names: of the size.
        rows: of the embedding table.
        tokenizer: of the model.

    Raises:
        UsageError: naming the sizes that differ.
    """
    for name in names:
        given = settings.values.get(name)
        if isinstance(given, int) and given > 0 and given != rows:
            raise UsageError(f"{settings.source}: {name} is {given:,}, but the embedding table has {rows:,} rows")
    if tokenizer.vocab_size != rows:
        raise UsageError(
            f"{settings.source.parent}: the tokenizer has {tokenizer.vocab_size:,} pieces, but the embedding table has "
            f"{rows:,} rows; the model was trained with another vocabulary, put its file here"
        )
