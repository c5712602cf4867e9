"""Cross-entropy of a linear layer's outputs, without ever holding all logits where they are many.

torch has a function of this name too, from 2.13 on; it gives only sums or means, and here every target's loss is asked
for.
"""

from typing import Any

import torch
from torch import Tensor
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
    if targets.numel() * weight.shape[0] > WHOLE:
        return _in_chunks(hidden, weight, bias, targets)
    logits = wide(functional.linear(hidden, weight, bias))  # (n, V)
    return functional.cross_entropy(logits, targets, reduction="none", ignore_index=IGNORE)


@uncompiled  # a compiler may reorder chunks, and then holds several
def _in_chunks(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    kind = hidden.device.type
    # Tensors without values (`inspect`) are of a device that autocast does not know.
    cast = kind != "meta" and torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if cast else hidden.dtype
    return _Chunked.apply(hidden.to(dtype), weight, bias, targets)


class _Chunked(torch.autograd.Function):
    """The logits of a chunk are made, used and dropped; the backward makes them again from the sums it has kept.

    ``weight`` and ``bias`` are rounded to the dtype of ``hidden``; their gradients are summed in their own.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        nll, total = [], []
        cast = weight.to(hidden.dtype), bias.to(hidden.dtype)
        step = max(1, AT_ONCE // weight.shape[0])
        for rows, wanted in zip(hidden.split(step), targets.split(step), strict=True):
            logits = wide(functional.linear(rows, *cast))  # (c, V)
            total.append(logits.logsumexp(dim=1))  # (c,)
            found = logits.gather(1, wanted.clamp(min=0)[:, None]).squeeze(1)  # (c,)
            nll.append((total[-1] - found).masked_fill(wanted == IGNORE, 0.0))
        ctx.save_for_backward(hidden, weight, bias, targets, torch.cat(total))
        return torch.cat(nll)  # (n,)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        hidden, weight, bias, targets, total = ctx.saved_tensors
        cast = weight.to(hidden.dtype), bias.to(hidden.dtype)
        step = max(1, AT_ONCE // weight.shape[0])
        of_hidden, of_weight, of_bias = torch.empty_like(hidden), torch.zeros_like(weight), torch.zeros_like(bias)
        grad = grad.masked_fill(targets == IGNORE, 0.0)  # (n,)
        for begin in range(0, len(hidden), step):
            part = slice(begin, begin + step)
            rows = hidden[part]  # (c, D)
            of_logits = wide(functional.linear(rows, *cast)).sub_(total[part, None]).exp_()  # (c, V)
            of_logits.scatter_add_(1, targets[part, None].clamp(min=0), of_logits.new_full((len(rows), 1), -1.0))
            of_logits.mul_(grad[part, None])
            of_bias += of_logits.sum(dim=0)
            of_logits = of_logits.to(hidden.dtype)
            of_hidden[part] = of_logits @ cast[0]
            of_weight += of_logits.T @ rows
        return of_hidden, of_weight, of_bias, None
