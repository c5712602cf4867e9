"""The named tensors of a checkpoint: whole, in one file for a kind of them, or in shards, a file per process.

    model.safetensors  optimizer.safetensors     one process, or several with a copy of everything (DDP)
    shards/*.safetensors                         several processes with a share of every tensor (FSDP2)

Shards are written and put together by torch.distributed.checkpoint; every file is safetensors, so reading a checkpoint
runs no code of it. Either form is read by any number of processes, and by one without a launcher.
"""

import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import _getdtype, save_file
from torch import Tensor

from xltrain.errors import UsageError
from xltrain.training.parallel import is_share

Kind = Literal["model", "optimizer"]
SHARDS = "shards"


def write_whole(folder: Path, kind: Kind, tensors: Mapping[str, Tensor]) -> Path:
    """Write all tensors of a kind into one file."""
    path = folder / f"{kind}.safetensors"
    save_file(dict(tensors), path, metadata={"format": "pt"})
    return path


def begin_shards(folder: Path, tensors: Mapping[str, Tensor], group: Any) -> Future[Any]:
    """Copy this process's shares and start writing them; all processes must call it. Names begin with their kind."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    writer = HuggingFaceStorageWriter(str(folder / SHARDS), save_distributed=True)
    with _quiet():
        future = dcp.async_save(dict(tensors), storage_writer=writer, process_group=group)
    assert isinstance(future, Future)
    return future


def finish_shards(begun: Future[Any]) -> None:
    """Wait until the shards of all processes are written.

    Raises:
        Exception: in every process, what one of them failed with.
    """
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        begun.result()
    except CheckpointException as error:  # not an Exception; holds those of all processes
        reason, _ = next(iter(error.failures.values()))
        raise reason from error


def shards_of(folder: Path, rank: int) -> list[Path]:
    """The files that process ``rank`` has written."""
    return sorted((folder / SHARDS).glob(f"shard-{rank + 1:05d}-*"))


def shapes(folder: Path, kind: Kind) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and type of every tensor of a kind.

    Raises:
        UsageError: if there is no such file, or it cannot be read.
    """
    path = folder / f"{kind}.safetensors"
    if (folder / SHARDS).is_dir():
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

        with _readable(folder / SHARDS), _quiet():
            found = HuggingFaceStorageReader(str(folder / SHARDS)).read_metadata().state_dict_metadata
        return {
            name.removeprefix(f"{kind}."): (value.size, value.properties.dtype)  # type: ignore[union-attr]
            for name, value in found.items()
            if name.startswith(f"{kind}.")
        }
    with _readable(path), safe_open(path, framework="pt") as file:
        parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        return {name: (torch.Size(part.get_shape()), _getdtype(part.get_dtype())) for name, part in parts.items()}


@torch.no_grad()
def fill(folder: Path, kind: Kind, tensors: Mapping[str, Tensor]) -> None:
    """Read each of ``tensors`` in place; of one that is shared out over processes, this process's share."""
    if (folder / SHARDS).is_dir():
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

        reader = HuggingFaceStorageReader(str(folder / SHARDS))
        named: dict[str, Any] = {f"{kind}.{name}": tensor for name, tensor in tensors.items()}
        with _readable(folder / SHARDS), _quiet():
            dcp.load(named, storage_reader=reader, no_dist=True)  # every process reads what it needs
        return
    path = folder / f"{kind}.safetensors"
    with _readable(path), safe_open(path, framework="pt") as file:
        for name, tensor in tensors.items():
            value = file.get_tensor(name)
            if is_share(tensor):
                from torch.distributed.tensor import distribute_tensor

                whole = value.to(tensor.device)
                value = distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None)
            tensor.copy_(value)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's remark that a single process reads or writes, which is meant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
