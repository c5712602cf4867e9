"""What torch says when a run does not fit the machine, in a sentence that says what to lower."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from xltrain.config.schema import Config
from xltrain.errors import XltrainError

NO_ROOM = ("DefaultCPUAllocator", "out of memory")  # parts of what torch's allocators say without a class of their own


@contextmanager
def explained(config: Config) -> Iterator[None]:
    """Turn failures of memory and of the compiler into sentences.

    Raises:
        XltrainError: with the keys that help.
    """
    try:
        yield
    except MemoryError as error:
        raise XltrainError(_no_room(config, "memory is full")) from error
    except RuntimeError as error:
        first = str(error).strip().split("\n")[0]
        if isinstance(error, torch.OutOfMemoryError) or any(part in first for part in NO_ROOM):
            raise XltrainError(_no_room(config, ". ".join(first.split(". ")[:2]).rstrip("."))) from error
        if isinstance(error, torch._dynamo.exc.TorchDynamoException):
            raise XltrainError(
                f"training.compile: torch's compiler failed ({first}); set training.compile to false, or look at the "
                "whole message with --debug"
            ) from error
        raise


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
