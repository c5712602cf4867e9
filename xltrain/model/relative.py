"""The part of the attention scores that depends on distance (Transformer-XL, section 3.3 and appendix B).

Shapes: B rows, T segment length, M memory length, K = M + T keys, R query rows, C of them content rows (T, or none), N
heads, H head size, J distances.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from xltrain.model.visibility import View

BLOCKS, ROWS_OF_BLOCK = 4, 128
"""On a CPU content rows are cut into up to so many blocks, each with at least so many rows of all B together."""


@dataclass(frozen=True)
class Block:
    """Content rows, the columns of their distances among J, and how many of the first keys these reach."""

    rows: slice
    columns: slice
    keys: int


def blocks(num_content: int, *, rows: int, keys: int, width: int, device: torch.device) -> Iterator[Block]:
    """The blocks of ``num_content`` content rows of each of ``rows`` rows of text, with K ``keys`` and J ``width``."""
    number = min(BLOCKS, max(1, rows * num_content // ROWS_OF_BLOCK)) if device.type == "cpu" else 1
    size = -(-num_content // number)
    for first in range(0, num_content, max(1, size)):
        after = num_content - min(num_content, first + size)  # rows after the block
        part = slice(first, num_content - after)
        if width > keys:  # two-sided
            yield Block(part, slice(after, after + keys + part.stop - part.start), keys)
        else:
            yield Block(part, slice(after, keys), keys - after)


class _RelativeBias(torch.autograd.Function):
    """Products of rows and distances, shifted: of its J products every row takes K, those of its distances to the keys.

    Row i + 1 starts one column before row i, which a stride expresses. On a CPU content rows go block by block, each
    with the distances that its rows can have: fewer products, and a block stays in the caches. Where the distances are
    one-sided, a block leaves out the keys after it, and a row's last columns run into the next row; all of these are
    future keys, which the mask hides.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, distance_keys: Tensor, view: View, bias: Tensor | None
    ) -> Tensor:  # query (B, R, N, H), distance_keys (G, J, H) for G = N or N * B, bias: room for the result, or None
        rows, total, heads, _ = query.shape
        keys, width, num_content = view.mask.shape[-1], distance_keys.shape[1], view.num_content
        if bias is None:
            bias = query.new_empty(rows, heads, total, keys)  # (B, N, R, K)
        mask = view.mask.to(query.dtype)  # (B, 1, R, K)

        def products(part: slice, columns: slice) -> tuple[Tensor, Tensor]:  # (G, .., H), (N, B, r, j)
            some = query[:, part].permute(2, 0, 1, 3)  # (N, B, r, H)
            some = some.reshape(len(distance_keys), -1, some.shape[-1])  # (G, .., H)
            wanted = distance_keys[:, columns].transpose(1, 2)  # (G, H, j)
            found = view.scratch.of("products", *some.shape[:2], wanted.shape[2], like=some)  # (G, .., j)
            torch.bmm(some, wanted, out=found)
            return some, found.view(heads, rows, -1, found.shape[-1])

        groups, parts = [], list(blocks(num_content, rows=rows, keys=keys, width=width, device=query.device))
        for block in parts:
            group, found = products(block.rows, block.columns)
            groups.append(group)
            picked, reached = _shifted(found, block.keys), bias[:, :, block.rows, : block.keys]  # (B, N, r, k) each
            torch.add(picked, mask[:, :, block.rows, : block.keys], out=reached)
            if block.keys < keys:
                bias[:, :, block.rows, block.keys :] = mask[:, :, block.rows, block.keys :]
        index = view.starts.new_zeros(0)
        if total > num_content:
            further = slice(num_content, None)
            group, found = products(further, slice(None))  # (N, B, R - C, J)
            groups.append(group)
            index = torch.arange(keys, device=mask.device)  # (K,)
            index = index + view.starts[:, None, :, None]  # (B, 1, R - C, K)
            index = index.clamp(max=width - 1).expand(-1, heads, -1, -1)  # one-sided tables: future keys are hidden
            torch.add(found.transpose(0, 1).gather(3, index), mask[:, :, further], out=bias[:, :, further])
        ctx.save_for_backward(distance_keys, index, *groups)
        ctx.blocks, ctx.num_content = parts, num_content
        return bias

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        distance_keys, index, *groups = ctx.saved_tensors  # (G, J, H), (B, N, R - C, K), (G, .., H) each
        rows, heads, total, _ = grad.shape
        width, head_dim = distance_keys.shape[1:]
        of_query = grad.new_empty(rows, total, heads, head_dim)  # (B, R, N, H)
        exact = torch.promote_types(distance_keys.dtype, torch.float32)  # to add up what blocks give
        of_distance_keys = torch.zeros_like(distance_keys, dtype=exact)  # (G, J, H)

        def backward(part: slice, columns: slice, group: Tensor, found: Tensor) -> None:  # found (N, B, r, >= j)
            of_distance = of_distance_keys[:, columns]  # (G, j, H)
            found = found.view(len(group), -1, found.shape[-1])[..., : of_distance.shape[1]]  # (G, .., j)
            of_distance += torch.bmm(found.transpose(1, 2), group)
            back = torch.bmm(found, distance_keys[:, columns]).view(heads, rows, -1, head_dim)  # (N, B, r, H)
            of_query[:, part] = back.permute(1, 2, 0, 3)  # (B, r, N, H)

        found = grad.new_empty(0)
        for group, block in zip(groups[: len(ctx.blocks)], ctx.blocks, strict=True):
            size = block.rows.stop - block.rows.start
            columns = block.keys + size
            if found.shape[2:] != (size, columns):
                found = grad.new_zeros(heads, rows, size, columns)  # (N, B, r, k + r): zero where no block reads
            _shifted(found, block.keys).copy_(grad[:, :, block.rows, : block.keys])
            backward(block.rows, block.columns, group, found)
        if total > ctx.num_content:
            further = slice(ctx.num_content, None)
            found = grad.new_zeros(heads, rows, total - ctx.num_content, width)  # (N, B, R - C, J)
            found.transpose(0, 1).scatter_add_(3, index, grad[:, :, further])
            backward(further, slice(None), groups[-1], found)
        return of_query, of_distance_keys.to(distance_keys.dtype), None, None


def _shifted(found: Tensor, keys: int) -> Tensor:
    """Of contiguous products (N, B, r, j), those that each row has with the keys: a view (B, N, r, keys)."""
    heads, rows, size, columns = found.shape
    strides = size * columns, rows * size * columns, columns - 1, 1
    return found.as_strided((rows, heads, size, keys), strides, found.storage_offset() + size - 1)


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

    Without gradients the result lies in room that the next call for this view uses again.

    Args:
        query: (B, R, N, H) = (q + v), scaled.
        distance_keys: (J, N, H) = W_r R(distance), in the order of :func:`xltrain.model.positions.distances`;
            or (B, J, N, H), where rows of text have different signs of distance.

    Returns:
        (B, N, R, K)
    """
    query = query.to(distance_keys.dtype)
    if torch.compiler.is_compiling():
        each = "bjnh" if distance_keys.dim() == 4 else "jnh"
        scores = torch.einsum(f"brnh,{each}->nbrj", query, distance_keys)  # (N, B, R, J)
        return shift_traced(scores, view.mask, view.starts, view.num_content, view.seq_len)
    grouped = distance_keys.movedim(-2, 0)  # (N, J, H) or (N, B, J, H)
    grouped = grouped.reshape(-1, *grouped.shape[-2:])  # (G, J, H): one product per head for all rows of text, or each
    room = None
    if not torch.is_grad_enabled():
        shape = len(query), query.shape[2], *view.mask.shape[2:]  # (B, N, R, K)
        room = view.scratch.of("bias", *shape, like=query)
    return _RelativeBias.apply(query, grouped, view, room)
