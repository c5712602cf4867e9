"""How weights start: a distribution x a rule for its variance, in the standard or the NTK parametrisation."""

import math

import torch
from torch import Tensor, nn

from xltrain.model.attention import RelativeAttention
from xltrain.model.linear import Linear
from xltrain.model.norm import NORMS

# Standard deviation of a unit normal cut off at +-2, by which a truncated draw is divided to have the one asked for.
_TRUNCATED = 0.87962566103423978


def std_of(variance: str, *, fan_in: int, fan_out: int, std: float) -> float:
    """Standard deviation of a matrix under a rule.

    ``fixed``: ``std``; ``lecun``: 1/fan_in (LeCun et al. 1998); ``xavier``: 2/(fan_in + fan_out) (Glorot and Bengio
    2010); ``he``: 2/fan_in (He et al. 2015).
    """
    return {
        "fixed": std,
        "lecun": fan_in**-0.5,
        "xavier": (2.0 / (fan_in + fan_out)) ** 0.5,
        "he": (2.0 / fan_in) ** 0.5,
    }[variance]


@torch.no_grad()
def initialise(
    model: nn.Module,
    *,
    std: float = 0.02,
    distribution: str = "normal",
    variance: str = "fixed",
    parametrization: str = "standard",
    attention_scale: str = "sqrt",
    generator: torch.Generator | None = None,
) -> None:
    """Draw all weights, module by module in the order of their names.

    Matrices follow ``distribution`` and ``variance``. Embeddings, attention biases and what else is no matrix of a
    linear layer have ``std`` and the same distribution (normal where that is orthogonal). Biases start at 0, norms
    at 1. With ``attention_scale`` "init" the query matrix is drawn sqrt(head_dim) smaller (T5), for unscaled scores.
    """
    done: set[int] = set()
    for _, module in sorted(model.named_modules()):
        if isinstance(module, Linear):
            _draw_linear(module, std, distribution, variance, parametrization, generator)
            done |= {id(parameter) for parameter in module.parameters()}
        elif isinstance(module, NORMS):
            for name, parameter in module.named_parameters():
                parameter.fill_(1.0 if name == "weight" else 0.0)
            done |= {id(parameter) for parameter in module.parameters()}
    for name, parameter in sorted(model.named_parameters()):
        if id(parameter) in done:
            continue
        if name.endswith("bias") or ".biases." in name:
            parameter.zero_()
        else:
            _fill(parameter, std, "normal" if distribution == "orthogonal" else distribution, generator)
    if attention_scale == "init":
        for module in model.modules():
            if isinstance(module, RelativeAttention):
                module.query.weight.mul_(module.head_dim**-0.5)


def _draw_linear(
    module: Linear,
    std: float,
    distribution: str,
    variance: str,
    parametrization: str,
    generator: torch.Generator | None,
) -> None:
    size = std_of(variance, fan_in=module.in_features, fan_out=module.fan_out, std=std)
    if parametrization == "ntk":
        module.multiplier, size = size, 1.0
    for part in module.weight.split(module.fan_out):  # keys and values are two matrices in one
        _fill(part, size, distribution, generator)
    if module.bias is not None:
        module.bias.zero_()


def _fill(tensor: Tensor, std: float, distribution: str, generator: torch.Generator | None) -> None:
    if tensor.is_meta:
        return
    if distribution == "normal":
        tensor.normal_(0.0, std, generator=generator)
    elif distribution == "truncated_normal":
        wide = std / _TRUNCATED
        nn.init.trunc_normal_(tensor, 0.0, wide, -2.0 * wide, 2.0 * wide, generator=generator)
    elif distribution == "uniform":
        bound = math.sqrt(3.0) * std
        tensor.uniform_(-bound, bound, generator=generator)
    elif distribution == "orthogonal":  # entries of an orthogonal matrix have variance 1 / max(rows, columns)
        nn.init.orthogonal_(tensor, gain=std * math.sqrt(max(tensor.shape)), generator=generator)
    else:
        raise ValueError(distribution)
