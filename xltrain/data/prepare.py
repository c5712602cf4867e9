"""From corpus files to a token store: built once, found again by its fingerprint."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from xltrain import console
from xltrain.config.schema import Config
from xltrain.config.text import SourceConfig
from xltrain.data.building import Building, full_disk_told
from xltrain.data.copies import lines_to_find
from xltrain.data.corpus import Counts, Piece, vocabulary_lines
from xltrain.data.digests import Digests
from xltrain.data.files import digest, named_by
from xltrain.data.kinds import check_special_pieces, cleanup_of, read_tokenizer, train_tokenizer
from xltrain.data.locks import locked
from xltrain.data.naming import files_of, fingerprints, marks_of
from xltrain.data.shards import Form, Shard, group_pieces
from xltrain.data.sources import STANDARD_INPUT, Source, find_sources
from xltrain.data.store import FORMAT, Store
from xltrain.data.tokenizer import Tokenizer, describe
from xltrain.data.warnings import (
    warn_of_copied_lines,
    warn_of_copies,
    warn_of_overlap,
    warn_of_store,
    warn_of_unknown,
)
from xltrain.data.workers import available_cores
from xltrain.errors import UsageError, XltrainError

SPLITS = ("train", "validation", "test")

Item = TypeVar("Item")


@dataclass(frozen=True)
class Prepared:
    """A store, and whether it was there already."""

    store: Store
    reused: bool


@dataclass(frozen=True)
class Waiting:
    """A part of a store is done, and the others are not."""

    fingerprint: str
    finished: int
    shards: int


def prepare(config: Config, *, standard_input: BinaryIO | None = None, continues: str | None = None) -> Prepared:
    """The store of this configuration's corpus and tokenizer, built if it does not exist.

    What an interrupted preparation of the same store has finished is used. Another process that prepares it is waited
    for.

    Args:
        standard_input: what `-` in corpus.train stands for. It is kept as a file, since it has to be read twice.
        continues: training fingerprint of the run that is continued; None: it is a new one.

    Raises:
        UsageError: for missing, empty or undecodable files, and vocabularies that the text cannot give; and, before
            anything is built, for another training text or tokenizer than that of the run that is continued.
        XltrainError: if a file changes while it is read.
    """
    if standard_input is not None:
        config = _with_standard_input(config, standard_input)
    found = _Found.of(config)
    if continues not in (None, found.marks["training_fingerprint"]):
        raise UsageError(
            f"{config.run.folder}: this run was trained on another corpus or tokenizer (fingerprint {continues}, now "
            f"{found.marks['training_fingerprint']}); restore what corpus.train and the tokenizer section name, or "
            f"start a new run from its weights: another run.output_dir, and run.init_from {config.run.folder}"
        )
    if (store := _existing(found)) is not None:
        return store
    building = _building(found)
    with building.alone():
        if (store := _existing(found)) is not None:  # made by the one that was waited for
            return store
        building.remove_others()
        building.write(building.shards)
        found.require_unchanged()
        return _finished(found, building)


def prepare_part(config: Config, *, part: int, parts: int) -> Prepared | Waiting:
    """Part ``part`` (from 1) of ``parts`` of the store; the store itself, if it was the last one that was missing.

    Several machines that share ``corpus.cache_dir`` prepare one store so.
    """
    found = _Found.of(config)
    if (store := _existing(found)) is not None:
        return store
    building = _building(found)
    with building.together(part, parts):
        if (store := _existing(found)) is not None:
            return store
        building.write(building.shards[part - 1 :: parts])
        found.require_unchanged()
        missing = len(building.missing(building.shards))
    found.digests.keep()
    if missing:
        return Waiting(found.marks["fingerprint"], len(building.shards) - missing, len(building.shards))
    with building.alone():
        return _existing(found) or _finished(found, building)


@dataclass(frozen=True)
class _Found:
    """The text of a configuration as it is now.

    sources: by split.
    marks: what names their store.
    stamps: size and time of the last change of every file; None: it is not there any more.
    overlaps: splits of which a whole file or dataset is trained on.
    """

    config: Config
    sources: dict[str, list[Source]]
    marks: dict[str, str]
    stamps: dict[Path, tuple[int, int] | None]
    digests: Digests
    overlaps: list[str]

    @classmethod
    def of(cls, config: Config) -> "_Found":
        """Says what is doubtful in the sources."""
        sources = corpus_sources(config)
        stamps = {file: _stamp(file) for file in files_of(sources) if isinstance(file, Path)}
        digests = Digests(Path(config.corpus.cache_dir).expanduser())
        content = marks_of(sources, digests)
        overlaps = warn_of_overlap(config.corpus)
        warn_of_copies(sources["train"], content["train"])
        return cls(config, sources, fingerprints(config, content), stamps, digests, overlaps)

    def require_unchanged(self) -> None:
        """Refuse to keep under the name of one text what was made while that became another."""
        changed = [file for file, stamp in self.stamps.items() if _stamp(file) != stamp]
        if changed and fingerprints(self.config, marks_of(self.sources, self.digests)) != self.marks:
            raise XltrainError(
                f"{changed[0]} changed while it was read; start again when nothing writes to it any more"
            )

    @property
    def store_folder(self) -> Path:
        return Path(self.config.corpus.cache_dir).expanduser() / f"store-{self.marks['fingerprint']}"


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _cache(config: Config) -> Path:
    """corpus.cache_dir, made if need be."""
    root = Path(config.corpus.cache_dir).expanduser()
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not os.access(root, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        problem = f"corpus.cache_dir: {root} cannot be used ({error.strerror}); choose another folder"
        raise UsageError(problem) from None
    return root


def _existing(found: _Found) -> Prepared | None:
    folder = found.store_folder
    if not (folder / "manifest.json").is_file():
        return None
    console.say(f"reusing the token store {folder}")
    store = _checked(Store.open(folder))
    found.digests.keep()
    warn_of_unknown(store, given=found.config.tokenizer.path)
    warn_of_copied_lines(store, known=found.overlaps)
    return Prepared(store, reused=True)


def _building(found: _Found) -> Building:
    config, sources, marks = found.config, found.sources, found.marks
    shards: list[Shard] = []
    for name, of_split in sources.items():
        with named_by(f"corpus.{name}"):
            shards += group_pieces(name, [piece for source in of_split for piece in source.pieces()])

    def tokenizer() -> Tokenizer:
        for name, of_split in sources.items():
            with named_by(f"corpus.{name}"):
                _require_text(name, of_split)
        if config.tokenizer.path is None and (trained := _trained_before(config, marks)) is not None:
            return trained
        with named_by("corpus.train"):
            return make_tokenizer(config, sources["train"])

    return Building(
        _cache(config) / f"building-{marks['fingerprint']}",
        shards,
        make_tokenizer=tokenizer,
        form=Form(
            two_columns=config.two_columns,
            keep_lines=config.needs_lines,
            wanted={} if config.two_columns else lines_to_find(sources),
        ),
        num_workers=config.corpus.num_workers or available_cores(),
    )


def _trained_before(config: Config, marks: dict[str, str]) -> Tokenizer | None:
    """The tokenizer of a store that has the same training text and settings, and other validation or test texts."""
    for store in stores_of(config, marks["training_fingerprint"]):
        try:
            tokenizer = store.tokenizer()
        except (OSError, ValueError, KeyError, UsageError):  # damaged, or another process is removing it
            continue
        if describe(tokenizer) == store.manifest["tokenizer"]:
            console.say(f"using the tokenizer of {store.folder}, which has the same training text and settings")
            tokenizer.training = store.manifest["training"]
            return tokenizer
    return None


def stores_of(config: Config, training_fingerprint: str | None = None) -> Iterator[Store]:
    """Stores in corpus.cache_dir, all or those of one training text and tokenizer; their files are not checked."""
    for path in sorted(Path(config.corpus.cache_dir).expanduser().glob("store-*/manifest.json")):
        try:
            store = Store.open(path.parent)
            if store.manifest["format"] == FORMAT and training_fingerprint in (None, store.training_fingerprint):
                yield store
        except (OSError, ValueError, KeyError):  # damaged, or another process is removing it
            continue


def prepared_before(config: Config) -> Store | None:
    """A store of this training text and tokenizer, if there is one; for files on this machine only.

    The files' digests are needed for it, as at the start of a run, if there is any store of such a tokenizer.
    """
    entries = config.corpus.train
    named = [file for entry in entries for file in ([entry] if isinstance(entry, str) else entry.files)]
    if any(isinstance(entry, SourceConfig) and entry.dataset for entry in entries) or "://" in " ".join(named):
        return None
    if not any(store.manifest["tokenizer"]["kind"] == config.tokenizer.kind for store in stores_of(config)):
        return None
    try:
        found = find_sources(entries, config.corpus, key="corpus.train")
        digests = Digests(Path(config.corpus.cache_dir).expanduser())
        marks = fingerprints(config, marks_of({"train": found}, digests))
    except UsageError:  # the text is not here, or is none
        return None
    return next(stores_of(config, marks["training_fingerprint"]), None)


def _finished(found: _Found, building: Building) -> Prepared:
    folder = found.store_folder
    building.finish(folder, found.marks)
    found.digests.keep()
    console.say(f"wrote the token store {folder}")
    store = _checked(Store.open(folder))
    warn_of_store(store, given=found.config.tokenizer.path)
    warn_of_copied_lines(store, known=found.overlaps)
    return Prepared(store, reused=False)


def _with_standard_input(config: Config, standard_input: BinaryIO) -> Config:
    """The configuration with the path of a copy in place of `-`, where corpus.train names that."""
    entries = config.corpus.train
    if not any(STANDARD_INPUT in (entry.files if isinstance(entry, SourceConfig) else [entry]) for entry in entries):
        return config
    console.say("reading the corpus from standard input")
    root = _cache(config)
    building = root / f"building-{secrets.token_hex(8)}"
    try:
        with full_disk_told(root), locked(building / "lock"):
            copy = building / "standard-input"
            with copy.open("wb") as file:
                shutil.copyfileobj(standard_input, file, 1 << 20)
            kept = root / f"standard-input-{digest(copy)[:16]}"
            copy.rename(kept)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    console.say(f"kept standard input as {kept}: name that in corpus.train to train on it")
    paths = {STANDARD_INPUT: str(kept)}
    train = [
        entry.model_copy(update={"files": [paths.get(file, file) for file in entry.files]})
        if isinstance(entry, SourceConfig)
        else paths.get(entry, entry)
        for entry in entries
    ]
    return config.model_copy(update={"corpus": config.corpus.model_copy(update={"train": train})})


def _checked(store: Store) -> Store:
    """Opens every split, so that damage is found here."""
    store.unigram()
    for name in store.manifest["splits"]:
        store.split(name)
    return store


def corpus_sources(config: Config) -> dict[str, list[Source]]:
    """The sources of every split that the configuration names."""
    entries = {name: getattr(config.corpus, name) for name in SPLITS}
    return {
        name: find_sources(given, config.corpus, key=f"corpus.{name}", split=name)
        for name, given in entries.items()
        if given
    }


def make_tokenizer(config: Config, sources: list[Source]) -> Tokenizer:
    """Read or train the tokenizer that the configuration asks for."""
    wanted = config.tokenizer
    if wanted.path is not None:
        path, cleanup = Path(wanted.path).expanduser(), cleanup_of(wanted)
        found = read_tokenizer(path, kind=wanted.kind, cleanup=cleanup, eos=wanted.eos, lower=wanted.lower)
        check_special_pieces(found, source=wanted.path)
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
