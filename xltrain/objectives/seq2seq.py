"""The sequence-to-sequence language model (UniLM): a target sees its source and its own past."""

from dataclasses import dataclass

import torch
from torch import Tensor

from xltrain.data.streams import Segment
from xltrain.objectives.draws import Draw
from xltrain.objectives.plan import IGNORE, PADDED, Plan, following, is_text

_SPLIT = 0  # purpose of the random numbers


@dataclass(frozen=True)
class Seq2Seq:
    """Source of order 0, target of orders 1, 2, 3, ...; the next token is predicted inside the target.

    Two-column text says itself what its sources (part 0) and targets (part 1) are. Elsewhere, where a segment's target
    begins is drawn anew every time it is seen, uniformly over its places but the first.

    keep_apart: text does not see, and does not predict, the document after it.
    """

    keep_apart: bool = False

    def plan(self, segment: Segment, draw: Draw) -> Plan:
        text = is_text(segment)  # (B, T)
        in_target, before_target = _columns(segment) if segment.segment_ids is not None else _drawn(segment, draw)
        places = torch.arange(text.shape[1], device=text.device).expand_as(text)  # (B, T)
        order = places - places.masked_fill(in_target, -1).cummax(dim=1).values  # (B, T) from the source's last place
        target, same_document = following(segment)  # (B, T), (B, T)
        scored = text & before_target  # the source's last row predicts the target's first token
        if self.keep_apart:
            scored = scored & same_document
        return Plan(
            tokens=segment.tokens,
            order=order.where(text, PADDED),
            targets=target.where(scored, IGNORE),  # (B, T)
            stream="content",
            fresh=segment.fresh,
            document=segment.document if self.keep_apart else None,
            segment_ids=segment.segment_ids,
            place=None if segment.segment_ids is None else _within(segment.document),
            backward=segment.backward,
        )


def _columns(segment: Segment) -> tuple[Tensor, Tensor]:
    """Which places are in a target, and which stand before one that is: (B, T) bool each."""
    assert segment.segment_ids is not None
    in_target = segment.segment_ids == 1  # (B, T)
    return in_target, torch.cat([in_target[:, 1:], in_target.new_zeros(in_target.shape[0], 1)], dim=1)  # (B, T)


def _within(document: Tensor) -> Tensor:
    """(B, T) places that count from the first one of each document (B, T)."""
    places = torch.arange(document.shape[1], device=document.device).expand_as(document)  # (B, T)
    same = torch.cat(
        [document.new_zeros(document.shape[0], 1).bool(), document[:, 1:] == document[:, :-1]], dim=1
    )  # (B, T)
    return places - places.masked_fill(same, 0).cummax(dim=1).values


def _drawn(segment: Segment, draw: Draw) -> tuple[Tensor, Tensor]:
    """The same of targets that reach from a drawn place to the row's end."""
    begin = 1 + (draw.uniform(1, purpose=_SPLIT) * (segment.length[:, None] - 1)).long()  # (B, 1)
    places = torch.arange(segment.tokens.shape[1], device=begin.device)  # (T,)
    return places >= begin, places + 1 >= begin  # (B, T) each
