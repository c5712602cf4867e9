"""The token store: ids on disk, memory-mapped, with the ends of documents and the counts of the text."""

import json
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xltrain.data.corpus import Counts, Document
from xltrain.data.kinds import load_tokenizer
from xltrain.data.tokenizer import Tokenizer
from xltrain.errors import UsageError

FORMAT = 2
BATCH_CHARACTERS = 4_000_000
"""Text that is encoded at once; bounds the memory of preparation."""


@dataclass(frozen=True)
class Split:
    """The tokens of one split.

    tokens: (tokens,) ids, every document followed by <eod>.
    ends: (documents,) where each document ends, its <eod> included.
    counts: documents, lines, bytes, characters, words, tokens (without <eod>), unknown.
    line_ends: where lines end inside of documents, the last line of each left out; of two-column text, where each
        source ends. None: not kept.
    """

    name: str
    tokens: np.ndarray
    ends: np.ndarray
    counts: dict[str, int]
    line_ends: np.ndarray | None = None

    @property
    def num_tokens(self) -> int:
        return int(self.tokens.shape[0])

    @property
    def num_documents(self) -> int:
        return int(self.ends.shape[0])

    def lengths(self) -> np.ndarray:
        return np.diff(self.ends, prepend=0)

    def first(self, tokens: int) -> "Split":
        """The whole documents within the first ``tokens`` tokens, or the first document if that is longer."""
        keep = max(1, int(np.searchsorted(self.ends, tokens, side="right")))
        ends, line_ends = self.ends[:keep], self.line_ends
        if line_ends is not None:
            line_ends = line_ends[: np.searchsorted(line_ends, ends[-1])]
        return Split(self.name, self.tokens[: ends[-1]], ends, self.counts, line_ends)


@dataclass(frozen=True)
class Store:
    """A finished store in ``folder``."""

    folder: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, folder: Path) -> "Store":
        return cls(folder, json.loads((folder / "manifest.json").read_text(encoding="utf-8")))

    @property
    def fingerprint(self) -> str:
        return self.manifest["fingerprint"]

    @property
    def training_fingerprint(self) -> str:
        return self.manifest["training"]

    @property
    def vocab_size(self) -> int:
        return self.manifest["tokenizer"]["vocab_size"]

    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.folder)

    def has(self, name: str) -> bool:
        return name in self.manifest["splits"]

    def split(self, name: str) -> Split:
        """The memory-mapped tokens of a split.

        Raises:
            UsageError: if its files are not what the manifest says.
        """
        counts = self.manifest["splits"][name]
        total = counts["tokens"] + counts["documents"] * self.manifest["boundaries"]
        tokens = self._mapped(f"{name}.tokens", np.dtype(self.manifest["dtype"]), total)
        ends = self._mapped(f"{name}.ends", np.dtype(np.int64), counts["documents"])
        line_ends = None
        if (kept := self.manifest["line_ends"]) is not None:
            line_ends = self._mapped(f"{name}.lines", np.dtype(np.int64), kept[name])
        return Split(name, tokens, ends, counts, line_ends)

    def _mapped(self, file_name: str, dtype: np.dtype[Any], count: int) -> np.ndarray:
        path = self.folder / file_name
        if not path.is_file() or path.stat().st_size != count * dtype.itemsize:
            raise UsageError(
                f"{path}: damaged, not the {count:,} numbers it held; delete {self.folder} and start again"
            )
        return np.memmap(path, dtype=dtype, mode="r") if count else np.zeros(0, dtype=dtype)

    def unigram(self) -> np.ndarray:
        """(V,) how often each id occurs in the training text."""
        return np.fromfile(self.folder / "unigram", dtype=np.int64)


def storage_type(vocab_size: int) -> np.dtype[Any]:
    """16 bits where every id fits, 32 above."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


class SplitWriter:
    """Encodes documents and appends them to the files of a split."""

    def __init__(
        self, folder: Path, name: str, tokenizer: Tokenizer, *, between: int | None = None, keep_lines: bool = False
    ) -> None:
        """``between``: see :func:`encode_documents`; ``keep_lines``: whether ends of lines are written."""
        self.folder, self.name, self.tokenizer = folder, name, tokenizer
        self.between, self.keep_lines = between, keep_lines
        self.num_line_ends = 0
        self.dtype = storage_type(tokenizer.vocab_size)
        self.unigram = np.zeros(tokenizer.vocab_size, dtype=np.int64)

    def write(self, documents: Iterable[Document], counts: Counts) -> dict[str, int]:
        """Write all documents; returns the counts that the manifest keeps."""
        ends = array("q")
        line_ends = array("q")
        total = 0
        with (self.folder / f"{self.name}.tokens").open("wb") as file:
            for batch in _batches(documents):
                encoded = encode_documents(self.tokenizer, batch, between=self.between)
                self.unigram += np.bincount(encoded.ids, minlength=self.tokenizer.vocab_size)
                ends.extend((total + encoded.ends).tolist())
                if self.keep_lines:
                    line_ends.extend((total + encoded.line_ends).tolist())
                total += len(encoded.ids)
                encoded.ids.astype(self.dtype).tofile(file)
        if total == 0:
            raise UsageError(f"corpus.{self.name} contains no text")
        with (self.folder / f"{self.name}.ends").open("wb") as file:
            ends.tofile(file)
        if self.keep_lines:
            self.num_line_ends = len(line_ends)
            with (self.folder / f"{self.name}.lines").open("wb") as file:
                line_ends.tofile(file)
        return split_counts(counts, ids=self.unigram, tokenizer=self.tokenizer, between=self.between)


def boundaries(tokenizer: Tokenizer, between: int | None) -> int:
    """How many symbols that no text makes are in every document: its <eod>, and what parts its two columns."""
    return (tokenizer.eod is not None) + (between is not None)


def split_counts(
    counts: Counts, *, ids: np.ndarray, tokenizer: Tokenizer, between: int | None = None
) -> dict[str, int]:
    """Counts of text and, from how often each id occurs, of tokens."""
    unknown = int(ids[tokenizer.unk]) if tokenizer.unk >= 0 else 0
    made = int(ids.sum()) - counts.documents * boundaries(tokenizer, between)
    return counts.text() | {"tokens": made, "unknown": unknown}


@dataclass(frozen=True)
class Encoded:
    """Documents, end to end: their ids, where each complete one ends, and where lines end inside of them."""

    ids: np.ndarray
    ends: np.ndarray
    line_ends: np.ndarray


def encode_documents(tokenizer: Tokenizer, documents: list[Document], *, between: int | None = None) -> Encoded:
    """Documents as ids, each followed by <eod>; ``between``: put after every line of a document but its last."""
    encoded = tokenizer.encode([line for document in documents for line in document.lines])
    ids, ends, line_ends = array("q"), array("q"), array("q")
    line = 0
    for document in documents:
        begin, last = len(ids), line + len(document.lines) - 1
        for number, line_ids in enumerate(encoded[line : last + 1], start=line):
            ids.extend(line_ids)
            if between is not None and number < last:
                ids.append(between)
            if len(ids) > begin:  # a line without tokens ends nothing
                line_ends.append(len(ids))
                begin = len(ids)
        line = last + 1
        if not document.complete:
            continue
        if line_ends and line_ends[-1] == len(ids):
            line_ends.pop()
        if tokenizer.eod is not None:
            ids.append(tokenizer.eod)
        ends.append(len(ids))
    return Encoded(_as_numbers(ids), _as_numbers(ends), _as_numbers(line_ends))


def _as_numbers(found: "array[int]") -> np.ndarray:
    return np.frombuffer(found, dtype=np.int64) if found else np.zeros(0, dtype=np.int64)


def split_in_memory(
    name: str, documents: Iterable[Document], counts: Counts, tokenizer: Tokenizer, *, between: int | None = None
) -> Split:
    """A split of text that is not part of the run's corpus, for evaluation."""
    none = np.zeros(0, dtype=np.int64)
    parts, ends, line_ends, total = [none], [none], [none], 0
    for batch in _batches(documents):
        encoded = encode_documents(tokenizer, batch, between=between)
        parts.append(encoded.ids)
        ends.append(total + encoded.ends)
        line_ends.append(total + encoded.line_ends)
        total += len(encoded.ids)
    tokens = np.concatenate(parts)
    unigram = np.bincount(tokens, minlength=tokenizer.vocab_size)
    found = split_counts(counts, ids=unigram, tokenizer=tokenizer, between=between)
    return Split(name, tokens, np.concatenate(ends), found, np.concatenate(line_ends))


def _batches(documents: Iterable[Document]) -> Iterable[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += sum(map(len, document.lines))
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
