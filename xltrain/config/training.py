"""Sections that say how weights move and what is written meanwhile."""

import re
from typing import Literal

from pydantic import Field

from xltrain.config.base import Count, Float, Length, Problem, Section


class OptimizerConfig(Section):
    """How weights move."""

    name: Literal["adamw", "muon"] = "adamw"
    """`adamw`: Adam with decoupled weight decay (fused where torch offers it); `muon`: Muon for the matrices of linear
    layers, scaled to AdamW's rates, and AdamW for the rest."""
    lr: Float = Field(1e-3, gt=0.0)
    """Peak learning rate."""
    betas: tuple[Float, Float] = (0.9, 0.999)
    """Decay of the running means of the gradient and of its square."""
    eps: Float = Field(1e-6, gt=0.0)
    """Added to the square root in the denominator."""
    weight_decay: Float = Field(0.01, ge=0.0)
    """Decoupled weight decay of matrices and embeddings; norms and biases have none."""
    clip_norm: Float = Field(1.0, ge=0.0)
    """Largest norm of the whole gradient; 0: no clipping."""

    def problems(self) -> list[Problem]:
        return [("betas", f"{beta} must be at least 0 and below 1") for beta in self.betas if not 0.0 <= beta < 1.0]


class ScheduleConfig(Section):
    """How the learning rate moves. Step k (from 1) of a warm-up uses lr * k / warmup_steps."""

    name: Literal["constant", "linear", "cosine", "inverse_sqrt"] = "cosine"
    """Shape of the decay after the warm-up, down to the last step."""
    warmup_steps: Length = 0
    """Optimizer steps of linear warm-up. Too few, with a high rate, leave these models at the unigram entropy."""
    min_lr_ratio: Float = Field(0.01, ge=0.0, le=1.0)
    """Learning rate at the last step, as a share of the peak."""


class TrainingConfig(Section):
    """The loop."""

    max_steps: Count = 1000
    """Optimizer steps."""
    batch_size: Count = 16
    """Rows per process in one optimizer step."""
    accumulate: Count = 1
    """Micro-batches that the rows are split into, to save memory; the result does not change."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """`bf16`: matrix products in bfloat16; weights, softmax, loss and optimizer stay in fp32."""
    device: str = "auto"
    """`auto`: CUDA when there, CPU otherwise."""

    def problems(self) -> list[Problem]:
        found = []
        if self.batch_size % self.accumulate:
            found.append(
                ("accumulate", f"{self.accumulate} does not divide batch_size {self.batch_size}; choose one that does")
            )
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            found.append(("device", f"{self.device!r} is not allowed; choose auto, cpu, cuda or cuda:N"))
        return found


class EvaluationConfig(Section):
    """Validation during training, and the defaults of `eval-ppl`."""

    every: Length = 500
    """Steps between validations; 0: only at the end. The last step is always validated."""
    batch_size: Count = 16
    """Rows that are evaluated at once; it does not change the result."""
    max_tokens: Length = 0
    """Validate on at most this many tokens of the validation text; 0: on all."""


class CheckpointConfig(Section):
    """What is kept of a run."""

    every: Length = 500
    """Steps between checkpoints; 0: only at the end. The last step is always saved."""
    keep: Count = 3
    """Number of checkpoints kept; the oldest goes first."""


class LoggingConfig(Section):
    """What is written about a run."""

    every: Count = 50
    """Steps between lines of `metrics.jsonl` and, without a terminal, of the log."""
