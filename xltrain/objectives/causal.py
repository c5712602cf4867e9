"""The unidirectional language model (Transformer-XL): order 0, 1, 2, ...; the next token is predicted everywhere."""

from dataclasses import dataclass

import torch

from xltrain.data.streams import Segment
from xltrain.objectives.draws import Draw
from xltrain.objectives.plan import IGNORE, PADDED, Plan, following, is_text


@dataclass(frozen=True)
class Causal:
    """``keep_apart``: text does not see, and does not predict, the document after it."""

    keep_apart: bool = False

    def plan(self, segment: Segment, draw: Draw) -> Plan:
        del draw  # nothing is random here
        tokens, scored = segment.tokens, is_text(segment)  # (B, T), (B, T)
        order = torch.arange(tokens.shape[1], device=tokens.device).where(scored, PADDED)  # (B, T)
        target, same_document = following(segment)  # (B, T), (B, T)
        if self.keep_apart:  # the first token of a document has nothing to be predicted from
            scored = scored & same_document
        return Plan(
            tokens=tokens,
            order=order,
            targets=target.where(scored, IGNORE),  # (B, T)
            stream="content",
            fresh=segment.fresh,
            document=segment.document if self.keep_apart else None,
            backward=segment.backward,
        )
