"""The model section of a configuration."""

from itertools import pairwise
from typing import Literal

from pydantic import Field

from xltrain.config.base import Count, Float, Length, Probability, Problem, Section


class InitConfig(Section):
    """How weights start: a distribution x a rule for the variance of matrices."""

    distribution: Literal["normal", "truncated_normal", "uniform", "orthogonal"] = "normal"
    """Shape of the distribution; `truncated_normal` is cut at two standard deviations, its variance corrected."""
    variance: Literal["fixed", "lecun", "xavier", "he"] = "fixed"
    """Variance of matrices: `std` squared, 1/fan_in, 2/(fan_in + fan_out) or 2/fan_in."""
    std: Float = Field(0.02, gt=0.0)
    """Standard deviation of embeddings and attention biases, and of matrices where `variance` is fixed."""


class AdaptiveConfig(Section):
    """Adaptive embedding and softmax: bins of words by frequency, rarer ones with narrower vectors."""

    cutoffs: list[Count] = Field(default_factory=list)
    """Ids where a new bin begins, ascending; empty: one table and one softmax. Ids must be sorted by frequency,
    as those of words and of sentencepiece's unigram are; there is a warning where a text's are not."""
    div_val: Count = 1
    """Bin i has vectors of `d_model / div_val^i`."""
    tie_projections: bool | list[bool] = False
    """Whether the softmax of a bin uses the projection of its embedding: for all bins, or one value per bin."""

    def problems(self) -> list[Problem]:
        found = []
        if any(one >= other for one, other in pairwise(self.cutoffs)):
            found.append(("cutoffs", f"{self.cutoffs} must ascend"))
        if isinstance(self.tie_projections, list) and len(self.tie_projections) != len(self.cutoffs) + 1:
            found.append(
                (
                    "tie_projections",
                    f"has {len(self.tie_projections)} values; give {len(self.cutoffs) + 1}, one per bin",
                )
            )
        return found

    @property
    def tied_projections(self) -> list[bool]:
        if isinstance(self.tie_projections, list):
            return self.tie_projections
        return [self.tie_projections] * (len(self.cutoffs) + 1)


class ModelConfig(Section):
    """The one stack that serves every objective (design.md, section 3)."""

    num_layers: Count = 6
    """Layers (L)."""
    d_model: Count = 256
    """Width of the residual stream (D); even, since half of a position's code is sines and half cosines."""
    num_heads: Count = 4
    """Attention heads (N)."""
    head_dim: Count | None = None
    """Width of a head (H); `d_model / num_heads` when not given."""
    d_inner: Count | None = None
    """Width of the feed-forward layer; `4 * d_model` when not given."""
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "gelu"
    """Activation of the feed-forward layer; `gelu_tanh` is the approximation of the original XLNet code."""
    dropout: Probability = 0.1
    """Dropout on embeddings, positions, sublayer outputs, inside the feed-forward layer, and last hidden states."""
    attention_dropout: Probability = 0.1
    """Dropout on attention probabilities."""
    tie_position_bias: bool = False
    """One pair of position biases u, v for all layers, rather than one per layer."""
    clamp_len: Length = 0
    """Distances beyond this count as this; 0: no clamping."""
    same_length: bool = False
    """Let every query see exactly `mem_len` keys, itself included (causal objective only)."""
    positions: Literal["relative", "sinusoid", "learned", "none"] = "relative"
    """Relative (Transformer-XL), absolute in the segment (sinusoid or learned, without memory only), or none."""
    norm: Literal["layer_norm", "layer_norm_uncentred", "rms_norm", "batch_norm"] = "layer_norm"
    """Normalisation; `layer_norm_uncentred` subtracts no mean, `batch_norm` is for the masked objective only."""
    norm_position: Literal["post", "pre"] = "post"
    """Norm after each sublayer's residual sum (the papers), or before each sublayer."""
    norm_eps: Float = Field(1e-12, gt=0.0)
    """Epsilon of the norm (1e-12 in XLNet, 1e-5 in the PyTorch Transformer-XL)."""
    final_norm: bool = False
    """One more norm after the last layer, as pre-norm models often have; Transformer-XL's have none."""
    bias: bool = True
    """Biases in the feed-forward layers and the norms."""
    attention_bias: bool = False
    """Biases in the projections of attention; BERT has them, Transformer-XL and XLNet have none."""
    attention_scale: Literal["sqrt", "init"] = "sqrt"
    """Scores divided by sqrt(head_dim), or not, with queries that start that much smaller instead (T5)."""
    scale_embeddings: bool = False
    """Multiply embeddings by sqrt(d_model), as Transformer-XL does and XLNet does not."""
    tie_embeddings: bool = True
    """Use the embedding table as the softmax weights."""
    adaptive: AdaptiveConfig = AdaptiveConfig()
    """Adaptive embedding and softmax, for word vocabularies."""
    segment_embeddings: bool = False
    """Relative segment embeddings (XLNet); they act only where a segment has parts."""
    init: InitConfig = InitConfig()
    """How weights start."""
    parametrization: Literal["standard", "ntk"] = "standard"
    """`ntk`: matrices start with unit variance, and their size is a factor in the forward pass."""
    attention_backend: Literal["auto", "math", "sdpa", "flex"] = "auto"
    """`math`: plain matrix products; `sdpa`: torch's fused kernels; `flex`: FlexAttention (CUDA, without
    attention_dropout); `auto`: sdpa on CUDA, math elsewhere."""

    @property
    def head_width(self) -> int:
        return self.head_dim or self.d_model // self.num_heads

    @property
    def inner_width(self) -> int:
        return self.d_inner or 4 * self.d_model

    def problems(self) -> list[Problem]:
        found = []
        if self.d_model % 2:
            found.append(("d_model", f"{self.d_model} is odd; it must be even (sines and cosines in equal number)"))
        if self.attention_backend == "flex" and self.attention_dropout:
            found.append(("attention_dropout", "flex attention has none; set it to 0, or choose another backend"))
        if self.final_norm and self.norm_position == "post":
            found.append(("final_norm", "a post-norm model ends with a norm already; leave it out, or choose pre"))
        for key in ("tie_position_bias", "clamp_len"):
            if self.positions != "relative" and getattr(self, key):
                found.append((key, f"it needs positions relative, not {self.positions}"))
        if self.head_dim is None and self.d_model % self.num_heads:
            found.append(
                (
                    "num_heads",
                    f"{self.num_heads} does not divide d_model {self.d_model}; choose one that does, or give head_dim",
                )
            )
        if self.adaptive.cutoffs and self.d_model % self.adaptive.div_val ** len(self.adaptive.cutoffs):
            found.append(
                (
                    "adaptive.div_val",
                    f"{self.adaptive.div_val}^{len(self.adaptive.cutoffs)} does not divide d_model {self.d_model}",
                )
            )
        return found + [(f"adaptive.{key}", text) for key, text in self.adaptive.problems()]
