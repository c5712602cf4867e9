"""Who sees whom: the order rule, evaluated where attention is computed.

    content stream at q sees content at k   iff   order[k] <= order[q]
    query   stream at q sees content at k   iff   order[k] <  order[q]
    memory is seen by everyone (if it is valid, inside the window, and of the same document where these are kept apart)

Each row gets a *limit* (its order; one less for a query row) and each key an order (-1 for valid memory, ``HIDDEN`` for
padding and unused memory). Then all of the above is ``key_order <= limit``.
"""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from xltrain.model.scratch import Scratch

HIDDEN = 2**31 - 1
"""Order of a position that nobody may see."""

IN_MEMORY = -1
"""Order of a valid memory slot: before everything in the segment."""


@dataclass(frozen=True)
class Visibility:
    """The rule for R rows and K = M + T keys (memory first). B rows of text.

    limit: (B, R) highest key order that a row sees.
    key_order: (B, K).
    row_document, key_document: (B, R) and (B, K), or None where documents are not kept apart.
    row_position: (B, R) place in the segment, 0..T-1.
    window: a row sees only keys less than this far behind it; 0: no such limit.
    mem_len: M.
    """

    limit: Tensor
    key_order: Tensor
    row_position: Tensor
    row_document: Tensor | None = None
    key_document: Tensor | None = None
    window: int = 0
    mem_len: int = 0

    @classmethod
    def of_segment(
        cls,
        *,
        order: Tensor,
        memory_valid: Tensor,
        document: Tensor | None = None,
        memory_document: Tensor | None = None,
        slots: Tensor | None = None,
        window: int = 0,
    ) -> "Visibility":
        """The rule for rows [content ; query slots].

        Args:
            order: (B, T).
            memory_valid: (B, M) bool.
            document, memory_document: (B, T) and (B, M), to keep documents apart.
            slots: (B, P) positions of the query stream's rows.
            window: see above.
        """
        seq_len, mem_len = order.shape[1], memory_valid.shape[1]
        memory_order = torch.where(memory_valid, IN_MEMORY, HIDDEN).to(order.dtype)  # (B, M)
        limit = order.clamp(max=HIDDEN - 1)  # (B, T): a padded row does not see padding either
        position = torch.arange(seq_len, device=order.device).expand_as(order)  # (B, T)
        row_document = document
        if slots is not None:
            limit = torch.cat([limit, order.gather(1, slots) - 1], dim=1)  # (B, T+P)
            position = torch.cat([position, slots], dim=1)  # (B, T+P)
            if document is not None:
                row_document = torch.cat([document, document.gather(1, slots)], dim=1)  # (B, T+P)
        key_document = None
        if document is not None and memory_document is not None:
            key_document = torch.cat([memory_document, document], dim=1)  # (B, K)
        return cls(
            limit=limit,
            key_order=torch.cat([memory_order, order], dim=1),  # (B, K)
            row_position=position,
            row_document=row_document,
            key_document=key_document,
            window=window,
            mem_len=mem_len,
        )

    def of_rows(self, index: Tensor) -> "Visibility":
        """The same rule for some of the rows only. ``index``: (B, R') places in 0..R-1."""
        return Visibility(
            limit=self.limit.gather(1, index),
            key_order=self.key_order,
            row_position=self.row_position.gather(1, index),
            row_document=None if self.row_document is None else self.row_document.gather(1, index),
            key_document=self.key_document,
            window=self.window,
            mem_len=self.mem_len,
        )

    def dense(self, first: int = 0) -> Tensor:
        """(B, R, K - first) bool, true where the row sees the key; of the keys from ``first`` on."""
        seen = self.key_order[:, None, first:] <= self.limit[:, :, None]  # (B, R, K - first)
        if self.row_document is not None and self.key_document is not None:
            seen = seen & (self.key_document[:, None, first:] == self.row_document[:, :, None])
        if self.window:
            key_position = torch.arange(first, self.key_order.shape[1], device=seen.device) - self.mem_len
            seen = seen & (self.row_position[:, :, None] - key_position < self.window)
        return seen

    def clear(self) -> int:
        """So many of the first keys every row sees; 0 if that takes more than a look at the orders. Asks the device."""
        if self.row_document is not None or self.window or not self.limit.numel():
            return 0
        seen = self.key_order.amax(dim=0) <= self.limit.amin()  # (K,)
        return int(seen.cumprod(0).sum())

    def looks_ahead(self) -> bool:
        """Whether a row sees a key after it in the text; one that is padding may, in any model. Asks the device."""
        position = torch.arange(self.key_order.shape[1] - self.mem_len, device=self.limit.device)  # (T,)
        after = position > self.row_position[:, :, None]  # (B, R, T)
        return bool((self.dense(self.mem_len) & after).any())


@dataclass(frozen=True)
class View:
    """What the rows of a layer may see, prepared once per forward and shared by the layers.

    clear: so many of the first keys every row sees; 0 where that is not known beforehand.
    rest: (B, 1, R, K - clear) for the other keys 0 where visible, -inf where not; 0 everywhere in a row that sees
        nothing.
    alive: (B, 1, R, 1) 0 for a row that sees nothing, 1 otherwise; None where every row sees something.
    num_content: rows 0..num_content-1 stand at positions 0.. of the segment; T or 0.
    starts: (B, R - num_content) first distance column of each further row: T - 1 - its position.
    seq_len: T.
    in_order: whether row r stands at position r modulo T.
    rule: what this is a view of.
    other_segment: (B, 1, R, K) 1 where row and key are of different segments, or None.
    backward: (B,) 1 for rows of reversed text, whose distances have the other sign, 0 for the rest; or None.
    scratch: room for what a layer needs while it computes.
    """

    clear: int
    rest: Tensor
    alive: Tensor | None
    num_content: int
    starts: Tensor
    seq_len: int
    in_order: bool
    rule: Visibility
    other_segment: Tensor | None = None
    backward: Tensor | None = None
    scratch: Scratch = field(default_factory=Scratch)

    @classmethod
    def of(
        cls,
        visibility: Visibility,
        *,
        seq_len: int,
        num_content: int,
        in_order: bool,
        dtype: torch.dtype,
        segments: tuple[Tensor, Tensor] | None = None,
        backward: Tensor | None = None,
        scratch: Scratch,
    ) -> "View":
        """Evaluate the rule.

        Args:
            visibility: the rule.
            seq_len, num_content, in_order, scratch, backward: see the class.
            dtype: of the mask.
            segments: ids of the rows (B, R) and of the keys (B, K).
        """
        known = not (torch.is_grad_enabled() or torch.compiler.is_compiling()) and visibility.limit.device.type == "cpu"
        clear = visibility.clear() if known else 0
        seen = visibility.dense(clear)  # (B, R, K - clear)
        alive = None
        if not clear:
            alive = seen.any(dim=-1, keepdim=True)  # (B, R, 1)
            seen = seen.logical_or_(~alive)
        shown, hidden = (torch.full((), value, dtype=dtype, device=seen.device) for value in (0.0, float("-inf")))
        rest = torch.where(seen, shown, hidden)  # (B, R, K - clear)
        other = None
        if segments is not None:
            rows, keys = segments
            other = (rows[:, :, None] != keys[:, None, :])[:, None].to(dtype)  # (B, 1, R, K)
        return cls(
            clear=clear,
            rest=rest[:, None],  # (B, 1, R, K - clear)
            alive=None if alive is None else alive[:, None].to(dtype),  # (B, 1, R, 1)
            num_content=num_content,
            starts=seq_len - 1 - visibility.row_position[:, num_content:],  # (B, R - C)
            seq_len=seq_len,
            in_order=in_order,
            rule=visibility,
            other_segment=other,
            backward=backward,
            scratch=scratch,
        )

    @cached_property
    def whole_passes(self) -> bool:
        """Whether the rows are all positions in order, and none sees a key after it. May ask the device."""
        return self.in_order and not self.rule.looks_ahead()

    @property
    def mask(self) -> Tensor:
        """(B, 1, R, K) 0 where visible, -inf where not; 0 everywhere in a row that sees nothing."""
        return self._padded if self.clear else self.rest

    @cached_property
    def _padded(self) -> Tensor:
        return functional.pad(self.rest, (self.clear, 0))  # (B, 1, R, K)
