"""What to say where a perplexity would mislead."""

import math
from typing import Any

from xltrain import console
from xltrain.config.schema import Config
from xltrain.data.warnings import LONG_WORD, MANY_UNKNOWN


def warn_of(found: dict[str, Any], *, config: Config, overlap: list[str], vocab_size: int, whole: bool) -> None:
    """Say everything that a reader of these figures has to know.

    Args:
        found: the figures.
        config: the run's configuration, with what this use changes of its model.
        overlap: clauses on what of this text the model was trained on.
        whole: every token of the text was a target.
    """
    if found["unknown_rate"] > MANY_UNKNOWN:
        console.warn(
            f"{found['unknown_rate']:.1%} of the tokens are <unk>: this perplexity is not comparable "
            f"({found['unknown']:,} of {found['tokens']:,})"
        )
    if not math.isfinite(found["loss"]):
        console.warn("the loss is no number: some layer's values are too large for training.precision")
    elif found["loss"] > math.log(vocab_size):
        console.warn(
            f"a loss of {found['loss']:.2f} nats is worse than guessing among {vocab_size:,} tokens: "
            "the model is untrained, or the tokenizer is not the one that it was trained with"
        )
    known = config.segments.seq_len + config.segments.mem_len
    if config.model.positions == "relative" and found["attention_len"] > known and not config.model.clamp_len:
        console.warn(
            f"rows see {found['attention_len']:,} positions, in training at most {known:,}: distances beyond that were "
            f"never seen and may raise the loss; --clamp-len {known} keeps within them"
        )
    if found["ppl_word"] is not None and found["characters"] > LONG_WORD * found["words"]:
        console.warn(
            f"ppl_word means nothing here: between spaces, this text has {found['characters'] / found['words']:,.0f} "
            "characters on average, as Chinese or Japanese has; bits_per_char compares such texts"
        )
    for clause in overlap:
        console.warn(f"{clause}: this is the loss of a text that the model has seen")
    if not whole and found["objective"] == "permutation":
        console.say(
            "ppl is that of the sampled targets, given the rest of their segments; --left-to-right gives the text's"
        )
