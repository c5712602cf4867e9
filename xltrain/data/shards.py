"""Shards: finished parts of a store that is being built, and how they become the store.

A shard is made from a few pieces of the corpus by any process, and its content depends on nothing else. It is done when
its ``.json`` is there, which is written last. So an interrupted preparation goes on with the shards that it lacks.
"""

import json
import os
import secrets
import shutil
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from xltrain.data import corpus
from xltrain.data.copies import Finder, Lines
from xltrain.data.corpus import Counts, Piece
from xltrain.data.encoding import encode_documents
from xltrain.data.files import named_by
from xltrain.data.kinds import column_separator
from xltrain.data.order import block_bounds
from xltrain.data.store import storage_type
from xltrain.data.tokenizer import Tokenizer
from xltrain.data.words import in_corpus


@dataclass(frozen=True)
class Shard:
    """Number ``number`` of the shards of a split, and the pieces that it is made from."""

    split: str
    number: int
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Bytes of text, for progress."""
        return sum(piece.size for piece in self.pieces)

    def file(self, folder: Path, kind: str) -> Path:
        return folder / f"{self.split}-{self.number:06d}.{kind}"


@dataclass(frozen=True)
class Form:
    """What the configuration says of a store beyond its tokenizer.

    two_columns: documents are a source and a target, with a symbol between them.
    keep_lines: whether the ends of lines are kept.
    wanted: lines of other splits that are looked for in the training text.
    """

    two_columns: bool
    keep_lines: bool
    wanted: Lines = field(default_factory=dict)

    def between(self, tokenizer: Tokenizer) -> int | None:
        return column_separator(tokenizer) if self.two_columns else None

    def kinds(self) -> tuple[str, ...]:
        """Files of positions in the tokens."""
        return ("ends", "lines") if self.keep_lines else ("ends",)


def group_pieces(split: str, pieces: Sequence[Piece]) -> list[Shard]:
    """Shards of at least about the size of a piece of a large file, so that small files do not make one each."""
    groups: list[list[Piece]] = []
    size = corpus.PIECE_BYTES
    for piece in pieces:
        if size >= corpus.PIECE_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(piece)
        size += piece.size
    return [Shard(split, number, tuple(group)) for number, group in enumerate(groups)]


def is_finished(shard: Shard, folder: Path) -> bool:
    return shard.file(folder, "json").is_file()


def write_shard(shard: Shard, folder: Path, tokenizer: Tokenizer, form: Form) -> Iterator[int]:
    """Encode the shard's pieces and write its files; yields the bytes of text read since it last did."""
    mark = f"writing-{secrets.token_hex(4)}"
    for leftover in folder.glob(f"{shard.file(folder, '*').name}.writing-*"):  # of a process that was killed
        leftover.unlink(missing_ok=True)
    kinds = ("tokens", *form.kinds(), "unigram", "json")
    new = {kind: Path(f"{shard.file(folder, kind)}.{mark}") for kind in kinds}
    counts, told = Counts(), 0
    unigram = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    finder = Finder(form.wanted if shard.split == "train" else {})
    places = {kind: array("q") for kind in form.kinds()}
    total = 0
    try:
        with new["tokens"].open("wb") as file, named_by(f"corpus.{shard.split}"), in_corpus():
            documents = chain.from_iterable(piece.documents(counts) for piece in shard.pieces)
            between = form.between(tokenizer)
            for encoded in encode_documents(tokenizer, documents, between=between, look=finder.look):
                unigram += np.bincount(encoded.ids, minlength=tokenizer.vocab_size)
                for kind, found in (("ends", encoded.ends), ("lines", encoded.line_ends)):
                    if kind in places:
                        places[kind].frombytes((found + total).tobytes())
                total += len(encoded.ids)
                file.write(encoded.ids.astype(storage_type(tokenizer.vocab_size)).tobytes())
                yield counts.bytes - told
                told = counts.bytes
        for kind, numbers in places.items():
            new[kind].write_bytes(numbers.tobytes())
        new["unigram"].write_bytes(unigram.tobytes())
        facts = {"counts": asdict(counts), "tokens": total, "copied": finder.numbers()}
        facts |= {kind: len(found) for kind, found in places.items()}
        new["json"].write_text(json.dumps(facts), encoding="utf-8")
        for kind in kinds:
            new[kind].rename(shard.file(folder, kind))
    finally:
        for path in new.values():
            path.unlink(missing_ok=True)
    yield counts.bytes - told


@dataclass(frozen=True)
class Assembled:
    """What a split's shards amount to.

    unigram: (V,) how often each id occurs.
    line_ends: how many there are, if they are kept.
    copied: numbers of the lines that were looked for and found.
    """

    counts: Counts
    unigram: np.ndarray
    line_ends: int
    copied: set[int]


def assemble(shards: Sequence[Shard], folder: Path, target: Path, tokenizer: Tokenizer, form: Form) -> Assembled:
    """Join the finished shards in ``folder`` to the files of their split in ``target``.

    Every shard's files are deleted when they are joined, so the disk never holds the store twice; after an interruption
    it goes on with the first shard whose tokens are still there.
    """
    width = storage_type(tokenizer.vocab_size).itemsize
    counts, unigram, copied = Counts(), np.zeros(tokenizer.vocab_size, dtype=np.int64), set()
    done = dict.fromkeys(("tokens", *form.kinds()), 0)
    with ExitStack() as stack:
        files = {kind: stack.enter_context(_opened(target / f"{shards[0].split}.{kind}")) for kind in done}
        for shard in shards:
            facts = json.loads(shard.file(folder, "json").read_text(encoding="utf-8"))
            unigram += np.fromfile(shard.file(folder, "unigram"), dtype=np.int64)
            if shard.file(folder, "tokens").exists():
                files["tokens"].seek(done["tokens"] * width)
                with shard.file(folder, "tokens").open("rb") as source:
                    shutil.copyfileobj(source, files["tokens"], 1 << 22)
                for kind in form.kinds():
                    places = np.fromfile(shard.file(folder, kind), dtype=np.int64) + done["tokens"]
                    files[kind].seek(done[kind] * 8)
                    files[kind].write(places.tobytes())
                for file in files.values():  # before the only other copy goes
                    file.flush()
                    os.fsync(file.fileno())
                for kind in done:
                    shard.file(folder, kind).unlink()
            for kind in done:
                done[kind] += facts[kind]
            counts.add(Counts(**facts["counts"]))
            copied |= set(facts.get("copied", []))
        for kind, file in files.items():
            file.truncate(done[kind] * (width if kind == "tokens" else 8))
    ends = target / f"{shards[0].split}.ends"
    blocks = block_bounds(np.memmap(ends, dtype=np.int64, mode="r"))
    ends.with_suffix(".blocks").write_bytes(blocks.tobytes())
    return Assembled(counts, unigram, done.get("lines", 0), copied)


def _opened(path: Path) -> Any:
    path.touch()
    return path.open("r+b")
