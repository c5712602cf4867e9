"""The token stream cut into rows, and rows into segments that continue one another.

Row b of B is a contiguous run of the (epoch's) text; segment t of a row starts where its segment t-1 ended. Where a
stream stands is two integers, so a saved position needs nothing else.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from xltrain.data.epochs import EpochText, Runs
from xltrain.data.store import Split
from xltrain.errors import UsageError

NO_TOKEN = -1


@dataclass(frozen=True)
class Segment:
    """B rows of T tokens.

    tokens: (B, T) ids; 0 after the end of a row's text.
    length: (B,) how many of them are text.
    next_token: (B,) the token after the last one; -1 where the row's text ends.
    document: (B, T) number of each token's document; a document's closing <eod> belongs to it.
    next_document: (B,) document of ``next_token``.
    fresh: (B,) bool, true where the row does not continue what it read before.
    backward: (B,) 1 where the row's text is reversed, 0 elsewhere; None: all rows run forward.
    segment_ids: (B, T) part of each token, where rows are made of parts: 0 source, 1 target of two-column text.
    """

    tokens: Tensor
    length: Tensor
    next_token: Tensor
    document: Tensor
    next_document: Tensor
    fresh: Tensor
    backward: Tensor | None = None
    segment_ids: Tensor | None = None

    def rows(self, start: int, stop: int) -> "Segment":
        return self._each(lambda tensor: tensor[start:stop])

    def to(self, device: torch.device) -> "Segment":
        return self._each(lambda tensor: moved(tensor, device))

    def _each(self, change: Any) -> "Segment":
        given = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return replace(self, **{name: change(value) for name, value in given.items() if value is not None})


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """The same there; from the host to a GPU without waiting for it."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@dataclass(frozen=True)
class Position:
    """Where a stream stands: the next segment to read; of two-column text, the next pair."""

    epoch: int = 0
    segment: int = 0
    read: int = field(default=0, compare=False)
    """Segments that were read in all epochs; counted where their length changes with it."""


class Stream(Protocol):
    """Endless segments, each read from a position that says all about what was read before it."""

    def read(self, position: Position) -> tuple[Segment, Position]:
        """The segment at ``position`` and the position after it."""
        ...

    def notes(self) -> list[str]:
        """Lines for the log on what is left out or cut."""
        ...


class TrainingStream:
    """Endless segments of B rows.

    Every epoch, the documents (in file order, or reshuffled by (seed, epoch)) are laid end to end and cut into
    ``total_rows`` equal runs; a remainder shorter than a segment per row is left out of that epoch.

    Args:
        split: the text.
        total_rows: B over all processes.
        first_row, rows: which of them this process reads.
        seq_len: T.
        advance: tokens between the starts of a row's segments: T, or the length of the reused part.
        unit: tokens that a position's ``segment`` counts, a divisor of ``advance``; by default all of it.
        bidirectional: rows of the second half read the text of the first half's, in reverse.
        shuffle: reshuffle documents every epoch.
        seed: of the shuffling.

    Raises:
        UsageError: if the text is shorter than one segment per row.
    """

    def __init__(
        self,
        split: Split,
        *,
        total_rows: int,
        seq_len: int,
        shuffle: bool,
        seed: int,
        advance: int | None = None,
        unit: int | None = None,
        bidirectional: bool = False,
        first_row: int = 0,
        rows: int | None = None,
    ) -> None:
        self.split, self.total_rows, self.seq_len = split, total_rows, seq_len
        self.shuffle, self.seed = shuffle, seed
        self.first_row, self.rows = first_row, total_rows if rows is None else rows
        self.advance = advance or seq_len
        self.unit = unit or self.advance
        self.runs = Runs(split, total_rows, bidirectional)
        self.segments_per_epoch = (self.runs.size - seq_len - 1) // self.advance + 1
        if self.segments_per_epoch < 1:
            needed, has = self.runs.count * (seq_len + 1), split.num_tokens
            raise UsageError(
                f"corpus.{split.name}: needs at least {needed:,} tokens ({self.runs.count} rows x (seq_len {seq_len} "
                f"+ 1)), this text has {has:,}; add text, or lower training.batch_size, "
                "training.accumulate or segments.seq_len"
            )
        self._text: tuple[int, EpochText] | None = None

    @property
    def unused_per_epoch(self) -> int:
        """Tokens of an epoch that are in no segment."""
        in_row = (self.segments_per_epoch - 1) * self.advance + self.seq_len
        return self.split.num_tokens - self.runs.count * in_row

    def notes(self) -> list[str]:
        unused, total = self.unused_per_epoch, self.split.num_tokens
        if not unused:
            return []
        return [f"unused per epoch    {unused:,} of {total:,} training tokens (a remainder shorter than a segment)"]

    def read(self, position: Position) -> tuple[Segment, Position]:
        """The segment at ``position`` and the position after it."""
        if not self._fits(position):  # after shorter segments, the rest of an epoch may be too short for one of these
            position = Position(position.epoch + 1, 0)
        text, count = self._enter(position.epoch), self.seq_len
        tokens = np.empty((self.rows, count + 1), dtype=np.int64)
        document = np.empty((self.rows, count + 1), dtype=np.int64)
        numbers = range(self.first_row, self.first_row + self.rows)
        for row, number in enumerate(numbers):
            tokens[row], document[row] = self.runs.row(text, number).window(position.segment * self.unit, count + 1)
        segment = Segment(
            tokens=torch.from_numpy(tokens[:, :-1].copy()),
            length=torch.full((self.rows,), count),
            next_token=torch.from_numpy(tokens[:, -1].copy()),
            document=torch.from_numpy(document[:, :-1].copy()),
            next_document=torch.from_numpy(document[:, -1].copy()),
            fresh=torch.full((self.rows,), position.segment == 0),
            backward=self.runs.directions(numbers),
        )
        following = Position(position.epoch, position.segment + self.advance // self.unit)
        return segment, following if self._fits(following) else Position(position.epoch + 1, 0)

    def _fits(self, position: Position) -> bool:
        """Whether a whole segment and the token after it are left in every row."""
        return position.segment * self.unit + self.seq_len + 1 <= self.runs.size

    def _enter(self, epoch: int) -> EpochText:
        if self._text is None or self._text[0] != epoch:
            self._text = epoch, EpochText(self.split, epoch=epoch, shuffle=self.shuffle, seed=self.seed)
        return self._text[1]
