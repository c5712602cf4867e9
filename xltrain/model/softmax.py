"""From hidden states to the loss of each target."""

import torch
from torch import Tensor, nn
from torch.nn import functional

IGNORE = -1
"""A target that is not scored."""


class Softmax(nn.Module):
    """A full softmax over V words; its weights may be the embedding table."""

    def __init__(self, *, vocab_size: int, d_model: int, tied_to: nn.Embedding | None) -> None:
        super().__init__()
        self.tied = tied_to is not None
        self.weight = (
            tied_to.weight if tied_to is not None else nn.Parameter(torch.empty(vocab_size, d_model))
        )  # (V, D)
        self.bias = nn.Parameter(torch.zeros(vocab_size))  # (V,)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)"""
        return functional.linear(hidden, self.weight, self.bias)

    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Negative log-likelihood in nats, in fp32 or better; 0 where the target is ``IGNORE``.

        Args:
            hidden: (B, P, D).
            targets: (B, P).

        Returns:
            (B, P)
        """
        logits = self.logits(hidden)  # (B, P, V)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        nll = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=IGNORE)
        return nll.view_as(targets)  # (B, P)
