"""Room that layers use in turn."""

import torch
from torch import Tensor


class Scratch:
    """Uninitialised tensors that are used again, for what a layer needs only while it computes; for one thread.

    On a CPU large tensors mostly come fresh from the operating system, and to touch them for the first time costs more
    than to compute what is written there. Other devices keep freed memory themselves: there every tensor is a new one.
    """

    def __init__(self) -> None:
        self._rooms: dict[str, Tensor] = {}
        self._free: Tensor | None = None

    def of(self, name: str, *shape: int, like: Tensor) -> Tensor:
        """A tensor with the dtype and device of ``like``; what was asked for by this name before is overwritten."""
        if like.device.type != "cpu":
            return like.new_empty(shape)
        size = torch.Size(shape).numel()
        room = self._rooms.get(name)
        if room is None or room.numel() < size or not _fits(room, like):
            room = self._rooms[name] = like.new_empty(size)
        return room[:size].view(shape)

    def borrow(self, *shape: int, like: Tensor) -> Tensor:
        """A tensor for the borrower alone, until it is given back: the last one that was, if it fits."""
        free, self._free = self._free, None
        if free is not None and free.shape == shape and _fits(free, like):
            return free
        return like.new_empty(shape)

    def give_back(self, tensor: Tensor) -> None:
        """To be borrowed again; nobody may use it any more."""
        if tensor.device.type == "cpu":
            self._free = tensor


def _fits(tensor: Tensor, like: Tensor) -> bool:
    """Whether it can stand for a new one; what was made in inference mode cannot be written to outside of it."""
    same_kind = (tensor.dtype, tensor.device) == (like.dtype, like.device)
    return same_kind and tensor.is_inference() == torch.is_inference_mode_enabled()
