"""transformers' XLNet and the original TensorFlow one, as ours: the tables of :mod:`xltrain.interop.huggingface` read
from right to left.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xltrain.errors import UsageError
from xltrain.interop.huggingface import ACTIVATIONS, PER_LAYER, SEGMENTS, UNTIED, WHOLE
from xltrain.interop.imported import Settings, require_names

PREFIX = "transformer.layer.{}."

THEIR_ACTIVATIONS = {theirs: ours for ours, theirs in ACTIVATIONS.items()} | {
    "gelu_pytorch_tanh": "gelu_tanh",
    "swish": "silu",
}

TRAINED_WITH = {"seq_len": 512, "mem_len": 384}
"""Of the published models (Yang et al. 2019, A.4.1), where a checkpoint does not say."""


def from_xlnet(tensors: Mapping[str, Tensor], *, num_layers: int, source: Path) -> dict[str, Tensor]:
    """The state dict of an ``XLNetLMHeadModel`` under our names, bit for bit.

    What is there to say nothing is left out: softmax weights that are the embedding table, segment embeddings that are
    zero in every layer, copies of position biases that all layers share.

    Raises:
        UsageError: naming tensors that are missing or have no place.
    """
    tensors = dict(tensors)
    table = tensors.get(WHOLE[0][1])
    copy = tensors.get(UNTIED[1])
    if copy is not None and table is not None and copy.shape == table.shape and torch.equal(copy, table):
        del tensors[UNTIED[1]]
    whole = (*WHOLE, UNTIED) if UNTIED[1] in tensors else WHOLE
    layers = [
        (ours.format(layer), PREFIX.format(layer) + theirs, form)
        for layer in range(num_layers)
        for ours, theirs, form in PER_LAYER + SEGMENTS
    ]
    require_names(tensors, wanted=[theirs for _, theirs, _ in (*whole, *layers)], source=source)
    found = {ours: form.back(tensors[theirs]) for ours, theirs, form in whole}
    parts: dict[str, list[Tensor]] = {}
    for ours, theirs, form in layers:
        parts.setdefault(ours, []).append(form.back(tensors[theirs]))
    for ours, pieces in parts.items():
        if "." in ours:  # a layer's own; keys and values make one matrix
            found[ours] = torch.cat(pieces) if len(pieces) > 1 else pieces[0]
        else:
            found[ours] = torch.stack(pieces)  # (L, ...)
    biases = ["bias_u", "bias_v", "bias_s"]
    if not found["bias_s"].any() and not found["segment"].any():
        del found["bias_s"], found["segment"]
        biases.pop()
    if num_layers > 1 and all(bool((found[name] == found[name][:1]).all()) for name in biases):
        found |= {name: found[name][:1] for name in biases}
    return {name: tensor.contiguous() for name, tensor in found.items()}


def sections(
    settings: Settings, weights: Mapping[str, Tensor], *, activations: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Keys of a configuration, from ``config.json`` or ``xlnet_config.json`` and from what the weights show.

    Raises:
        UsageError: for settings that are missing, or that our model has nothing like.
    """
    values = settings.values
    settings.refuse_unless("attn_type", "bi", "bi", "with any other, XLNet's rows see only what precedes them")
    activation = values.get("ff_activation", "gelu")
    if not isinstance(activation, str) or activation not in activations:
        known = ", ".join(activations)
        raise UsageError(f"{settings.source}: ff_activation is {activation!r}, which xltrain has not; it has {known}")
    heads, num_layers = settings.count("n_head"), settings.count("n_layer")
    remembers = settings.flag("use_mems_eval", True)
    dropout = settings.number("dropout", 0.1)
    return {
        "model": {
            "num_layers": num_layers,
            "d_model": settings.count("d_model"),
            "num_heads": heads,
            "head_dim": settings.count("d_head") if "d_head" in values else None,
            "d_inner": settings.count("d_inner"),
            "activation": activations[activation],
            "dropout": dropout,
            "attention_dropout": dropout,
            "clamp_len": settings.length("clamp_len"),
            "norm_eps": settings.number("layer_norm_eps", 1e-12),
            "tie_embeddings": "softmax.weight" not in weights,
            "tie_position_bias": num_layers > 1 and weights["bias_u"].shape[0] == 1,
            "segment_embeddings": "segment" in weights,
            "init": {"std": settings.number("initializer_range", 0.02)},
        },
        "objective": {"name": "permutation"},
        "segments": {
            "seq_len": settings.length("seq_len", TRAINED_WITH["seq_len"]),
            "mem_len": settings.length("mem_len", TRAINED_WITH["mem_len"]) if remembers else 0,
        },
    }
