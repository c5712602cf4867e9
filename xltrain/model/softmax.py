"""From hidden states to the loss of each target, with one softmax over all words or one over bins of words."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from xltrain.model.cross_entropy import linear_cross_entropy, uncompiled, wide
from xltrain.model.embedding import AdaptiveEmbedding, bins


class Softmax(nn.Module):
    """A full softmax over V words; its weights may be the embedding table."""

    def __init__(self, *, vocab_size: int, d_model: int, tied_to: nn.Embedding | None) -> None:
        super().__init__()
        self.weight = (
            tied_to.weight if tied_to is not None else nn.Parameter(torch.empty(vocab_size, d_model))
        )  # (V, D)
        self.bias = nn.Parameter(torch.zeros(vocab_size))  # (V,)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)"""
        return functional.linear(hidden, self.weight, self.bias)

    def log_probs(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)"""
        return wide(self.logits(hidden)).log_softmax(dim=-1)

    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Negative log-likelihood in nats, in fp32 or better; 0 where the target is ``IGNORE``.

        Args:
            hidden: (B, P, D).
            targets: (B, P).

        Returns:
            (B, P)
        """
        nll = linear_cross_entropy(hidden.flatten(0, 1), self.weight, self.bias, targets.flatten())  # (B*P,)
        return nll.view_as(targets)  # (B, P)


class AdaptiveSoftmax(nn.Module):
    """A softmax over the frequent words and one symbol per further bin, then one within the bin (Grave et al. 2017).

    Args:
        embedding: whose bins these are.
        tie_embeddings: use its tables as weights.
        tie_projections: per bin, use its projection; where not, the bin has one of its own.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        d_model: int,
        cutoffs: Sequence[int],
        div_val: int,
        embedding: AdaptiveEmbedding,
        tie_embeddings: bool,
        tie_projections: Sequence[bool],
    ) -> None:
        super().__init__()
        self.bins, self.one_table = bins(vocab_size, cutoffs), div_val == 1
        tables = list(embedding.tables)
        self.weights = nn.ParameterList(
            table if tie_embeddings else nn.Parameter(torch.empty_like(table)) for table in tables
        )  # (V_i, D_i)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(table.shape[0])) for table in tables)  # (V_i,)
        self.projections = nn.ParameterList(
            shared if tied else nn.Parameter(torch.empty_like(shared))
            for shared, tied in zip(embedding.projections, tie_projections, strict=False)
        )  # (D, D_i)
        self.cluster_weight = nn.Parameter(torch.empty(len(cutoffs), d_model))  # (bins - 1, D)
        self.cluster_bias = nn.Parameter(torch.zeros(len(cutoffs)))

    def _bin(self, index: int, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(n, D) -> (n, D_i), the bin's weight (V_i, D_i), its bias (V_i,); the first has a row per further bin too."""
        first, last = self.bins[index]
        if self.one_table:
            weight, bias = self.weights[0][first:last], self.biases[0][first:last]
        else:
            weight, bias = self.weights[index], self.biases[index]
            hidden = hidden @ self.projections[index].to(hidden.dtype)  # (n, D_i)
        if index == 0:
            weight = torch.cat([weight, self.cluster_weight])  # (V_0 + bins - 1, D_0)
            bias = torch.cat([bias, self.cluster_bias])  # (V_0 + bins - 1,)
        return hidden, weight, bias

    def log_probs(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)"""
        flat = hidden.flatten(0, -2)  # (n, D)
        head = wide(functional.linear(*self._bin(0, flat))).log_softmax(dim=-1)  # (n, V_0 + bins - 1)
        shortlist = self.bins[0][1]
        parts = [head[:, :shortlist]]  # (n, V_0)
        for index in range(1, len(self.bins)):
            within = wide(functional.linear(*self._bin(index, flat))).log_softmax(dim=-1)  # (n, V_i)
            parts.append(within + head[:, shortlist + index - 1, None])
        return torch.cat(parts, dim=-1).view(*hidden.shape[:-1], -1)  # (..., V)

    @uncompiled  # how many rows a bin gets is in the data
    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """As :meth:`Softmax.forward`; losses stay in the order of the targets.

        Which rows need which bin is asked of the device, and the host waits for the answer. Without asking, every row
        would go through every bin: all V logits again, which the bins are there to avoid; and room for a fixed number
        of rows per bin would lose those beyond it.
        """
        flat, wanted = hidden.flatten(0, 1), targets.flatten()  # (B*P, D), (B*P,)
        shortlist = self.bins[0][1]
        column = wanted
        for index, (first, last) in enumerate(self.bins[1:], start=1):
            column = torch.where((wanted >= first) & (wanted < last), shortlist + index - 1, column)
        nll = linear_cross_entropy(*self._bin(0, flat), column)  # (B*P,)
        for index, (first, last) in enumerate(self.bins[1:], start=1):
            places = ((wanted >= first) & (wanted < last)).nonzero().squeeze(1)  # (n,)
            nll = nll.index_add(
                0, places, linear_cross_entropy(*self._bin(index, flat[places]), wanted[places] - first)
            )
        return nll.view_as(targets)
