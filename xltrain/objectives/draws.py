"""Random numbers that depend on (seed, step, global row) and on nothing else.

They are computed, not taken from a generator: a hash of the counter (splitmix64). So what is drawn for a row is the
same on every device, in every micro-batch split, on any number of processes, and after a resume, with no state to save.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


@dataclass(frozen=True)
class Draw:
    """What a draw depends on. ``rows``: (B,) global row numbers, int64, on the device where numbers are wanted."""

    seed: int
    step: int
    rows: Tensor

    def uniform(self, count: int, *, purpose: int) -> Tensor:
        """(B, count) float64 in [0, 1); different ``purpose``, independent numbers."""
        key = _mix(
            _mix(_mix(torch.full_like(self.rows, self.seed) + purpose * 1_000_003) + self.step) + self.rows
        )  # (B,)
        counter = torch.arange(1, count + 1, device=self.rows.device) * _GOLDEN  # (count,)
        bits = _mix(key[:, None] + counter)  # (B, count)
        return _shift(bits, 11).double() * 2.0**-53


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014), after one increment; int64 products wrap."""
    x = x + _GOLDEN
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)
