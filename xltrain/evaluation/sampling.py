"""One token out of a distribution: the likeliest, or one drawn at random from those that are let in."""

from dataclasses import dataclass

import torch
from torch import Tensor

from xltrain.objectives.draws import Draw

_CHOICE = 0  # purpose of the random numbers


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    temperature: probabilities are raised to its inverse, which is finite; 0: the likeliest token, the first of equal
        ones.
    top_k: only so many of the likeliest are let in; None: all.
    top_p: only the likeliest that together have this probability (Holtzman et al. 2019), after ``top_k``.
    seed: of the draws, which depend on it, on a sample's number and on the place in it, and on nothing else.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def choose(self, log_probs: Tensor, allowed: Tensor, *, samples: Tensor, step: int) -> Tensor:
        """Tokens (B,).

        Args:
            log_probs: (B, V).
            allowed: (V,) bool, what may be chosen at all.
            samples: (B,) number of each row's sample.
            step: how many tokens were chosen before.
        """
        scores = log_probs.double().masked_fill(~allowed, -torch.inf)  # (B, V)
        if self.temperature == 0:
            return scores.argmax(dim=-1)
        chances = self.distribution(scores)
        # Summed in the order of ids, so that a difference in the last digit moves a border a little and nothing else.
        borders = chances.cumsum(dim=-1)  # (B, V)
        drawn = Draw(seed=self.seed, step=step, rows=samples).uniform(1, purpose=_CHOICE) * borders[:, -1:]  # (B, 1)
        found = torch.searchsorted(borders, drawn, right=True)[:, 0]  # the first border above what was drawn
        last = (chances > 0).long().cumsum(dim=-1).argmax(dim=-1)  # (B,) the last token with a chance
        return torch.minimum(found, last)

    def distribution(self, scores: Tensor) -> Tensor:
        """(B, V) probabilities that tokens are drawn with, from log-probabilities (B, V); -inf: not allowed."""
        likeliest = scores.amax(dim=-1, keepdim=True)  # taken off, so that no temperature leaves nothing above -inf
        scores = (scores - likeliest) / self.temperature
        if self.top_k is not None and self.top_k < scores.shape[-1]:
            kept = scores.topk(self.top_k, dim=-1).indices
            scores = torch.full_like(scores, -torch.inf).scatter(-1, kept, scores.gather(-1, kept))
        chances = scores.softmax(dim=-1)
        if self.top_p < 1.0:
            likely, order = chances.sort(dim=-1, descending=True, stable=True)
            before = likely.cumsum(dim=-1) - likely  # of all that are likelier; 0 for the likeliest, which stays
            chances = chances.masked_fill(
                torch.empty_like(likely, dtype=torch.bool).scatter(-1, order, before >= self.top_p), 0
            )
            chances = chances / chances.sum(dim=-1, keepdim=True)
        return chances
