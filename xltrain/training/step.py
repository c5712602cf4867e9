"""One optimizer step. It knows nothing of logging, files or other processes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from xltrain.model.memory import Memory
from xltrain.model.softmax import Room
from xltrain.objectives.plan import Plan
from xltrain.training.build import autocast
from xltrain.training.parallel import exchange
from xltrain.training.update import Updater


@dataclass(frozen=True)
class StepStats:
    """What a step gave, as tensors on the device: reading them is what costs.

    loss: mean over the targets of all rows, in nats.
    grad_norm: norm of the whole gradient before clipping.
    skipped: whether the weights stayed as they were (see :mod:`xltrain.training.guard`).
    """

    loss: Tensor
    grad_norm: Tensor
    skipped: Tensor


def train_step(
    model: nn.Module,
    updater: Updater,
    plans: Sequence[Plan],
    memories: Sequence[Memory],
    *,
    seeds: Sequence[int],
    rooms: Sequence[Room | None],
    total: Callable[[Tensor], Tensor] = lambda value: value,
) -> tuple[StepStats, list[Memory]]:
    """Forward and backward of every micro-batch, then an update.

    Micro-batches are ranges of rows, each with its own memory. Losses are summed and divided by the count of all
    targets, so the split does not change the result. A row whose loss is not finite forgets what it read: its memory
    may hold what made it so.

    Args:
        plans, memories: one of each per micro-batch.
        seeds: of the dropout masks, one per micro-batch; with these no generator's state needs saving.
        rooms: of the softmax, one per micro-batch.
        total: sums over the processes whose rows make up the step, each of which does this with its own.
    """
    device = plans[0].tokens.device
    targets = total(torch.stack([plan.num_targets for plan in plans]).sum())
    loss = torch.zeros((), device=device)
    after = []
    updater.zero_grad()
    given = zip(plans, memories, seeds, rooms, strict=True)
    for number, (plan, memory, seed, room) in enumerate(given, start=1):
        exchange(model, wanted=number == len(plans))
        torch.manual_seed(seed)
        with autocast(updater.precision, device):
            nll, memory = model(**plan.model_inputs(), memory=memory, room=room)
        share = nll.sum() / targets
        updater.backward(share)
        loss += share.detach()
        after.append(memory.restarted(~nll.detach().isfinite().all(dim=1)))
    loss = total(loss)
    grad_norm, skipped = updater.step(model.parameters(), loss=loss)
    return StepStats(loss=loss, grad_norm=grad_norm, skipped=skipped), after
