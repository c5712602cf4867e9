"""The permutation language model (XLNet): targets predicted in a sampled order, each from what comes before it there.

Ordinary tokens have order 0 and see each other. Targets have order 1 + their place in the sampled factorization order,
and are predicted from the query stream, which sees only smaller orders: never the target itself.

A segment may have two parts: a reused one, which is remembered, and the rest, which is not and is read again later as a
reused part. Each has its own targets and order; the second part's orders start above the first's, so the first never
sees the second and the second sees all of the first (reference: ``_local_perm`` of the original code).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from xltrain.data.streams import Segment
from xltrain.objectives.draws import Draw
from xltrain.objectives.plan import IGNORE, PADDED, Plan, is_text
from xltrain.objectives.targets import PURPOSES, SpanUnit, TargetRule, mark

_ORDER = PURPOSES - 1  # purpose of the order's random numbers, within a part's


def factorization_order(place: Tensor, ordered: Tensor) -> Tensor:
    """Orders (B, T) from places in the factorization order (B, T): 0 where not ``ordered``, else 1 + the place.

    ``ordered`` are the targets and the functional symbols (SEP, CLS), which are ordered but never predicted.
    """
    return torch.where(ordered, 1 + place, 0)


def sample_places(draw: Draw, seq_len: int, *, perm_size: int, purpose: int) -> Tensor:
    """(B, T) places in a sampled factorization order.

    With ``perm_size`` above 0, blocks of that many positions keep their natural order and share one inner order, as
    the original code has it; otherwise the whole part is permuted.
    """
    size = perm_size or seq_len
    inner = draw.uniform(size, purpose=purpose).argsort(dim=1).argsort(dim=1)  # (B, perm_size)
    block = torch.arange(seq_len, device=inner.device) // size * size  # (T,)
    return inner.repeat(1, -(-seq_len // size))[:, :seq_len] + block  # (B, T)


@dataclass(frozen=True)
class Permutation:
    """Span-wise targets and a sampled order, both new every time a segment is seen.

    num_predict: P targets per segment.
    max_span, starts_word, never_target, unit: see :class:`TargetRule`.
    keep_apart: text does not see other documents.
    perm_size: see :func:`sample_places`.
    reuse_len: length of the reused part; 0: the segment has one part, and all of it is remembered.
    functional: (V,) bool, symbols that are ordered though never predicted; None: none.
    """

    num_predict: int
    max_span: int
    starts_word: Tensor
    never_target: Tensor
    unit: SpanUnit = "word"
    keep_apart: bool = False
    perm_size: int = 0
    reuse_len: int = 0
    functional: Tensor | None = None

    def plan(self, segment: Segment, draw: Draw) -> Plan:
        tokens = segment.tokens
        seq_len = tokens.shape[1]
        text = is_text(segment)  # (B, T)
        predict, used = self.choose(segment, draw)  # (B, P), (B, P)
        ordered = mark(predict, used, seq_len)  # (B, T)
        if self.functional is not None:
            ordered = ordered | self.functional[tokens]
        place = torch.cat(
            [
                sample_places(draw, size, perm_size=self.perm_size, purpose=PURPOSES * part + _ORDER)
                for part, size in enumerate(self._parts(seq_len))
            ],
            dim=1,
        )  # (B, T)
        order = factorization_order(place, ordered)  # (B, T)
        if self.reuse_len:
            second = torch.arange(seq_len, device=tokens.device) >= self.reuse_len  # (T,)
            order = order + second * (seq_len + 1)
        return Plan(
            tokens=tokens,
            order=order.where(text, PADDED),
            targets=tokens.gather(1, predict).where(used, IGNORE),  # (B, P)
            stream="query",
            fresh=segment.fresh,
            predict=predict,
            document=segment.document if self.keep_apart else None,
            segment_ids=segment.segment_ids,
            backward=segment.backward,
            remember=self.reuse_len or None,
        )

    def choose(self, segment: Segment, draw: Draw) -> tuple[Tensor, Tensor]:
        """Positions of the targets (B, P), ascending within a part, and which of the P slots are used (B, P).

        Of two parts, the first has P - P // 2 targets and the second P // 2, but what one is too short for is the
        other's.
        """
        rule = TargetRule(self.starts_word, self.never_target, self.max_span, self.unit)
        text = is_text(segment)
        parts = self._parts(segment.tokens.shape[1])
        counts = [self.num_predict]
        if len(parts) == 2:
            first = min(self.num_predict - min(self.num_predict // 2, parts[1]), parts[0])
            counts = [first, self.num_predict - first]
        chosen, begin = [], 0
        for part, (size, count) in enumerate(zip(parts, counts, strict=True)):
            inside = slice(begin, begin + size)
            predict, used = rule.choose(
                segment.tokens[:, inside],
                text[:, inside],
                draw,
                count=count,
                purpose=PURPOSES * part,
                backward=segment.backward,
            )
            chosen.append((predict + begin, used))
            begin += size
        return torch.cat([one for one, _ in chosen], dim=1), torch.cat([one for _, one in chosen], dim=1)  # (B, P) each

    def _parts(self, seq_len: int) -> list[int]:
        return [self.reuse_len, seq_len - self.reuse_len] if self.reuse_len else [seq_len]
