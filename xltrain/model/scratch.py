"""Room that layers use in turn."""

import torch
from torch import Tensor


class Scratch:
    """Uninitialised tensors that are used again, for what a layer needs only while it computes.

    On a CPU large tensors mostly come fresh from the operating system, and to touch them for the first time costs more
    than to compute what is written there.
    """

    def __init__(self) -> None:
        self._rooms: dict[str, Tensor] = {}

    def of(self, name: str, *shape: int, like: Tensor) -> Tensor:
        """A tensor with the dtype and device of ``like``; what was asked for by this name before is overwritten."""
        size = torch.Size(shape).numel()
        room = self._rooms.get(name)
        if room is None or room.numel() < size or room.dtype != like.dtype:
            room = self._rooms[name] = like.new_empty(size)
        return room[:size].view(shape)
