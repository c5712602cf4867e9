"""One model in several processes: each computes its own rows, and gradients are summed over all.

The loss of a step is a sum over rows divided by the number of targets of *all* rows, so the gradients of the processes
are to be added up, not averaged as both of torch's wrappers would. Memory belongs to rows: each process keeps that of
its own, and nothing of it is ever exchanged.
"""

import warnings
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from xltrain.distributed import Place
from xltrain.model.transformer import LanguageModel

if TYPE_CHECKING:  # importing it takes half a second, which a run in one process does not need
    from torch.distributed.tensor import DTensor


def shard(model: LanguageModel, place: Place) -> None:
    """Leave to every process only its share of each weight (FSDP2), a layer at a time; names stay as they are."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    # Nothing changes the loss in place, which is what this is a warning of.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor", category=UserWarning)
    mesh = init_device_mesh(place.device.type, (place.world_size,))
    parts: list[nn.Module] = [*model.layers, model]
    for part in parts:
        fully_shard(part, mesh=mesh)
        assert isinstance(part, FSDPModule)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)


def replicate(model: LanguageModel, place: Place, *, unused: bool) -> nn.Module:
    """A wrapper (DDP) whose backward sums gradients over the processes; the model itself keeps its names.

    ``unused``: some weights take no part in a step, which has to be found out anew each time.
    """
    wrapped = DistributedDataParallel(
        model,
        device_ids=[place.device.index] if place.device.type == "cuda" else None,
        find_unused_parameters=unused,
        gradient_as_bucket_view=True,
    )
    wrapped.register_comm_hook(None, _sum)
    return wrapped


def _sum(state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    del state
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda future: future.value()[0])


def exchange(model: Any, *, wanted: bool) -> None:
    """Whether the next forward and backward sums gradients over the processes: once a step, with the last micro-batch.

    Until then they add up where they are.
    """
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = wanted
    elif _is_shared_out(model):
        model.set_requires_gradient_sync(wanted)


def put_away(model: nn.Module) -> None:
    """After a forward without a backward: give back the shares of other processes that were fetched for it."""
    part: Any
    for part in model.modules():
        if _is_shared_out(part):
            part.reshard()


def whole(tensor: Tensor) -> Tensor:
    """A tensor with the shares of all processes put together; itself if it is not shared out."""
    return tensor.full_tensor() if is_share(tensor) else tensor


def own_share(tensor: Tensor) -> Tensor:
    """What this process has of a tensor, as plain numbers in the same place; all of it if it is not shared out."""
    return tensor.to_local() if is_share(tensor) else tensor


def is_share(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether each process has only its share of this tensor."""
    return hasattr(tensor, "full_tensor")


def _is_shared_out(module: Any) -> bool:
    return hasattr(module, "set_requires_gradient_sync")
