"""Sections that say how weights move and what is written meanwhile."""

import re
from itertools import pairwise
from typing import Literal

from pydantic import Field

from xltrain.config.base import Count, Float, Length, Problem, Section


class OptimizerConfig(Section):
    """How weights move."""

    name: Literal["adamw", "adam", "adafactor", "muon"] = "adamw"
    """`adamw`: Adam with decoupled weight decay; `adam`: weight decay as part of the gradient; `adafactor`: factored
    second moments, little memory; `muon`: Muon for matrices of linear layers at AdamW's rates, and AdamW for others."""
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
    layer_decay: Float = Field(1.0, gt=0.0, le=1.0)
    """Every layer learns at this share of the rate of the layer above it, embeddings slowest; 1: all alike."""
    spike_ratio: Float = Field(30.0, ge=0.0)
    """Leave out a step whose gradient's norm exceeds this multiple of the median of the last 101; 0: only those that
    are not finite."""

    def problems(self) -> list[Problem]:
        found = [("betas", f"{beta} must be at least 0 and below 1") for beta in self.betas if not 0.0 <= beta < 1.0]
        if 0.0 < self.spike_ratio <= 1.0:
            found.append(("spike_ratio", f"{self.spike_ratio} would leave out ordinary steps; give 10 or more, or 0"))
        if self.name == "adafactor":
            defaults = type(self).model_fields
            for key in ("betas", "eps"):
                if getattr(self, key) != defaults[key].default:
                    found.append((key, "adafactor has none; leave it out, or choose adamw"))
        return found


class ScheduleConfig(Section):
    """How the learning rate moves. Step k (from 1) of a warm-up uses lr * k / warmup_steps."""

    name: Literal["constant", "linear", "cosine", "inverse_sqrt", "wsd"] = "cosine"
    """Shape of the decay after the warm-up; `wsd`: the full rate, and a linear decay over the last steps, so that a
    longer run goes on from a checkpoint before the decay without a bend."""
    warmup_steps: Length = 0
    """Optimizer steps of linear warm-up. Too few, with a high rate, leave these models at the unigram entropy."""
    min_lr_ratio: Float = Field(0.01, ge=0.0, le=1.0)
    """Learning rate at the end of the decay, as a share of the peak."""
    decay_steps: Length = 0
    """Steps of the decay; 0: to the last step (linear, cosine), or the last tenth of all (wsd). The rate then stays."""
    seq_len_stages: list[tuple[Length, Count]] = Field(default_factory=list)
    """Shorter segments at first, such as `[[0, 64], [1000, 128]]`: 64 tokens from the first step on, and after 1,000
    steps 128, which is `segments.seq_len`. Text and memory go on where they were; empty: one length."""

    def problems(self) -> list[Problem]:
        found = []
        begins = [step for step, _ in self.seq_len_stages]
        if begins and (begins[0] != 0 or any(one >= other for one, other in pairwise(begins))):
            found.append(("seq_len_stages", f"stages must begin at 0 and ascend, these begin after steps {begins}"))
        return found


class TrainingConfig(Section):
    """The loop."""

    max_steps: Count = 1000
    """Optimizer steps."""
    batch_size: Count = 16
    """Rows per process that are computed at once."""
    accumulate: Count = 1
    """Micro-batches of so many rows in one optimizer step, where a device does not hold all rows at once. An update
    sees batch_size x accumulate x processes rows, each with its own memory; how they are split changes no result."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """`bf16`, `fp16`: matrix products in 16 bits (fp16 with a scaled loss); weights, softmax, loss and optimizer stay
    in fp32."""
    tf32: bool = False
    """On CUDA, let products of fp32 matrices round their factors to 10 bits: several times faster, less exact."""
    compile: bool = False
    """Let torch's compiler make fused kernels of the training step's forward and backward; the first step waits for it,
    up to some minutes. Validation runs uncompiled."""
    activation_checkpointing: bool = False
    """Keep only every layer's input, and run the layer again for its gradient: less memory, a third more time."""
    device: str = "auto"
    """`auto`: CUDA when there, CPU otherwise."""
    num_workers: Length = 2
    """Segments that are read ahead while a step runs; 0: each is read when its step begins. The result is the same."""

    @property
    def rows(self) -> int:
        """Of one process in one optimizer step."""
        return self.batch_size * self.accumulate

    def problems(self) -> list[Problem]:
        found = []
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
    """In training, validate on the whole documents within the first so many tokens of the validation text, or on the
    first one if that is longer; 0: on all. `eval-ppl` reads all."""


class CheckpointConfig(Section):
    """What is kept of a run."""

    every: Length = 500
    """Steps between checkpoints; 0: only at the end. The last step is always saved."""
    keep: Count = 3
    """Number of checkpoints kept; the oldest goes first."""
    keep_best: bool = True
    """Also save where a validation finds the lowest loss so far, and keep that checkpoint besides; `RUN/best` names
    it."""


class LoggingConfig(Section):
    """What is written about a run."""

    every: Count = 50
    """Steps between lines of `metrics.jsonl` and, without a terminal, of the log."""
    tensorboard: bool = False
    """Write event files for TensorBoard into `tensorboard/` of the run's folder as well."""


class DistributedConfig(Section):
    """How several processes work together; a launcher such as torchrun starts them."""

    strategy: Literal["ddp", "fsdp"] = "ddp"
    """`ddp`: each process has the whole model; `fsdp`: weights, gradients and optimizer are shared out (FSDP2)."""
