"""What every use of a trained model begins with: its checkpoint, a device, its tokenizer, and a text."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from xltrain import console
from xltrain.config.init_from import MARK, NAMES
from xltrain.config.schema import Config
from xltrain.data.corpus import Counts, Document
from xltrain.data.files import named_by
from xltrain.data.kinds import column_separator
from xltrain.data.sources import find_sources
from xltrain.data.store import Split, split_in_memory
from xltrain.data.tokenizer import Tokenizer
from xltrain.distributed import Place, find_place
from xltrain.errors import UsageError, XltrainError
from xltrain.evaluation.texts import spelled_unknown
from xltrain.model.transformer import LanguageModel
from xltrain.training.checkpoint import Checkpoint, find_checkpoint, list_checkpoints
from xltrain.training.failures import fitting

Read = TypeVar("Read")

TRIES = 3
"""Checkpoints that may vanish one after the other while they are read."""


@dataclass(frozen=True)
class Loaded:
    """A checkpoint ready for use; the model is in evaluation mode.

    trained: the checkpoint's own configuration.
    config: the same, with what was changed for this use.
    fingerprint: of the text and the tokenizer that it was trained with; empty for imported weights.
    """

    checkpoint: Checkpoint
    trained: Config
    config: Config
    tokenizer: Tokenizer
    model: LanguageModel
    place: Place
    fingerprint: str = ""


def load(source: Path, *, adapt: Callable[[Config], Config] = lambda config: config) -> Loaded:
    """A run's newest checkpoint, or the one named.

    Args:
        adapt: given the checkpoint's configuration; returns the one to use, or raises what speaks against it.

    Raises:
        UsageError: for a checkpoint that cannot be used so.
    """

    def read(checkpoint: Checkpoint) -> Loaded:
        trained = checkpoint.config()
        config = adapt(trained)
        place = usable_place(config.training.device)
        with fitting("free some of it, or use a larger machine"):
            model = checkpoint.model(place.device, config)
        broken = [name for name, weight in model.named_parameters() if not bool(weight.isfinite().all())]
        if broken:
            raise UsageError(
                f"{checkpoint.folder}: {', '.join(broken[:3])}{', ...' if broken[3:] else ''}: infinite or undefined "
                "numbers, from which nothing can be computed; training had failed before, use an earlier checkpoint"
            )
        fingerprint = checkpoint.progress().fingerprint if (checkpoint.folder / "state.json").is_file() else ""
        return Loaded(checkpoint, trained, config, checkpoint.tokenizer(), model.eval(), place, fingerprint)

    return read_whole(source, read)


def read_whole(source: Path, read: Callable[[Checkpoint], Read], *, count: int = 1) -> Read:
    """What ``read`` makes of a run's newest checkpoint, or of the one named; it reads all that is ever needed of it.

    A run that goes on removes its older checkpoints, perhaps the one that is being read. Then another one takes its
    place, unless it was named itself. ``count``: how many are read, with those before it.

    Raises:
        UsageError: if there is none that stays.
    """
    _refuse_near_misses(source)
    for _ in range(TRIES):
        there, found = [folder for folder in _folders(source) if _is_whole(folder)], None
        try:
            found = find_checkpoint(source)
            return read(found)
        except (OSError, XltrainError):
            used = [folder for folder in there if found is None or Checkpoint(folder).step <= found.step][:count]
            gone = [folder for folder in used if not _is_whole(folder)]
            if not gone:
                raise
        removed = f"{gone[0]} was removed while it was read: its run goes on, and keeps the newest ones only"
        if gone == [source]:
            raise UsageError(f"{removed} (checkpoint.keep); give the run's folder, or copy a checkpoint first")
        console.say(f"{removed}; reading its newest one")
    raise UsageError(
        f"{source}: this run has removed {TRIES} checkpoints while they were read; wait until it has ended, or let it "
        "keep more of them (checkpoint.keep)"
    )


def _refuse_near_misses(source: Path) -> None:
    """Name the run or the checkpoint that lies above or below what was given, or say that there is none yet.

    Raises:
        UsageError: where this is so.
    """
    if source.is_file() and (source.parent / MARK).is_file():
        raise UsageError(f"{source}: is one file of a checkpoint; give its folder, {source.parent}")
    if not source.is_dir() or _folders(source):
        return
    if list_checkpoints(source.parent) and source.name == "checkpoints":
        raise UsageError(f"{source}: holds the checkpoints of a run; give the run, {source.parent}, or one of them")
    if (source / "config.yaml").is_file() and (source / "metrics.jsonl").is_file():
        raise UsageError(
            f"{source}: this run has saved no checkpoint yet; the first comes after checkpoint.every steps, or when it "
            "is stopped (Ctrl-C)"
        )
    inside = sorted({path.parent.parent for path in source.glob("*/checkpoints/step-*")})
    if inside:
        more = f" and {len(inside) - 3:,} more" if len(inside) > 3 else ""
        raise UsageError(
            f"{source}: is no run, but holds {'one' if len(inside) == 1 else 'some'}: "
            f"{', '.join(map(str, inside[:3]))}{more}"
        )


def _folders(source: Path) -> list[Path]:
    """Every checkpoint that is there to be read under this name."""
    if source.name in NAMES and source.is_file():
        source = source.parent
    return [source] if (source / MARK).is_file() else list_checkpoints(source)


def _is_whole(folder: Path) -> bool:
    """Whether all files of a checkpoint are there, by their names alone."""
    try:
        return all((folder / name).is_file() for name in json.loads((folder / MARK).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return False


def usable_place(wanted: str) -> Place:
    """The device that the run was trained on, or another one where that is not there."""
    try:
        return find_place(wanted)
    except UsageError as error:
        place = find_place("auto")
        console.warn(f"{error}; evaluating on {place.device}")
        return place


def adapted(config: Config, *, same_length: bool | None, clamp_len: int | None) -> Config:
    """The configuration with what a use of the model may change.

    Raises:
        UsageError: where the objective does not allow it.
    """
    changes = {"same_length": same_length, "clamp_len": clamp_len}
    given = {key: value for key, value in changes.items() if value is not None}
    if given.get("same_length") and config.objective.name != "causal":
        raise UsageError(f"--same-length needs a causal model; this run's objective is {config.objective.name}")
    return config.model_copy(update={"model": config.model.model_copy(update=given)})


def read_text(config: Config, tokenizer: Tokenizer, *, data: list[str], split: str) -> Split:
    """The files of ``data``, or if there are none the run's own ``split``, split and tokenised as the run's text is.

    Its counts have ``unknown_spelled`` too: how many of the unknown tokens the text itself spells so.

    Raises:
        UsageError: if there is no such text, or nothing in it to predict.
    """
    if split not in ("validation", "test"):
        raise UsageError(f"--split: {split!r} is not allowed; choose validation or test")
    patterns, key = (data, "--data") if data else (getattr(config.corpus, split), f"corpus.{split}")
    if not patterns:
        raise UsageError(f"this run's configuration names no {key}; give the text with --data FILE")
    sources, counts = find_sources(patterns, config.corpus, key=key, split=split), Counts()
    names = ", ".join(source.name for source in sources)
    name = names if data else split
    between = column_separator(tokenizer) if config.two_columns else None
    spelled = 0

    def noted(documents: Iterable[Document]) -> Iterator[Document]:
        nonlocal spelled
        for document in documents:
            spelled += sum(spelled_unknown(tokenizer, line) for line in document.lines)
            yield document

    with named_by(key):
        pieces = [piece for source in sources for piece in source.pieces()]
        documents = console.progress(
            (document for piece in pieces for document in piece.documents(counts)),
            done=lambda: counts.bytes,
            total=sum(piece.size for piece in pieces),
            description=f"reading {name}",
            delay=console.SECONDS_BEFORE_A_BAR,
        )
        found = split_in_memory(name, noted(documents), counts, tokenizer, between=between)
    if found.num_documents == 0:
        raise UsageError(f"{key}: {names} contains no text")
    if found.num_tokens < 2:
        raise UsageError(f"{key}: {name} has only one token; perplexity needs two")
    return replace(found, counts=found.counts | {"unknown_spelled": spelled})
