"""What torch says when a run does not fit the machine, in a sentence that says what to lower."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from xltrain.config.schema import Config
from xltrain.errors import XltrainError

NO_ROOM = ("DefaultCPUAllocator", "out of memory", "calculation overflowed")
"""Parts of what torch's allocators say without a class of their own."""


@contextmanager
def explained(config: Config) -> Iterator[None]:
    """Turn failures of memory and of the compiler into sentences.

    Raises:
        XltrainError: with the keys that help.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        said, first = said_of_memory(error), str(error).strip().split("\n")[0]
        if said is not None:
            raise XltrainError(_no_room(config, said)) from error
        if isinstance(error, torch._dynamo.exc.TorchDynamoException):
            raise XltrainError(
                f"training.compile: torch's compiler failed ({first}); set training.compile to false, or look at the "
                "whole message with --debug"
            ) from error
        raise


@contextmanager
def fitting(ways: str) -> Iterator[None]:
    """Turn failures of memory, where a trained model is used, into a sentence.

    Args:
        ways: what to lower, in the words of the command.

    Raises:
        XltrainError: with these.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        said = said_of_memory(error)
        if said is None:
            raise
        raise XltrainError(f"{said}. To need less: {ways}") from error


def said_of_memory(error: MemoryError | RuntimeError) -> str | None:
    """What there was no room for, if that is what failed, on a GPU or a CPU; else None."""
    first = str(error).strip().split("\n")[0]
    if isinstance(error, MemoryError):
        return first.rstrip(".") or "memory is full"
    if not isinstance(error, torch.OutOfMemoryError) and not any(part in first for part in NO_ROOM):
        return None
    if wanted := re.search(r"DefaultCPUAllocator.* allocate (\d+) bytes", first):
        return f"memory is full: there was no room for another {int(wanted[1]) / 1e9:,.1f} GB"
    return ". ".join(first.split(". ")[:2]).rstrip(".")


def _no_room(config: Config, said: str) -> str:
    """What to change, first what leaves the result as it is."""
    training, rows = config.training, config.training.batch_size
    ways = []
    if rows > 1:
        ways.append(f"lower training.batch_size (now {rows}) and raise training.accumulate (now {training.accumulate})")
    if not training.activation_checkpointing:
        ways.append("set training.activation_checkpointing")
    if config.evaluation.batch_size > rows:
        ways.append(f"lower evaluation.batch_size (now {config.evaluation.batch_size})")
    if training.precision == "fp32":
        ways.append("set training.precision to bf16")
    segments = config.segments
    lengths = f"segments.seq_len (now {segments.seq_len:,}), segments.mem_len (now {segments.mem_len:,})"
    ways.append(f"or choose a smaller {lengths} or model, in a new run")
    return f"{said}. To need less: {'; '.join(ways)}. If there is a checkpoint, --resume continues from it"
