"""From corpus files to a token store: built once, found again by its fingerprint."""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from xltrain import console
from xltrain.config.schema import Config
from xltrain.data.corpus import Counts, Document, digest, find_files, read_documents, read_lines, vocabulary_lines
from xltrain.data.kinds import column_separator, read_tokenizer, train_tokenizer
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


def prepare(config: Config) -> Prepared:
    """The store of this configuration's corpus and tokenizer, built if it does not exist.

    Raises:
        UsageError: for missing, empty or undecodable files, and vocabularies that the text cannot give.
    """
    files = corpus_files(config)
    root = Path(config.corpus.cache_dir).expanduser()
    marks = fingerprints(config, files)
    folder = root / f"store-{marks['fingerprint']}"
    if (folder / "manifest.json").is_file():
        console.say(f"reusing the token store {folder}")
        return Prepared(_checked(Store.open(folder)), reused=True)
    building = root / f"building-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        _make_folder(building)
        _remove_leftovers(root)
        _build(building, config, files, marks)
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


def corpus_files(config: Config) -> dict[str, list[Path]]:
    """The files of every split that the configuration names."""
    patterns = {name: getattr(config.corpus, name) for name in SPLITS}
    return {name: find_files(given, key=f"corpus.{name}") for name, given in patterns.items() if given}


def fingerprints(config: Config, files: dict[str, list[Path]]) -> dict[str, str]:
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
    digests = {name: [digest(path) for path in paths] for name, paths in files.items()}
    settings = {
        "format": FORMAT,
        "document_separator": config.corpus.document_separator,
        "lines": config.needs_lines,
        "tokenizer": tokenizer,
    }
    return {
        "fingerprint": _mark(settings | {"files": digests}),
        "training": _mark(settings | {"files": {"train": digests["train"]}}),
    }


def _mark(content: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()


def _build(folder: Path, config: Config, files: dict[str, list[Path]], marks: dict[str, str]) -> None:
    for name, paths in files.items():
        _require_text(name, paths)
    tokenizer = make_tokenizer(config, files["train"])
    for file_name, data in tokenizer.files().items():
        (folder / file_name).write_bytes(data)
    between = column_separator(tokenizer) if config.two_columns else None
    splits, line_ends = {}, {}
    for name, paths in files.items():
        counts = Counts()
        writer = SplitWriter(folder, name, tokenizer, between=between, keep_lines=config.needs_lines)
        documents = read_documents(paths, separator=config.corpus.document_separator, counts=counts)
        splits[name] = writer.write(_announced(documents, counts, paths, f"tokenising {name}"), counts)
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
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2), encoding="utf-8")


def make_tokenizer(config: Config, paths: list[Path]) -> Tokenizer:
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
    every_line = (line for path in paths for line in read_lines(path, counts))
    lines = _announced(every_line, counts, paths, "reading for the vocabulary")
    return train_tokenizer(wanted, vocabulary_lines(lines, separator=config.corpus.document_separator))


def _require_text(name: str, paths: list[Path]) -> None:
    if not any(line.strip() for path in paths for line in read_lines(path)):
        listed = ", ".join(map(str, paths))
        raise UsageError(f"corpus.{name}: {listed} contains no text")


def _announced(items: Iterable[Item], counts: Counts, paths: Iterable[Path], description: str) -> Iterator[Item]:
    """Yield ``items`` that are read from ``paths`` and counted in ``counts``, showing how far the reading is."""
    total = sum(path.stat().st_size for path in paths)
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


def documents_of(config: Config, paths: list[Path], counts: Counts) -> Iterator[Document]:
    """Documents of files that are not part of the store, split as the run's corpus is."""
    return read_documents(paths, separator=config.corpus.document_separator, counts=counts)
