"""Relative attention (Transformer-XL, section 3.3; XLNet, section 2.6).

Shapes: B rows, T segment length, M memory length, K = M + T keys, R query rows (the content rows first, if they are
there, then rows at positions of their own), N heads, H head size, D model size, J distances.

The score of row i on key j is ``(q_i + u)·k_j + (q_i + v)·W_r R(i - j)``, and ``(q_i + s)·segment(i, j)`` where a
segment has parts. Distances are looked up by *shifting*: ``(q + v)`` meets all J distances in one product, and row i
then takes the K columns that start at T - 1 - i.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from xltrain.model.backends import BACKENDS, Attend
from xltrain.model.cache import Slots
from xltrain.model.linear import Linear
from xltrain.model.visibility import Visibility

SCORES_AT_ONCE = 1 << 22
"""Without gradients, more scores than this are computed head by head on a CPU."""


@dataclass(frozen=True)
class View:
    """What the rows of a layer may see, prepared once per forward and shared by the layers.

    mask: (B, 1, R, K) 0 where visible, -inf where not; 0 everywhere in a row that sees nothing.
    alive: (B, 1, R, 1) 0 for a row that sees nothing, 1 otherwise.
    num_content: rows 0..num_content-1 stand at positions 0.. of the segment; T or 0.
    starts: (B, R - num_content) first distance column of each further row: T - 1 - its position.
    seq_len: T.
    other_segment: (B, 1, R, K) 1 where row and key are of different segments, or None.
    backward: (B,) 1 for rows of reversed text, whose distances have the other sign, 0 for the rest; or None.
    """

    mask: Tensor
    alive: Tensor
    num_content: int
    starts: Tensor
    seq_len: int
    other_segment: Tensor | None = None
    backward: Tensor | None = None

    @classmethod
    def of(
        cls,
        visibility: Visibility,
        *,
        seq_len: int,
        num_content: int,
        dtype: torch.dtype,
        segments: tuple[Tensor, Tensor] | None = None,
        backward: Tensor | None = None,
    ) -> "View":
        """Evaluate the rule. ``segments``: ids of the rows (B, R) and of the keys (B, K)."""
        seen = visibility.dense()  # (B, R, K)
        alive = seen.any(dim=-1, keepdim=True)  # (B, R, 1)
        mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)  # (B, R, K)
        mask = mask.masked_fill_(~seen & alive, float("-inf"))
        other = None
        if segments is not None:
            rows, keys = segments
            other = (rows[:, :, None] != keys[:, None, :])[:, None].to(dtype)  # (B, 1, R, K)
        return cls(
            mask=mask[:, None],  # (B, 1, R, K)
            alive=alive[:, None].to(dtype),  # (B, 1, R, 1)
            num_content=num_content,
            starts=seq_len - 1 - visibility.row_position[:, num_content:],  # (B, R - C)
            seq_len=seq_len,
            other_segment=other,
            backward=backward,
        )


class _RelativeShift(torch.autograd.Function):
    """Pick, for every row, its K of the J distance scores, and add the mask: one pass, no index for content rows.

    Content rows use that row i + 1 starts one column before row i, which a stride expresses. Where the table is
    one-sided, a row's last columns run into the next row; these are future keys, which the mask hides.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, mask: Tensor, starts: Tensor, num_content: int, seq_len: int) -> Tensor:
        # scores (N, B, R, J) contiguous, mask (B, 1, R, K), starts (B, R - C)
        heads, rows, total, width = scores.shape
        keys = mask.shape[-1]
        shifted = scores.new_empty(rows, heads, total, keys)  # (B, N, R, K)
        mask = mask.to(scores.dtype)
        if num_content:
            picked = scores.as_strided(
                (rows, heads, num_content, keys),
                (total * width, rows * total * width, width - 1, 1),
                scores.storage_offset() + seq_len - 1,
            )  # (B, N, C, K)
            torch.add(picked, mask[:, :, :num_content], out=shifted[:, :, :num_content])
        index = starts.new_zeros(0)
        if total > num_content:
            index = starts[:, None, :, None] + torch.arange(keys, device=starts.device)  # (B, 1, R - C, K)
            index = index.clamp(max=width - 1).expand(-1, heads, -1, -1)  # one-sided tables: future keys are hidden
            picked = scores[:, :, num_content:].transpose(0, 1).gather(3, index)  # (B, N, R - C, K)
            torch.add(picked, mask[:, :, num_content:], out=shifted[:, :, num_content:])
        ctx.save_for_backward(index)
        ctx.sizes = (num_content, seq_len, width)
        return shifted

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        (index,) = ctx.saved_tensors
        num_content, seq_len, width = ctx.sizes
        rows, heads, total, keys = grad.shape
        found = grad.new_zeros(heads, rows, total, width)  # (N, B, R, J)
        by_row = found.transpose(0, 1)  # (B, N, R, J)
        if num_content and width == keys + seq_len - 1:
            found.as_strided(
                (rows, heads, num_content, keys),
                (total * width, rows * total * width, width - 1, 1),
                seq_len - 1,
            ).copy_(grad[:, :, :num_content])
        elif num_content:
            # One-sided: column c of row i comes from key c - (T - 1 - i). Read row by row with a stride of K + 1; what
            # is read too far left belongs to hidden keys of the row before, whose gradient is zero.
            padded = functional.pad(grad[:, :, :num_content].flatten(2), (seq_len - 1, 0))  # (B, N, T - 1 + T * K)
            block = padded.shape[-1]
            by_row[:, :, :num_content] = padded.as_strided(
                (rows, heads, num_content, width), (heads * block, block, keys + 1, 1), padded.storage_offset()
            )
        if total > num_content:
            by_row[:, :, num_content:].scatter_add_(3, index, grad[:, :, num_content:])
        return found, None, None, None, None


def shift_traced(scores: Tensor, mask: Tensor, starts: Tensor, num_content: int, seq_len: int) -> Tensor:
    """The same shift out of slices and views, which a compiler can see through and fuse.

    Content rows laid end to end, the first T - 1 scores dropped and the rest cut into rows one column shorter, are the
    shifted rows: row i then begins at its column T - 1 - i.
    """
    keys, width = mask.shape[-1], scores.shape[-1]
    parts = []
    if num_content:
        content = scores[:, :, :num_content]  # (N, B, C, J)
        if width == keys:  # one-sided: one more column, so that a row one shorter still has K
            content = functional.pad(content, (0, 1))
            width += 1
        flat = content.flatten(2)[..., seq_len - 1 :][..., : num_content * (width - 1)]
        parts.append(flat.unflatten(2, (num_content, width - 1))[..., :keys])  # (N, B, C, K)
    if scores.shape[2] > num_content:
        index = starts[:, :, None] + torch.arange(keys, device=starts.device)  # (B, R - C, K)
        index = index.clamp(max=scores.shape[-1] - 1).expand(scores.shape[0], -1, -1, -1)  # (N, B, R - C, K)
        parts.append(scores[:, :, num_content:].gather(3, index))  # (N, B, R - C, K)
    return torch.cat(parts, dim=2).transpose(0, 1) + mask.to(scores.dtype)  # (B, N, R, K)


def relative_bias(query: Tensor, distance_keys: Tensor, view: View) -> Tensor:
    """The part of the scores that depends on position, with the mask in it.

    Args:
        query: (B, R, N, H) = (q + v), scaled.
        distance_keys: (J, N, H) = W_r R(distance), in the order of :func:`xltrain.model.positions.distances`;
            or (B, J, N, H), where rows of text have different signs of distance.

    Returns:
        (B, N, R, K)
    """
    rows, total, heads, _ = query.shape
    if distance_keys.dim() == 4:
        scores = torch.einsum("brnh,bjnh->nbrj", query, distance_keys).contiguous()  # (N, B, R, J)
    else:
        grouped = query.permute(2, 0, 1, 3).flatten(1, 2)  # (N, B*R, H): one product per head for all rows of text
        scores = torch.bmm(grouped, distance_keys.permute(1, 2, 0)).view(heads, rows, total, -1)  # (N, B, R, J)
    shift = shift_traced if torch.compiler.is_compiling() else _RelativeShift.apply
    return shift(scores, view.mask, view.starts, view.num_content, view.seq_len)


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
        return both[0], both[1]
