"""One pass over a whole text, for evaluation: every token once, short remainders padded and never dropped.

Each function yields a segment, an identity per row from which random numbers may be drawn (the same whatever the number
of rows), and what is to be scored: (B,) bool for whole rows, or (B, T) bool for places.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from xltrain.data.store import Split
from xltrain.data.streams import NO_TOKEN, Segment

Pass = Iterator[tuple[Segment, Tensor, Tensor]]


def whole_text(split: Split, *, seq_len: int, rows: int, warm_up: int, advance: int | None = None) -> Pass:
    """The text as one stream.

    It is cut into segments as one row would read it; each of the B rows gets a run of them, and first reads the
    ``warm_up`` segments before its run, unscored, so that it remembers what a single row would remember.
    ``advance``: tokens between the starts of segments, where only a reused part of each is remembered.
    """
    step = advance or seq_len
    count = 1 + max(0, -(-(split.num_tokens - seq_len) // step))
    rows = max(1, min(rows, count))
    bounds = [count * row // rows for row in range(rows + 1)]
    begins = [max(0, bounds[row] - warm_up) for row in range(rows)]
    for turn in range(max(bounds[row + 1] - begins[row] for row in range(rows))):
        numbers = [begins[row] + turn for row in range(rows)]
        spans = [(number * step, split.num_tokens) for number in numbers]
        number = torch.tensor(numbers)
        scored = (number >= torch.tensor(bounds[:-1])) & (number < torch.tensor(bounds[1:]))
        yield _segments(split, spans, seq_len, fresh=[turn == 0] * rows), number, scored


def each_document(split: Split, *, seq_len: int, rows: int, advance: int | None = None) -> Pass:
    """Every document on its own; a row that has finished one takes the next, with nothing remembered."""
    step = advance or seq_len
    rows = max(1, min(rows, split.num_documents))
    begins = np.concatenate([[0], split.ends[:-1]])
    waiting = iter(range(split.num_documents))
    places: list[tuple[int, int]] = [(0, 0)] * rows  # where each row stands, and where its document ends
    inside = [0] * rows  # how far into its document it is: a document's draws do not depend on what surrounds it
    while True:
        fresh = [False] * rows
        for row in range(rows):
            if places[row][0] >= places[row][1] and (document := next(waiting, None)) is not None:
                places[row], fresh[row] = (int(begins[document]), int(split.ends[document])), True
                inside[row] = 0
        active = [start < stop for start, stop in places]
        if not any(active):
            return
        yield _segments(split, places, seq_len, fresh=fresh), torch.tensor(inside), torch.tensor(active)
        places = [(start + step if start + seq_len < stop else stop, stop) for start, stop in places]
        inside = [offset + step for offset in inside]


def sliding_windows(split: Split, *, seq_len: int, rows: int, stride: int) -> Pass:
    """Windows of ``seq_len`` tokens, ``stride`` apart; of each, only the targets that no earlier window scored."""
    total = split.num_tokens
    starts = [0]
    while starts[-1] + seq_len < total:
        starts.append(starts[-1] + stride)
    for first in range(0, len(starts), rows):
        batch = starts[first : first + rows]
        segment = _segments(split, [(start, total) for start in batch], seq_len, fresh=[True] * len(batch))
        scored = torch.arange(seq_len).expand(len(batch), -1) >= seq_len - stride  # (B, T)
        scored = scored | (torch.tensor(batch) == 0)[:, None]
        yield segment, torch.tensor(batch), scored


def _segments(split: Split, spans: list[tuple[int, int]], seq_len: int, *, fresh: list[bool]) -> Segment:
    """One segment per row from (start, end of its text)."""
    rows = len(spans)
    tokens = torch.zeros(rows, seq_len, dtype=torch.int64)
    document = torch.zeros(rows, seq_len, dtype=torch.int64)
    length = torch.zeros(rows, dtype=torch.int64)
    next_token, next_document = torch.full((rows,), NO_TOKEN), torch.full((rows,), NO_TOKEN)
    for row, (start, stop) in enumerate(spans):
        end = min(start + seq_len, stop)
        if end <= start:
            continue
        length[row] = end - start
        tokens[row, : end - start] = torch.from_numpy(split.tokens[start:end].astype(np.int64))
        numbers = np.searchsorted(split.ends, np.arange(start, end + 1), side="right")
        document[row, : end - start] = torch.from_numpy(numbers[:-1])
        if end < stop:
            next_token[row], next_document[row] = int(split.tokens[end]), int(numbers[-1])
    return Segment(tokens, length, next_token, document, next_document, torch.tensor(fresh))
