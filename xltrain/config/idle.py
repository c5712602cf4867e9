"""Keys that do nothing where another key has certain values: given there, they are a mistake, and refused."""

from functools import reduce
from typing import Any

from xltrain.config.base import Problem
from xltrain.config.schema import Config

TRAINED = ("min_count", "model_type", "character_coverage", "normalization", "max_sentences")
"""Keys of the tokenizer section that say how a vocabulary is trained."""
PIECES = ("quotes", "strip_accents", "split_digit_commas", *TRAINED[1:])
"""Keys of the tokenizer section that only sentencepiece has."""


def idle_keys(config: Config, origin: Config | None = None) -> list[Problem]:
    """Keys that are not at their defaults where they can do nothing.

    Where ``objective.name`` or ``schedule.name`` is what makes them so, ``objective.predict_fraction`` and
    ``schedule.min_lr_ratio`` are not among them, so that ``--set objective.name=causal`` or ``--set
    schedule.name=constant`` is enough to compare.

    Args:
        config: of a run.
        origin: of the checkpoint whose weights it starts from: what is as it is there was not given here.
    """
    found: dict[str, str] = {}
    for keys, acts, why in _rules(config, given_tokenizer=config.tokenizer.path is not None and origin is None):
        for key in keys if not acts else ():
            idle = _value(config, key) != _default(config, key)
            if idle and (origin is None or _value(origin, key) != _value(config, key)):
                found.setdefault(key, f"{why}; leave it out")
    return list(found.items())


def _rules(config: Config, *, given_tokenizer: bool) -> list[tuple[list[str], bool, str]]:
    """Keys, whether they act in ``config``, and what they would need."""
    kind, objective, schedule = config.tokenizer.kind, config.objective.name, config.schedule.name
    subwords, words = kind == "sentencepiece", kind == "word"
    sampled = objective in ("permutation", "masked")
    return [
        (_of("tokenizer", *PIECES), subwords, f"it needs tokenizer.kind sentencepiece, not {kind}"),
        (_of("tokenizer", "lower"), subwords or words, f"it needs tokenizer.kind sentencepiece or word, not {kind}"),
        (_of("tokenizer", "min_count", "eos"), words, f"it needs tokenizer.kind word, not {kind}"),
        (_of("tokenizer", *TRAINED), not given_tokenizer, "the vocabulary of tokenizer.path is trained already"),
        (
            _of("objective", "num_predict", "max_span", "span_unit"),
            sampled,
            f"it needs objective.name permutation or masked, not {objective}",
        ),
        (
            _of("objective", "predict_fraction"),
            not sampled or config.objective.num_predict is None,
            f"objective.num_predict {config.objective.num_predict} says how many targets there are (null: this does)",
        ),
        (
            _of("objective", "perm_size"),
            objective == "permutation",
            f"it needs objective.name permutation, not {objective}",
        ),
        (
            _of("model.adaptive", "div_val", "tie_projections"),
            bool(config.model.adaptive.cutoffs),
            "it needs model.adaptive.cutoffs, which part the vocabulary into bins",
        ),
        (
            _of("schedule", "decay_steps"),
            schedule not in ("constant", "inverse_sqrt"),
            f"a schedule that is {schedule} has none",
        ),
    ]


def _of(section: str, *keys: str) -> list[str]:
    return [f"{section}.{key}" for key in keys]


def _value(config: Config, key: str) -> Any:
    return reduce(getattr, key.split("."), config)


def _default(config: Config, key: str) -> Any:
    section, _, name = key.rpartition(".")
    return type(_value(config, section)).model_fields[name].get_default(call_default_factory=True)
