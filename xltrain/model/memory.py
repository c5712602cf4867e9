"""Memory is a value: it goes into ``forward`` and a new one comes out. The model stores none."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


def valid_slots(length: Tensor, mem_len: int) -> Tensor:
    """(B, M) bool, true for the last ``length`` (B,) of each row's slots."""
    slots = torch.arange(mem_len, device=length.device)  # (M,)
    return slots >= mem_len - length[:, None]  # (B, M)


@dataclass(frozen=True)
class Memory:
    """What each layer remembers of earlier segments, for B rows.

    Shapes never change, whatever has been read: a row that is new or has read little has a smaller ``length``, and
    the slots before it are never visible. The newest position is the last slot.

    states: (L, B, M, D) inputs of each layer, detached.
    length: (B,) number of valid slots, counted from the end.
    document: (B, M) which document each slot belongs to.
    """

    states: Tensor
    length: Tensor
    document: Tensor

    @classmethod
    def empty(
        cls, *, num_layers: int, rows: int, mem_len: int, d_model: int, dtype: torch.dtype, device: torch.device | str
    ) -> "Memory":
        return cls(
            states=torch.zeros(num_layers, rows, mem_len, d_model, dtype=dtype, device=device),  # (L, B, M, D)
            length=torch.zeros(rows, dtype=torch.int64, device=device),  # (B,)
            document=torch.full((rows, mem_len), -1, dtype=torch.int64, device=device),  # (B, M)
        )

    @property
    def mem_len(self) -> int:
        return self.states.shape[2]

    def valid(self) -> Tensor:
        """(B, M) bool."""
        return valid_slots(self.length, self.mem_len)

    def restarted(self, fresh: Tensor) -> "Memory":
        """Forget everything in the rows where ``fresh`` (B,) is true, each row on its own."""
        return replace(self, length=self.length.masked_fill(fresh, 0))

    def visible_states(self) -> Tensor:
        """(L, B, M, D) with invalid slots at zero: whatever lies in them, a NaN even, cannot reach a product."""
        return self.states.masked_fill(~self.valid()[None, :, :, None], 0.0)

    def advanced(self, inputs: Sequence[Tensor], document: Tensor) -> "Memory":
        """The memory after one more segment.

        Args:
            inputs: L tensors (B, T, D), the input of each layer.
            document: (B, T).
        """
        keep = self.mem_len
        if keep == 0:
            return self
        seq_len = document.shape[1]
        newest = torch.stack([layer[:, -keep:].detach() for layer in inputs]).to(
            self.states.dtype
        )  # (L, B, min(T, M), D)
        states, documents = newest, document[:, -keep:]
        if seq_len < keep:
            states = torch.cat([self.states[:, :, seq_len:], newest], dim=2)  # (L, B, M, D)
            documents = torch.cat([self.document[:, seq_len:], document], dim=1)  # (B, M)
        return Memory(states=states, length=(self.length + seq_len).clamp(max=keep), document=documents)

    def rows(self, start: int, stop: int) -> "Memory":
        """The memory of rows ``start`` to ``stop`` only."""
        return Memory(self.states[:, start:stop], self.length[start:stop], self.document[start:stop])

    @staticmethod
    def joined(parts: Sequence["Memory"]) -> "Memory":
        """The memories of consecutive row ranges as one."""
        if len(parts) == 1:
            return parts[0]
        return Memory(
            states=torch.cat([part.states for part in parts], dim=1),  # (L, B, M, D)
            length=torch.cat([part.length for part in parts]),  # (B,)
            document=torch.cat([part.document for part in parts]),  # (B, M)
        )
