"""What to say where a perplexity would mislead."""

import math
from typing import Any

from xltrain import console
from xltrain.config.schema import Config
from xltrain.data.warnings import LONG_WORD, MANY_UNKNOWN
from xltrain.evaluation.meaning import of_perplexity


def warn_of(found: dict[str, Any], *, trained: Config, overlap: list[str], vocab_size: int, whole: bool) -> None:
    """Say everything that a reader of these figures has to know.

    Args:
        found: the figures.
        trained: the run's own configuration.
        overlap: clauses on what of this text the model was trained on.
        whole: every token of the text was a target.
    """
    warn_of_unknown(
        found["unknown"], spelled=found["unknown_spelled"], tokens=found["tokens"], what="this perplexity is"
    )
    if not math.isfinite(found["loss"]):
        console.warn("the loss is no number: some layer's values are too large for training.precision")
    elif found["loss"] > math.log(vocab_size):
        console.warn(
            f"a loss of {found['loss']:.2f} nats is worse than guessing among {vocab_size:,} tokens: "
            "the model is untrained, or the tokenizer is not the one that it was trained with"
        )
    warn_of_distances(
        trained,
        attention_len=found["attention_len"],
        seq_len=min(found["seq_len"], found["tokens"]),
        clamp_len=found["clamp_len"],
        one_sided=whole,
    )
    if whole and found["characters"] > LONG_WORD * found["words"]:
        console.warn(
            f"ppl_word means nothing here: between spaces, this text has "
            f"{found['characters'] / max(1, found['words']):,.0f} characters on average, as Chinese or Japanese has; "
            "bits_per_char compares such texts"
        )
    elif whole and found["words"] and found["ppl_word"] is None:
        console.say(
            "note: ppl_word is left out: "
            f"{found['nll'] / found['words']:,.0f} nats per word make it more than a number holds"
        )
    for clause in overlap:
        console.warn(f"{clause}: this is the loss of a text that the model has seen")
    note = of_perplexity(found["objective"], pairs=found["mode"] == "pairs", left_to_right=found["left_to_right"])
    if note:
        console.say(f"note: {note}")


def warn_of_unknown(unknown: int, *, spelled: int, tokens: int, what: str) -> None:
    """Tell tokens that a vocabulary lacks, which make figures too good, from those that the text itself has so.

    Args:
        spelled: of the unknown ones, those that the text spells ``<unk>``: a word like others.
        what: is not comparable for the others, with its verb.
    """
    lacking = unknown - spelled
    if lacking > MANY_UNKNOWN * tokens:
        others = f"; beside {spelled:,} that the text itself spells <unk>" if spelled else ""
        console.warn(
            f"{lacking / tokens:.1%} of the tokens are <unk>: {what} not comparable "
            f"({lacking:,} of {tokens:,} that the vocabulary lacks{others})"
        )
    elif spelled > MANY_UNKNOWN * tokens:
        console.say(
            f"note: {spelled:,} of the {tokens:,} tokens ({spelled / tokens:.1%}) are spelled <unk> in the text, "
            f"and count as words; {what} comparable with those of the same text and vocabulary"
        )


def warn_of_distances(
    trained: Config, *, attention_len: int, seq_len: int, clamp_len: int, one_sided: bool, way: str | None = None
) -> None:
    """Say where rows see further than in training, so that what positions tell them was never learned.

    Args:
        attention_len: the most positions that a row sees here, its own included.
        seq_len: the longest segment here.
        clamp_len: the distance from which on all count as the same, here; 0: there is none. One that lies beyond all
            distances of training keeps nothing within them.
        one_sided: rows see only what comes before them.
        way: the option that keeps within what was seen; None: --clamp-len.
    """
    segments, model = trained.segments, trained.model
    if model.positions == "sinusoid" and seq_len > segments.seq_len:
        console.warn(
            f"segments have {seq_len:,} places, in training {segments.seq_len:,}: those beyond were never seen and may "
            f"raise the loss; --seq-len {segments.seq_len} keeps within them"
        )
    if model.positions != "relative":
        return
    ahead, known = _counted(seq_len - 1, clamp_len), _counted(segments.seq_len - 1, model.clamp_len)
    if not one_sided and ahead > known:
        console.warn(
            f"rows see up to {ahead:,} positions ahead, in training up to {known:,}: longer distances were never seen "
            f"and may raise the loss; --seq-len {segments.seq_len} keeps within them"
        )
        return
    back = _counted(attention_len - 1, clamp_len)
    known = _counted(segments.mem_len + (0 if model.same_length else segments.seq_len) - 1, model.clamp_len)
    if back > known:
        console.warn(
            f"distances count up to {back:,}, in training up to {known:,}: longer ones were never seen and may raise "
            f"the loss; {way or f'--clamp-len {known}'} keeps within them"
        )


def _counted(distance: int, clamp_len: int) -> int:
    return min(distance, clamp_len) if clamp_len else distance
