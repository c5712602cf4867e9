"""How large a vocabulary is before anything was prepared."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from xltrain.config.schema import Config
from xltrain.config.text import SourceConfig
from xltrain.data.corpus import vocabulary_lines
from xltrain.data.digests import Digests
from xltrain.data.kinds import read_tokenizer, train_tokenizer, vocabulary_before_preparation
from xltrain.data.naming import files_of, fingerprints, marks_of
from xltrain.data.prepare import stores_of
from xltrain.data.sources import find_sources
from xltrain.errors import UsageError

MOMENT = 16 << 20
"""Bytes of text that are read to find it out; characters and words of as many are counted in a second or two."""


def vocabulary_at_hand(config: Config) -> int | None:
    """V, where the configuration, a file of it, its token store or a short text tells it; None: it would take longer.

    Nothing is refused and nothing written: whether the text is fit for training is for preparation to say.
    """
    wanted = config.tokenizer
    if (said := vocabulary_before_preparation(wanted)) is not None:
        return said
    try:
        if wanted.path is not None:
            path = Path(wanted.path).expanduser()
            return read_tokenizer(path, kind=wanted.kind, eos=wanted.eos, lower=wanted.lower).vocab_size
        return _of_text(config) if _only_files_here(config) else None
    except UsageError:
        return None


def _only_files_here(config: Config) -> bool:
    named = [entry if isinstance(entry, SourceConfig) else SourceConfig(files=[entry]) for entry in config.corpus.train]
    return not any(entry.dataset or "://" in file for entry in named for file in (*entry.files, ""))


def _of_text(config: Config) -> int | None:
    sources = {"train": find_sources(config.corpus.train, config.corpus, key="corpus.train")}
    digests = Digests(Path(config.corpus.cache_dir).expanduser())
    if digests.unread(files_of(sources)) <= MOMENT:
        marks = fingerprints(config, marks_of(sources, digests))
        if (store := next(stores_of(config, marks["training_fingerprint"]), None)) is not None:
            return store.vocab_size
    pieces = [piece for source in sources["train"] for piece in source.pieces()]
    if sum(piece.size for piece in pieces) > MOMENT:
        return None
    lines = (line for piece in pieces for line in piece.lines())
    try:
        return train_tokenizer(
            config.tokenizer, vocabulary_lines(_for_a_moment(lines), separator=config.corpus.document_separator)
        ).vocab_size
    except _TooLong:
        return None


class _TooLong(Exception):
    """The text is longer than its file, which is compressed."""


def _for_a_moment(lines: Iterable[str]) -> Iterator[str]:
    left = MOMENT
    for line in lines:
        left -= len(line)
        if left < 0:
            raise _TooLong
        yield line
