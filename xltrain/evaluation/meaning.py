"""What a figure of each objective is about, where it is not the probability of a text that a causal model's is.

Whoever reads two figures side by side cannot see from their names that they answer different questions.
"""

_NO_TEXT = "no perplexity of the text, so ppl_word and bits are left out, and not comparable with a causal model's"

_PERPLEXITY = {
    "permutation": f"ppl is that of the sampled targets, given the rest of their segments: {_NO_TEXT}; --left-to-right "
    "gives the text's",
    "masked": f"ppl is that of the sampled targets, each given what stands on both sides of it: {_NO_TEXT}",
    "seq2seq": f"ppl is that of the second part of every segment, given the first, which is cut at random: {_NO_TEXT}",
}

_SCORE = {
    "masked": "log_prob is a pseudo-log-likelihood, a sum over tokens that are each given all others: it ranks texts, "
    "but is no probability, and not comparable with other objectives' scores",
}


def of_perplexity(objective: str, *, pairs: bool, left_to_right: bool) -> str | None:
    """What ``ppl`` and ``loss`` of ``eval-ppl`` are about; None where they are the text's."""
    if left_to_right:
        return None
    if pairs:
        return "ppl is that of the targets of the pairs, given their sources; ppl_word and bits are left out"
    return _PERPLEXITY.get(objective)


def of_score(objective: str) -> str | None:
    """What ``log_prob`` of ``score`` is, where it is no probability."""
    return _SCORE.get(objective)


def of_reading(objective: str) -> str | None:
    """How a text is read from left to right that the objective reads otherwise."""
    return {"seq2seq": "as a target", "permutation": "from the query stream"}.get(objective)
