"""One optimizer step. It knows nothing of logging, files or other processes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from xltrain.model.memory import Memory
from xltrain.objectives.plan import Plan
from xltrain.training.build import autocast
from xltrain.training.optimizer import Optimizer


@dataclass(frozen=True)
class StepStats:
    """What a step gave, as tensors on the device: reading them is what costs.

    loss: mean over the targets of all rows, in nats.
    targets: their number.
    grad_norm: norm of the whole gradient before clipping.
    """

    loss: Tensor
    targets: Tensor
    grad_norm: Tensor


def train_step(
    model: nn.Module,
    optimizer: Optimizer,
    plans: Sequence[Plan],
    memories: Sequence[Memory],
    *,
    clip_norm: float,
    precision: str,
    seeds: Sequence[int],
) -> tuple[StepStats, list[Memory]]:
    """Forward and backward of every micro-batch, then clip and update.

    Micro-batches are ranges of rows, each with its own memory. Losses are summed and divided by the count of all
    targets, so the split does not change the result.

    Args:
        plans, memories: one of each per micro-batch.
        clip_norm: largest norm of the gradient; 0: no clipping.
        precision: as ``training.precision``.
        seeds: of the dropout masks, one per micro-batch; with these no generator's state needs saving.
    """
    device = plans[0].tokens.device
    targets = torch.stack([plan.num_targets for plan in plans]).sum()
    loss = torch.zeros((), device=device)
    after = []
    optimizer.zero_grad(set_to_none=True)
    for plan, memory, seed in zip(plans, memories, seeds, strict=True):
        torch.manual_seed(seed)
        with autocast(precision, device):
            nll, memory = model(**plan.model_inputs(), memory=memory)
        share = nll.sum() / targets
        share.backward()
        loss += share.detach()
        after.append(memory)
    grad_norm = nn.utils.clip_grad_norm_(model.parameters(), clip_norm or torch.inf)
    optimizer.step()
    return StepStats(loss=loss, targets=targets, grad_norm=grad_norm), after
