"""The sequence-to-sequence language model (UniLM): a target sees its source and its own past."""

from dataclasses import dataclass

import torch

from xltrain.data.streams import Segment
from xltrain.objectives.draws import Draw
from xltrain.objectives.plan import IGNORE, PADDED, Plan, following, is_text

_SPLIT = 0  # purpose of the random numbers


@dataclass(frozen=True)
class Seq2Seq:
    """Source of order 0, target of orders 1, 2, 3, ...; the next token is predicted inside the target.

    Where a segment's target begins is drawn anew every time it is seen, uniformly over its places but the first.

    keep_apart: text does not see, and does not predict, the document after it.
    """

    keep_apart: bool = False

    def plan(self, segment: Segment, draw: Draw) -> Plan:
        tokens = segment.tokens
        text = is_text(segment)  # (B, T)
        places = torch.arange(tokens.shape[1], device=tokens.device)  # (T,)
        begin = 1 + (draw.uniform(1, purpose=_SPLIT) * (segment.length[:, None] - 1)).long()  # (B, 1)
        order = (places - begin + 1).clamp(min=0)  # (B, T)
        target, same_document = following(segment)  # (B, T), (B, T)
        scored = text & (places >= begin - 1)  # the source's last row predicts the target's first token
        if self.keep_apart:
            scored = scored & same_document
        return Plan(
            tokens=tokens,
            order=order.where(text, PADDED),
            targets=target.where(scored, IGNORE),  # (B, T)
            stream="content",
            fresh=segment.fresh,
            document=segment.document if self.keep_apart else None,
            backward=segment.backward,
        )
