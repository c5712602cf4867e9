"""Where this process stands among the processes of a run. The only place that reads the environment."""

import os
from dataclasses import dataclass

import torch

from xltrain.errors import UsageError


@dataclass(frozen=True)
class Place:
    """The device of this process, and which of how many processes it is."""

    device: torch.device
    rank: int = 0
    world_size: int = 1


def find_place(device: str) -> Place:
    """Choose the device (``training.device``) and read what a launcher says of the other processes.

    Raises:
        UsageError: for a device that is not there, and for more than one process.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        raise UsageError(
            f"{world_size} processes were started, but this version trains in one; start it without torchrun"
        )
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    found = torch.device(device)
    if found.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"training.device: {device} is not there (torch sees no CUDA device); use auto or cpu")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"training.device: {device} is not there; torch sees {torch.cuda.device_count()} CUDA device(s)"
        )
    return Place(device=found)
