"""Attention without gradients on one core: a head of one row of text at a time, so that its scores stay in the caches.

Several threads share all heads at once among them better than they share one.

Shapes: B rows, T segment length, M memory length, K = M + T keys, N heads, H head size, J distances.
"""

from itertools import product

import torch
from torch import Tensor

from xltrain.model.relative import blocks
from xltrain.model.visibility import View

WORTHWHILE = 2**15
"""With fewer scores in a head, to call it apart costs more than it saves."""


def goes_by_head(query: Tensor, value: Tensor, view: View) -> bool:
    """Whether :func:`attend_by_head` is for these.

    Args:
        query: (B, R, N, H).
        value: (B, N, K, H).
        view: what the rows may see.
    """
    kind = query.device.type
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or kind != "cpu" or torch.is_autocast_enabled(kind):
        return False
    plain = view.other_segment is None and view.backward is None
    exact = query.dtype == value.dtype == torch.promote_types(value.dtype, torch.float32)
    worth = view.seq_len * value.shape[2] > WORTHWHILE and torch.get_num_threads() == 1  # T * K
    return plain and exact and worth and view.whole_passes


def attend_by_head(
    for_content: Tensor,
    for_position: Tensor | None,
    key: Tensor,
    value: Tensor,
    distance_keys: Tensor | None,
    view: View,
) -> Tensor:
    """Values mixed by attention, for rows at all positions in order that see nothing after them, once or twice.

    Products of a block of r rows with its k distances are written into rows of k + 1 places. Read as rows of k, from
    place r - 1 on, they lie shifted: nothing is copied, and products with keys are added where they stand. What a row
    then has of the row before, and the places between, belong to keys after it, which the mask hides.

    Args:
        for_content: (B, R, N, H) = (q + u), scaled; R = T, or 2 T: content rows, then rows of the query stream.
        for_position: (B, R, N, H) = (q + v), scaled; None where distances do not count.
        key, value: (B, N, K, H).
        distance_keys: (J, N, H) = W_r R(distance), from the farthest on; those after distance 0 are not used. Or None.
        view: what the rows may see.

    Returns:
        (B, R, N, H)
    """
    rows, total, _, _ = for_content.shape
    keys, seq_len = key.shape[2], view.seq_len
    mixed = torch.empty_like(for_content)  # (B, R, N, H)
    parts = list(blocks(seq_len, rows=1, keys=keys, width=keys, device=key.device))
    for first, block in product(range(0, total, seq_len), parts):
        part = slice(first + block.rows.start, first + block.rows.stop)
        reach, size = block.keys, part.stop - part.start
        room = view.scratch.of("scores", size * (reach + 1), like=key)
        products = room.view(size, reach + 1)  # (r, k + 1)
        between, products = products[:, reach], products[:, :reach]  # (r,), (r, k)
        scores = room[size - 1 :][: size * reach].view(size, reach)  # (r, k)
        sometimes = scores[:, view.clear :]  # (r, k - clear)
        mask = view.rest[:, 0, part, : reach - view.clear].expand(rows, -1, -1)  # (B, r, k - clear)
        of_content, output = (each[:, part].transpose(1, 2) for each in (for_content, mixed))  # (B, N, r, H)
        of_key, of_value = key[:, :, :reach].transpose(2, 3), value[:, :, :reach]  # (B, N, H, k), (B, N, k, H)
        of_position = of_distance = None
        if for_position is not None and distance_keys is not None:
            of_position = for_position[:, part].transpose(1, 2)  # (B, N, r, H)
            of_distance = distance_keys[block.columns].permute(1, 2, 0).unbind()  # (H, k) each
        for row in range(rows):
            hidden = mask[row]  # (r, k - clear)
            heads = zip(*(each[row].unbind() for each in (of_content, of_key, of_value, output)), strict=True)
            positions = None if of_position is None else of_position[row].unbind()  # (r, H) each
            for head, (q, k, v, out) in enumerate(heads):
                if positions is None or of_distance is None:
                    torch.mm(q, k, out=scores)
                else:
                    torch.mm(positions[head], of_distance[head], out=products)
                    between.zero_()  # what is hidden must be a number
                    scores.addmm_(q, k)
                sometimes.add_(hidden)
                torch.mm(torch.softmax(scores, dim=1, out=scores), v, out=out)
    return mixed
