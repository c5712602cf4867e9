"""Our weights and configuration as those of ``TransfoXLLMHeadModel``, which transformers had until 4.x.

The way back of :mod:`xltrain.interop.transformer_xl`, with its tables. Shapes: N heads, H head size, D model size, L
layers.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from xltrain.config.schema import Config
from xltrain.interop import transformer_xl
from xltrain.interop.transformer_xl import Layout
from xltrain.model.transformer import LanguageModel
from xltrain.training.build import build_model

ARCHITECTURE = "TransfoXLLMHeadModel"

BACK: dict[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] = {
    transformer_xl.same: lambda tensor: tensor,
    transformer_xl.turned: lambda tensor: tensor.flip(0),
    transformer_xl.of_layers: lambda tensor: tensor[0] if tensor.shape[0] == 1 else tensor,
}
"""A conversion of one tensor, and the one that undoes it."""

REQUIRED: dict[str, tuple[object, str]] = {
    "positions": ("relative", "Transformer-XL's are relative"),
    "norm": ("layer_norm", "it has layer_norm"),
    "final_norm": (False, "it has none"),
    "activation": ("relu", "it has relu"),
    "bias": (True, "its norms and feed-forward layers have biases"),
    "attention_bias": (False, "its attention has no biases"),
    "attention_scale": ("sqrt", "it divides scores by sqrt(head_dim)"),
    "scale_embeddings": (True, "it scales its embeddings by sqrt(d_model)"),
    "segment_embeddings": (False, "its segments have no parts"),
}
"""Keys of the model section that must have this value, and why."""


def reasons_against(config: Config) -> list[str]:
    """Everything in a run's configuration that transformers' Transformer-XL cannot express; empty: it can be."""
    found = []
    if config.objective.name != "causal":
        found.append(f"objective.name is {config.objective.name}: Transformer-XL is causal")
    for key, (wanted, why) in REQUIRED.items():
        value = getattr(config.model, key)
        if value != wanted:
            found.append(f"model.{key} is {str(value).lower()}: {why}")
    if not config.segments.mem_len:
        found.append("segments.mem_len is 0: it always remembers")
    return found


def layout_of(config: Config) -> Layout:
    """Which tensors a model of this configuration has."""
    model, adaptive = config.model, config.model.adaptive
    tables = len(adaptive.cutoffs) + 1 if adaptive.cutoffs and adaptive.div_val > 1 else 1
    ties = tuple(adaptive.tied_projections)[:tables]
    return Layout(
        num_layers=model.num_layers,
        cutoffs=tuple(adaptive.cutoffs),
        div_val=adaptive.div_val,
        tie_embeddings=model.tie_embeddings,
        tie_projections=ties + (False,) * (tables - len(ties)),
    )


def to_original(tensors: Mapping[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """Our parameters under the names of the original's ``state_dict``; what is tied is there once."""
    found: dict[str, Tensor] = {}
    for theirs, ours, convert in layout.rows():
        if convert in BACK:
            found[theirs] = BACK[convert](tensors[ours])
        elif convert is transformer_xl.query:  # the keys and values have a row of their own, with the same name
            both = ours.replace(".query.", ".key_value.")
            found[theirs] = torch.cat([tensors[ours], tensors[both]])  # (3*N*H, D)
    return found


def to_transformers(tensors: Mapping[str, Tensor], *, num_layers: int, d_model: int) -> dict[str, Tensor]:
    """The original's ``state_dict`` under transformers' names, position biases in every layer, bins the other way."""
    frequencies = 10000.0 ** -(torch.arange(0.0, d_model, 2.0) / d_model)  # (D/2,)
    found: dict[str, Tensor] = {f"transformer.{transformer_xl.COMPUTED}": frequencies}
    for name, tensor in tensors.items():
        if name in ("r_w_bias", "r_r_bias"):
            for layer in range(num_layers):
                of_layer = tensor[layer] if tensor.dim() == 3 else tensor  # (N, H)
                found[f"transformer.layers.{layer}.dec_attn.{name}"] = of_layer.clone()
        elif name in ("crit.cluster_weight", "crit.cluster_bias"):
            found[name] = tensor.flip(0)
        else:
            found[name if name.startswith("crit.") else f"transformer.{name}"] = tensor
    return {name: tensor.contiguous() for name, tensor in found.items()}


def settings(config: Config, *, vocab_size: int, end: int | None) -> dict[str, Any]:
    """The content of ``config.json``; ``end``: the id that ends a line or a document."""
    model, layout = config.model, layout_of(config)
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "transfo-xl",
        "vocab_size": vocab_size,
        "cutoffs": list(layout.cutoffs),
        "d_model": model.d_model,
        "d_embed": model.d_model,
        "n_head": model.num_heads,
        "d_head": model.head_width,
        "d_inner": model.inner_width,
        "div_val": layout.div_val,
        "pre_lnorm": model.norm_position == "pre",
        "n_layer": model.num_layers,
        "mem_len": config.segments.mem_len,
        "tgt_len": config.segments.seq_len,
        "clamp_len": model.clamp_len or -1,
        "same_length": model.same_length,
        "proj_share_all_but_first": False,  # tie_projs says it for each bin
        "tie_projs": list(layout.tie_projections),
        "attn_type": 0,
        "sample_softmax": -1,
        "adaptive": True,
        "dropout": model.dropout,
        "dropatt": model.attention_dropout,
        "untie_r": True,
        "init_std": model.init.std,
        "layer_norm_epsilon": model.norm_eps,
        "tie_word_embeddings": model.tie_embeddings,
        "eos_token_id": end,
    }


@torch.no_grad()
def largest_difference(ours: LanguageModel, folder: Path, config: Config, *, vocab_size: int, seed: int = 0) -> float:
    """Largest difference of a log-probability between ours and the folder, as ``import-checkpoint`` reads it back.

    transformers 5 has no such class, so this compares what is written, not what another program makes of it.

    Args:
        ours: the trained model, in evaluation mode.
        config: of its run.
        seed: of the tokens of three segments, memory carried.
    """
    stored = {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}
    original = transformer_xl.from_transformers(stored, untied=True)
    model = config.model.model_copy(update={"tie_position_bias": False, "parametrization": "standard"})
    theirs = build_model(config.model_copy(update={"model": model}), vocab_size=vocab_size, device=torch.device("cpu"))
    tensors = transformer_xl.from_original(
        {name: tensor.float() for name, tensor in original.items()}, layout_of(config)
    )
    for name, parameter in theirs.named_parameters():
        parameter.copy_(tensors[name])
    generator, largest = torch.Generator().manual_seed(seed), 0.0
    memories = [each.empty_memory(rows=2, mem_len=config.segments.mem_len) for each in (ours, theirs.eval())]
    for _ in range(3):
        tokens = torch.randint(vocab_size, (2, min(config.segments.seq_len, 32)), generator=generator)  # (B, T)
        order = torch.arange(tokens.shape[1]).expand_as(tokens)  # (B, T)
        scores = []
        for index, each in enumerate((ours, theirs)):
            hidden, memories[index] = each.hidden(tokens, order, memories[index])
            scores.append(each.softmax.log_probs(hidden))
        largest = max(largest, (scores[0] - scores[1]).abs().max().item())
    return largest
