"""The masked language model (BERT): targets are hidden in the input, and all of the segment is seen by everyone."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from xltrain.data.streams import Segment
from xltrain.objectives.draws import Draw
from xltrain.objectives.plan import IGNORE, PADDED, Plan, is_text
from xltrain.objectives.targets import PURPOSES, SpanUnit, TargetRule, mark

_KIND, _RANDOM = PURPOSES, PURPOSES + 1  # purposes of the random numbers, after those of the choice

MASKED, RANDOM, AS_IT_IS = 0.8, 0.1, 0.1
"""Share of the targets that become <mask>, become a random token, and stay (Devlin et al. 2018, 3.1)."""


@dataclass(frozen=True)
class Masked:
    """Order 0 everywhere; targets are predicted independently of one another, from the content stream.

    num_predict: P targets per segment.
    mask: id of <mask>.
    max_span, starts_word, never_target, unit: see :class:`TargetRule`; unit ``word`` masks whole words.
    keep_apart: text does not see other documents.
    """

    num_predict: int
    mask: int
    max_span: int
    starts_word: Tensor
    never_target: Tensor
    unit: SpanUnit = "token"
    keep_apart: bool = False

    @cached_property
    def _ordinary(self) -> Tensor:
        """Ids that may stand in for another; found once, since counting them waits for the device."""
        return (~self.never_target).nonzero().squeeze(1)

    def plan(self, segment: Segment, draw: Draw) -> Plan:
        tokens = segment.tokens
        seq_len = tokens.shape[1]
        text = is_text(segment)  # (B, T)
        rule = TargetRule(self.starts_word, self.never_target, self.max_span, self.unit)
        predict, used = rule.choose(tokens, text, draw, count=self.num_predict, backward=segment.backward)
        kind = draw.uniform(seq_len, purpose=_KIND)  # (B, T)
        ordinary = self._ordinary
        pick = (draw.uniform(seq_len, purpose=_RANDOM) * ordinary.shape[0]).long()  # (B, T)
        shown = torch.where(kind < MASKED + RANDOM, ordinary[pick], tokens)
        shown = torch.where(kind < MASKED, self.mask, shown)
        return Plan(
            tokens=torch.where(mark(predict, used, seq_len), shown, tokens),  # (B, T)
            order=torch.zeros_like(tokens).where(text, PADDED),  # (B, T)
            targets=tokens.gather(1, predict).where(used, IGNORE),  # (B, P)
            stream="content",
            fresh=segment.fresh,
            predict=predict,
            document=segment.document if self.keep_apart else None,
            backward=segment.backward,
        )
