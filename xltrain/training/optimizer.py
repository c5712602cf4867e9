"""Optimizers of torch, with the groups that weight decay needs."""

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import nn

from xltrain.config.training import OptimizerConfig
from xltrain.errors import UsageError
from xltrain.model.linear import Linear


class Optimizer(Protocol):
    """What a step, a schedule and a checkpoint need of an optimizer."""

    @property
    def param_groups(self) -> list[dict[str, Any]]: ...

    def step(self) -> Any: ...

    def zero_grad(self, set_to_none: bool = True) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class Both:
    """Two optimizers for two sets of parameters, as one."""

    def __init__(self, first: torch.optim.Optimizer, second: torch.optim.Optimizer) -> None:
        self.parts = (first, second)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for part in self.parts for group in part.param_groups]

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)


def decayed(name: str) -> bool:
    """Whether weight decay applies: to matrices, embeddings and attention biases, not to norms and other biases."""
    return not (name.endswith("bias") or "norm" in name or ".biases." in name)


def matrices(model: nn.Module) -> Iterator[str]:
    """Names of the matrices of linear layers: what Muon is for."""
    for name, module in model.named_modules():
        if isinstance(module, Linear):
            yield f"{name}.weight"


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> Optimizer:
    """The optimizer of the configuration, fused where torch offers that for the device of the weights.

    Raises:
        UsageError: for muon where this torch has none.
    """
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if config.name == "adamw":
        return _adamw(named, config)
    if not hasattr(torch.optim, "Muon"):
        raise UsageError(f"optimizer.name: torch {torch.__version__} has no muon; choose adamw")
    by_muon = set(matrices(model))
    muon = torch.optim.Muon(
        [named[name] for name in sorted(by_muon)],
        lr=config.lr,
        weight_decay=config.weight_decay,
        adjust_lr_fn="match_rms_adamw",  # so that one learning rate serves both
    )
    return Both(muon, _adamw({name: named[name] for name in named if name not in by_muon}, config))


def _adamw(named: dict[str, nn.Parameter], config: OptimizerConfig) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = [
        {"params": [named[name] for name in named if decayed(name)], "weight_decay": config.weight_decay},
        {"params": [named[name] for name in named if not decayed(name)], "weight_decay": 0.0},
    ]
    device = next(iter(named.values())).device.type
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=device in ("cpu", "cuda"))


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """The rate of the next step."""
    for group in optimizer.param_groups:
        group["lr"] = lr
