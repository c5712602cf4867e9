"""Relative attention (Transformer-XL, section 3.3; XLNet, section 2.6).

Shapes: B rows, T segment length, M memory length, K = M + T keys, R query rows (the content rows first, if they are
there, then rows at positions of their own), N heads, H head size, D model size, J distances.

The score of row i on key j is ``(q_i + u)·k_j + (q_i + v)·W_r R(i - j)``, and ``(q_i + s)·segment(i, j)`` where a
segment has parts. Distances are looked up by *shifting*: ``(q + v)`` meets all J distances in one product, and row i
then takes the K columns that start at T - 1 - i.
"""

import torch
from torch import Tensor, nn

from xltrain.model.backends import BACKENDS, Attend
from xltrain.model.cache import Slots
from xltrain.model.linear import Linear
from xltrain.model.relative import relative_bias
from xltrain.model.visibility import View

SCORES_AT_ONCE = 1 << 22
"""Without gradients, more scores than this are computed head by head on a CPU."""


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

        def of_heads(heads: slice) -> Tensor:  # (B, n, R, H)
            def some(each: Tensor | None) -> Tensor | None:
                return None if each is None else each[..., heads, :]

            return self._mixed(
                query[:, :, heads], key[:, heads], value[:, heads], some(distances), view, some(u), some(v), some(s),
                some(segment),
            )  # fmt: skip

        if self._heads_apart(query, key):
            mixed = torch.cat(
                [of_heads(slice(head, head + 1)) for head in range(self.num_heads)], dim=1
            )  # (B, N, R, H)
        else:
            mixed = of_heads(slice(None))  # (B, N, R, H)
        mixed = mixed * view.alive.to(mixed.dtype)
        return self.output(mixed.transpose(1, 2).flatten(2))  # (B, R, D)

    def _heads_apart(self, query: Tensor, key: Tensor) -> bool:
        """Whether to go head by head: on a CPU, where all heads' scores at once would not stay in its caches."""
        scores = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]  # B * R * N * K
        return scores > SCORES_AT_ONCE and query.device.type == "cpu" and not torch.is_grad_enabled()

    def _mixed(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        distances: Tensor | None,
        view: View,
        u: Tensor | None,
        v: Tensor | None,
        s: Tensor | None,
        segment: Tensor | None,
    ) -> Tensor:
        """Values (B, N, R, H) mixed by attention, for N of the heads, which do not depend on one another.

        Args:
            query: (B, R, N, H).
            key, value: (B, N, K, H).
            distances: (J, N, H) or (B, J, N, H).
            view, u, v, s, segment: see :meth:`forward`.
        """
        scale = self.scale
        for_content = query * scale if u is None else torch.add(u * scale, query, alpha=scale)  # (B, R, N, H)
        bias = view.mask.to(query.dtype).expand(-1, query.shape[2], -1, -1)  # (B, N, R, K)
        if distances is not None and v is not None:
            for_position = torch.add(v * scale, query, alpha=scale)  # (B, R, N, H)
            bias = relative_bias(for_position, distances, view)  # (B, N, R, K)
        elif not torch.is_grad_enabled():
            bias = bias.clone()  # the mask is every layer's, and a backend may write its scores there
        if view.other_segment is not None and s is not None and segment is not None:
            by_segment = torch.einsum("brnh,cnh->cbnr", (query + s) * scale, segment)[..., None]  # (2, B, N, R, 1)
            bias = bias + torch.lerp(
                by_segment[0], by_segment[1], view.other_segment.to(by_segment.dtype)
            )  # (B, N, R, K)
        dropout = self.dropout if self.training else 0.0
        return self.attend(for_content.transpose(1, 2), key, value, bias, dropout)  # (B, N, R, H)

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
