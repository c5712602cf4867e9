"""Normalisation of the residual stream."""

import torch
from torch import Tensor, nn


class UncentredLayerNorm(nn.Module):
    """LayerNorm that divides by the root mean square and subtracts no mean; it has a bias, which RMSNorm has not."""

    def __init__(self, width: int, *, eps: float, bias: bool) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        found = nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return found if self.bias is None else found + self.bias


class BatchNorm(nn.BatchNorm1d):
    """BatchNorm over all rows and positions. It lets positions see one another, so causal objectives refuse it."""

    def forward(self, input: Tensor) -> Tensor:
        if input.shape[1] == 0:
            return input
        return super().forward(input.flatten(0, 1)).view_as(input)  # (B, R, D)


def make_norm(kind: str, width: int, *, eps: float, bias: bool) -> nn.Module:
    """``layer_norm``, ``layer_norm_uncentred``, ``rms_norm`` or ``batch_norm``."""
    if kind == "layer_norm":
        return nn.LayerNorm(width, eps=eps, bias=bias)
    if kind == "layer_norm_uncentred":
        return UncentredLayerNorm(width, eps=eps, bias=bias)
    if kind == "rms_norm":
        return nn.RMSNorm(width, eps=eps)
    if kind == "batch_norm":
        return BatchNorm(width, eps=eps)
    raise ValueError(kind)


NORMS = (nn.LayerNorm, UncentredLayerNorm, nn.RMSNorm, BatchNorm)
