"""Attention without gradients on a CPU: one head of one row of text at a time, so that its scores stay in the caches.

Shapes: B rows, T segment length, M memory length, K = M + T keys, N heads, H head size, J distances.
"""

import torch
from torch import Tensor

from xltrain.model.relative import blocks
from xltrain.model.visibility import View

WORTHWHILE = 2**15
"""With fewer scores of a head for each thread, to call it apart costs more than it saves."""


def goes_by_head(query: Tensor, value: Tensor, view: View) -> bool:
    """Whether :func:`attend_by_head` is for these.

    Args:
        query: (B, T, N, H).
        value: (B, N, K, H).
        view: what the rows may see.
    """
    kind = query.device.type
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or kind != "cpu" or torch.is_autocast_enabled(kind):
        return False
    plain = view.one_sided and view.other_segment is None and view.backward is None
    exact = query.dtype == value.dtype == torch.promote_types(value.dtype, torch.float32)
    scores = view.num_content * value.shape[2]  # T * K
    only_content = query.shape[1] == view.num_content
    return plain and exact and only_content and scores > WORTHWHILE * torch.get_num_threads()


def attend_by_head(
    for_content: Tensor,
    for_position: Tensor | None,
    key: Tensor,
    value: Tensor,
    distance_keys: Tensor | None,
    view: View,
) -> Tensor:
    """Values mixed by attention, for content rows that see nothing after them.

    Products of a block of r rows with its k distances are written into rows of k + 1 places. Read as rows of k, from
    place r - 1 on, they lie shifted: nothing is copied, and products with keys are added where they stand. What a row
    then has of the row before, and the places between, belong to keys after it, which the mask hides.

    Args:
        for_content: (B, T, N, H) = (q + u), scaled.
        for_position: (B, T, N, H) = (q + v), scaled; None where distances do not count.
        key, value: (B, N, K, H).
        distance_keys: (K, N, H) = W_r R(distance), from the farthest to 0; or None.
        view: what the rows may see.

    Returns:
        (B, T, N, H)
    """
    rows, total, _, _ = for_content.shape
    keys = key.shape[2]
    mixed = torch.empty_like(for_content)  # (B, T, N, H)
    for block in blocks(total, rows=1, keys=keys, width=keys, device=key.device):
        part, reach, size = block.rows, block.keys, block.rows.stop - block.rows.start
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
