"""Names of the original XLNet's TensorFlow variables: a table and pure functions (no files).

They become those of transformers' ``XLNetLMHeadModel``, as transformers' own converter had it: attention matrices stay
as they are, the output one included; matrices of the feed-forward layer are turned round; what is stored for all layers
at once is cut. Shapes: N heads, H head size, D model size, I width of the feed-forward layer, V vocabulary, L layers.
"""

import re
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

Convert = Callable[[Tensor, int], Tensor]  # (their variable, layer) -> transformers' tensor


def _same(tensor: Tensor, layer: int) -> Tensor:
    return tensor


def _of_layer(tensor: Tensor, layer: int) -> Tensor:
    return tensor[layer]  # (L, ...) -> (...)


def _bias_of_layer(tensor: Tensor, layer: int) -> Tensor:
    return tensor[layer] if tensor.dim() == 3 else tensor  # (L, N, H), or (N, H) shared by all layers


def _turned(tensor: Tensor, layer: int) -> Tensor:
    return tensor.t()  # (D, I) -> (I, D)


WHOLE: tuple[tuple[str, str, Convert], ...] = (
    ("model/transformer/word_embedding/lookup_table", "transformer.word_embedding.weight", _same),
    ("model/transformer/mask_emb/mask_emb", "transformer.mask_emb", _same),
    ("model/lm_loss/bias", "lm_loss.bias", _same),
)
"""Variables outside the layers: their name, transformers' name, how one becomes the other."""

OF_ALL_LAYERS: tuple[tuple[str, str, Convert], ...] = (
    ("model/transformer/r_w_bias", "rel_attn.r_w_bias", _bias_of_layer),
    ("model/transformer/r_r_bias", "rel_attn.r_r_bias", _bias_of_layer),
    ("model/transformer/r_s_bias", "rel_attn.r_s_bias", _bias_of_layer),
    ("model/transformer/seg_embed", "rel_attn.seg_embed", _of_layer),
)
"""Variables that hold a part for each layer. The last two exist only where segment ids were fed."""

PER_LAYER: tuple[tuple[str, str, Convert], ...] = (
    ("model/transformer/layer_{}/rel_attn/q/kernel", "rel_attn.q", _same),
    ("model/transformer/layer_{}/rel_attn/k/kernel", "rel_attn.k", _same),
    ("model/transformer/layer_{}/rel_attn/v/kernel", "rel_attn.v", _same),
    ("model/transformer/layer_{}/rel_attn/r/kernel", "rel_attn.r", _same),
    ("model/transformer/layer_{}/rel_attn/o/kernel", "rel_attn.o", _same),
    ("model/transformer/layer_{}/rel_attn/LayerNorm/gamma", "rel_attn.layer_norm.weight", _same),
    ("model/transformer/layer_{}/rel_attn/LayerNorm/beta", "rel_attn.layer_norm.bias", _same),
    ("model/transformer/layer_{}/ff/layer_1/kernel", "ff.layer_1.weight", _turned),
    ("model/transformer/layer_{}/ff/layer_1/bias", "ff.layer_1.bias", _same),
    ("model/transformer/layer_{}/ff/layer_2/kernel", "ff.layer_2.weight", _turned),
    ("model/transformer/layer_{}/ff/layer_2/bias", "ff.layer_2.bias", _same),
    ("model/transformer/layer_{}/ff/LayerNorm/gamma", "ff.layer_norm.weight", _same),
    ("model/transformer/layer_{}/ff/LayerNorm/beta", "ff.layer_norm.bias", _same),
)
"""Variables of a layer, transformers' under ``transformer.layer.{}.``."""

OPTIONAL = {"model/transformer/r_s_bias", "model/transformer/seg_embed"}

OF_THE_OPTIMIZER = r"global_step|(beta[12]_power)|.*/(Adam|Adam_1|adam_m|adam_v)"
"""Variables that are no weights."""


def wanted_variables(num_layers: int, *, present: Iterable[str]) -> list[str]:
    """Names of the variables that a checkpoint must have."""
    present = set(present)
    found = [theirs for theirs, _, _ in (*WHOLE, *OF_ALL_LAYERS) if theirs not in OPTIONAL or OPTIONAL & present]
    return found + [theirs.format(layer) for layer in range(num_layers) for theirs, _, _ in PER_LAYER]


def is_of_the_optimizer(name: str) -> bool:
    return re.fullmatch(OF_THE_OPTIMIZER, name) is not None


def to_transformers(variables: Mapping[str, Tensor], *, num_layers: int) -> dict[str, Tensor]:
    """The state dict of an ``XLNetLMHeadModel``, which always has segment embeddings: zero where there are none."""
    found = {ours: convert(variables[theirs], 0) for theirs, ours, convert in WHOLE}
    for layer in range(num_layers):
        prefix = f"transformer.layer.{layer}."
        for theirs, ours, convert in OF_ALL_LAYERS:
            if theirs in variables:
                found[prefix + ours] = convert(variables[theirs], layer)
        for theirs, ours, convert in PER_LAYER:
            found[prefix + ours] = convert(variables[theirs.format(layer)], layer)
        if prefix + "rel_attn.seg_embed" not in found:
            bias = found[prefix + "rel_attn.r_w_bias"]  # (N, H)
            found[prefix + "rel_attn.r_s_bias"] = torch.zeros_like(bias)
            found[prefix + "rel_attn.seg_embed"] = bias.new_zeros(2, *bias.shape)  # (2, N, H)
    return {name: tensor.contiguous() for name, tensor in found.items()}
