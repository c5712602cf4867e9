"""Cross-entropy of a linear layer's outputs, without ever holding all logits where they are many.

torch has a function of this name too, from 2.13 on; it gives only sums or means, and here every target's loss is asked
for.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

IGNORE = -1
"""A target that is not scored."""

AT_ONCE = 2**24
"""Logits of a chunk: 64 MiB in fp32."""

WHOLE = 4 * AT_ONCE
"""Up to so many logits all are held from forward to backward: it costs memory, but the product is not done twice."""

uncompiled = torch._disable_dynamo
"""``torch.compiler.disable``, but it loads the compiler, which takes a second, only when the function is called."""


def wide(logits: Tensor) -> Tensor:
    """fp32 at least: sums of exponentials over a vocabulary need it."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def linear_cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Negative log-likelihood in nats, in fp32 or better; 0 where the target is ``IGNORE``.

    Args:
        hidden: (n, D).
        weight: (V, D).
        bias: (V,).
        targets: (n,).

    Returns:
        (n,)
    """
    few = targets.numel() * weight.shape[0] <= WHOLE
    if not torch.compiler.is_compiling():
        return _by_hand(hidden, weight, bias, targets, keep=few)
    if not few:
        return _uncompiled(hidden, weight, bias, targets)
    logits = wide(functional.linear(hidden, weight, bias))  # (n, V)
    return functional.cross_entropy(logits, targets, reduction="none", ignore_index=IGNORE)


def _by_hand(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, *, keep: bool) -> Tensor:
    kind = hidden.device.type
    # Tensors without values (`inspect`) are of a device that autocast does not know.
    cast = kind != "meta" and torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if cast else hidden.dtype
    return _CrossEntropy.apply(hidden.to(dtype), weight, bias, targets, keep)


@uncompiled  # a compiler may reorder chunks, and then holds several
def _uncompiled(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    return _by_hand(hidden, weight, bias, targets, keep=False)


class _CrossEntropy(torch.autograd.Function):
    """Softmax and loss; of all logits one tensor is kept, and none where they are many.

    Those of a chunk are then made, used and dropped, and the backward makes them again. ``weight`` and ``bias`` are
    rounded to the dtype of ``hidden``; their gradients are summed in their own.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, keep: bool) -> Tensor:
        nll, kept = [], []
        cast = weight.to(hidden.dtype), bias.to(hidden.dtype)
        ctx.step = len(hidden) if keep else max(1, AT_ONCE // weight.shape[0])
        for rows, wanted in zip(hidden.split(ctx.step), targets.split(ctx.step), strict=True):
            logits = wide(functional.linear(rows, *cast))  # (c, V)
            log_probs = torch.log_softmax(logits, dim=1, out=logits)  # (c, V)
            found = log_probs.gather(1, wanted.clamp(min=0)[:, None]).squeeze(1)  # (c,)
            nll.append(-found.masked_fill(wanted == IGNORE, 0.0))
            if keep:
                kept.append(log_probs)
        ctx.save_for_backward(hidden, weight, bias, targets, *kept)
        return torch.cat(nll)  # (n,)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, *kept = ctx.saved_tensors
        cast = weight.to(hidden.dtype), bias.to(hidden.dtype)
        of_hidden: list[Tensor] = []
        of_weight = of_bias = None
        grad = grad.masked_fill(targets == IGNORE, 0.0)  # (n,)
        for rows, wanted, scale in zip(*(each.split(ctx.step) for each in (hidden, targets, grad)), strict=True):
            if kept:
                of_logits = kept[0].exp()  # (n, V)
            else:
                of_logits = wide(functional.linear(rows, *cast))  # (c, V)
                torch.softmax(of_logits, dim=1, out=of_logits)
            of_logits.scatter_add_(1, wanted.clamp(min=0)[:, None], of_logits.new_full((len(rows), 1), -1.0))
            of_logits.mul_(scale[:, None])
            of_bias = _plus(of_bias, of_logits.sum(dim=0).to(bias.dtype))  # (V,)
            of_logits = of_logits.to(hidden.dtype)
            of_hidden.append(of_logits @ cast[0])  # (c, D)
            of_weight = _plus(of_weight, (of_logits.T @ rows).to(weight.dtype))  # (V, D)
        return torch.cat(of_hidden), of_weight, of_bias, None, None


def _plus(total: Tensor | None, more: Tensor) -> Tensor:
    """The sum, in place but for the first."""
    return more if total is None else total.add_(more)
