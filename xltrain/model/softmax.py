"""From hidden states to the loss of each target, with one softmax over all words or one over bins of words."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from xltrain.model.cross_entropy import IGNORE, linear_cross_entropy, uncompiled, wide
from xltrain.model.embedding import AdaptiveEmbedding, bins

ROUNDED = 64
"""Room in a bin is a multiple of this, so that few sizes of tensors occur."""


class Room:
    """How many targets each further bin of an adaptive softmax has at most, which the host knows from its plan.

    An object, not the numbers: for other numbers a compiler would make another graph.
    """

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = tuple(counts)


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

    def room(self, targets: Tensor) -> Room | None:
        """None: no bins."""

    def forward(self, hidden: Tensor, targets: Tensor, room: Room | None = None) -> Tensor:
        """Negative log-likelihood in nats, in fp32 or better; 0 where the target is ``IGNORE``.

        Args:
            hidden: (B, P, D).
            targets: (B, P).
            room: of an adaptive softmax.

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

    def room(self, targets: Tensor) -> Room:
        """For these targets (B, P), on the host."""
        return Room([int(((targets >= first) & (targets < last)).sum()) for first, last in self.bins[1:]])

    def forward(self, hidden: Tensor, targets: Tensor, room: Room | None = None) -> Tensor:
        """As :meth:`Softmax.forward`; losses stay in the order of the targets.

        Without ``room`` the device is asked which rows need which bin, and the host waits for the answer. (Not to ask,
        and to send every row through every bin, would be all V logits again, which the bins are there to avoid.)

        Raises:
            RuntimeError: if more targets are in a bin than it has room for.
        """
        if torch.compiler.is_compiling():
            return self._uncompiled(hidden, targets, room)
        return self._losses(hidden, targets, room)

    @uncompiled  # how many rows a bin gets is in the data
    def _uncompiled(self, hidden: Tensor, targets: Tensor, room: Room | None) -> Tensor:
        return self._losses(hidden, targets, room)

    def _losses(self, hidden: Tensor, targets: Tensor, room: Room | None) -> Tensor:
        flat, wanted = hidden.flatten(0, 1), targets.flatten()  # (B*P, D), (B*P,)
        shortlist = self.bins[0][1]
        inside = [(wanted >= first) & (wanted < last) for first, last in self.bins[1:]]  # (B*P,) each
        column = wanted
        for index, found in enumerate(inside):
            column = torch.where(found, shortlist + index, column)
        nll = linear_cross_entropy(*self._bin(0, flat), column)  # (B*P,)
        for index, found in enumerate(inside, start=1):
            places, filled = _places(found, None if room is None else room.counts[index - 1])  # (n,), (n,)
            word = torch.where(filled, wanted[places] - self.bins[index][0], IGNORE)  # (n,)
            within = linear_cross_entropy(*self._bin(index, flat.index_select(0, places)), word)  # (n,)
            nll = nll.index_add(0, places, within)
        return nll.view_as(targets)


def _places(inside: Tensor, most: int | None) -> tuple[Tensor, Tensor]:
    """Where ``inside`` (B*P,) is true, and which of these places are meant.

    With ``most`` the number of places is that, rounded up, whatever is inside; those too many are not meant.
    """
    if most is None:
        places = inside.nonzero().squeeze(1)  # (n,)
        return places, torch.ones_like(places, dtype=torch.bool)
    size = min(len(inside), -(-most // ROUNDED) * ROUNDED)
    count = inside.sum()
    torch._assert_async(count <= size, "more targets in a bin of the adaptive softmax than it has room for")
    slot = torch.where(inside, inside.cumsum(0) - 1, size)  # (B*P,)
    number = torch.arange(len(inside), device=inside.device)  # (B*P,)
    places = number.new_zeros(size + 1).scatter_(0, slot, number)[:size]  # (n,)
    return places, number[:size] < count
