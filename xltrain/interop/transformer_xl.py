"""Names of the original PyTorch Transformer-XL, and of xltrain: a table and pure functions (no files)."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

# Original name -> our name; {l} is a layer, {i} a bin. Tensors that need more than a name are handled below.
NAMES = {
    "layers.{l}.dec_attn.r_net.weight": "layers.{l}.attention.distance.weight",
    "layers.{l}.dec_attn.o_net.weight": "layers.{l}.attention.output.weight",
    "layers.{l}.dec_attn.layer_norm.weight": "layers.{l}.attention_norm.weight",
    "layers.{l}.dec_attn.layer_norm.bias": "layers.{l}.attention_norm.bias",
    "layers.{l}.pos_ff.CoreNet.0.weight": "layers.{l}.feed_forward.inner.weight",
    "layers.{l}.pos_ff.CoreNet.0.bias": "layers.{l}.feed_forward.inner.bias",
    "layers.{l}.pos_ff.CoreNet.3.weight": "layers.{l}.feed_forward.outer.weight",
    "layers.{l}.pos_ff.CoreNet.3.bias": "layers.{l}.feed_forward.outer.bias",
    "layers.{l}.pos_ff.layer_norm.weight": "layers.{l}.feed_forward_norm.weight",
    "layers.{l}.pos_ff.layer_norm.bias": "layers.{l}.feed_forward_norm.bias",
}
PLAIN = {"word_emb.emb_layers.0.weight": "embedding.weight", "crit.out_layers.0.bias": "softmax.bias"}
ADAPTIVE = {
    "word_emb.emb_layers.{i}.weight": "embedding.tables.{i}",
    "word_emb.emb_projs.{i}": "embedding.projections.{i}",
    "crit.out_layers.{i}.bias": "softmax.biases.{i}",
    "crit.out_projs.{i}": "softmax.projections.{i}",
}


def from_original(tensors: Mapping[str, Tensor], *, tie_projections: list[bool]) -> dict[str, Tensor]:
    """The original's ``state_dict`` under our names.

    Its rows of clusters are stored last bin first, and turned round here. Tied tensors, which it stores twice, are
    taken once.

    Raises:
        KeyError: naming what is left over.
    """
    adaptive = "crit.cluster_weight" in tensors
    names = NAMES | (ADAPTIVE if adaptive else PLAIN)
    patterns = {_pattern(theirs): ours for theirs, ours in names.items()}
    found: dict[str, Tensor] = {}
    left = []
    for name, tensor in tensors.items():
        if name in ("r_w_bias", "r_r_bias"):
            found["bias_u" if name == "r_w_bias" else "bias_v"] = tensor[None]  # (1, N, H)
        elif match := re.fullmatch(r"layers\.(\d+)\.dec_attn\.qkv_net\.weight", name):
            inner = tensor.shape[0] // 3
            found[f"layers.{match[1]}.attention.query.weight"] = tensor[:inner]
            found[f"layers.{match[1]}.attention.key_value.weight"] = tensor[inner:]
        elif name in ("crit.cluster_weight", "crit.cluster_bias"):
            found[f"softmax.{name.removeprefix('crit.')}"] = tensor.flip(0)
        elif name == "pos_emb.inv_freq" or re.fullmatch(r"crit\.out_layers\.\d+\.weight", name):
            continue  # computed; tied
        elif (match := re.fullmatch(r"crit\.out_projs\.(\d+)", name)) and tie_projections[int(match[1])]:
            continue  # tied
        else:
            for pattern, ours in patterns.items():
                if match := pattern.fullmatch(name):
                    found[ours.format(**match.groupdict())] = tensor
                    break
            else:
                left.append(name)
    if left:
        raise KeyError(f"not part of a Transformer-XL: {', '.join(left)}")
    return {name: tensor.contiguous() for name, tensor in found.items()}


def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.escape(template).replace(r"\{l\}", r"(?P<l>\d+)").replace(r"\{i\}", r"(?P<i>\d+)"))


def untied_softmax_weights(tensors: Mapping[str, Tensor]) -> bool:
    """Whether the original's softmax weights differ from its embedding tables."""
    return any(
        not torch.equal(tensor, tensors[f"word_emb.emb_layers.{match[1]}.weight"])
        for name, tensor in tensors.items()
        if (match := re.fullmatch(r"crit\.out_layers\.(\d+)\.weight", name))
    )
