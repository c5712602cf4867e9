"""From corpus files to a token store: built once, found again by its fingerprint."""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from xltrain import console
from xltrain.config.schema import Config
from xltrain.data.corpus import Counts, Document, Piece, vocabulary_lines
from xltrain.data.files import digest
from xltrain.data.kinds import column_separator, read_tokenizer, train_tokenizer
from xltrain.data.sources import STANDARD_INPUT, Source, find_sources
from xltrain.data.store import FORMAT, SplitWriter, Store, boundaries
from xltrain.data.tokenizer import Tokenizer, describe
from xltrain.errors import UsageError

SPLITS = ("train", "validation", "test")

MANY_UNKNOWN = 0.01
"""Share of <unk> above which a person is warned."""


Item = TypeVar("Item")


@dataclass(frozen=True)
class Prepared:
    """A store, and whether it was there already."""

    store: Store
    reused: bool


def prepare(config: Config, *, standard_input: BinaryIO | None = None) -> Prepared:
    """The store of this configuration's corpus and tokenizer, built if it does not exist.

    ``standard_input``: what `-` in corpus.train stands for. It is kept as a file, since it has to be read twice.

    Raises:
        UsageError: for missing, empty or undecodable files, and vocabularies that the text cannot give.
    """
    root = Path(config.corpus.cache_dir).expanduser()
    if standard_input is not None:
        config = _with_standard_input(config, root, standard_input)
    sources = corpus_sources(config)
    marks = fingerprints(config, sources)
    folder = root / f"store-{marks['fingerprint']}"
    if (folder / "manifest.json").is_file():
        console.say(f"reusing the token store {folder}")
        return Prepared(_checked(Store.open(folder)), reused=True)
    building = root / f"building-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        _make_folder(building)
        _remove_leftovers(root)
        _build(building, config, sources, marks)
        if folder.exists() and not (folder / "manifest.json").is_file():
            shutil.rmtree(folder)  # somebody deleted a part of it
        try:
            building.rename(folder)
        except OSError:  # another process has just finished the same store
            if not (folder / "manifest.json").is_file():
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    console.say(f"wrote the token store {folder}")
    return Prepared(_checked(Store.open(folder)), reused=False)


def _with_standard_input(config: Config, root: Path, standard_input: BinaryIO) -> Config:
    """The configuration with the path of a copy in place of `-`, where corpus.train names that."""
    entries = list(config.corpus.train)
    if STANDARD_INPUT not in entries:
        return config
    console.say("reading the corpus from standard input")
    building = root / f"building-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        _make_folder(building)
        copy = building / "standard-input"
        with copy.open("wb") as file:
            shutil.copyfileobj(standard_input, file, 1 << 20)
        kept = root / f"standard-input-{digest(copy)[:16]}"
        copy.rename(kept)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    console.say(f"kept standard input as {kept}: name that in corpus.train to train on it")
    entries[entries.index(STANDARD_INPUT)] = str(kept)
    return config.model_copy(update={"corpus": config.corpus.model_copy(update={"train": entries})})


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        problem = f"corpus.cache_dir: {folder.parent} cannot be used ({error.strerror}); choose another folder"
        raise UsageError(problem) from None


def _checked(store: Store) -> Store:
    """Opens every split, so that damage is found here; says where the tokenizer does not know the text."""
    kind = store.manifest["tokenizer"]["kind"]
    for name, counts in store.manifest["splits"].items():
        store.split(name)
        rate = counts["unknown"] / max(1, counts["tokens"])
        if rate <= MANY_UNKNOWN:
            continue
        why = "it has characters that the training text lacks"
        if kind == "word":
            why = "rare words, or <unk> in the text itself"
        elif name == "train" and kind == "sentencepiece":
            why = (
                "raise tokenizer.character_coverage if it is below 1; if the text spells <unk> itself, add < and > to "
                "tokenizer.user_defined_symbols"
            )
        console.warn(f"corpus.{name}: {rate:.1%} of the tokens are <unk>: {why}")
    return store


def corpus_sources(config: Config) -> dict[str, list[Source]]:
    """The sources of every split that the configuration names."""
    entries = {name: getattr(config.corpus, name) for name in SPLITS}
    return {
        name: find_sources(given, config.corpus, key=f"corpus.{name}", split=name)
        for name, given in entries.items()
        if given
    }


def fingerprints(config: Config, sources: dict[str, list[Source]]) -> dict[str, str]:
    """What names a store, and what a run depends on.

    ``fingerprint`` changes with any byte of the corpus or tokenizer and with any setting that changes an id, and with
    nothing else; ``training`` is the same without validation and test, which a resumed run may have different.
    """
    tokenizer = config.tokenizer.model_dump(mode="json")
    if config.tokenizer.path is not None:  # an existing tokenizer: its bytes matter, how one is trained does not
        path = Path(config.tokenizer.path).expanduser()
        if not path.is_file():
            raise UsageError(f"tokenizer.path: {path} does not exist (working directory {Path.cwd()})")
        tokenizer = {"kind": config.tokenizer.kind, "digest": digest(path), "vocab_size": config.tokenizer.vocab_size}
    elif config.tokenizer.kind != "sentencepiece":
        tokenizer = config.tokenizer.model_dump(mode="json", include={"kind", "vocab_size", "eos", "lower"})
    marks = {name: [source.mark() for source in found] for name, found in sources.items()}
    settings = {
        "format": FORMAT,
        "document_separator": config.corpus.document_separator,
        "lines": config.needs_lines,
        "tokenizer": tokenizer,
    }
    return {
        "fingerprint": _mark(settings | {"files": marks}),
        "training": _mark(settings | {"files": {"train": marks["train"]}}),
    }


def _mark(content: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()


def _build(folder: Path, config: Config, sources: dict[str, list[Source]], marks: dict[str, str]) -> None:
    for name, found in sources.items():
        _require_text(name, found)
    tokenizer = make_tokenizer(config, sources["train"])
    for file_name, data in tokenizer.files().items():
        (folder / file_name).write_bytes(data)
    between = column_separator(tokenizer) if config.two_columns else None
    splits, dropped, line_ends = {}, {}, {}
    for name, found in sources.items():
        counts = Counts()
        writer = SplitWriter(folder, name, tokenizer, between=between, keep_lines=config.needs_lines)
        pieces = [piece for source in found for piece in source.pieces()]
        documents = (document for piece in pieces for document in piece.documents(counts))
        splits[name] = writer.write(_announced(documents, counts, pieces, f"tokenising {name}"), counts)
        dropped[name] = counts.dropped()
        if name == "train":
            writer.unigram.tofile(folder / "unigram")
        line_ends[name] = writer.num_line_ends
    manifest = {
        **marks,
        "format": FORMAT,
        "dtype": SplitWriter(folder, "train", tokenizer).dtype.name,
        "tokenizer": describe(tokenizer),
        "boundaries": boundaries(tokenizer, between),
        "line_ends": line_ends if config.needs_lines else None,
        "splits": splits,
        "dropped": dropped,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2), encoding="utf-8")


def make_tokenizer(config: Config, sources: list[Source]) -> Tokenizer:
    """Read or train the tokenizer that the configuration asks for."""
    wanted = config.tokenizer
    if wanted.path is not None:
        found = read_tokenizer(Path(wanted.path).expanduser(), kind=wanted.kind)
        if wanted.vocab_size not in (None, found.vocab_size):
            raise UsageError(
                f"tokenizer.vocab_size: {wanted.vocab_size:,} does not fit {wanted.path}, which has "
                f"{found.vocab_size:,} pieces; correct it, or leave it out"
            )
        return found
    counts = Counts()
    pieces = [piece for source in sources for piece in source.pieces()]
    every_line = (line for piece in pieces for line in piece.lines(counts))
    lines = _announced(every_line, counts, pieces, "reading for the vocabulary")
    return train_tokenizer(wanted, vocabulary_lines(lines, separator=config.corpus.document_separator))


def _require_text(name: str, sources: list[Source]) -> None:
    """Stop where a split has no text; a source without any, among others that have some, is only named."""
    empty = [source.name for source in sources if not any(True for piece in source.pieces() for _ in piece.documents())]
    if len(empty) == len(sources):
        raise UsageError(f"corpus.{name}: {', '.join(dict.fromkeys(empty))} contains no text")
    if empty:
        console.warn(f"corpus.{name}: {', '.join(dict.fromkeys(empty))} contains no text")


def _announced(items: Iterable[Item], counts: Counts, pieces: Iterable[Piece], description: str) -> Iterator[Item]:
    """Yield ``items`` that are read from ``pieces`` and counted in ``counts``, showing how far the reading is."""
    total = sum(piece.size for piece in pieces)
    return console.progress(items, done=lambda: counts.bytes, total=total, description=description)


def _remove_leftovers(root: Path) -> None:
    """Remove what a killed preparation left behind; a live one is left alone."""
    for path in root.glob("building-*-*"):
        number = path.name.split("-")[1]
        if number.isdigit() and not _alive(int(number)):
            shutil.rmtree(path, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def documents_of(sources: Iterable[Source], counts: Counts) -> Iterator[Document]:
    """Documents of sources that are not part of the store."""
    return (document for source in sources for piece in source.pieces() for document in piece.documents(counts))
