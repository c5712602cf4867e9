"""The text of an epoch: all documents, end to end, in the order of that epoch; and the part of it that a row reads."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from xltrain.data.store import Split


def document_order(documents: int, *, seed: int, epoch: int) -> np.ndarray:
    """(documents,) numbers of the documents in the order in which an epoch reads them."""
    return np.random.default_rng((seed, epoch)).permutation(documents)


class EpochText:
    """The documents of a split in file order, or in an order drawn from (seed, epoch). Places count tokens."""

    def __init__(self, split: Split, *, epoch: int, shuffle: bool, seed: int) -> None:
        self.split, self.shuffle = split, shuffle
        self._order, self._ends = np.zeros(0, dtype=np.int64), split.ends
        if shuffle:
            self._order = document_order(split.num_documents, seed=seed, epoch=epoch)
            self._ends = np.cumsum(split.lengths()[self._order])

    def window(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """``count`` tokens from ``start`` on, and the number, in this order, of each one's document."""
        places = np.arange(start, start + count)
        document = np.searchsorted(self._ends, places, side="right")
        if not self.shuffle:
            return self.split.tokens[start : start + count].astype(np.int64), document
        tokens = np.empty(count, dtype=np.int64)
        for number in range(document[0], document[-1] + 1):
            inside = document == number
            begin = places[inside][0] + self._shift(number)
            tokens[inside] = self.split.tokens[begin : begin + inside.sum()]
        return tokens, document

    def line(self, place: int) -> tuple[int, int]:
        """Where the line of the token at ``place`` begins and ends; a document's last line has its <eod>."""
        line_ends = self.split.line_ends
        assert line_ends is not None
        number = int(np.searchsorted(self._ends, place, side="right"))
        shift = self._shift(number)
        begin, end = int(self._ends[number - 1]) if number else 0, int(self._ends[number])
        after = int(np.searchsorted(line_ends, place + shift, side="right"))
        if after and line_ends[after - 1] - shift > begin:
            begin = int(line_ends[after - 1]) - shift
        if after < len(line_ends) and line_ends[after] - shift < end:
            end = int(line_ends[after]) - shift
        return begin, end

    def _shift(self, number: int) -> int:
        """What is added to a place in the number-th document of this order to get the place in the split."""
        return int(self.split.ends[self._order[number]] - self._ends[number]) if self.shuffle else 0


@dataclass(frozen=True)
class RowText:
    """The run of an epoch's text that one row reads: ``size`` tokens from ``start`` on, or these from their end."""

    text: EpochText
    start: int
    size: int
    backward: bool

    def window(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """``count`` tokens from the row's place ``start`` on, and their documents."""
        if not self.backward:
            return self.text.window(self.start + start, count)
        tokens, document = self.text.window(self.start + self.size - start - count, count)
        return tokens[::-1], document[::-1]

    def line(self, place: int) -> tuple[int, int]:
        """Where the line of the token at ``place`` begins and ends, or the part of it that is in this row."""
        if self.backward:
            begin, end = self.text.line(self.start + self.size - 1 - place)
            begin, end = self.start + self.size - end, self.start + self.size - begin
        else:
            begin, end = self.text.line(self.start + place)
            begin, end = begin - self.start, end - self.start
        return max(begin, 0), min(end, self.size)


@dataclass(frozen=True)
class Runs:
    """How rows share the text: equal runs, one per row, or one for a forward and a backward row."""

    split: Split
    total_rows: int
    bidirectional: bool

    @property
    def count(self) -> int:
        return self.total_rows // 2 if self.bidirectional else self.total_rows

    @property
    def size(self) -> int:
        """Tokens of a run; fewer than ``count`` are left over."""
        return self.split.num_tokens // self.count

    def row(self, text: EpochText, row: int) -> RowText:
        return RowText(text, row % self.count * self.size, self.size, row >= self.count)

    def directions(self, rows: Iterable[int]) -> Tensor | None:
        """(B,) 1 for rows that run backward, 0 for others; None where none of all rows does."""
        return torch.tensor([int(row >= self.count) for row in rows]) if self.bidirectional else None
