"""Positions: the fixed sinusoid table that relative attention reads distances from."""

import torch
from torch import Tensor


def inverse_frequencies(d_model: int) -> Tensor:
    """(D/2,): 1 / 10000^(2k/D), rounded to fp32 as the original Transformer-XL code has them."""
    return 1.0 / 10000.0 ** (torch.arange(0, d_model, 2, dtype=torch.float32) / d_model)


def sinusoid(positions: Tensor, *, d_model: int, dtype: torch.dtype) -> Tensor:
    """Sines, then cosines, of every position (Transformer-XL, section 3.3; not interleaved).

    Args:
        positions: (J,) integers, negative ones included.
        d_model: D.
        dtype: fp32 or fp64. Half precision would merge positions: bf16 holds integers exactly only to 256.

    Returns:
        (J, D)
    """
    angles = positions.to(dtype)[:, None] * inverse_frequencies(d_model).to(positions.device, dtype)  # (J, D/2)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)  # (J, D)


def distances(*, seq_len: int, mem_len: int, two_sided: bool, clamp_len: int, device: torch.device) -> Tensor:
    """Distances query - key in the order that the relative shift expects, the farthest past first.

    Returns:
        (J,): M+T-1 down to 0, or down to -T if ``two_sided``; clipped to +-``clamp_len`` if that is above 0.
    """
    # No row reads -T; but so J = M + 2T is mostly a multiple of 8, as matrix products like it.
    last = -seq_len if two_sided else 0
    found = torch.arange(mem_len + seq_len - 1, last - 1, -1, device=device)  # (J,)
    return found.clamp(-clamp_len, clamp_len) if clamp_len else found
