"""Names of the Transformer-XL programs, and of xltrain: tables and pure functions (no files).

Three programs have the same model. The original PyTorch code's names are the ones in the tables; NVIDIA's and
transformers' differ in a few, and are rewritten to these first. Shapes: N heads, H head size, D model size, L layers.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Convert = Callable[[Tensor], Tensor]  # their tensor -> ours


def same(tensor: Tensor) -> Tensor:
    return tensor


def query(tensor: Tensor) -> Tensor:
    return tensor.unflatten(0, (3, -1))[0]  # (3*N*H, D) -> (3, N*H, D) -> (N*H, D)


def key_and_value(tensor: Tensor) -> Tensor:
    return tensor.unflatten(0, (3, -1))[1:].flatten(0, 1)  # (3*N*H, D) -> (3, N*H, D) -> (2*N*H, D)


def of_layers(tensor: Tensor) -> Tensor:
    return tensor if tensor.dim() == 3 else tensor[None]  # (N, H), shared by all layers -> (1, N, H)


def turned(tensor: Tensor) -> Tensor:
    return tensor.flip(0)  # the original stores the row of the last bin first


WHOLE: tuple[tuple[str, str, Convert], ...] = (
    ("r_w_bias", "bias_u", of_layers),
    ("r_r_bias", "bias_v", of_layers),
)
"""Tensors outside the layers: their name, ours, how one becomes the other."""

PER_LAYER: tuple[tuple[str, str, Convert], ...] = (
    ("layers.{}.dec_attn.qkv_net.weight", "layers.{}.attention.query.weight", query),
    ("layers.{}.dec_attn.qkv_net.weight", "layers.{}.attention.key_value.weight", key_and_value),
    ("layers.{}.dec_attn.r_net.weight", "layers.{}.attention.distance.weight", same),
    ("layers.{}.dec_attn.o_net.weight", "layers.{}.attention.output.weight", same),
    ("layers.{}.dec_attn.layer_norm.weight", "layers.{}.attention_norm.weight", same),
    ("layers.{}.dec_attn.layer_norm.bias", "layers.{}.attention_norm.bias", same),
    ("layers.{}.pos_ff.CoreNet.0.weight", "layers.{}.feed_forward.inner.weight", same),
    ("layers.{}.pos_ff.CoreNet.0.bias", "layers.{}.feed_forward.inner.bias", same),
    ("layers.{}.pos_ff.CoreNet.3.weight", "layers.{}.feed_forward.outer.weight", same),
    ("layers.{}.pos_ff.CoreNet.3.bias", "layers.{}.feed_forward.outer.bias", same),
    ("layers.{}.pos_ff.layer_norm.weight", "layers.{}.feed_forward_norm.weight", same),
    ("layers.{}.pos_ff.layer_norm.bias", "layers.{}.feed_forward_norm.bias", same),
)
"""Tensors of every layer."""

PLAIN: tuple[tuple[str, str, Convert], ...] = (
    ("word_emb.emb_layers.0.weight", "embedding.weight", same),
    ("crit.out_layers.0.bias", "softmax.bias", same),
)
"""Without bins."""

ADAPTIVE: tuple[tuple[str, str, Convert], ...] = (
    ("crit.cluster_weight", "softmax.cluster_weight", turned),
    ("crit.cluster_bias", "softmax.cluster_bias", turned),
)
"""With bins."""

PER_TABLE: tuple[tuple[str, str, Convert], ...] = (
    ("word_emb.emb_layers.{}.weight", "embedding.tables.{}", same),
    ("crit.out_layers.{}.bias", "softmax.biases.{}", same),
)
"""With bins: of every table; one if div_val is 1, else one per bin."""

PROJECTION = ("word_emb.emb_projs.{}", "embedding.projections.{}", same)
"""With bins and div_val above 1: of every bin."""

UNTIED_PLAIN = ("crit.out_layers.0.weight", "softmax.weight", same)
UNTIED_TABLE = ("crit.out_layers.{}.weight", "softmax.weights.{}", same)
UNTIED_PROJECTION = ("crit.out_projs.{}", "softmax.projections.{}", same)
"""Where the softmax has tensors of its own, rather than the embedding's."""

COMPUTED = "pos_emb.inv_freq"
"""A table that every program computes for itself."""


@dataclass(frozen=True)
class Layout:
    """Which tensors a model has.

    cutoffs: where its bins begin; none: one table, one softmax.
    tie_embeddings, tie_projections: whether the softmax (of each bin) uses the embedding's tensors.
    """

    num_layers: int
    cutoffs: tuple[int, ...]
    div_val: int
    tie_embeddings: bool
    tie_projections: tuple[bool, ...]

    @property
    def num_tables(self) -> int:
        return len(self.cutoffs) + 1 if self.div_val > 1 else 1

    def rows(self) -> list[tuple[str, str, Convert]]:
        """Their name, our name and the conversion of every tensor."""
        found = list(WHOLE)
        for layer in range(self.num_layers):
            found += [(theirs.format(layer), ours.format(layer), convert) for theirs, ours, convert in PER_LAYER]
        found += ADAPTIVE if self.cutoffs else PLAIN
        for number in range(self.num_tables):
            per_table: list[tuple[str, str, Convert]] = list(PER_TABLE) if self.cutoffs else []
            if not self.tie_embeddings:
                per_table.append(UNTIED_TABLE if self.cutoffs else UNTIED_PLAIN)
            if self.div_val > 1:
                per_table.append(PROJECTION)
                if not self.tie_projections[number]:
                    per_table.append(UNTIED_PROJECTION)
            found += [(theirs.format(number), ours.format(number), convert) for theirs, ours, convert in per_table]
        return found

    def copies(self) -> set[str]:
        """Names under which tied tensors may be stored once more, and those of computed tables."""
        numbers = range(self.num_tables)
        found = {UNTIED_TABLE[0].format(number) for number in numbers if self.tie_embeddings}
        found |= {UNTIED_PROJECTION[0].format(number) for number in numbers if self.tie_projections[number]}
        return found | {COMPUTED}


def find_ties(
    tensors: Mapping[str, Tensor], *, num_bins: int, tie_embeddings: bool, tie_projections: Sequence[bool]
) -> tuple[bool, tuple[bool, ...]]:
    """Whether the softmax uses the embedding's tables, and, per bin, its projection.

    What is stored twice and equal is tied, whatever the settings say; settings count where only one is stored.
    """

    def tied(copy: str, of: str, otherwise: bool) -> bool:
        if copy not in tensors or of not in tensors:
            return otherwise
        return tensors[copy].shape == tensors[of].shape and torch.equal(tensors[copy], tensors[of])

    tables = [
        tied(UNTIED_TABLE[0].format(number), PER_TABLE[0][0].format(number), tie_embeddings)
        for number in range(num_bins)
    ]
    projections = [
        tied(UNTIED_PROJECTION[0].format(number), PROJECTION[0].format(number), given)
        for number, given in zip(range(num_bins), tie_projections, strict=True)
    ]
    return all(tables), tuple(projections)


def from_original(tensors: Mapping[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """The original's ``state_dict`` under our names; its names must be those of ``layout``."""
    return {ours: convert(tensors[theirs]).contiguous() for theirs, ours, convert in layout.rows()}


NVIDIA = (
    (r"module\.(.*)", r"\1"),
    (r"crit\.out_layers_biases\.(\d+)", r"crit.out_layers.\1.bias"),
    (r"crit\.out_layers_weights\.(\d+)", r"crit.out_layers.\1.weight"),
)
"""NVIDIA's names, where they differ, and the original's."""

NVIDIA_COPY = r"crit\.shared_out_projs\.\d+"
"""The embedding's projections once more."""


def from_nvidia(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """NVIDIA's ``model_state`` under the original's names."""
    found = {}
    for name, tensor in tensors.items():
        for pattern, replacement in NVIDIA:
            name = re.sub(f"^{pattern}$", replacement, name)
        if not re.fullmatch(NVIDIA_COPY, name):
            found[name] = tensor
    return found


TRANSFORMERS_BIAS = r"layers\.(\d+)\.dec_attn\.(r_[wr]_bias)"
"""transformers has position biases in every layer; where layers share them, also outside, as the original has."""


def from_transformers(tensors: Mapping[str, Tensor], *, untied: bool) -> dict[str, Tensor]:
    """The state dict of transformers 4's ``TransfoXLLMHeadModel`` under the original's names.

    Its rows of clusters are turned round: bin i is row i - 1 there, and row -i in the original.

    Args:
        tensors: its tensors.
        untied: whether layers have position biases of their own (``untie_r``).
    """
    found: dict[str, Tensor] = {}
    biases: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        name = name.removeprefix("transformer.")
        if match := re.fullmatch(TRANSFORMERS_BIAS, name):
            biases.setdefault(match[2], {})[int(match[1])] = tensor
        elif name in ("crit.cluster_weight", "crit.cluster_bias"):
            found[name] = tensor.flip(0)
        else:
            found[name] = tensor
    for name, of_layers in biases.items():
        if untied:
            found[name] = torch.stack([of_layers[layer] for layer in sorted(of_layers)])  # (L, N, H)
        else:
            found.setdefault(name, of_layers[min(of_layers)])  # (N, H)
    return found
