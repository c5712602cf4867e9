"""Memory for frozen weights: each layer's projected keys and values, and the projections of all distances.

With weights that do not change, projecting the same remembered states again for every segment is wasted work, and with
short segments it is nearly all of it. A :class:`Cache` goes into ``forward`` in the place of a ``Memory``, and a new
one comes out; what is computed is the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from weakref import finalize

import torch
from torch import Tensor

from xltrain.model.memory import valid_slots
from xltrain.model.scratch import Scratch


class Distances:
    """Sinusoids of every distance that a row can have, and what each layer makes of them: computed once, then sliced.

    Args:
        table_of: the table (J, D) for segments of so many tokens, in the order of
            :func:`xltrain.model.positions.distances`.
        two_sided: whether it goes on below distance 0.
    """

    def __init__(self, table_of: Callable[[int], Tensor], *, two_sided: bool) -> None:
        self._table_of, self._two_sided = table_of, two_sided
        self._longest = 0
        self._table: Tensor | None = None
        self._keys: dict[tuple[int, bool], Tensor] = {}

    def keys(self, layer: int, *, seq_len: int, both_ways: bool, project: Callable[[Tensor, bool], Tensor]) -> Tensor:
        """``project(table, both_ways)`` for segments of ``seq_len`` tokens.

        Returns:
            (J, N, H), or (2, J, N, H) for text and reversed text.
        """
        if self._table is None or seq_len > self._longest:
            self._longest, self._table = seq_len, self._table_of(seq_len)
            self._keys.clear()
        if (layer, both_ways) not in self._keys:
            found = project(self._table, both_ways).transpose(-3, -2)  # (..., N, J, H)
            self._keys[layer, both_ways] = found.contiguous()
        keys = self._keys[layer, both_ways].transpose(-3, -2)  # (..., J, N, H)
        surplus = self._longest - seq_len  # at each end that depends on the segment's length
        last = keys.shape[-3] - (surplus if self._two_sided else 0)
        return keys[..., surplus:last, :, :]


class _Buffer:
    """Room for more positions than are remembered, so that a new one is written and nothing is moved.

    keys_values: (L, 2, B, N, S, H); document: (B, S).
    end: the slots before it belong to the newest cache. An older one that is continued takes a buffer of its own.
    """

    def __init__(self, keys_values: Tensor, document: Tensor, *, end: int) -> None:
        self.keys_values, self.document, self.end = keys_values, document, end

    @property
    def size(self) -> int:
        return self.document.shape[1]


@dataclass(frozen=True)
class Slots:
    """What attention is given of a :class:`Cache`, for one layer and a segment of T tokens.

    keys_values: (2, B, N, K, H) a view; attention writes the present T positions, which are the last.
    """

    layer: int
    keys_values: Tensor
    distances: Distances
    seq_len: int

    def written(self, present: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, N, K, H) with ``present`` (B, T, 2, N, H) behind the remembered ones."""
        self.keys_values[:, :, :, -self.seq_len :].copy_(present.permute(2, 0, 3, 1, 4))
        return self.keys_values[0], self.keys_values[1]

    def distance_keys(self, project: Callable[[Tensor, bool], Tensor], *, both_ways: bool) -> Tensor:
        """(J, N, H), or (2, J, N, H)."""
        return self.distances.keys(self.layer, seq_len=self.seq_len, both_ways=both_ways, project=project)


@dataclass(frozen=True)
class Cache:
    """What B rows remember, ready for attention. A value: continuing one leaves it as it was.

    A cache and those that go on from it are for one thread; :meth:`selected` rows may go to another.

    end: the slot after the newest position, in the buffer.
    length: (B,) number of valid slots, counted back from ``end``.
    mem_len: M.
    scratch: room for what layers need while they compute, kept from segment to segment.
    """

    buffer: _Buffer
    end: int
    length: Tensor
    mem_len: int
    distances: Distances
    scratch: Scratch = field(default_factory=Scratch)

    @classmethod
    def empty(
        cls,
        *,
        num_layers: int,
        rows: int,
        mem_len: int,
        num_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
        distances: Distances,
    ) -> "Cache":
        shape = (num_layers, 2, rows, num_heads, mem_len, head_dim)
        document = torch.full((rows, mem_len), -1, dtype=torch.int64, device=device)  # (B, M)
        return cls(
            # Unused slots get a weight of zero, and zero times what uninitialised storage holds may be a NaN.
            buffer=_Buffer(torch.zeros(shape, dtype=dtype, device=device), document, end=mem_len),
            end=mem_len,
            length=torch.zeros(rows, dtype=torch.int64, device=device),  # (B,)
            mem_len=mem_len,
            distances=distances,
        )

    @property
    def document(self) -> Tensor:
        """(B, M) which document each slot belongs to."""
        return self.buffer.document[:, self.end - self.mem_len : self.end]

    def valid(self) -> Tensor:
        """(B, M) bool."""
        return valid_slots(self.length, self.mem_len)

    def restarted(self, fresh: Tensor) -> "Cache":
        """Forget everything in the rows where ``fresh`` (B,) is true, each row on its own."""
        return replace(self, length=self.length.masked_fill(fresh, 0))

    def cleared(self) -> "Cache":
        """Zero keys and values in the slots that are not valid."""
        window = slice(self.end - self.mem_len, self.end)
        absent = ~self.valid()[:, None, :, None]  # (B, 1, M, 1)
        keys_values = self.buffer.keys_values[..., window, :].masked_fill(absent, 0.0)  # (L, 2, B, N, M, H)
        buffer = _Buffer(keys_values, self.document.clone(), end=self.mem_len)
        return replace(self, buffer=buffer, end=self.mem_len, scratch=Scratch())

    def selected(self, rows: Tensor) -> "Cache":
        """The rows of these numbers (B',), in this order; one may be taken several times."""
        window = slice(self.end - self.mem_len, self.end)
        return replace(
            self,
            buffer=_Buffer(
                self.buffer.keys_values[:, :, rows, :, window], self.document[rows], end=self.mem_len
            ),  # (L, 2, B', N, M, H), (B', M)
            end=self.mem_len,
            length=self.length[rows],
            scratch=Scratch(),
        )

    @staticmethod
    def joined(parts: Sequence["Cache"]) -> "Cache":
        """The rows of several caches of one ``mem_len`` as one."""
        first = parts[0]
        keys_values = [part.buffer.keys_values[..., part.end - part.mem_len : part.end, :] for part in parts]
        document = torch.cat([part.document for part in parts])  # (B, M)
        return replace(
            first,
            buffer=_Buffer(torch.cat(keys_values, dim=2), document, end=first.mem_len),  # (L, 2, B, N, M, H)
            end=first.mem_len,
            length=torch.cat([part.length for part in parts]),  # (B,)
            scratch=Scratch(),
        )

    def with_room(self, seq_len: int) -> "Cache":
        """The same where ``seq_len`` further positions can be written; copied only if they cannot."""
        buffer, remembered = self.buffer, slice(self.end - self.mem_len, self.end)
        if self.end == buffer.end and self.end + seq_len <= buffer.size:
            return self
        # With twice the room, what is remembered is copied once in M tokens; each of these reads all of it.
        size = self.mem_len + max(seq_len, self.mem_len)
        *outer, _, width = buffer.keys_values.shape
        keys_values, lent = self._storage(*outer, size, width)  # (L, 2, B, N, S, H)
        keys_values[..., : self.mem_len, :] = buffer.keys_values[..., remembered, :]
        document = buffer.document.new_empty(buffer.document.shape[0], size)  # (B, S)
        document[:, : self.mem_len] = buffer.document[:, remembered]
        buffer = _Buffer(keys_values, document, end=self.mem_len)
        if lent:
            finalize(buffer, self.scratch.give_back, keys_values).atexit = False
        return replace(self, buffer=buffer, end=self.mem_len)

    def _storage(self, *shape: int) -> tuple[Tensor, bool]:
        """For keys and values, and whether it is to be given back: a compiler cannot follow who still needs it."""
        like = self.buffer.keys_values
        if torch.compiler.is_compiling():
            return like.new_empty(shape), False
        return self.scratch.borrow(*shape, like=like), True

    def slots(self, layer: int, seq_len: int) -> Slots:
        """One layer's keys and values, with room for ``seq_len`` tokens behind them."""
        keys_values = self.buffer.keys_values[layer, ..., self.end - self.mem_len : self.end + seq_len, :]
        return Slots(layer, keys_values, self.distances, seq_len)

    def advanced(self, document: Tensor) -> "Cache":
        """The cache after one more segment, whose keys and values the layers have written.

        Args:
            document: (B, T) of the positions that are remembered, which are the segment's first.
        """
        count = document.shape[1]
        self.buffer.end = self.end + count
        self.buffer.document[:, self.end : self.buffer.end] = document
        return replace(self, end=self.buffer.end, length=(self.length + count).clamp(max=self.mem_len))
