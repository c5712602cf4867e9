"""A key that can do nothing where it is given is refused, and nothing else is."""

from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import corpora
import pytest

from xltrain.config.idle import idle_keys
from xltrain.config.load import load_config
from xltrain.errors import UsageError

PERMUTATION = "it needs objective.name permutation"
CASES: list[tuple[dict[str, Any], dict[str, str]]] = [
    (
        {"objective": {"name": "causal", "num_predict": 3, "max_span": 3, "span_unit": "token", "perm_size": 8}},
        {
            "objective.num_predict": f"{PERMUTATION} or masked, not causal",
            "objective.max_span": f"{PERMUTATION} or masked, not causal",
            "objective.span_unit": f"{PERMUTATION} or masked, not causal",
            "objective.perm_size": f"{PERMUTATION}, not causal",
        },
    ),
    (
        {"objective": {"name": "masked", "num_predict": 3, "perm_size": 8}},
        {"objective.perm_size": f"{PERMUTATION}, not masked"},
    ),
    (
        {"objective": {"num_predict": 3, "predict_fraction": 0.3}},
        {"objective.predict_fraction": "objective.num_predict 3 says how many targets there are (null: this does)"},
    ),
    ({"objective": {"num_predict": None, "predict_fraction": 0.3}}, {}),
    ({"objective": {"name": "causal", "predict_fraction": 0.3}}, {}),
    (
        {"model": {"adaptive": {"div_val": 2, "tie_projections": True}}},
        {
            f"model.adaptive.{key}": "it needs model.adaptive.cutoffs, which part the vocabulary into bins"
            for key in ("div_val", "tie_projections")
        },
    ),
    (
        {
            "tokenizer": {
                "kind": "char",
                "vocab_size": None,
                "model_type": "bpe",
                "character_coverage": 1.0,
                "normalization": "identity",
                "max_sentences": 5,
                "quotes": True,
                "strip_accents": True,
                "split_digit_commas": True,
            }
        },
        {
            f"tokenizer.{key}": "it needs tokenizer.kind sentencepiece, not char"
            for key in (
                *("model_type", "character_coverage", "normalization", "max_sentences"),
                *("quotes", "strip_accents", "split_digit_commas"),
            )
        },
    ),
    (
        {"tokenizer": {"kind": "byte", "vocab_size": None, "eos": False, "min_count": 2, "lower": True}},
        {
            "tokenizer.eos": "it needs tokenizer.kind word, not byte",
            "tokenizer.min_count": "it needs tokenizer.kind word, not byte",
            "tokenizer.lower": "it needs tokenizer.kind sentencepiece or word, not byte",
        },
    ),
    ({"tokenizer": {"kind": "word", "vocab_size": None, "eos": False, "min_count": 2, "lower": True}}, {}),
    (
        {"tokenizer": {"kind": "word", "vocab_size": None, "min_count": 2, "path": "words.txt"}},
        {"tokenizer.min_count": "the vocabulary of tokenizer.path is trained already"},
    ),
    (
        {"schedule": {"name": "constant", "min_lr_ratio": 0.1, "decay_steps": 3}},
        {
            "schedule.decay_steps": "a schedule that is constant has none",
        },
    ),
    (
        {"schedule": {"name": "inverse_sqrt", "min_lr_ratio": 0.1, "decay_steps": 3}},
        {"schedule.decay_steps": "a schedule that is inverse_sqrt has none"},
    ),
]


@pytest.mark.parametrize(("sections", "refused"), CASES)
def test_it_is_refused_with_what_it_would_need(tmp_path: Path, sections: dict[str, Any], refused: dict[str, str]):
    path = corpora.config_file(tmp_path, tmp_path / "a.txt", **sections)
    said = ""
    if refused:
        with pytest.raises(UsageError) as caught:
            load_config(path)
        said = str(caught.value)
    else:
        load_config(path)
    for key, why in refused.items():
        assert f"{key}: {why}; leave it out" in said
    assert said.count("leave it out") == len(refused)
    config = load_config(path, resolved=True)  # a checkpoint's own configuration is not judged again
    for key in refused:
        *outer, name = key.split(".")
        section = reduce(getattr, outer, config)
        assert getattr(section, name) == reduce(getitem, outer, sections)[name]


def test_at_its_default_it_may_be_written_out(tmp_path: Path):
    path = corpora.config_file(
        tmp_path,
        tmp_path / "a.txt",
        objective={"name": "causal", "num_predict": None, "max_span": 5, "perm_size": 0},
        tokenizer={"kind": "char", "vocab_size": None, "model_type": "unigram"},
        model={"adaptive": {"cutoffs": [], "div_val": 1}},
    )
    assert load_config(path).objective.name == "causal"


def test_what_comes_from_the_checkpoint_is_not_refused():
    origin = corpora.config_for([], Path(), corpus={"train": ["a"]}, model={"adaptive": {"div_val": 2}})
    given = {"tokenizer": {"path": "spiece.model", "normalization": "identity"}, "model": {"adaptive": {"div_val": 2}}}
    config = corpora.config_for([], Path(), **{"corpus": {"train": ["a"]}, **given})
    assert [key for key, _ in idle_keys(config)] == ["tokenizer.normalization", "model.adaptive.div_val"]
    assert idle_keys(config, origin) == []
