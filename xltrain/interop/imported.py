"""What every reader of another program's checkpoint hands over, and the refusals that they share."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
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


PRECISIONS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""What weights may be stored in. Whole numbers are quantised weights, which mean nothing without their scales."""


def require_weights(tensors: Mapping[str, Tensor], *, source: Path) -> None:
    """Refuse tensors that are no weights, and layers that are not alike.

    Raises:
        UsageError: naming them.
    """
    odd = [
        f"{name} ({str(tensor.dtype).removeprefix('torch.')})"
        for name, tensor in tensors.items()
        if tensor.dtype not in PRECISIONS
    ]
    if odd:
        raise UsageError(
            f"{source}: weights must be stored in float32, float64, bfloat16 or float16; these are not: "
            f"{listed(sorted(odd))}; save the model in one of them"
        )
    first: dict[str, str] = {}
    for name, tensor in tensors.items():
        other = first.setdefault(re.sub(r"\b(layers?)\.\d+\.", r"\1.", name), name)
        if tensor.shape != tensors[other].shape:
            raise UsageError(
                f"{source}: {name} has shape {tuple(tensor.shape)}, but {other} has {tuple(tensors[other].shape)}; "
                "all layers of a model are alike"
            )


@contextmanager
def converting(source: Path) -> Iterator[None]:
    """What cannot be turned into our form has not the shape that its name promises.

    Raises:
        UsageError: in place of what torch says where dimensions are missing or do not go together.
    """
    try:
        yield
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"{source}: the shapes of its tensors are not those of such a model ({error})") from None


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


LARGEST = 2**40
"""Numbers of settings are smaller."""


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
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < LARGEST:
            raise UsageError(f"{self.source}: {name} is {value!r}; it must be a positive whole number")
        return value

    def layers(self, *, tensors: int) -> int:
        """``n_layer``, of weights that are so many tensors: at least one for each layer.

        Raises:
            UsageError: as :meth:`count`, and if there are more layers than tensors, before anything is made of each.
        """
        value = self.count("n_layer")
        if value > tensors:
            raise UsageError(f"{self.source}: n_layer is {value:,}, but there are only {tensors:,} tensors")
        return value

    def number(self, name: str, default: float) -> float:
        """A number; ``default`` where none is given."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < LARGEST:  # NaN too
            raise UsageError(f"{self.source}: {name} is {value!r}; it must be a number")
        return float(value)

    def length(self, name: str, default: int = 0) -> int:
        """A length; whatever is negative or missing is ``default``."""
        value = int(self.number(name, default))
        return value if value > 0 else default

    def flag(self, name: str, default: bool) -> bool:
        """True or false, or 1 or 0; any other value has to be asked about, ``"false"`` first of all."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool | int) or value not in (0, 1):
            raise UsageError(f"{self.source}: {name} is {value!r}; it must be true or false")
        return bool(value)

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
