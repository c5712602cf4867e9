"""Our weights and configuration as those of transformers' ``XLNetLMHeadModel``: a table of names and pure functions.

Shapes: N heads, H head size, D model size, I width of the feed-forward layer, V vocabulary, L layers. transformers has
attention matrices as (D, N, H), the output one included, where ours are ``nn.Linear`` weights (out, in).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from xltrain.config.model import ModelConfig
from xltrain.config.schema import Config
from xltrain.errors import XltrainError
from xltrain.model.attention import RelativeAttention
from xltrain.model.block import FeedForward
from xltrain.model.linear import Linear
from xltrain.model.transformer import LanguageModel

ARCHITECTURE = "XLNetLMHeadModel"

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}
"""Ours to theirs; their ``gelu_new`` is the tanh form."""


@dataclass(frozen=True)
class Form:
    """One tensor as two programs have it.

    there: (our tensor, layer, N) -> theirs.
    back: their tensor -> ours, or the part of ours that it is.
    """

    there: Callable[[Tensor, int, int], Tensor]
    back: Callable[[Tensor], Tensor]


def _into_heads(tensor: Tensor, layer: int, heads: int) -> Tensor:
    return tensor.t().unflatten(1, (heads, -1))  # (N*H, D) -> (D, N*H) -> (D, N, H)


def _out_of_heads(tensor: Tensor) -> Tensor:
    return tensor.flatten(1).t()  # (D, N, H) -> (D, N*H) -> (N*H, D)


SAME = Form(lambda tensor, layer, heads: tensor, lambda tensor: tensor)

OF_LAYER = Form(
    # (L, ...) or, where one is shared by all layers, (1, ...): transformers has no shared ones, so each gets a copy.
    lambda tensor, layer, heads: tensor[layer % tensor.shape[0]],
    lambda tensor: tensor,
)

INTO_HEADS = Form(_into_heads, _out_of_heads)

KEY = Form(  # (2*N*H, D) -> (N*H, D) -> (D, N, H)
    lambda tensor, layer, heads: _into_heads(tensor.chunk(2)[0], layer, heads), _out_of_heads
)

VALUE = Form(lambda tensor, layer, heads: _into_heads(tensor.chunk(2)[1], layer, heads), _out_of_heads)

FROM_HEADS = Form(  # (D, N*H) -> (D, N, H)
    lambda tensor, layer, heads: tensor.unflatten(1, (heads, -1)), lambda tensor: tensor.flatten(1)
)

VECTOR = Form(lambda tensor, layer, heads: tensor[None, None], lambda tensor: tensor.flatten())  # (D,) -> (1, 1, D)

WHOLE: tuple[tuple[str, str, Form], ...] = (
    ("embedding.weight", "transformer.word_embedding.weight", SAME),
    ("mask_embedding", "transformer.mask_emb", VECTOR),
    ("softmax.bias", "lm_loss.bias", SAME),
)
"""Tensors outside the layers: our name, theirs, how one becomes the other."""

UNTIED = ("softmax.weight", "lm_loss.weight", SAME)
"""Only where the softmax does not use the embedding table."""

PER_LAYER: tuple[tuple[str, str, Form], ...] = (
    ("bias_u", "rel_attn.r_w_bias", OF_LAYER),
    ("bias_v", "rel_attn.r_r_bias", OF_LAYER),
    ("layers.{}.attention.query.weight", "rel_attn.q", INTO_HEADS),
    ("layers.{}.attention.key_value.weight", "rel_attn.k", KEY),
    ("layers.{}.attention.key_value.weight", "rel_attn.v", VALUE),
    ("layers.{}.attention.distance.weight", "rel_attn.r", INTO_HEADS),
    ("layers.{}.attention.output.weight", "rel_attn.o", FROM_HEADS),
    ("layers.{}.attention_norm.weight", "rel_attn.layer_norm.weight", SAME),
    ("layers.{}.attention_norm.bias", "rel_attn.layer_norm.bias", SAME),
    ("layers.{}.feed_forward.inner.weight", "ff.layer_1.weight", SAME),
    ("layers.{}.feed_forward.inner.bias", "ff.layer_1.bias", SAME),
    ("layers.{}.feed_forward.outer.weight", "ff.layer_2.weight", SAME),
    ("layers.{}.feed_forward.outer.bias", "ff.layer_2.bias", SAME),
    ("layers.{}.feed_forward_norm.weight", "ff.layer_norm.weight", SAME),
    ("layers.{}.feed_forward_norm.bias", "ff.layer_norm.bias", SAME),
)
"""Tensors of a layer, theirs under ``transformer.layer.{}.``."""

SEGMENTS: tuple[tuple[str, str, Form], ...] = (
    ("bias_s", "rel_attn.r_s_bias", OF_LAYER),
    ("segment", "rel_attn.seg_embed", OF_LAYER),
)
"""Tensors of a layer that a model without segment embeddings lacks and transformers always has."""


def folded_weights(model: LanguageModel) -> dict[str, Tensor]:
    """Every parameter once, by name, with the multipliers of the NTK parametrisation in the weights."""
    found = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for name, module in model.named_modules():
        if isinstance(module, Linear) and module.multiplier != 1.0:
            found[f"{name}.weight"] = found[f"{name}.weight"] * module.multiplier
    return found


def plain_weights(model: LanguageModel) -> dict[str, Tensor]:
    """Every parameter once, by name, as a model of the same function has it that XLNet's class can hold.

    That is one with the standard parametrisation, scores divided by sqrt(H), and biases everywhere.
    """
    found = folded_weights(model)
    undivided = 1.0
    for name, module in model.named_modules():
        if isinstance(module, RelativeAttention) and module.scale == 1.0:
            undivided = module.head_dim**0.5
            found[f"{name}.query.weight"] = found[f"{name}.query.weight"] * undivided
        elif isinstance(module, nn.LayerNorm) and module.bias is None:
            found[f"{name}.bias"] = torch.zeros_like(module.weight)
        elif isinstance(module, FeedForward) and module.inner.bias is None:
            found[f"{name}.inner.bias"] = module.inner.weight.new_zeros(module.inner.out_features)
            found[f"{name}.outer.bias"] = module.outer.weight.new_zeros(module.outer.out_features)
    for name in found.keys() & {"bias_u", "bias_v", "bias_s"}:  # these are added to the query
        found[name] = found[name] * undivided
    return found


def xlnet_weights(tensors: Mapping[str, Tensor], *, num_layers: int, num_heads: int) -> dict[str, Tensor]:
    """The state dict of an ``XLNetLMHeadModel``, in the dtype of ``tensors``.

    A model without segment embeddings gets zeros for them: its scores then do not depend on segment ids, exactly.

    Args:
        tensors: every parameter of a ``LanguageModel`` once, by name, as from :func:`plain_weights`.
        num_layers: L.
        num_heads: N.

    Raises:
        XltrainError: naming each tensor that is missing, or that has no place in XLNet.
    """
    rows = [(ours, theirs, form, 0) for ours, theirs, form in WHOLE]
    if UNTIED[0] in tensors:
        rows.append((*UNTIED, 0))
    with_segments = any(ours in tensors for ours, _, _ in SEGMENTS)
    for layer in range(num_layers):
        rows += [
            (ours.format(layer), f"transformer.layer.{layer}.{theirs}", form, layer)
            for ours, theirs, form in PER_LAYER + (SEGMENTS if with_segments else ())
        ]
    used = {ours for ours, _, _, _ in rows}
    faults = [f"missing {name}" for name in sorted(used - set(tensors))]
    faults += [f"no place for {name}" for name in sorted(set(tensors) - used)]
    if faults:
        raise XltrainError(f"these weights are not those of an {ARCHITECTURE}: {'; '.join(faults)}")
    found = {theirs: form.there(tensors[ours], layer, num_heads) for ours, theirs, form, layer in rows}
    if not with_segments:
        for layer in range(num_layers):
            prefix = f"transformer.layer.{layer}.rel_attn."
            bias = found[f"{prefix}r_w_bias"]  # (N, H)
            found[f"{prefix}r_s_bias"] = torch.zeros_like(bias)
            found[f"{prefix}seg_embed"] = bias.new_zeros(2, *bias.shape)
    return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in found.items()}


def xlnet_config(config: Config, *, vocab_size: int, special_ids: Mapping[str, int]) -> dict[str, Any]:
    """The content of ``config.json``.

    Args:
        config: of a run that :func:`reasons_against` has nothing against.
        vocab_size: V.
        special_ids: id of each special piece that the vocabulary has, by its spelling.
    """
    model, mem_len = config.model, config.segments.mem_len
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "xlnet",
        "vocab_size": vocab_size,
        "d_model": model.d_model,
        "n_layer": model.num_layers,
        "n_head": model.num_heads,
        "d_head": model.head_width,
        "d_inner": model.inner_width,
        "ff_activation": ACTIVATIONS[model.activation],
        "layer_norm_eps": model.norm_eps,
        "initializer_range": model.init.std,
        "dropout": model.dropout,
        "tie_word_embeddings": model.tie_embeddings,
        "untie_r": True,
        "attn_type": "bi",
        "same_length": False,
        "clamp_len": model.clamp_len or -1,
        "mem_len": mem_len,
        "seq_len": config.segments.seq_len,  # means nothing there; `import-checkpoint` reads it
        "reuse_len": None,
        # With mem_len 0 transformers would remember everything, which this model has never seen.
        "use_mems_eval": mem_len > 0,
        "use_mems_train": False,
        "bi_data": False,
        "bos_token_id": special_ids.get("<s>"),
        "eos_token_id": special_ids.get("</s>"),
        "pad_token_id": special_ids.get("<pad>"),
        "dtype": "float32",
    }


REQUIRED: dict[str, tuple[object, str]] = {
    "positions": ("relative", "XLNet's are relative"),
    "norm": ("layer_norm", "XLNet has layer_norm"),
    "norm_position": ("post", "XLNet normalises after each residual sum (post)"),
    "final_norm": (False, "XLNet has none"),
    "attention_bias": (False, "XLNet's attention has no biases"),
    "scale_embeddings": (False, "XLNet does not scale its embeddings"),
    "same_length": (False, "XLNet's rows see all of their memory"),
}
"""Keys of the model section that must have this value, and why."""

_HANDLED = {
    *("num_layers", "d_model", "num_heads", "head_dim", "d_inner", "activation", "dropout", "attention_dropout"),
    *("tie_position_bias", "clamp_len", "norm_eps", "bias", "attention_scale", "tie_embeddings", "adaptive"),
    *("segment_embeddings", "init", "parametrization", "attention_backend"),
}


def reasons_against(config: Config) -> list[str]:
    """Everything in a run's configuration that transformers' XLNet cannot express; empty: it can be exported."""
    model, found = config.model, []
    if config.objective.name != "permutation":
        found.append(
            f"objective.name is {config.objective.name}: {ARCHITECTURE} predicts from the query stream, which only a "
            "permutation model has"
        )
    if model.num_heads * model.head_width != model.d_model:
        found.append(
            f"model.head_dim is {model.head_width}: transformers requires d_head = d_model / n_head, here "
            f"{model.d_model} / {model.num_heads} = {model.d_model / model.num_heads:g}"
        )
    if model.activation not in ACTIVATIONS:
        found.append(f"model.activation is {model.activation}: XLNet's are {', '.join(ACTIVATIONS)}")
    if model.adaptive.cutoffs:
        found.append("model.adaptive has cutoffs: XLNet has one embedding table and one softmax")
    if config.segments.initial_memory != "absent":
        found.append(
            f"segments.initial_memory is {config.segments.initial_memory}: transformers' XLNet begins without memory"
        )
    for key, (wanted, why) in REQUIRED.items():
        value = getattr(model, key)
        if value != wanted:
            shown = {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value
            found.append(f"model.{key} is {shown}: {why}")
    return found + _unheard(model)


def _unheard(model: ModelConfig) -> list[str]:
    """Keys that this module has not heard of, where they are not at their default: better refused than ignored."""
    found = []
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        known = name in _HANDLED or name in REQUIRED
        if not known and value != field.get_default(call_default_factory=True):
            found.append(f"model.{name} is {value}: XLNet has nothing like it")
    return found
