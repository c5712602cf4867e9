"""Relative attention (Transformer-XL, section 3.3; XLNet, section 2.6).

Shapes: B rows, T segment length, M memory length, K = M + T keys, R query rows (the content rows first, if they are
there, then rows at positions of their own), N heads, H head size, D model size, J distances.

The score of row i on key j is ``(q_i + u)·k_j + (q_i + v)·W_r R(i - j)``, and ``(q_i + s)·segment(i, j)`` where a
segment has parts. Distances are looked up by *shifting*: ``(q + v)`` meets all J distances in one product, and row i
then takes the K columns that start at T - 1 - i.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from xltrain.model.backends import BACKENDS, Attend, attend_math
from xltrain.model.by_head import attend_by_head, goes_by_head
from xltrain.model.cache import Slots
from xltrain.model.linear import Linear
from xltrain.model.relative import relative_bias
from xltrain.model.visibility import View

SCORES_AT_ONCE = 1 << 22
"""Without gradients, more scores than this are computed head by head on a CPU."""


@dataclass(frozen=True)
class _Given:
    """What attention is computed from, for N heads, which do not depend on one another.

    for_content: (B, R, N, H) = (q + u), scaled.
    for_position: (B, R, N, H) = (q + v), scaled; or None.
    key, value: (B, N, K, H).
    distances: (J, N, H) or (B, J, N, H); or None.
    by_segment: (2, B, N, R) scores of keys of the row's segment and of others; or None.
    """

    for_content: Tensor
    for_position: Tensor | None
    key: Tensor
    value: Tensor
    distances: Tensor | None
    by_segment: Tensor | None

    def each_head(self) -> Iterator["_Given"]:
        """The heads one after another, as groups of one."""
        for head in range(self.key.shape[1]):
            some = slice(head, head + 1)
            yield _Given(
                self.for_content[:, :, some],
                None if self.for_position is None else self.for_position[:, :, some],
                self.key[:, some],
                self.value[:, some],
                None if self.distances is None else self.distances[..., some, :],
                None if self.by_segment is None else self.by_segment[:, :, some],
            )


class RelativeAttention(nn.Module):
    """Multi-head attention of R rows on M remembered and T present positions, keys and values computed once.

    Args:
        d_model: D.
        num_heads: N.
        head_dim: H; N * H need not equal D.
        dropout: on attention weights.
        backend: a key of ``BACKENDS``.
        relative: whether distances count; without, scores are those of Vaswani et al. 2017.
        bias: of the projections.
        scaled: scores divided by sqrt(H), or not.
    """

    def __init__(
        self,
        *,
        d_model: int,
        num_heads: int,
        head_dim: int,
        dropout: float,
        backend: str,
        relative: bool = True,
        bias: bool = False,
        scaled: bool = True,
    ) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.dropout = num_heads, head_dim, dropout
        self.attend: Attend = BACKENDS[backend]
        self.scale = head_dim**-0.5 if scaled else 1.0
        inner = num_heads * head_dim
        self.query = Linear(d_model, inner, bias=bias)
        self.key_value = Linear(d_model, 2 * inner, bias=bias, matrices=2)
        self.distance = Linear(d_model, inner, bias=False) if relative else None
        self.output = Linear(inner, d_model, bias=bias)

    def forward(
        self,
        rows: Tensor,
        content: Tensor,
        memory: Tensor | Slots,
        table: Tensor | None,
        view: View,
        *,
        u: Tensor | None = None,
        v: Tensor | None = None,
        s: Tensor | None = None,
        segment: Tensor | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            rows: (B, R, D).
            content: (B, T, D) states of the present keys.
            memory: (B, M, D) states of the remembered keys, without gradient; or their keys and values.
            table: (J, D) sinusoids of the distances; None where ``memory`` has their projections.
            view: what the rows may see.
            u, v, s: (N, H) biases of the query for content, position and segment.
            segment: (2, N, H) vectors for the same and for another segment.

        Returns:
            (B, R, D)
        """
        query = self.query(rows).unflatten(-1, (self.num_heads, self.head_dim))  # (B, R, N, H)
        key, value = self._keys_and_values(content, memory)  # (B, N, K, H) each
        distances = None
        if self.distance is not None:
            distances = self._distance_keys(self.distance, memory, table, view.backward)  # (J, N, H) or (B, J, N, H)

        scale = self.scale
        for_content = query * scale if u is None else torch.add(u * scale, query, alpha=scale)  # (B, R, N, H)
        for_position = None if v is None else torch.add(v * scale, query, alpha=scale)  # (B, R, N, H)
        dropped = self.training and self.dropout > 0.0
        if self.attend is attend_math and not dropped and goes_by_head(query, value, view):
            mixed = attend_by_head(for_content, for_position, key, value, distances, view)  # (B, R, N, H)
        else:
            by_segment = None
            if view.other_segment is not None and s is not None and segment is not None:
                by_segment = torch.einsum("brnh,cnh->cbnr", (query + s) * scale, segment)  # (2, B, N, R)
            given = _Given(for_content, for_position, key, value, distances, by_segment)
            heads = given.each_head() if self._heads_apart(query, key) else [given]
            found = [self._mixed(some, view) for some in heads]  # (B, n, R, H) each
            mixed = (torch.cat(found, dim=1) if len(found) > 1 else found[0]).transpose(1, 2)  # (B, R, N, H)
        if view.alive is not None:
            mixed = mixed * view.alive.transpose(1, 2).to(mixed.dtype)
        return self.output(mixed.flatten(2))  # (B, R, D)

    def _heads_apart(self, query: Tensor, key: Tensor) -> bool:
        """Whether to go head by head: on a CPU, where all heads' scores at once would not stay in its caches."""
        scores = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]  # B * R * N * K
        return scores > SCORES_AT_ONCE and query.device.type == "cpu" and not torch.is_grad_enabled()

    def _mixed(self, given: _Given, view: View) -> Tensor:
        """Values (B, N, R, H) mixed by attention."""
        if given.distances is not None and given.for_position is not None:
            bias = relative_bias(given.for_position, given.distances, view)  # (B, N, R, K)
        else:
            bias = view.mask.to(given.for_content.dtype).expand(-1, given.key.shape[1], -1, -1)  # (B, N, R, K)
            if not torch.is_grad_enabled():
                bias = bias.clone()  # the mask is every layer's, and a backend may write its scores there
        if given.by_segment is not None and view.other_segment is not None:
            same, other = given.by_segment[..., None]  # (B, N, R, 1) each
            bias = bias + torch.lerp(same, other, view.other_segment.to(same.dtype))  # (B, N, R, K)
        dropout = self.dropout if self.training else 0.0
        return self.attend(given.for_content.transpose(1, 2), given.key, given.value, bias, dropout)

    def _distance_keys(
        self, project: Linear, memory: Tensor | Slots, table: Tensor | None, backward: Tensor | None
    ) -> Tensor:
        """(J, N, H), or (B, J, N, H) where some rows are of reversed text."""

        def projected(table: Tensor, both_ways: bool) -> Tensor:  # (J, N, H) or (2, J, N, H)
            if both_ways:
                sines = table.shape[1] // 2
                mirrored = torch.cat([-table[:, :sines], table[:, sines:]], dim=1)  # (J, D): sin(-x) = -sin(x)
                table = torch.stack([table, mirrored])  # (2, J, D)
            return project(table).unflatten(-1, (self.num_heads, self.head_dim))  # (..., J, N, H)

        both_ways = backward is not None
        if isinstance(memory, Slots):
            found = memory.distance_keys(projected, both_ways=both_ways)
        else:
            assert table is not None
            found = projected(table, both_ways)
        return found if backward is None else found[backward]  # (B, J, N, H)

    def _keys_and_values(self, content: Tensor, memory: Tensor | Slots) -> tuple[Tensor, Tensor]:
        """Projected apart, since nothing flows back into memory; then laid out head by head in one copy."""
        split = (2, self.num_heads, self.head_dim)
        if isinstance(memory, Slots):
            return memory.written(self.key_value(content).unflatten(-1, split))  # (B, T, 2, N, H) -> (B, N, K, H)
        parts = [
            self.key_value(states).unflatten(-1, split) for states in (memory, content) if states.shape[1]
        ]  # (B, M or T, 2, N, H)
        both = torch.cat([part.permute(2, 0, 3, 1, 4) for part in parts], dim=3)  # (2, B, N, K, H)
        key, value = both.unbind(0)  # (B, N, K, H) each
        return key, value
