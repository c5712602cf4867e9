"""The permutation language model (XLNet): targets predicted in a sampled order, each from what comes before it there.

Ordinary tokens have order 0 and see each other. Targets have order 1 + their place in the sampled factorization order,
and are predicted from the query stream, which sees only smaller orders: never the target itself.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from xltrain.data.streams import Segment
from xltrain.objectives.draws import Draw
from xltrain.objectives.plan import IGNORE, PADDED, Plan, is_text

_SPAN_LENGTH, _SPAN_START, _SPAN_RANK, _SINGLE, _ORDER, _OFFSET = range(6)  # purposes of the random numbers


def factorization_order(place: Tensor, ordered: Tensor) -> Tensor:
    """Orders (B, T) from places in the factorization order (B, T): 0 where not ``ordered``, else 1 + the place.

    ``ordered`` are the targets and the functional symbols (SEP, CLS), which are ordered but never predicted.
    """
    return torch.where(ordered, 1 + place, 0)


@dataclass(frozen=True)
class Permutation:
    """Span-wise targets and a sampled order, both new every time a segment is seen.

    num_predict: P targets per segment.
    max_span: spans of 1..max_span words, with probability proportional to 1 / length.
    starts_word: (V,) bool, tokens that begin a word.
    never_target: (V,) bool, control symbols.
    keep_apart: text does not see other documents.
    """

    num_predict: int
    max_span: int
    starts_word: Tensor
    never_target: Tensor
    keep_apart: bool = False

    def plan(self, segment: Segment, draw: Draw) -> Plan:
        tokens = segment.tokens
        text = is_text(segment)  # (B, T)
        predict, chosen = self.choose(segment, draw)  # (B, P), (B, P)
        beyond = tokens.shape[1]  # unused slots mark a column that is cut off again
        marked = text.new_zeros(text.shape[0], beyond + 1)
        is_target = marked.scatter(1, predict.where(chosen, beyond), True)[:, :beyond]  # (B, T)
        place = draw.uniform(tokens.shape[1], purpose=_ORDER).argsort(dim=1).argsort(dim=1)  # (B, T)
        return Plan(
            tokens=tokens,
            order=factorization_order(place, is_target).where(text, PADDED),  # (B, T)
            targets=tokens.gather(1, predict).where(chosen, IGNORE),  # (B, P)
            stream="query",
            fresh=segment.fresh,
            predict=predict,
            document=segment.document if self.keep_apart else None,
        )

    def choose(self, segment: Segment, draw: Draw) -> tuple[Tensor, Tensor]:
        """Positions of the targets (B, P), ascending, and which of the P slots are used (B, P).

        Whole spans are taken in random order until P targets are found (the last span may be cut); where spans give
        too few, single tokens drawn at random fill up. A segment that is partly padding has proportionally fewer.
        """
        tokens, slots = segment.tokens, self.num_predict
        seq_len = tokens.shape[1]
        eligible = is_text(segment) & ~self.never_target[tokens]  # (B, T)
        span_rank, in_span = self._spans(tokens, draw)  # (B, T), (B, T)
        single = 1.0 + draw.uniform(seq_len, purpose=_SINGLE)  # (B, T)
        rank = torch.where(in_span, span_rank, single).masked_fill(~eligible, 3.0)  # (B, T) the lowest are taken
        first = rank.argsort(dim=1, stable=True)[:, :slots]  # (B, P)
        goal = (slots * segment.length + seq_len - 1) // seq_len  # (B,)
        used = eligible.gather(1, first) & (torch.arange(slots, device=tokens.device) < goal[:, None])  # (B, P)
        ascending = first.masked_fill(~used, seq_len).sort(dim=1).values  # (B, P)
        return ascending.clamp(max=seq_len - 1), ascending < seq_len

    def _spans(self, tokens: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
        """A random rank per token, equal within a span, and whether the token is in a span at all: (B, T) each.

        The segment is tiled by windows, n words of every n * T / P tokens; each holds one span of n words that starts
        at a word's start. All windows are laid out at once, without a loop over spans.
        """
        rows, seq_len = tokens.shape
        device, most = tokens.device, self.num_predict + self.max_span
        lengths = torch.arange(1, self.max_span + 1, device=device, dtype=torch.float64)
        thresholds = (1.0 / lengths).cumsum(0) / (1.0 / lengths).sum()  # (max_span,)
        words = 1 + torch.bucketize(draw.uniform(most, purpose=_SPAN_LENGTH), thresholds[:-1], right=True)  # (B, S)
        window = words * (seq_len / self.num_predict)  # (B, S)
        begin = window.cumsum(dim=1) - window - window[:, :1] * draw.uniform(1, purpose=_OFFSET)  # (B, S)
        room = (window - words).clamp(min=0.0)
        begin = begin + room * draw.uniform(most, purpose=_SPAN_START)

        # word_begin[w] is where word w starts; a segment's first token starts a word, as what is before is not seen.
        starts = self.starts_word[tokens].clone()  # (B, T)
        starts[:, 0] = True
        word = starts.long().cumsum(dim=1) - 1  # (B, T)
        places = torch.arange(seq_len, device=device).expand(rows, -1)  # (B, T)
        word_begin = torch.full((rows, seq_len + 1), seq_len, device=device)
        word_begin = word_begin.scatter(1, word.where(starts, seq_len), places).contiguous()  # (B, T+1)
        word_begin[:, seq_len] = seq_len

        inside = (begin >= 0) & (begin < seq_len)  # (B, S)
        first_word = torch.searchsorted(word_begin, begin.ceil().long().clamp(0, seq_len))  # (B, S) moved right
        span_begin = word_begin.gather(1, first_word.clamp(max=seq_len)).where(inside, seq_len)  # (B, S)
        span_end = word_begin.gather(1, (first_word + words).clamp(max=seq_len)).where(inside, 0)  # (B, S)

        # The span that covers a token is the last one that begins at or before it.
        span_begin, by_place = span_begin.sort(dim=1)
        span_end = span_end.gather(1, by_place).cummax(dim=1).values
        covering = torch.searchsorted(span_begin, places.contiguous(), right=True) - 1  # (B, T)
        in_span = (covering >= 0) & (places < span_end.gather(1, covering.clamp(min=0)))
        rank = draw.uniform(most, purpose=_SPAN_RANK).gather(1, covering.clamp(min=0))  # (B, T)
        return rank, in_span
