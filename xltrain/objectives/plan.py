"""A plan says what is predicted from what: the order rule's data for one segment (design.md, section 2)."""

from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from xltrain.data.streams import Segment, moved
from xltrain.objectives.draws import Draw

IGNORE = -1
"""A target that is not scored."""

PADDED = 2**31 - 1
"""Order of a padded position: after everything, so nobody sees it."""


@dataclass(frozen=True)
class Plan:
    """One segment, ready for the model. B rows, T segment length, P predicted positions.

    tokens: (B, T) input of the content stream.
    order: (B, T) a content row sees keys of at most its order, a query row keys of less.
    targets: (B, P); -1: not scored.
    stream: which stream's rows are predicted from.
    predict: (B, P) predicted positions, ascending; None: all T.
    fresh: (B,) rows that start anew.
    document: (B, T) to keep documents apart, or None.
    segment_ids: (B, T) parts, or None.
    place: (B, T) places in the texts that a row is made of, for absolute positions; None: in the row.
    backward: (B,) 1 for rows of reversed text; None: none is.
    remember: how many leading positions enter memory; None: all.
    """

    tokens: Tensor
    order: Tensor
    targets: Tensor
    stream: Literal["content", "query"]
    fresh: Tensor
    predict: Tensor | None = None
    document: Tensor | None = None
    segment_ids: Tensor | None = None
    place: Tensor | None = None
    backward: Tensor | None = None
    remember: int | None = None

    @property
    def num_targets(self) -> Tensor:
        """How many targets count; a 0-dim tensor, so that asking costs no synchronisation."""
        return (self.targets != IGNORE).sum()

    def to(self, device: torch.device) -> "Plan":
        """The same there."""
        changed: dict[str, Any] = {
            name: moved(value, device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **changed)

    def model_inputs(self) -> dict[str, Any]:
        """The keyword arguments of the model's ``forward``, but for the memory."""
        return {
            "tokens": self.tokens,
            "order": self.order,
            "targets": self.targets,
            "stream": self.stream,
            "predict": self.predict,
            "fresh": self.fresh,
            "document": self.document,
            "segment_ids": self.segment_ids,
            "place": self.place,
            "backward": self.backward,
            "remember": self.remember,
        }


class Objective(Protocol):
    """Turns a segment into a plan; pure, apart from the counted random numbers of ``draw``."""

    def plan(self, segment: Segment, draw: Draw) -> Plan: ...


def following(segment: Segment) -> tuple[Tensor, Tensor]:
    """The token after every place (B, T), and whether it is of the same document (B, T); -1 and false after the end."""
    last = torch.arange(segment.tokens.shape[1], device=segment.tokens.device) == segment.length[:, None] - 1  # (B, T)
    token = torch.cat([segment.tokens[:, 1:], segment.next_token[:, None]], dim=1)  # (B, T)
    document = torch.cat([segment.document[:, 1:], segment.next_document[:, None]], dim=1)  # (B, T)
    token = torch.where(last, segment.next_token[:, None], token)
    document = torch.where(last, segment.next_document[:, None], document)
    return token, document == segment.document


def is_text(segment: Segment) -> Tensor:
    """(B, T) bool: false at the padding after the end of a row's text."""
    places = torch.arange(segment.tokens.shape[1], device=segment.tokens.device)  # (T,)
    return places < segment.length[:, None]  # (B, T)
