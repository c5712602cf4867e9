"""The token store: ids on disk, memory-mapped, with the ends of documents and the counts of the text."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xltrain.data.corpus import Counts, Document
from xltrain.data.encoding import encode_documents
from xltrain.data.kinds import load_tokenizer
from xltrain.data.order import num_blocks
from xltrain.data.tokenizer import Tokenizer
from xltrain.errors import UsageError

FORMAT = 4


@dataclass(frozen=True)
class Split:
    """The tokens of one split.

    tokens: (tokens,) ids, every document followed by <eod>.
    ends: (documents,) where each document ends, its <eod> included.
    counts: documents, lines, bytes, characters, words, tokens (without <eod>), unknown.
    line_ends: where lines end inside of documents, the last line of each left out; of two-column text, where each
        source ends. None: not kept.
    blocks: bounds of the blocks in which documents are reordered, see :mod:`xltrain.data.order`. None: not kept.
    """

    name: str
    tokens: np.ndarray
    ends: np.ndarray
    counts: dict[str, int]
    line_ends: np.ndarray | None = None
    blocks: np.ndarray | None = None

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
        return self.manifest["training_fingerprint"]

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
        blocks = self._mapped(f"{name}.blocks", np.dtype(np.int64), num_blocks(counts["documents"]) + 1)
        return Split(name, tokens, ends, counts, line_ends, blocks)

    def _mapped(self, file_name: str, dtype: np.dtype[Any], count: int) -> np.ndarray:
        path = self.folder / file_name
        if not path.is_file() or path.stat().st_size != count * dtype.itemsize:
            raise UsageError(
                f"{path}: damaged, not the {count:,} numbers it held; delete {self.folder} and start again"
            )
        # As a plain array over the mapped file: a memmap takes several times as long to be cut.
        return np.asarray(np.memmap(path, dtype=dtype, mode="r")) if count else np.zeros(0, dtype=dtype)

    def unigram(self) -> np.ndarray:
        """(V,) how often each id occurs in the training text.

        Raises:
            UsageError: if the file is not what the manifest says.
        """
        return np.array(self._mapped("unigram", np.dtype(np.int64), self.vocab_size))


def storage_type(vocab_size: int) -> np.dtype[Any]:
    """16 bits where every id fits, 32 above."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


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


def split_in_memory(
    name: str, documents: Iterable[Document], counts: Counts, tokenizer: Tokenizer, *, between: int | None = None
) -> Split:
    """A split of text that is not part of the run's corpus, for evaluation."""
    none = np.zeros(0, dtype=np.int64)
    parts, ends, line_ends, total = [none], [none], [none], 0
    for encoded in encode_documents(tokenizer, documents, between=between):
        parts.append(encoded.ids)
        ends.append(total + encoded.ends)
        line_ends.append(total + encoded.line_ends)
        total += len(encoded.ids)
    tokens = np.concatenate(parts)
    unigram = np.bincount(tokens, minlength=tokenizer.vocab_size)
    found = split_counts(counts, ids=unigram, tokenizer=tokenizer, between=between)
    return Split(name, tokens, np.concatenate(ends), found, np.concatenate(line_ends))
