"""Floating-point operations of a step, and what hardware could do: model-FLOPs utilisation (Chowdhery et al. 2022, B).

Counted are the multiplications and additions of matrix products that the model needs, forward and backward; not those
that recomputing layers or chunks of logits adds, nor softmax, norms and activations. Products with distances that no
row of a block can have count too, though on a CPU they are left out.
"""

import re
from dataclasses import dataclass

import torch

from xltrain.config.schema import Config
from xltrain.distributed import Place

PEAKS = (
    ("B200", 2250e12),
    ("H200", 989e12),
    ("H100 NVL", 835e12),
    ("H100 PCIe", 756e12),
    ("H100", 989e12),
    ("A100", 312e12),
    ("L40S", 362e12),
    ("A10G", 70e12),
    ("A10", 125e12),
    ("L4", 121e12),
)
"""Dense 16-bit products per second by the makers' data sheets; the first name among the device's words counts."""

TF32_SHARE = 0.5
"""Of the 16-bit rate, on all of these."""


@dataclass(frozen=True)
class Work:
    """What a token costs, and what all devices of a run could do per second at most (None: not known)."""

    flops_per_token: float
    peak_flops: float | None

    @classmethod
    def of(cls, config: Config, *, vocab_size: int, place: Place) -> "Work":
        name = torch.cuda.get_device_name(place.device) if place.device.type == "cuda" else ""
        peak = peak_flops(name, precision=config.training.precision, tf32=config.training.tf32)
        return cls(flops_per_token(config, vocab_size=vocab_size), peak and peak * place.world_size)

    def utilisation(self, tokens_per_second: float) -> float | None:
        """The share of the peak that the model's products take."""
        return None if self.peak_flops is None else tokens_per_second * self.flops_per_token / self.peak_flops

    def __str__(self) -> str:
        peak = "" if self.peak_flops is None else f"; these devices reach {self.peak_flops / 1e12:,.0f} TFLOP/s at most"
        return f"{self.flops_per_token / 1e6:,.1f} MFLOP per token, forward and backward{peak}"


def peak_flops(device_name: str, *, precision: str, tf32: bool) -> float | None:
    """What a device of this name could do per second at most, or None where that is not known."""
    known = next((peak for name, peak in PEAKS if re.search(rf"\b{name}\b", device_name)), None)
    if known is None or (precision == "fp32" and not tf32):
        return None
    return known * (TF32_SHARE if precision == "fp32" else 1.0)


def flops_per_token(config: Config, *, vocab_size: int) -> float:
    """Operations of a training step, per token that it reads.

    A product of (a, b) and (b, c) is 2abc operations forward, and twice as many backward: for both factors. Memory gets
    no gradient, so its projections cost once more only. An adaptive softmax counts as its first bin; which rows
    reach another is in the data.
    """
    segments, model = config.segments, config.model
    tokens, mem_len = segments.seq_len, segments.mem_len
    keys, targets = tokens + mem_len, config.objective.targets_per_segment(tokens)
    width, inner = model.d_model, model.num_heads * model.head_width
    queries = targets if config.objective.name == "permutation" else 0
    distances = (keys + tokens) if config.objective.name != "causal" else keys
    selected = config.objective.name in ("permutation", "masked")  # the last layer computes only what is predicted from
    total = 0.0
    for layer in range(model.num_layers):
        rows = targets if selected and layer == model.num_layers - 1 else tokens + queries
        total += 3 * 2 * rows * width * inner * 2  # queries and outputs
        total += (3 * tokens + 2 * mem_len) * 2 * width * 2 * inner  # keys and values
        total += 3 * 2 * rows * keys * inner * 2  # scores and mixtures
        if model.positions == "relative":
            # The projection of distances is shared by the rows of a micro-batch.
            total += 3 * 2 * rows * distances * inner
            total += 2 * 2 * distances * width * inner / config.training.batch_size
        total += 3 * 2 * rows * width * model.inner_width * 2  # feed-forward
    words = model.adaptive.cutoffs[0] + len(model.adaptive.cutoffs) if model.adaptive.cutoffs else vocab_size
    total += 3 * 2 * targets * width * words
    return total / tokens
