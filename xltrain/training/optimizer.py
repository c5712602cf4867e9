"""Optimizers of torch, with the groups that weight decay needs."""

from typing import Any

import torch
from torch import nn

from xltrain.config.schema import OptimizerConfig


def decayed(name: str) -> bool:
    """Whether weight decay applies: to matrices, embeddings and attention biases, not to norms and other biases."""
    return not (name.endswith("bias") or "norm" in name or ".biases." in name)


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """AdamW, fused where torch offers it for the device of the weights."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [parameter for name, parameter in named if decayed(name)], "weight_decay": config.weight_decay},
        {"params": [parameter for name, parameter in named if not decayed(name)], "weight_decay": 0.0},
    ]
    device = named[0][1].device.type
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=device in ("cpu", "cuda"))


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """The rate of the next step."""
    for group in optimizer.param_groups:
        group["lr"] = lr
