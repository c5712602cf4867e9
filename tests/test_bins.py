"""Adaptive bins over ids that are not sorted by frequency are told, with the figures, and others are not."""

import shutil
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xltrain.training.bins import WIDE, unsorted_ids

COUNTS = st.lists(st.integers(0, 1000), min_size=2, max_size=40)


@given(counts=COUNTS, data=st.data())
def test_the_figures_are_those_of_the_border_at_which_most_is_lost(counts: list[int], data: st.DataObject):
    cutoffs = sorted(data.draw(st.sets(st.integers(1, len(counts) - 1), min_size=1, max_size=3)))
    unigram = np.array(counts)
    assert unsorted_ids(np.sort(unigram)[::-1], cutoffs, kind="char") is None
    if not sum(counts):
        assert unsorted_ids(unigram, cutoffs, kind="char") is None
        return
    losses = []
    for cutoff in cutoffs:
        most = sum(sorted(counts, reverse=True)[:cutoff]) / sum(counts)
        losses.append((most - sum(counts[:cutoff]) / sum(counts), cutoff, sum(counts[:cutoff]) / sum(counts), most))
    said = unsorted_ids(unigram, cutoffs, kind="char")
    largest = max(loss for loss, *_ in losses)
    if abs(largest - WIDE) > 1e-9:
        assert (said is not None) == (largest > WIDE)
    if said is not None:
        figures = [
            f"ids below {cutoff} make up {below:.1%} of the training text, the {cutoff} most frequent ids {most:.1%}:"
            for loss, cutoff, below, most in losses
            if loss > largest - 1e-9
        ]
        assert any(text in said for text in figures)


def test_what_to_do_depends_on_the_vocabulary():
    unigram = np.array([1, 1, 50, 50])
    assert "choose tokenizer.kind word, or sentencepiece with model_type unigram," in str(
        unsorted_ids(unigram, [2], kind="sentencepiece")
    )
    assert "list the words by frequency in tokenizer.path, <unk> among them," in str(
        unsorted_ids(unigram, [2], kind="word")
    )
    assert unsorted_ids(unigram, [], kind="char") is None
    assert unsorted_ids(unigram, [4, 9], kind="char") is None  # no border within this vocabulary


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Han characters, the frequent ones with high code points."""
    lines = corpora.chinese_lines(60, 40)
    path = tmp_path / "zh.txt"
    path.write_text("".join(line.translate(REVERSED) + "\n" for line in lines), encoding="utf-8")
    return path


REVERSED = {0x4E00 + number: 0x4E00 + 399 - number for number in range(400)}


def test_training_and_inspection_tell_it(text: Path, tmp_path: Path, cli: Any):
    sections: dict[str, Any] = {
        "tokenizer": {"kind": "char", "vocab_size": None},
        "model": {"adaptive": {"cutoffs": [60, 200]}},
        "objective": {"name": "causal"},
        "training": {"max_steps": 1},
    }
    config = corpora.config_file(tmp_path, text, **sections)
    told = "WARNING: model.adaptive.cutoffs: the ids below "

    def says(*arguments: object) -> bool:
        outcome = cli(*arguments)
        assert outcome.status == 0, outcome.err
        assert outcome.err.count(told) <= 1
        return told in outcome.err

    assert not says("inspect", config)  # nothing is known before the text is prepared
    assert says("pretrain", config)
    assert says("inspect", config, "--json")
    assert says("inspect", tmp_path / "run", "--json")
    assert not says("inspect", config, "--set", "model.adaptive.cutoffs=[]")
    text.rename(tmp_path / "elsewhere.txt")
    assert not says("inspect", config)
    assert says("inspect", tmp_path / "run")  # needs the store alone
    shutil.rmtree(tmp_path / "cache")
    assert not says("inspect", tmp_path / "run")
    words = corpora.config_file(tmp_path, tmp_path / "elsewhere.txt", **sections | {"tokenizer": {"kind": "word"}})
    small = ("--set", "model.adaptive.cutoffs=[5,20]", "--set", "tokenizer.vocab_size=null")
    assert not says("pretrain", words, "--overwrite", *small)
    assert not says("inspect", words, *small)
