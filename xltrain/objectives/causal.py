"""The unidirectional language model (Transformer-XL): order 0, 1, 2, ...; the next token is predicted everywhere."""

from dataclasses import dataclass

import torch

from xltrain.data.streams import Segment
from xltrain.objectives.draws import Draw
from xltrain.objectives.plan import IGNORE, PADDED, Plan, is_text


@dataclass(frozen=True)
class Causal:
    """``keep_apart``: text does not see, and does not predict, the document after it."""

    keep_apart: bool = False

    def plan(self, segment: Segment, draw: Draw) -> Plan:
        del draw  # nothing is random here
        tokens = segment.tokens
        text = is_text(segment)  # (B, T)
        following = torch.cat([tokens[:, 1:], segment.next_token[:, None]], dim=1)  # (B, T)
        last = torch.arange(tokens.shape[1], device=tokens.device) == segment.length[:, None] - 1  # (B, T)
        following = torch.where(last, segment.next_token[:, None], following)
        scored = text
        if self.keep_apart:  # the first token of a document has nothing to be predicted from
            after = torch.cat([segment.document[:, 1:], segment.next_document[:, None]], dim=1)  # (B, T)
            after = torch.where(last, segment.next_document[:, None], after)
            scored = text & (after == segment.document)
        return Plan(
            tokens=tokens,
            order=torch.arange(tokens.shape[1], device=tokens.device).where(text, PADDED),  # (B, T)
            targets=following.where(scored, IGNORE),  # (B, T)
            stream="content",
            fresh=segment.fresh,
            document=segment.document if self.keep_apart else None,
        )
