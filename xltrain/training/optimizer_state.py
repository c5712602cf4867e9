"""The state of an optimizer as named tensors, so that it does not depend on how weights are ordered or shared out."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from xltrain.errors import UsageError
from xltrain.training.checkpoint import Checkpoint
from xltrain.training.optimizer import Both, Optimizer
from xltrain.training.tensors import fill, shapes


def named_state(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """``WEIGHT.SLOT`` for everything that the optimizer remembers of a weight."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[parameter]}.{slot}": value if isinstance(value, Tensor) else torch.tensor(value)
        for part in _parts(optimizer)
        for parameter, slots in part.state.items()
        for slot, value in slots.items()
    }


def restore_state(optimizer: Optimizer, model: nn.Module, checkpoint: Checkpoint) -> None:
    """Give the optimizer what it remembered; its rates and decays stay those of the configuration.

    Raises:
        UsageError: if the checkpoint's optimizer remembered other things, as another kind of optimizer does.
    """
    parameters = dict(model.named_parameters())
    found: dict[str, dict[str, Tensor]] = {}
    flat: dict[str, Tensor] = {}
    for name, (shape, dtype) in shapes(checkpoint.folder, "optimizer").items():
        weight, _, slot = name.rpartition(".")
        parameter = parameters[weight]
        like = torch.zeros_like(parameter, dtype=dtype) if shape == parameter.shape else torch.zeros(shape, dtype=dtype)
        flat[name] = found.setdefault(weight, {})[slot] = like
    fill(checkpoint.folder, "optimizer", flat)
    for part in _parts(optimizer):
        state = part.state_dict()
        names = [name for group in part.param_groups for name in _names(group, parameters)]
        state["state"] = {index: found.pop(name) for index, name in enumerate(names) if name in found}
        part.load_state_dict(state)
    if found:
        raise UsageError(
            f"{checkpoint.folder}: the state of {', '.join(found)} does not fit this optimizer; "
            "go on with the optimizer.name that the run was started with"
        )


def _parts(optimizer: Any) -> tuple[torch.optim.Optimizer, ...]:
    return optimizer.parts if isinstance(optimizer, Both) else (optimizer,)


def _names(group: dict[str, Any], parameters: dict[str, nn.Parameter]) -> Iterator[str]:
    names = {parameter: name for name, parameter in parameters.items()}
    for parameter in group["params"]:
        yield names[parameter]
