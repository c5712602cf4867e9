"""Relative effective context length, as the Transformer-XL paper defines it (Dai et al. 2019, section 4.3, appendix C).

How far back does a model make use of text, when it is compared with others that do better or worse from the start? For
a group of N models and a text, ``l_i(c, t)`` is the loss of model i on token t, given exactly the c tokens before it.
Then, for a short context c and a longer one c':

    baseline        b(c, t)     = min over i of l_i(c, t)
    relative loss   f_i(c, c')  = mean over t in T of min(b(c, t), l_i(c', t))
    relative gain   g_i(c, c')  = (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c)

T holds the share r of the tokens whose baseline b(c, t) is largest: those that the short context leaves hardest. All
models are held to the same baseline, and a token counts only where the longer context beats the best of the group.

The length is found with a step D: begin with c = D, and while g_i(c, c + D) is at least 0.01, go on to c + D. The first
c from which another step gains less is the model's relative effective context length. The paper gives 0.01; its D is
not written down, but its figures and its table step by 100, which is the default here.

Since min(b, l) is never above b, losses that only fluctuate with the context count as gains. So the *effective context
length* is found beside it, the same search with each model's own mean loss: the first c from which another step lowers
its perplexity by less than one hundredth (after Khandelwal et al. 2018, as the paper's section 4.3 sums them up).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

SHARES = (0.1, 0.5, 1.0)
"""The paper's r."""

THRESHOLD = 0.01
"""The smallest relative gain that counts."""


def hardest(baseline: np.ndarray, share: float) -> np.ndarray:
    """Places of the ``share`` of the targets with the largest baseline (targets,); of equal ones the earlier."""
    count = max(1, round(share * len(baseline)))
    return np.argsort(-baseline, kind="stable")[:count]


def relative_gain(short: np.ndarray, long: np.ndarray, *, model: int, share: float) -> float:
    """g_i(c, c') of the module's formula.

    Args:
        short: (models, targets) losses in nats with the short context.
        long: (models, targets) losses with the long one.
        model: i.
        share: r.
    """
    return -np.expm1(-_improvement(short, long, model, share))


def perplexity_gain(short: np.ndarray, long: np.ndarray, *, model: int, share: float) -> float:
    """exp f_i(c, c) - exp f_i(c, c'): the gain before it is divided, as the paper's figure 3 draws it."""
    baseline = short.min(axis=0)
    chosen = hardest(baseline, share)
    return float(np.exp(baseline[chosen].mean()) * relative_gain(short, long, model=model, share=share))


def _improvement(short: np.ndarray, long: np.ndarray, model: int, share: float) -> float:
    """f_i(c, c) - f_i(c, c'), in nats; f_i(c, c) is the mean of the baseline for every i."""
    baseline = short.min(axis=0)
    chosen = hardest(baseline, share)
    return float((baseline[chosen] - np.minimum(baseline[chosen], long[model, chosen])).mean())


@dataclass
class Search:
    """What a search for the lengths found.

    lengths: of every (model, r); missing where the longest context that was allowed still gained.
    effective: the effective context length of every model, by its own mean loss; missing likewise.
    steps: the gains of every step that was taken: short and long context, model, r, relative gain, perplexity gain.
    losses: mean loss (models,) of every context length, over all targets.
    """

    lengths: dict[tuple[int, float], int] = field(default_factory=dict)
    effective: dict[int, int] = field(default_factory=dict)
    steps: list[dict[str, float]] = field(default_factory=list)
    losses: dict[int, np.ndarray] = field(default_factory=dict)

    @property
    def longest(self) -> int:
        return max(self.losses)


def find_lengths(
    losses_at: Callable[[int], np.ndarray],
    *,
    step: int,
    limit: int,
    reach: Sequence[int | None],
    shares: Sequence[float] = SHARES,
) -> Search:
    """The length of every model and share.

    Args:
        losses_at: (models, targets) losses in nats with exactly so many tokens of context.
        step: D.
        limit: the longest context that is tried, at least ``step``.
        reach: of every model, the longest context that it can read at all, which its length cannot exceed; or None.
        shares: values of r.
    """
    found = Search()
    context, short = step, losses_at(step)
    found.losses[step] = short.mean(axis=1)
    models = range(len(short))
    wanted = {(model, share) for model in models for share in shares}
    while (wanted - found.lengths.keys() or set(models) - found.effective.keys()) and context + step <= limit:
        long = losses_at(context + step)
        found.losses[context + step] = long.mean(axis=1)
        most = [min(context, limited or context) for limited in reach]
        for model in models:
            if -np.expm1(found.losses[context + step][model] - found.losses[context][model]) < THRESHOLD:
                found.effective.setdefault(model, most[model])
        for model, share in sorted(wanted):
            gain = relative_gain(short, long, model=model, share=share)
            in_perplexity = perplexity_gain(short, long, model=model, share=share)
            found.steps.append(
                {
                    "context": context,
                    "longer": context + step,
                    "model": model,
                    "r": share,
                    "gain": gain,
                    "perplexity_gain": in_perplexity,
                }
            )
            if gain < THRESHOLD:
                found.lengths.setdefault((model, share), most[model])
        context, short = context + step, long
    return found
