"""From gradients to weights: unscale, clip, judge, and step or leave the step out."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from xltrain.config.training import OptimizerConfig
from xltrain.training.guard import Guard
from xltrain.training.optimizer import Optimizer, step_unless
from xltrain.training.parallel import whole


class Updater:
    """All that lies between a loss and the next weights.

    Args:
        config: what the optimizer section says of clipping and of spikes.
        precision: as ``training.precision``; fp16 scales the loss, so that small gradients are not rounded to zero.
    """

    def __init__(self, optimizer: Optimizer, config: OptimizerConfig, *, precision: str, device: torch.device) -> None:
        self.optimizer, self.precision, self.clip_norm = optimizer, precision, config.clip_norm
        self.guard = Guard(ratio=config.spike_ratio, device=device)
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")

    def zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def backward(self, share: Tensor) -> None:
        """Add the gradient of this part of the loss."""
        self.scaler.scale(share).backward()

    def step(self, parameters: Iterable[nn.Parameter], *, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Move the weights, unless the guard refuses.

        Returns:
            the gradient's norm before clipping, and whether the step was left out; both 0-dim, on the device.
        """
        self.scaler.unscale_(self.optimizer)  # type: ignore[arg-type]  # all it needs are the groups
        norm = whole(nn.utils.clip_grad_norm_(parameters, self.clip_norm or torch.inf))
        skipped = self.guard.refuses(loss=loss, norm=norm)
        step_unless(skipped, self.optimizer)
        self.scaler.update()
        return norm, skipped

    def state_dict(self) -> dict[str, Any]:
        """What continuing needs beside the optimizer's own state; plain data, for JSON."""
        return {"guard": self.guard.state_dict(), "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.guard.load_state_dict(state["guard"])
        if state["scaler"] and self.scaler.is_enabled():  # either is empty where precision changed on resume
            self.scaler.load_state_dict(dict(state["scaler"]))
