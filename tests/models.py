"""Small models whose weights are all away from where training begins."""

from typing import Any

import torch

from xltrain.model.init import initialise
from xltrain.model.transformer import LanguageModel


def model_of(*, dtype: torch.dtype = torch.float64, **settings: Any) -> LanguageModel:
    """Of three layers and one stream, where ``settings`` say nothing else."""
    parametrization = settings.pop("parametrization", "standard")
    arguments: dict[str, Any] = {
        "vocab_size": 40, "num_layers": 3, "d_model": 8, "num_heads": 2, "head_dim": 4, "d_inner": 12,
    }  # fmt: skip
    model = LanguageModel(**arguments | settings)
    draw = torch.Generator().manual_seed(1)
    initialise(model, std=0.5, generator=draw, parametrization=parametrization)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):  # not at their trivial start
                parameter.add_(torch.randn(parameter.shape, generator=draw) * 0.3)
        for buffer in model.buffers():  # statistics of batch norm
            if buffer.is_floating_point():
                buffer.add_(torch.rand(buffer.shape, generator=draw))
    return model.to(dtype).eval()


def two_streams(**settings: Any) -> LanguageModel:
    """Of which a row sees on both sides, and a query stream beside the content stream."""
    return model_of(**{"vocab_size": 11, "two_sided": True, "query_stream": True} | settings)
