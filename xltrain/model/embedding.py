"""Token embeddings: one table, or tables whose width falls with the frequency of their words."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


def bins(vocab_size: int, cutoffs: Sequence[int]) -> list[tuple[int, int]]:
    """First and past-the-last id of every bin: the frequent words, then one bin per further cutoff."""
    return list(pairwise([0, *cutoffs, vocab_size]))


class AdaptiveEmbedding(nn.Module):
    """Ids sorted by frequency, cut into bins; bin i has vectors of D / div_val^i, projected to D.

    Baevski and Auli 2018, section 3, as Transformer-XL uses it. With ``div_val`` 1: one table and no projection.
    """

    def __init__(self, *, vocab_size: int, d_model: int, cutoffs: Sequence[int], div_val: int) -> None:
        super().__init__()
        self.d_model, self.bins = d_model, bins(vocab_size, cutoffs)
        sizes = [last - first for first, last in self.bins] if div_val > 1 else [vocab_size]
        widths = [d_model // div_val**index for index in range(len(sizes))]
        self.tables = nn.ParameterList(
            nn.Parameter(torch.empty(size, width)) for size, width in zip(sizes, widths, strict=True)
        )  # (V_i, D_i)
        self.projections = nn.ParameterList(
            nn.Parameter(torch.empty(d_model, width)) for width in (widths if div_val > 1 else [])
        )  # (D, D_i)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) -> (B, T, D)"""
        if not self.projections:
            return functional.embedding(tokens, self.tables[0])
        # Every token goes through every bin, as zeros where the bin is not its own: together the narrow bins are little
        # work, and to ask which tokens are in which would make the host wait for the device.
        found = torch.zeros((), dtype=self.projections[0].dtype, device=tokens.device)
        for (first, last), table, projection in zip(self.bins, self.tables, self.projections, strict=True):
            outside = (tokens < first) | (tokens >= last)  # (B, T)
            rows = functional.embedding((tokens - first).masked_fill(outside, 0), table)  # (B, T, D_i)
            found = found + functional.linear(rows.masked_fill(outside[..., None], 0.0), projection)  # (B, T, D)
        return found
