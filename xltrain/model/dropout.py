"""Dropout whose masks are cheap to draw on a CPU.

torch draws one number per element there, on one core: a tenth of a training step. Eight random bits per element do, and
an integer generator fills eight elements at once. On other devices, and in a compiled graph, torch's own is used.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_STEPS = 1 << 8


def _kept(shape: torch.Size, p: float, *, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, float]:
    """1 where an element is kept and 0 where it is dropped, and the factor that makes up for it.

    The probability is rounded to 1/256, up or down at random so that it is right on average; the factor is that of
    the rounded one, so the expectation of an element stays.
    """
    dropped = min(_STEPS - 1, int(p * _STEPS + torch.rand(()).item()))
    count = shape.numel()
    bits = torch.empty((count + 7) // 8, dtype=torch.int64, device=device).random_(-(2**63), None)
    bits = bits.view(torch.uint8)[:count].view(shape)
    kept = torch.ge(bits, dropped, out=torch.empty(shape, dtype=dtype, device=device))
    return kept, _STEPS / (_STEPS - dropped)


def kept_or_zero(x: Tensor, p: float) -> tuple[Tensor, float]:
    """``x`` where an element is kept and 0 where it is dropped; and the factor that makes up for it."""
    if not p:
        return x, 1.0
    kept, scale = _kept(x.shape, p, dtype=x.dtype, device=x.device)
    return kept.mul_(x), scale


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        kept, scale = _kept(x.shape, p, dtype=x.dtype, device=x.device)
        factor = kept.mul_(scale)
        ctx.save_for_backward(factor)
        return x * factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (factor,) = ctx.saved_tensors
        return grad * factor, None


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
