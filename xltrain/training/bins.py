"""Whether the bins of an adaptive embedding and softmax fit the text: frequent ids have to be in the first."""

from collections.abc import Sequence

import numpy as np

WIDE = 0.1
"""A bin border below which so much less of the text lies than could is worth a warning."""


def unsorted_ids(unigram: np.ndarray, cutoffs: Sequence[int], *, kind: str) -> str | None:
    """What to tell a person whose ids are not sorted by falling frequency, as bins need them (Grave et al. 2017).

    Args:
        unigram: (V,) how often each id occurs in the training text.
        cutoffs: where bins begin, the first left out.
        kind: of tokenizer.

    Returns:
        A sentence; None where no border of a bin has much less of the text below it than it could have.
    """
    borders = np.array([cutoff for cutoff in cutoffs if cutoff < len(unigram)], dtype=np.int64)
    total = int(unigram.sum())
    if not len(borders) or not total:
        return None
    below = np.cumsum(unigram)[borders - 1] / total  # (bins - 1,)
    possible = np.cumsum(np.sort(unigram)[::-1])[borders - 1] / total  # (bins - 1,)
    worst = int(np.argmax(possible - below))
    if possible[worst] - below[worst] <= WIDE:
        return None
    better = (
        "list the words by frequency in tokenizer.path, <unk> among them"
        if kind == "word"
        else "choose tokenizer.kind word, or sentencepiece with model_type unigram"
    )
    return (
        f"model.adaptive.cutoffs: the ids below {borders[worst]:,} make up {below[worst]:.1%} of the training text, "
        f"the {borders[worst]:,} most frequent ids {possible[worst]:.1%}: bins need ids that are sorted by frequency; "
        f"{better}, or leave the cutoffs out"
    )
