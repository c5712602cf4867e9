"""Whether losses of several runs can be compared: what was predicted in each, and of which text."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from xltrain.config.init_from import TOKENIZER_FILES
from xltrain.config.load import load_config
from xltrain.config.schema import Config
from xltrain.config.text import SourceConfig
from xltrain.data.tokenizer import SentencePieceTokenizer
from xltrain.errors import UsageError
from xltrain.training.checkpoint import MARK, Checkpoint, list_checkpoints

Scope = Literal["all", "training", "validation"]
_FILES = {*TOKENIZER_FILES.values(), SentencePieceTokenizer.cleanup_name}
SHOWN = 4  # values of one aspect that a sentence names


@dataclass(frozen=True)
class Setup:
    """What a run's folder says of its losses.

    tokenizer: the bytes of its files, by name; None where there is no checkpoint yet.
    fingerprint: of training text and tokenizer; empty likewise.
    """

    config: Config
    tokenizer: dict[str, bytes] | None
    fingerprint: str


@dataclass(frozen=True)
class _Aspect:
    """One thing that makes losses incomparable where runs differ in it.

    scope: the losses that it makes so.
    values: of every run, None where it has no such thing; runs agree where these are equal.
    label: a value of a run in few words.
    whole: in more words, where the few are the same for different values.
    """

    name: str
    scope: Scope
    values: Callable[[Sequence[Setup]], list[Any]]
    label: Callable[[Setup], str]
    whole: Callable[[Setup], str] | None = None


def compare(runs: Sequence[Path]) -> tuple[list[str], list[str]]:
    """How every run differs from others, in few words ("" where all agree), and sentences that warn of it."""
    if len(runs) < 2:
        return [""] * len(runs), []
    found = {run: setup for run in runs if (setup := _read(run)) is not None}
    shown: dict[Path, list[str]] = {run: [] for run in runs}
    said: list[tuple[str, Scope]] = []
    for aspect in _ASPECTS if len(found) > 1 else ():
        values = dict(zip(found, aspect.values(list(found.values())), strict=True))
        concerned = [run for run in found if values[run] is not None]
        distinct = list(dict.fromkeys(values[run] for run in concerned))
        if len(distinct) < 2:
            continue
        first = {value: next(found[run] for run in concerned if values[run] == value) for value in distinct}
        labels = {value: aspect.label(setup) for value, setup in first.items()}
        if aspect.whole is not None and len(set(labels.values())) < len(labels):
            whole = {value: aspect.whole(setup) for value, setup in first.items()}
            labels = whole if len(set(whole.values())) > len(set(labels.values())) else labels
        labels = _apart(labels)
        for run in concerned:
            shown[run].append(labels[values[run]])
        more = f" and {len(distinct) - SHOWN:,} more" if len(distinct) > SHOWN else ""
        said.append((f"{aspect.name} ({', '.join(list(labels.values())[:SHOWN])}{more})", aspect.scope))
    sentences = [_sentence(said, [setup.config for setup in found.values()])] if said else []
    if unknown := [str(run) for run in shown if run not in found]:
        more = f" and {len(unknown) - SHOWN:,} more" if len(unknown) > SHOWN else ""
        sentences.append(
            f"{', '.join(unknown[:SHOWN])}{more}: no config.yaml that can be read is here, so it is not known whether "
            "these losses can be compared with others"
        )
    return [", ".join(shown[run]) for run in runs], sentences


def _read(run: Path) -> Setup | None:
    try:
        config = load_config(run / "config.yaml", resolved=True)
    except UsageError:
        return None
    for folder in list_checkpoints(run):
        try:
            names = json.loads((folder / MARK).read_text(encoding="utf-8"))
            files = {name: (folder / name).read_bytes() for name in names if name in _FILES}
            return Setup(config, files, Checkpoint(folder).progress().fingerprint)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # not finished, damaged, or just removed by a run that goes on
    return Setup(config, None, "")


def _apart(labels: dict[Any, str]) -> dict[Any, str]:
    """Labels, with a number where different values would have the same one."""
    written = list(labels.values())
    found, counts = {}, dict.fromkeys(written, 0)
    for value, label in labels.items():
        counts[label] += 1
        found[value] = f"{label} [{counts[label]}]" if written.count(label) > 1 else label
    return found


def _sentence(said: Sequence[tuple[str, Scope]], configs: Sequence[Config]) -> str:
    differing = [text for text, _ in said]
    scopes = {scope for _, scope in said}
    listed = differing[0] if len(differing) == 1 else f"{', '.join(differing[:-1])} and {differing[-1]}"
    consequence = "their losses and perplexities are of different things and cannot be compared"
    if scopes == {"training"}:
        consequence = "their training losses are of different things and cannot be compared, those of validation can"
    elif scopes == {"validation"}:
        consequence = "their validation losses are of different things and cannot be compared, those of training can"
    elif {config.objective.name for config in configs} == {"causal"}:
        consequence += "; eval-ppl of each on one text (--data) has bits_per_char for that, see docs/evaluation.md"
    return f"these runs differ in {listed}: {consequence}"


# --- what losses depend on


def _sampled(setup: Setup) -> bool:
    return setup.config.objective.name in ("permutation", "masked")


def _share(setup: Setup) -> float:
    objective = setup.config.objective
    given = objective.num_predict
    return objective.predict_fraction if given is None else given / setup.config.segments.seq_len


def _spans(setup: Setup) -> str:
    objective = setup.config.objective
    return f"max_span {objective.max_span} ({objective.span_unit})"


def _blocks(setup: Setup) -> str:
    size = setup.config.objective.perm_size
    return f"permuted in blocks of {size}" if size else "permuted whole"


def _tokenizers(setups: Sequence[Setup]) -> list[Any]:
    """The files where every run has them, and the settings where one has not."""
    if all(setup.tokenizer for setup in setups):
        return [tuple(sorted((setup.tokenizer or {}).items())) for setup in setups]
    found = []
    for setup in setups:
        wanted, train = setup.config.tokenizer, setup.config.corpus.train
        trained = wanted.path is None and wanted.kind != "byte"
        found.append((_json(wanted.model_dump(mode="json")), _entries(train, setup.config) if trained else ""))
    return found


def _tokenizer(setup: Setup) -> str:
    wanted = setup.config.tokenizer
    return wanted.kind if wanted.vocab_size is None else f"{wanted.kind} {wanted.vocab_size:,}"


def _training_texts(setups: Sequence[Setup]) -> list[Any]:
    """The entries; the bytes are the same, wherever they lay, where fingerprints are, and others where these differ.

    A fingerprint is of tokenizer and settings too: it tells texts apart only where all of these agree.
    """
    first: dict[str, str] = {}
    of_entries: dict[tuple[str, str], str] = {}
    found = []
    for setup, tokenizer in zip(setups, _tokenizers(setups), strict=True):
        own = _entries(setup.config.corpus.train, setup.config)
        if setup.fingerprint:
            known = of_entries.setdefault((own, repr((tokenizer, _store_settings(setup)))), setup.fingerprint)
            own = own if known == setup.fingerprint else f"{own} {setup.fingerprint}"
            own = first.setdefault(setup.fingerprint, own)
        found.append(own)
    return found


def _store_settings(setup: Setup) -> str:
    """What a fingerprint depends on besides the bytes of text and tokenizer."""
    config = setup.config
    wanted = config.tokenizer.model_dump(mode="json", exclude={"path"})
    return _json([config.corpus.document_separator, config.needs_lines, config.tokenizer.path is None, wanted])


def _validation_texts(setups: Sequence[Setup]) -> list[Any]:
    return [
        _entries(setup.config.corpus.validation, setup.config) if setup.config.corpus.validation else None
        for setup in setups
    ]


def _entries(sources: Sequence[str | SourceConfig], config: Config) -> str:
    """Sources in one form, whichever they were written in: one file to an entry, and whole paths."""
    found: list[SourceConfig] = []
    for entry in sources:
        source = SourceConfig(files=[entry]) if isinstance(entry, str) else entry
        whole = {
            "text_field": source.text_field or config.corpus.text_field,
            "dataset": _place(source.dataset)
            if source.dataset and Path(source.dataset).expanduser().exists()
            else source.dataset,
            "data_files": [_place(file) for file in source.data_files],
        }
        each = [[_place(file)] for file in source.files] or [[]]
        found += [source.model_copy(update=whole | {"files": files}) for files in each]
    return _json([source.model_dump(mode="json") for source in found])


def _place(file: str) -> str:
    return file if "://" in file else str(Path(file).expanduser().resolve())


def _json(data: Any) -> str:
    return json.dumps(data, sort_keys=True)


def _names(sources: Sequence[str | SourceConfig], *, whole: bool = False) -> str:
    """The first source as it is written, by default without its folder, and how many others there are."""
    names = []
    for entry in sources:
        source = entry if isinstance(entry, str) else entry.dataset or ", ".join(entry.files)
        names.append(source if whole else Path(source).name)
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"


def _reading(setup: Setup) -> str:
    segments = setup.config.segments
    ways = ["pairs of texts"] if segments.layout == "pair" else []
    ways += ["half of it backward"] if segments.bidirectional else []
    return ", ".join(ways) or "text as it follows"


def _validated(setup: Setup) -> str:
    tokens = setup.config.evaluation.max_tokens
    return f"validated on {tokens:,} tokens" if tokens else "validated on all tokens"


def _each(value: Callable[[Setup], Any], where: Callable[[Setup], bool] = lambda _: True) -> Any:
    """Values of an aspect that concerns the runs of which ``where`` is true, each for itself."""
    return lambda setups: [value(setup) if where(setup) else None for setup in setups]


_ASPECTS = (
    _Aspect("objective", "all", _each(lambda setup: setup.config.objective.name), lambda s: s.config.objective.name),
    _Aspect("share of targets", "all", _each(_share, _sampled), lambda setup: f"{100 * _share(setup):.3g}% predicted"),
    _Aspect("target spans", "all", _each(_spans, _sampled), _spans),
    _Aspect("orders", "all", _each(_blocks, lambda setup: setup.config.objective.name == "permutation"), _blocks),
    _Aspect("tokenizer", "all", _tokenizers, _tokenizer),
    _Aspect(
        "ends of documents",
        "all",
        _each(lambda setup: setup.config.corpus.document_separator),
        lambda setup: f"documents by {setup.config.corpus.document_separator}",
    ),
    _Aspect(
        "training text",
        "training",
        _training_texts,
        lambda setup: _names(setup.config.corpus.train),
        lambda setup: _names(setup.config.corpus.train, whole=True),
    ),
    _Aspect("way of reading it", "training", _each(_reading), _reading),
    _Aspect(
        "validation text",
        "validation",
        _validation_texts,
        lambda setup: _names(setup.config.corpus.validation),
        lambda setup: _names(setup.config.corpus.validation, whole=True),
    ),
    _Aspect(
        "amount of it",
        "validation",
        _each(_validated, lambda setup: bool(setup.config.corpus.validation)),
        _validated,
    ),
)
