"""Optimizers of torch, with groups for weight decay and for the depth of a layer."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from xltrain.config.training import OptimizerConfig
from xltrain.errors import UsageError
from xltrain.model.linear import Linear
from xltrain.training.parallel import own_share


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


def rate_of(name: str, *, num_layers: int, layer_decay: float) -> float:
    """The share of the learning rate that a parameter moves with.

    ``layer_decay ** k`` for the layer k below the top one, and for embeddings as if they lay below the lowest layer;
    1 for the softmax, a final norm and the biases that layers share. XLNet's code multiplies gradients by it instead,
    which Adam, blind to the scale of a gradient, undoes; a rate cannot be undone.
    """
    found = re.match(r"layers\.(\d+)\.", name)
    if found:
        return layer_decay ** (num_layers - 1 - int(found[1]))
    below = name.startswith(("embedding.", "position_embedding", "mask_embedding"))
    return layer_decay**num_layers if below else 1.0


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> Optimizer:
    """The optimizer of the configuration, fused where torch offers that for the device of the weights.

    Raises:
        UsageError: for muon where this torch has none.
    """
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    depth = 1 + max((int(name.split(".")[1]) for name in named if name.startswith("layers.")), default=0)
    if config.name != "muon":
        return _elementwise(_groups(named, config, depth), config)
    if not hasattr(torch.optim, "Muon"):
        raise UsageError(f"optimizer.name: torch {torch.__version__} has no muon; choose adamw")
    by_muon = set(matrices(model))
    muon = torch.optim.Muon(
        _groups({name: named[name] for name in sorted(by_muon)}, config, depth),
        lr=config.lr,
        weight_decay=config.weight_decay,
        adjust_lr_fn="match_rms_adamw",  # so that one learning rate serves both
    )
    rest = {name: named[name] for name in named if name not in by_muon}
    return Both(muon, _elementwise(_groups(rest, config, depth), config))


def _groups(named: Mapping[str, nn.Parameter], config: OptimizerConfig, num_layers: int) -> list[dict[str, Any]]:
    """One group per (weight decay, share of the rate), in the order in which their first parameters come."""
    found: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in named.items():
        rate = rate_of(name, num_layers=num_layers, layer_decay=config.layer_decay)
        found.setdefault((decayed(name), rate), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": config.weight_decay if decay else 0.0, "rate": rate}
        for (decay, rate), parameters in found.items()
    ]


def _elementwise(groups: list[dict[str, Any]], config: OptimizerConfig) -> torch.optim.Optimizer:
    if config.name == "adafactor":
        return torch.optim.Adafactor(groups, lr=config.lr)
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    device = groups[0]["params"][0].device.type
    return kind(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=device in ("cpu", "cuda"))


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """The rate of the next step; every group takes its share."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["rate"]


def step_unless(skip: Tensor, optimizer: Optimizer) -> None:
    """One step, or none where ``skip`` (0-dim) is true: then weights, moments and counts stay as they are.

    torch's fused kernels read the flag on the device, as they do for its ``GradScaler``. A step of Muon is taken, and
    taken back on the device. Adafactor makes the host wait for a norm of each weight anyway, so it may read the flag.
    """
    parts: tuple[Any, ...] = optimizer.parts if isinstance(optimizer, Both) else (optimizer,)
    for part in parts:
        if getattr(part, "_step_supports_amp_scaling", False):
            part.found_inf, part.grad_scale = skip.float(), None
            part.step()
        elif isinstance(part, torch.optim.Adafactor):
            if not skip:
                part.step()
        else:
            _step_or_take_back(skip, part)


@torch.no_grad()
def _step_or_take_back(skip: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """For optimizers whose state begins as zeros; until the step is over, all that it changes is there twice."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"] if weight.grad is not None]

    def changed() -> dict[tuple[Tensor, str], Tensor]:
        slots = [(weight, {"": weight, **optimizer.state[weight]}) for weight in weights]
        return {(weight, slot): own_share(value) for weight, found in slots for slot, value in found.items()}

    before = {key: value.clone() for key, value in changed().items()}
    optimizer.step()
    for key, value in changed().items():
        value.copy_(torch.where(skip, before.get(key, 0.0), value))
