"""XLNet's windows: [reused part | A <sep> B <sep> <cls>], where B follows A or comes from elsewhere in the row.

The reused part is the row's text from where the window before had it end; it alone enters memory, so that memory and
text stay contiguous. What follows it is A, whole sentences (lines of the corpus). Half of the time B is what follows A,
half of the time it begins at a random sentence of the row. Both are cut so that the window is exactly full. The text
after the reused part is read again, as the next window's.

The pair of ``segments.layout: pair`` is A and B. The pairs of two-column text, a source and a target, are another thing
(``columns.py``).

Like the original (zihangdai/xlnet, ``data_utils.py``, ``_split_a_and_b``), with its defects left out:

- All choices are computed from (seed, epoch, row, window); the original drew them without a seed.
- B from elsewhere overlaps neither what the window holds or A continues with nor what is remembered; it could even be
  A, and then its targets stood in plain sight.
- A row ends with its last full window; there, the first window of any row that came too near its row's end, by chance,
  ended all rows.
- B begins at its sentence's beginning only if that is no further back than A and B are long; otherwise, in text without
  line ends, B would be the same every time.
- Whether a row runs backward is said per row; there, it followed from its place in the batch of a device.
"""

import numpy as np
import torch

from xltrain.data.epochs import EpochText, RowText, Runs
from xltrain.data.store import Split
from xltrain.data.streams import NO_TOKEN, Position, Segment
from xltrain.errors import UsageError

SYMBOLS = 3
"""<sep>, <sep> and <cls> of a window."""

Span = tuple[int, int]


def choose(row: RowText, *, start: int, begin: int, size: int, draws: np.ndarray) -> tuple[Span, Span]:
    """A and B of a window of a row, ``size`` tokens together, at least one each.

    Args:
        row: its text.
        start: B from elsewhere holds nothing from here on until A and what follows it would fill the window.
        begin: where A begins.
        size: at least 2.
        draws: (3,) uniform in [0, 1): whether B is from elsewhere, where A ends, where B begins.
    """
    stop = begin + size
    end = row.line(stop - 1)[1]  # of the last sentence that the window can hold
    cuts = row.line_ends(begin, stop)
    a_end = int(cuts[int(draws[1] * len(cuts))]) if len(cuts) else end
    b = None
    if not len(cuts) or draws[0] < 0.5:
        needed = max(1, size - (a_end - begin))
        b = _elsewhere(row, own=(start, stop), needed=needed, longest=size, draw=draws[2])
    if b is None:  # it follows A, which ends in the middle where no sentence ends
        a_end = a_end if len(cuts) else begin + (size + 1) // 2
        b = a_end, end
    a_size = min(a_end - begin, max(size - (b[1] - b[0]), (size + 1) // 2))  # the longer of the two is cut
    return (begin, begin + a_size), (b[0], b[0] + size - a_size)


def _elsewhere(row: RowText, *, own: Span, needed: int, longest: int, draw: float) -> Span | None:
    """Whole sentences around ``needed`` tokens from a random place that hold nothing of ``own``; None without room."""
    before, after = max(0, own[0] - needed + 1), max(0, row.size - needed - own[1] + 1)
    if before + after == 0:
        return None
    place = int(draw * (before + after))
    low, high = 0, own[0]
    if place >= before:
        place, low, high = place - before + own[1], own[1], row.size
    line_begin = max(low, row.line(place)[0])
    begin = line_begin if place - line_begin <= longest else place
    return begin, min(high, row.line(place + needed - 1)[1])


class PairStream:
    """Endless windows of B rows.

    Args:
        split: text whose ends of lines are known.
        total_rows: B over all processes.
        first_row, rows: which of them this process reads.
        seq_len: T.
        reuse_len: length of the reused part, which a window moves on by; at most ``seq_len - 5``.
        mem_len: how much of the text before a window is remembered.
        sep, cls: ids of the symbols.
        bidirectional: rows of the second half read the text of the first half's, in reverse.
        shuffle: reshuffle documents every epoch.
        seed: of the shuffling, and of A and B.

    Raises:
        UsageError: if the text is shorter than one window per row.
    """

    def __init__(
        self,
        split: Split,
        *,
        total_rows: int,
        seq_len: int,
        reuse_len: int,
        mem_len: int,
        sep: int,
        cls: int,
        shuffle: bool,
        seed: int,
        bidirectional: bool = False,
        first_row: int = 0,
        rows: int | None = None,
    ) -> None:
        self.split, self.seq_len = split, seq_len
        self.reuse_len, self.mem_len = reuse_len, mem_len
        self.sep, self.cls, self.shuffle, self.seed = sep, cls, shuffle, seed
        self.first_row, self.rows = first_row, total_rows if rows is None else rows
        self.runs = Runs(split, total_rows, bidirectional)
        self.text_len = seq_len - SYMBOLS
        self.segments_per_epoch = (self.runs.size - self.text_len) // reuse_len + 1
        if self.segments_per_epoch < 1:
            needed, has = self.runs.count * self.text_len, split.num_tokens
            raise UsageError(
                f"corpus.{split.name}: needs at least {needed:,} tokens ({self.runs.count} rows x (seq_len {seq_len} - "
                f"{SYMBOLS})), this text has {has:,}; add text, or lower training.batch_size, "
                "training.accumulate or segments.seq_len"
            )
        self._text: tuple[int, EpochText] | None = None

    @property
    def unused_per_epoch(self) -> int:
        """Tokens of an epoch that lie behind the last window of a row."""
        in_row = (self.segments_per_epoch - 1) * self.reuse_len + self.text_len
        return self.split.num_tokens - self.runs.count * in_row

    def notes(self) -> list[str]:
        unused, total = self.unused_per_epoch, self.split.num_tokens
        lines = ["layout              pairs of texts with <sep> and <cls>; evaluation reads a stream without them"]
        if unused:
            lines.append(
                f"unused per epoch    {unused:,} of {total:,} training tokens (behind the last window of a row)"
            )
        return lines

    def read(self, position: Position) -> tuple[Segment, Position]:
        """The windows at ``position`` and the position after them."""
        text = self._enter(position.epoch)
        tokens, document, part = np.zeros((3, self.rows, self.seq_len), dtype=np.int64)
        numbers = range(self.first_row, self.first_row + self.rows)
        for row, number in enumerate(numbers):
            draws = np.random.default_rng((self.seed, position.epoch, number, position.segment)).random(3)
            start = position.segment * self.reuse_len
            tokens[row], document[row], part[row] = self._window(self.runs.row(text, number), start, draws)
        none = torch.full((self.rows,), NO_TOKEN)
        segment = Segment(
            tokens=torch.from_numpy(tokens),
            length=torch.full((self.rows,), self.seq_len),
            next_token=none,
            document=torch.from_numpy(document),
            next_document=none,
            fresh=torch.full((self.rows,), position.segment == 0),
            backward=self.runs.directions(numbers),
            segment_ids=torch.from_numpy(part),
        )
        following = Position(position.epoch, position.segment + 1)
        if following.segment == self.segments_per_epoch:
            following = Position(position.epoch + 1, 0)
        return segment, following

    def _window(self, row: RowText, start: int, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(T,) tokens, documents and parts of a row's window: 0 for the reused part and A, 1 for B, 2 for <cls>.

        A symbol belongs to the document of the token before it.
        """
        begin = start + self.reuse_len
        seen_from = max(0, start - self.mem_len)
        a, b = choose(row, start=seen_from, begin=begin, size=self.text_len - self.reuse_len, draws=draws)
        first, first_document = row.window(start, a[1] - start)
        second, second_document = row.window(b[0], b[1] - b[0])
        tokens = np.concatenate([first, [self.sep], second, [self.sep, self.cls]])
        document = np.concatenate(
            [first_document, first_document[-1:], second_document, second_document[-1:], second_document[-1:]]
        )
        part = np.repeat([0, 1, 2], [len(first) + 1, len(second) + 1, 1])
        return tokens, document, part

    def _enter(self, epoch: int) -> EpochText:
        if self._text is None or self._text[0] != epoch:
            self._text = epoch, EpochText(self.split, epoch=epoch, shuffle=self.shuffle, seed=self.seed)
        return self._text[1]
