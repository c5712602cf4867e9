"""Softmax attention with a bias, in the ways that ``model.attention_backend`` names; they compute the same function.

Shapes: B rows, R query rows, K keys, N heads, H head size.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from xltrain.model.dropout import kept_or_zero


class _Attend(torch.autograd.Function):
    """Softmax, dropout of weights and their product with the values, keeping one score-sized tensor for the backward.

    A weight is kept with a minus sign where dropout keeps it: the negative part is minus the weights after dropout, the
    absolute values are those before it, and the backward needs both.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, dropout: float
    ) -> Tensor:  # (B*N, R, H), (B*N, K, H), (B*N, K, H), (B*N, R, K)
        scores = torch.baddbmm(bias, query, key.transpose(1, 2))  # (B*N, R, K)
        weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
        kept, scale = kept_or_zero(weights, dropout)
        output = torch.bmm(kept.to(value.dtype), value) * scale  # (B*N, R, H)
        signed = torch.add(weights, kept, alpha=-2.0, out=weights)
        ctx.save_for_backward(query, key, value, signed, output)
        ctx.scale = scale
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        query, key, value, signed, output = ctx.saved_tensors
        # Of a softmax's backward, the sum over keys is that of gradient times output over units (Dao et al. 2022, B.2).
        total = (grad * output).sum(dim=-1, keepdim=True, dtype=signed.dtype)  # (B*N, R, 1)
        grad = grad * -ctx.scale
        kept = signed.clamp(max=0.0)  # (B*N, R, K) minus the weights after dropout
        of_value = torch.bmm(kept.to(grad.dtype).transpose(1, 2), grad)  # (B*N, K, H)
        of_scores = torch.bmm(grad, value.transpose(1, 2)).to(signed.dtype)  # (B*N, R, K)
        of_scores = of_scores.mul_(kept).addcmul_(signed.abs(), total, value=-1.0).to(query.dtype)
        of_query = torch.bmm(of_scores, key)  # (B*N, R, H)
        of_key = torch.bmm(of_scores.transpose(1, 2), query)  # (B*N, K, H)
        return of_query, of_key, of_value, of_scores, None


def attend_math(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, dropout: float) -> Tensor:
    """Softmax attention by plain matrix products; the softmax in fp32 whatever the precision of the rest.

    Args:
        query: (B, N, R, H) = (q + u), scaled.
        key, value: (B, N, K, H).
        bias: (B, N, R, K) added to the scores, -inf where hidden; overwritten where no gradient is wanted.
        dropout: probability that an attention weight is dropped.

    Returns:
        (B, N, R, H)
    """
    rows, heads, total, width = query.shape
    # Under autocast only what comes out of a projection is in half precision; here all is made so.
    flat = [tensor.to(value.dtype).reshape(-1, *tensor.shape[2:]) for tensor in (query, key, value, bias)]
    if not (torch.is_grad_enabled() or dropout or torch.compiler.is_compiling()):
        # One score-sized tensor instead of three: for long memories on a CPU this halves the time.
        scores = flat[3].baddbmm_(flat[0], flat[1].transpose(1, 2))  # (B*N, R, K)
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        weights = torch.softmax(wide, dim=-1, out=wide).to(value.dtype)
        return torch.bmm(weights, flat[2]).view(rows, heads, total, width)
    if not torch.compiler.is_compiling():
        return _Attend.apply(*flat, dropout).view(rows, heads, total, width)
    scores = torch.baddbmm(flat[3], flat[0], flat[1].transpose(1, 2))  # (B*N, R, K)
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    weights = functional.dropout(weights, dropout).to(value.dtype)
    return torch.bmm(weights, flat[2]).view(rows, heads, total, width)


def attend_sdpa(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, dropout: float) -> Tensor:
    """The same through ``torch.nn.functional.scaled_dot_product_attention``."""
    bias = bias.to(query.dtype)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout, scale=1.0)


@cache
def _flex(device_type: str) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    # Uncompiled it is a slow reference; the compiler makes one kernel of it.
    return torch.compile(flex_attention, dynamic=False) if device_type == "cuda" else flex_attention


def attend_flex(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, dropout: float) -> Tensor:
    """The same through torch's FlexAttention; it has no dropout of weights, and on a CPU no gradient.

    Raises:
        ValueError: for ``dropout`` above 0.
    """
    if dropout:
        raise ValueError("flex attention has no dropout of attention weights")

    def add(score: Tensor, row: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + bias[row, head, i, j]

    return _flex(query.device.type)(query, key, value, score_mod=add, scale=1.0)


Attend = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]
"""A backend: query, key, value, bias and dropout to the mixed values, as in :func:`attend_math`."""

BACKENDS: dict[str, Attend] = {
    "math": attend_math,
    "sdpa": attend_sdpa,
    "flex": attend_flex,
}


def choose_backend(name: str, device: torch.device) -> str:
    """``auto`` is sdpa on CUDA and math elsewhere, where torch's fused kernel has no gradient for the bias."""
    if name == "auto":
        return "sdpa" if device.type == "cuda" else "math"
    return name
