"""Dropout whose masks are cheap to draw on a CPU.

torch draws one number per element there, on one core: a tenth of a training step. Sixteen random bits per element do,
and an integer generator fills four elements at once. On other devices, and in a compiled graph, torch's own is used.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_STEPS = 1 << 16


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        dropped = round(p * _STEPS)
        bits = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        bits = bits.view(torch.int16)[: x.numel()].view(x.shape)
        scale = torch.ge(bits, dropped - _STEPS // 2, out=torch.empty(x.shape, dtype=x.dtype))
        scale.mul_(_STEPS / (_STEPS - dropped))  # the expectation is exact, although p is rounded to 1/65536
        ctx.save_for_backward(scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (scale,) = ctx.saved_tensors
        return grad * scale, None


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero elements with probability ``p`` and scale the rest, so that the expectation stays."""
    if p == 0.0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return functional.dropout(x, p)
    return _Drop.apply(x, p)


class Dropout(nn.Module):
    """:func:`dropout` while training, nothing otherwise."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x
