"""The text of an epoch: all documents, end to end, in the order of that epoch; and the part of it that a row reads."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from xltrain.data.order import DocumentOrder, block_bounds
from xltrain.data.store import Split


@dataclass(frozen=True)
class Stretch:
    """Documents that follow one another in an epoch.

    first: turn of the first one.
    begin: where it begins in the epoch's text.
    ends: (documents,) where each ends in the epoch's text.
    shifts: (documents,) what is added to a place in the epoch's text to get the place in the split.
    """

    first: int
    begin: int
    ends: np.ndarray
    shifts: np.ndarray


class EpochText:
    """The documents of a split in file order, or in an order drawn from (seed, epoch). Places count tokens."""

    def __init__(self, split: Split, *, epoch: int, shuffle: bool, seed: int) -> None:
        self.split = split
        self._order: DocumentOrder | None = None
        self._all: Stretch | None = None
        if not shuffle:
            self._all = Stretch(0, 0, split.ends, np.broadcast_to(np.int64(0), split.ends.shape))
            return
        self._order = DocumentOrder(split.num_documents, seed=seed, epoch=epoch)
        if self._order.size == 1:
            ends = np.asarray(split.ends)[self._order.blocks]
            turned = np.cumsum(split.lengths()[self._order.blocks])
            self._all = Stretch(0, 0, turned, ends - turned)
            return
        self._bounds = split.blocks if split.blocks is not None else block_bounds(split.ends)
        self._block_ends = np.cumsum(np.diff(self._bounds)[self._order.blocks])

    def _around(self, place: int) -> Stretch:
        """Documents among which is the one that holds ``place``."""
        if self._all is not None:
            return self._all
        assert self._order is not None
        turn = int(np.searchsorted(self._block_ends, place, side="right"))
        block = int(self._order.blocks[turn])
        first, begin = block * self._order.size, int(self._bounds[block])
        ends = np.asarray(self.split.ends[first : first + self._order.size])
        inside = self._order.block(turn) - first
        lengths = np.diff(ends, prepend=begin)[inside]
        turned_begin = int(self._block_ends[turn] - (self._bounds[block + 1] - begin))
        turned = turned_begin + np.cumsum(lengths)
        return Stretch(int(self._order.firsts[turn]), turned_begin, turned, ends[inside] - turned)

    def window(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """``count`` tokens from ``start`` on, and the turn, in this order, of each one's document."""
        tokens = np.empty(count, dtype=np.int64)
        document = np.empty(count, dtype=np.int64)
        done = 0
        while done < count:
            found = self._around(start + done)
            first = int(np.searchsorted(found.ends, start + done, side="right"))
            stop = min(start + count, int(found.ends[-1]))
            places = np.arange(start + done, stop)
            last = int(np.searchsorted(found.ends, stop - 1, side="right"))
            inside = first + np.searchsorted(found.ends[first : last + 1], places, side="right")
            part = slice(done, done + len(places))
            document[part] = found.first + inside
            if first == last:
                begin = start + done + int(found.shifts[first])
                tokens[part] = self.split.tokens[begin : begin + len(places)]
            else:
                tokens[part] = self.split.tokens[places + found.shifts[inside]]
            done += len(places)
        return tokens, document

    def line(self, place: int) -> tuple[int, int]:
        """Where the line of the token at ``place`` begins and ends; a document's last line has its <eod>."""
        line_ends = self.split.line_ends
        assert line_ends is not None
        found = self._around(place)
        number = int(np.searchsorted(found.ends, place, side="right"))
        shift, end = int(found.shifts[number]), int(found.ends[number])
        begin = int(found.ends[number - 1]) if number else found.begin
        after = int(np.searchsorted(line_ends, place + shift, side="right"))
        if after and line_ends[after - 1] - shift > begin:
            begin = int(line_ends[after - 1]) - shift
        if after < len(line_ends) and line_ends[after] - shift < end:
            end = int(line_ends[after]) - shift
        return begin, end

    def line_ends(self, start: int, stop: int) -> np.ndarray:
        """Where lines end after ``start`` and before ``stop``, those at the ends of documents too."""
        line_ends = self.split.line_ends
        assert line_ends is not None
        parts, done = [np.zeros(0, dtype=np.int64)], start
        while done < stop:
            found = self._around(done)
            number = int(np.searchsorted(found.ends, done, side="right"))
            end, shift = int(found.ends[number]), found.shifts[number]
            inside = np.searchsorted(line_ends, [done + shift + 1, min(end, stop) + shift])
            parts.append(line_ends[inside[0] : inside[1]] - shift)
            if end < stop:
                parts.append(np.array([end]))
            done = end
        return np.concatenate(parts)


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

    def line_ends(self, start: int, stop: int) -> np.ndarray:
        """Where lines end after ``start`` and before ``stop``, both places of the row."""
        if not self.backward:
            return self.text.line_ends(self.start + start, self.start + stop) - self.start
        last = self.start + self.size
        return last - self.text.line_ends(last - stop, last - start)[::-1]


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
