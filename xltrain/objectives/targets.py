"""Which tokens of a segment are predicted, for the objectives that choose: spans that begin at word starts.

XLNet's rule (section 2.5 and its code): span lengths n of 1..max_span with probability proportional to 1/n, each span
somewhere in a window of n * T / P tokens. The original lays windows one after another in a loop; here all are laid at
once, so that choosing is a handful of tensor operations on any device.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from xltrain.objectives.draws import Draw

SpanUnit = Literal["word", "token", "reference"]

_SPAN_LENGTH, _SPAN_START, _SPAN_RANK, _SINGLE, _OFFSET = range(5)  # purposes of the random numbers
PURPOSES = 8
"""Numbers that one choice may use; a caller's ``purpose`` and this many after it belong to it."""


@dataclass(frozen=True)
class TargetRule:
    """How targets are chosen.

    starts_word: (V,) bool, tokens that begin a word.
    never_target: (V,) bool, control symbols.
    max_span: longest span.
    unit: ``word``: spans of n words; ``token``: spans of n tokens, anywhere; ``reference``: spans of n tokens that
        begin at a word's start. Released XLNets were trained with the last: the original code tested the wrong end of
        a span (thread 220 of its repository), so that n words became n tokens.
    """

    starts_word: Tensor
    never_target: Tensor
    max_span: int = 5
    unit: SpanUnit = "word"

    def choose(
        self,
        tokens: Tensor,
        text: Tensor,
        draw: Draw,
        *,
        count: int,
        purpose: int = 0,
        backward: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Choose ``count`` tokens of every row.

        Whole spans are taken in random order until there are enough (the last one may be cut); where spans give too
        few, single tokens drawn at random fill up. A row that is partly padding has proportionally fewer targets.

        Args:
            tokens: (B, T).
            text: (B, T) bool, false at padding.
            draw: of the random numbers.
            count: P.
            purpose: the first of the ``PURPOSES`` purposes of random numbers that this choice uses.
            backward: (B,) rows of reversed text, where a word starts at its other end.

        Returns:
            positions (B, P), ascending, and which of the P slots are used (B, P).
        """
        seq_len = tokens.shape[1]
        if count == 0:
            none = tokens.new_zeros(tokens.shape[0], 0)
            return none, none.bool()
        eligible = text & ~self.never_target[tokens]  # (B, T)
        reading = tokens if backward is None else _turned(tokens, backward)
        span_rank, in_span = self._spans(reading, draw, count, purpose)  # (B, T), (B, T)
        if backward is not None:
            span_rank, in_span = _turned(span_rank, backward), _turned(in_span, backward)
        single = 1.0 + draw.uniform(seq_len, purpose=purpose + _SINGLE)  # (B, T)
        rank = torch.where(in_span, span_rank, single).masked_fill(~eligible, 3.0)  # (B, T) the lowest are taken
        first = rank.argsort(dim=1, stable=True)[:, :count]  # (B, P)
        goal = (count * text.sum(dim=1) + seq_len - 1) // seq_len  # (B,)
        used = eligible.gather(1, first) & (torch.arange(count, device=tokens.device) < goal[:, None])  # (B, P)
        ascending = first.masked_fill(~used, seq_len).sort(dim=1).values  # (B, P)
        return ascending.clamp(max=seq_len - 1), ascending < seq_len

    def _spans(self, tokens: Tensor, draw: Draw, count: int, purpose: int) -> tuple[Tensor, Tensor]:
        """A random rank per token, equal within a span, and whether the token is in a span at all: (B, T) each."""
        rows, seq_len = tokens.shape
        device, most = tokens.device, count + self.max_span
        lengths = torch.arange(1, self.max_span + 1, device=device, dtype=torch.float64)
        thresholds = (1.0 / lengths).cumsum(0) / (1.0 / lengths).sum()  # (max_span,)
        size = draw.uniform(most, purpose=purpose + _SPAN_LENGTH)
        size = 1 + torch.bucketize(size, thresholds[:-1], right=True)  # (B, S) words or tokens of a span
        window = size * (seq_len / count)  # (B, S)
        offset = window[:, :1] * draw.uniform(1, purpose=purpose + _OFFSET)
        room = (window - size).clamp(min=0.0)
        begin = window.cumsum(dim=1) - window - offset + room * draw.uniform(most, purpose=purpose + _SPAN_START)

        places = torch.arange(seq_len, device=device).expand(rows, -1).contiguous()  # (B, T)
        begin = begin.ceil().long()
        size = (size + begin.clamp(max=0)).clamp(min=0)  # what hangs over the segment's beginning is cut off
        inside = (size > 0) & (begin < seq_len)  # (B, S)
        begin = begin.clamp(0, seq_len)
        if self.unit == "token":
            span_begin, span_end = begin, (begin + size).clamp(max=seq_len)
        else:
            word_begin = self._word_begins(tokens, places)  # (B, T+1)
            first_word = torch.searchsorted(word_begin, begin).clamp(max=seq_len)  # (B, S) moved right to a start
            span_begin = word_begin.gather(1, first_word)
            span_end = (span_begin + size).clamp(max=seq_len)
            if self.unit == "word":
                span_end = word_begin.gather(1, (first_word + size).clamp(max=seq_len))
        span_begin, span_end = span_begin.where(inside, seq_len), span_end.where(inside, 0)  # (B, S)

        # The span that covers a token is the last one that begins at or before it.
        span_begin, by_place = span_begin.sort(dim=1)
        span_end = span_end.gather(1, by_place).cummax(dim=1).values
        covering = (torch.searchsorted(span_begin, places, right=True) - 1).clamp(min=0)  # (B, T)
        in_span = (places >= span_begin.gather(1, covering)) & (places < span_end.gather(1, covering))
        rank = draw.uniform(most, purpose=purpose + _SPAN_RANK).gather(1, covering)  # (B, T)
        return rank, in_span

    def _word_begins(self, tokens: Tensor, places: Tensor) -> Tensor:
        """(B, T+1) where word w starts, T from the last word on; the first token starts a word, having none before."""
        rows, seq_len = tokens.shape
        starts = self.starts_word[tokens].clone()  # (B, T)
        starts[:, 0] = True
        word = starts.long().cumsum(dim=1) - 1  # (B, T)
        found = torch.full((rows, seq_len + 2), seq_len, device=tokens.device)
        return found.scatter(1, word.where(starts, seq_len + 1), places)[:, : seq_len + 1].contiguous()


def mark(positions: Tensor, used: Tensor, seq_len: int) -> Tensor:
    """(B, T) bool, true at the used ones of ``positions`` (B, P)."""
    marked = used.new_zeros(used.shape[0], seq_len + 1)  # unused slots mark a column that is cut off again
    return marked.scatter(1, positions.where(used, seq_len), True)[:, :seq_len]


def _turned(values: Tensor, backward: Tensor) -> Tensor:
    return torch.where(backward[:, None] == 1, values.flip(1), values)
