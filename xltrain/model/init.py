"""How weights start."""

import torch
from torch import nn


@torch.no_grad()
def initialise(model: nn.Module, *, std: float, generator: torch.Generator | None = None) -> None:
    """Normal(0, ``std``) for matrices, embeddings and attention biases; zeros and ones for the rest (XLNet's rule).

    The draw runs over parameters in the order of their names, so it does not depend on how modules are nested.
    """
    norms = {
        f"{name}.{key}"
        for name, module in model.named_modules()
        if isinstance(module, nn.LayerNorm)
        for key in ("weight", "bias")
    }
    for name, parameter in sorted(model.named_parameters()):
        if name in norms:
            parameter.fill_(1.0 if name.endswith("weight") else 0.0)
        elif name.endswith("bias") or ".biases." in name:
            parameter.zero_()
        else:
            parameter.normal_(0.0, std, generator=generator)
