"""Which steps are left out: those whose gradient is not finite, or far larger than the gradients before it.

One bad batch, or an overflow in half precision, would otherwise undo days of training. The decision is made and counted
on the device; the host asks only where it logs or saves, so a step never waits for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

WINDOW = 101
"""Norms that the median is taken of; before so many steps nothing counts as a spike."""

PATIENCE = 30
"""So many steps left out in a row end a run. Half precision needs up to 17 to find its scale."""


@dataclass(frozen=True)
class Skips:
    """Steps that were left out since the run began, and how many of them are the latest steps, one after another."""

    not_finite: int
    spikes: int
    in_a_row: int

    @property
    def total(self) -> int:
        return self.not_finite + self.spikes

    def __str__(self) -> str:
        reasons = {"gradient not finite": self.not_finite, "gradient far above the median": self.spikes}
        return ", ".join(f"{reason}: {count:,}" for reason, count in reasons.items() if count)


class Guard:
    """Judges steps by the norm of their gradient.

    Args:
        ratio: a norm above this multiple of the median of the last ``WINDOW`` finite ones is a spike; 0: none is.
            Spikes enter the window too, so a level that stays high becomes the normal one.
    """

    def __init__(self, *, ratio: float, device: torch.device) -> None:
        self.ratio = ratio or torch.inf
        self.norms = torch.full((WINDOW,), torch.nan, device=device)  # (W,) newest last
        self.counts = torch.zeros(3, dtype=torch.int64, device=device)  # the fields of Skips

    def refuses(self, *, loss: Tensor, norm: Tensor) -> Tensor:
        """Whether this step is to be left out: 0-dim bool, on the device. Called once per step."""
        finite = (loss + norm).isfinite()
        # Until the window is full its median is NaN, and no comparison with that is true.
        spike = finite & (norm > self.ratio * self.norms.median())
        self.norms = torch.where(finite, torch.cat([self.norms[1:], norm.to(self.norms.dtype)[None]]), self.norms)
        refused = spike | ~finite
        self.counts += torch.stack([~finite, spike, refused]).long()
        self.counts[2] *= refused
        return refused

    def skips(self) -> Skips:
        """The counts, read from the device."""
        return Skips(*self.counts.tolist())

    def state_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        known = self.norms[~self.norms.isnan()]
        return {"norms": known.tolist(), "counts": self.counts.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        norms = self.norms.new_tensor(state["norms"])
        self.norms = torch.cat([self.norms.new_full((WINDOW - len(norms),), torch.nan), norms])
        self.counts = self.counts.new_tensor(state["counts"])
