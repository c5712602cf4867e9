"""Reading from left to right with a model that was trained on sampled orders (XLNet): one order of the many it knows.

A query row stands at every place, and sees the tokens before it. The product of these predictions is a probability of
the text, as a causal model's is, though training never asked for exactly this order.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from xltrain.data.streams import Segment
from xltrain.objectives.draws import Draw
from xltrain.objectives.plan import IGNORE, PADDED, Plan, is_text


def in_order(text: Tensor, *, source: Tensor | None = None) -> Tensor:
    """Orders (B, T) of reading from left to right; padding is after everything.

    Args:
        text: (B, T) bool, false at padding.
        source: (B,) how many leading places see one another, as the source of a seq2seq model does; None: none.
    """
    places = torch.arange(text.shape[1], device=text.device)  # (T,)
    if source is None:
        return places.where(text, PADDED)  # (B, T)
    return (places - source[:, None] + 1).clamp(min=0).where(text, PADDED)  # (B, T)


@dataclass(frozen=True)
class LeftToRight:
    """Every token is predicted from those before it, from the query stream.

    keep_apart: text does not see the document before it.
    given: (V,) bool, ids that count as known, such as control symbols, which training never asks for; None: none.
    """

    keep_apart: bool = False
    given: Tensor | None = None

    def plan(self, segment: Segment, draw: Draw) -> Plan:
        del draw  # nothing is random here
        text = is_text(segment)  # (B, T)
        scored = text if self.given is None else text & ~self.given[segment.tokens]
        return Plan(
            tokens=segment.tokens,
            order=in_order(text),
            targets=segment.tokens.where(scored, IGNORE),  # (B, T)
            stream="query",
            fresh=segment.fresh,
            document=segment.document if self.keep_apart else None,
            backward=segment.backward,
        )
