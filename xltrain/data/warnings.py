"""What to say of a corpus, and of the store that it has become, before a model is trained on it."""

import json
from collections.abc import Sequence
from typing import Any

from xltrain import console
from xltrain.config.text import CorpusConfig
from xltrain.data.overlap import trained_on
from xltrain.data.sources import Source
from xltrain.data.store import Store

MANY_UNKNOWN = 0.01
"""Share of <unk> above which a person is warned."""
MANY_COPIED = 0.01
"""Share of lines that are in the training text too from which on a person is warned."""
LONG_WORD = 20
"""Above so many characters per run between spaces, these runs are no words; languages with long words have eight."""
MANY_JOINED = 0.01
"""Carriage returns inside of lines, per line and document, above which a person is warned."""


def warn_of_overlap(corpus: CorpusConfig) -> list[str]:
    """Say which texts that are to measure a model it is trained on; the splits that have any."""
    found = {name: trained_on(corpus.train, getattr(corpus, name), split=name) for name in ("validation", "test")}
    for name, clauses in found.items():
        for clause in clauses:
            console.warn(f"corpus.{name}: {clause}: its loss will be that of a text that the model has seen")
    return [name for name, clauses in found.items() if clauses]


def warn_of_copied_lines(store: Store, *, known: Sequence[str]) -> None:
    """Say where other text has lines of the training text; ``known``: splits of which more than that was said."""
    for name, found in store.manifest.get("copied", {}).items():
        if name not in known and found["copied"] and found["copied"] >= MANY_COPIED * found["lines"]:
            console.warn(
                f"corpus.{name}: of {found['lines']:,} lines that were looked for, {found['copied']:,} "
                f"({found['copied'] / found['lines']:.1%}) are in corpus.train too, as the one that begins "
                f"{found['example']!r}; its loss will be lower by what the model has seen. Take them out of one of the "
                "two, unless every text of this kind has them"
            )


def warn_of_copies(sources: Sequence[Source], marks: Sequence[Any]) -> None:
    """Say which sources hold the same text as others; one source that a weight repeats is no copy."""
    first: dict[str, Source] = {}
    copies: dict[int, tuple[Source, Source]] = {}
    for source, mark in zip(sources, marks, strict=True):
        if (other := first.setdefault(json.dumps(mark), source)) is not source:
            copies[id(source)] = (source, other)
    if copies:
        one, other = next(iter(copies.values()))
        console.say(
            f"note: corpus.train: {len(copies):,} source(s) have the same content as others, as {one.name} has that of "
            f"{other.name}, and are read too; name a text once, with a weight if it is to count more"
        )


def warn_of_store(store: Store, *, given: str | None) -> None:
    """Say what is doubtful in a new store; ``given``: the file that its tokenizer is from, if it is given."""
    _warn_of_joined_lines(store)
    warn_of_unknown(store, given=given)
    _warn_of_long_words(store)


def _warn_of_joined_lines(store: Store) -> None:
    """Say where removed carriage returns seem to have been line ends."""
    for name, counts in store.manifest["splits"].items():
        inner = store.manifest["dropped"][name]["inner_carriage_returns"]
        if inner > MANY_JOINED * (counts["lines"] + counts["documents"]):  # a record may be a line without an end
            console.warn(
                f"corpus.{name}: {inner:,} carriage returns (U+000D) inside lines were removed, which joins the words "
                "around them; if they end lines, as in files of old Macs, turn them into line feeds first "
                "(tr '\\r' '\\n')"
            )


def warn_of_unknown(store: Store, *, given: str | None) -> None:
    """Say where a store's tokenizer does not know the text; ``given``: the file that it is from, if it is given."""
    kind = store.manifest["tokenizer"]["kind"]
    for name, counts in store.manifest["splits"].items():
        rate = counts["unknown"] / max(1, counts["tokens"])
        if rate <= MANY_UNKNOWN:
            continue
        why = "it has characters that the training text lacks"
        training = store.manifest["splits"]["train"]
        if kind == "word":
            why = "rare words, or <unk> in the text itself"
        elif given is not None:
            why = f"it has characters that the vocabulary of {given} lacks"
        elif training["unknown"] > MANY_UNKNOWN * training["tokens"]:  # in the text that the vocabulary was made from
            why = (
                "raise tokenizer.character_coverage if it is below 1; if the text spells <unk> itself, add < and > to "
                "tokenizer.user_defined_symbols"
            )
            if kind == "char":
                size = f"tokenizer.vocab_size, {store.vocab_size:,},"
                why = f"{size} leaves out its rarest characters; raise it, or leave it out"
        console.warn(f"corpus.{name}: {rate:.1%} of the tokens are <unk>: {why}")


def _warn_of_long_words(store: Store) -> None:
    """Say where a vocabulary of words is made of a text that is written without spaces."""
    counts = store.manifest["splits"]["train"]
    if store.manifest["tokenizer"]["kind"] == "word" and counts["characters"] > LONG_WORD * counts["words"]:
        console.warn(
            f"corpus.train: between spaces, this text has {counts['characters'] / counts['words']:,.0f} characters on "
            "average, as Chinese or Japanese has, and each such run is a word of the vocabulary; choose another "
            "tokenizer.kind, or put spaces between the words"
        )
