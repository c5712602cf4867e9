"""Rows of two-column text: whole pairs of a source and a target, which neither see nor continue one another.

A pair is [source <sep> target <eod>]. The pairs of an epoch are taken in order; each goes to the first row of the batch
with room for it, and the batch is full at the first pair that fits nowhere. What remains of a row is padding. So where
a stream stands is one number, the next pair of its epoch, and every pair is read once per epoch.

A pair here is a line of two-column text; a pair of ``pairs.py`` is a window of XLNet's, with two texts of a stream.
"""

import numpy as np
import torch

from xltrain.data.order import DocumentOrder
from xltrain.data.passes import Pass
from xltrain.data.store import Split
from xltrain.data.streams import NO_TOKEN, Position, Segment

SOURCE, TARGET = 0, 1
"""Segment ids of the two parts; padding counts as source."""

BLOCK = 1 << 20
"""Pairs that are counted at once."""


def cut(source: np.ndarray, target: np.ndarray, *, seq_len: int) -> tuple[np.ndarray, np.ndarray]:
    """How many tokens of sources and targets are kept, so that each pair fits a row of ``seq_len`` (at least 2).

    The longer part is cut until the pair fits, the source where they are alike (the rule of BERT's pairs). Lengths
    include what closes each part, <sep> and <eod>.
    """
    excess = np.maximum(source + target - seq_len, 0)
    uneven = np.minimum(excess, np.abs(source - target))  # cut from the longer part alone
    even = excess - uneven
    longer = source > target
    kept_source = source - np.where(longer, uneven, 0) - (even + 1) // 2
    kept_target = target - np.where(longer, 0, uneven) - even // 2
    return kept_source, kept_target


def fill(sizes: np.ndarray, *, rows: int, seq_len: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and place in it of each of the leading pairs of ``sizes`` that fit one batch."""
    room = np.full(rows, seq_len)
    row_of, place_of = [], []
    for size in sizes.tolist():
        row = int(np.argmax(room >= size))
        if room[row] < size:
            break
        row_of.append(row)
        place_of.append(seq_len - room[row])
        room[row] -= size
    return np.array(row_of, dtype=np.int64), np.array(place_of, dtype=np.int64)


class Pairs:
    """The pairs of a split, by number.

    Args:
        split: two-column text.
        seq_len: T; longer pairs are cut, see :func:`cut`.
    """

    def __init__(self, split: Split, *, seq_len: int) -> None:
        assert split.line_ends is not None
        self.split, self.seq_len = split, seq_len
        self.middles = split.line_ends

    def lengths(self, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lengths of sources and targets, <sep> and <eod> included."""
        begin = np.where(pairs > 0, self.split.ends[pairs - 1], 0)
        return self.middles[pairs] - begin, self.split.ends[pairs] - self.middles[pairs]

    def count_cut(self) -> tuple[int, int]:
        """How many pairs are longer than a row, and how many tokens of their targets are cut off."""
        long, lost = 0, 0
        for first in range(0, self.split.num_documents, BLOCK):
            source, target = self.lengths(np.arange(first, min(first + BLOCK, self.split.num_documents)))
            long += int((source + target > self.seq_len).sum())
            lost += int((target - cut(source, target, seq_len=self.seq_len)[1]).sum())
        return long, lost

    def batch(
        self, pairs: np.ndarray, *, rows: int, first_row: int = 0, stop_row: int | None = None
    ) -> tuple[Segment, int]:
        """As many of the leading ``pairs`` as fit ``rows`` rows, and how many these are.

        Of the rows only those from ``first_row`` to ``stop_row`` (all by default) are made.
        """
        stop_row = rows if stop_row is None else stop_row
        usual = self.split.num_tokens // self.split.num_documents  # tokens of a pair
        look = rows * (1 + 2 * self.seq_len // usual)
        while True:
            source, target = cut(*self.lengths(pairs[:look]), seq_len=self.seq_len)
            row_of, place_of = fill(source + target, rows=rows, seq_len=self.seq_len)
            if len(row_of) < look or look >= len(pairs):
                break
            look *= 2  # all of them fitted, so there may be room for more
        shape = stop_row - first_row, self.seq_len
        tokens, document, part = np.zeros((3, *shape), dtype=np.int64)
        length = np.zeros(shape[0], dtype=np.int64)
        for number in np.flatnonzero((row_of >= first_row) & (row_of < stop_row)):
            row, place = row_of[number] - first_row, place_of[number]
            middle = place + source[number]
            end = middle + target[number]
            tokens[row, place:end] = self._ids(int(pairs[number]), int(source[number]), int(target[number]))
            document[row, place:end] = number
            part[row, middle:end] = TARGET
            length[row] = end
        none = torch.full((shape[0],), NO_TOKEN)
        segment = Segment(
            tokens=torch.from_numpy(tokens),
            length=torch.from_numpy(length),
            next_token=none,
            document=torch.from_numpy(document),
            next_document=none,
            fresh=torch.ones(shape[0], dtype=torch.bool),
            segment_ids=torch.from_numpy(part),
        )
        return segment, len(row_of)

    def _ids(self, pair: int, source: int, target: int) -> np.ndarray:
        """A pair cut to so many tokens: a source keeps the <sep> at its end, a cut target has no <eod>."""
        begin = int(self.split.ends[pair - 1]) if pair else 0
        middle, tokens = int(self.middles[pair]), self.split.tokens
        return np.concatenate(
            [tokens[begin : begin + source - 1], tokens[middle - 1 : middle], tokens[middle : middle + target]]
        )


class ColumnStream:
    """Endless batches of B rows of whole pairs.

    Args:
        split: two-column text.
        total_rows: B over all processes.
        first_row, rows: which of them this process reads.
        seq_len: T.
        shuffle: take the pairs in a new order every epoch.
        seed: of the shuffling.
    """

    def __init__(
        self,
        split: Split,
        *,
        total_rows: int,
        seq_len: int,
        shuffle: bool,
        seed: int,
        first_row: int = 0,
        rows: int | None = None,
    ) -> None:
        self.split, self.total_rows = split, total_rows
        self.shuffle, self.seed = shuffle, seed
        self.first_row, self.rows = first_row, total_rows if rows is None else rows
        self.pairs = Pairs(split, seq_len=seq_len)
        self._order: DocumentOrder | None = None

    def notes(self) -> list[str]:
        count = self.split.num_documents
        return [f"pairs               {count:,}, as many whole ones to a row as fit", *cut_note(self.pairs)]

    def read(self, position: Position) -> tuple[Segment, Position]:
        """The batch from pair ``position.segment`` of its epoch on; the last one of an epoch may have empty rows."""
        segment, used = self.pairs.batch(
            self._upcoming(position),
            rows=self.total_rows,
            first_row=self.first_row,
            stop_row=self.first_row + self.rows,
        )
        following = Position(position.epoch, position.segment + used)
        if following.segment == self.split.num_documents:
            following = Position(position.epoch + 1, 0)
        return segment, following

    def _upcoming(self, position: Position) -> np.ndarray:
        """Numbers of the pairs from ``position`` on, no fewer than can be in one batch."""
        start = position.segment
        stop = min(start + self.total_rows * self.pairs.seq_len, self.split.num_documents)
        if not self.shuffle:
            return np.arange(start, stop)
        order = self._order
        if order is None or order.epoch != position.epoch:
            order = self._order = DocumentOrder(self.split.num_documents, seed=self.seed, epoch=position.epoch)
        return order.numbers(start, stop)


def cut_note(pairs: Pairs) -> list[str]:
    """What is cut, for the log; nothing if every pair fits a row."""
    long, lost = pairs.count_cut()
    if not long:
        return []
    return [
        f"pairs cut           {long:,} of {pairs.split.num_documents:,} are longer than seq_len {pairs.seq_len}: the "
        f"longer part is cut at its end, in all {lost:,} target tokens"
    ]


def every_pair(split: Split, *, seq_len: int, rows: int) -> Pass:
    """Every pair once, in order; see :mod:`xltrain.data.passes`."""
    pairs, first = Pairs(split, seq_len=seq_len), 0
    while first < split.num_documents:
        upcoming = np.arange(first, min(first + rows * seq_len, split.num_documents))  # no fewer than fit
        segment, used = pairs.batch(upcoming, rows=rows)
        yield segment, torch.full((rows,), first), torch.ones(rows, dtype=torch.bool)
        first += used
