"""A text that measures a model is not one that it is trained on, or a person is told."""

import shutil
from pathlib import Path
from typing import Any

import corpora
import datasets
import pytest
from corpora import write
from stored import json_lines

from xltrain.config.text import SourceConfig
from xltrain.data.overlap import trained_on


def overlap(train: list[Any], entries: list[Any], split: str = "validation") -> list[str]:
    lists = (train, entries)
    checked = [[SourceConfig(**item) if isinstance(item, dict) else item for item in items] for items in lists]
    return trained_on(checked[0], checked[1], split=split)


def test_a_file_is_known_by_its_bytes_under_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    one, two = write(tmp_path / "one.txt", "text\n"), write(tmp_path / "two.txt", "tex2\n")
    copy, link = Path(shutil.copy(one, tmp_path / "copy")), tmp_path / "link"
    link.symlink_to(one)
    for other in (one, copy, link):
        assert overlap([str(tmp_path / "*.txt")], [str(other)]) == [f"{other} is part of corpus.train"]
    assert overlap([str(one)], [str(two)]) == []
    monkeypatch.setenv("HOME", str(tmp_path))
    assert overlap([{"files": "~/one.txt"}], ["~/copy", str(copy)]) == [f"{copy} is part of corpus.train"]


PART, ALL = "a part of the dataset {} is in corpus.train", "the dataset {} is part of corpus.train"


@pytest.mark.parametrize(
    ("train", "entry", "clause"),
    [
        ({"dataset": "a"}, {"dataset": "a"}, None),
        ({"dataset": "a"}, {"dataset": "a", "split": "train"}, ALL.format("a (train)")),
        ({"dataset": "a", "split": "validation"}, {"dataset": "a"}, ALL.format("a (validation)")),
        ({"dataset": "a"}, {"dataset": "b", "split": "train"}, None),
        ({"dataset": "a", "config": "x"}, {"dataset": "a", "config": "y", "split": "train"}, None),
        (
            {"dataset": "a", "config": "x"},
            {"dataset": "a", "config": "x", "split": "train"},
            ALL.format("a (x, train)"),
        ),
        ({"dataset": "a", "weight": 0.5}, {"dataset": "a", "split": "train"}, ALL.format("a (train)")),
        ({"dataset": "a"}, {"dataset": "a", "split": "train[:5%]"}, ALL.format("a (train[:5%])")),
        ({"dataset": "a", "split": "train[5%:]"}, {"dataset": "a", "split": "train[:5%]"}, None),
        ({"dataset": "a", "split": "train[5%:]"}, {"dataset": "a", "split": "train"}, PART.format("a (train)")),
        ({"dataset": "a", "split": "train+test"}, {"dataset": "a", "split": "test"}, ALL.format("a (test)")),
        ({"dataset": "a", "split": "test"}, {"dataset": "a", "split": "test + dev"}, PART.format("a (test + dev)")),
        (
            {"dataset": "json", "data_files": ["x", "y"]},
            {"dataset": "json", "data_files": "y", "split": "train"},
            ALL.format("json (train)"),
        ),
        (
            {"dataset": "json", "data_files": ["x", "y"]},
            {"dataset": "json", "data_files": ["y", "z"], "split": "train"},
            PART.format("json (train)"),
        ),
        ({"dataset": "json", "data_files": "x"}, {"dataset": "json", "data_files": "y", "split": "train"}, None),
        ({"dataset": "a"}, "a.txt", None),
    ],
)  # fmt: skip
def test_a_dataset_is_known_by_what_its_entry_says(train: dict[str, Any], entry: Any, clause: str | None):
    assert overlap([train], [entry]) == ([] if clause is None else [clause])


def test_a_saved_dataset_without_splits_is_the_same_for_every_list(
    tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
):
    """And is told of at every start, and where the perplexity is measured."""
    texts = [f"text {number} of these" for number in range(40)]
    datasets.Dataset.from_dict({"text": texts}).save_to_disk(str(tmp_path / "saved"))
    other = write(tmp_path / "other.jsonl", json_lines(texts[:20]))
    monkeypatch.chdir(tmp_path)
    config = corpora.config_file(
        tmp_path,
        [],
        corpus={"train": [{"dataset": "saved"}], "validation": [{"dataset": "./saved"}], "test": [str(other)]},
        tokenizer={"kind": "byte", "vocab_size": None},
        training={"max_steps": 1},
    )
    clause = "the dataset ./saved (validation) is part of corpus.train"
    for command in ("prepare", "pretrain"):
        outcome = cli(command, config)
        assert outcome.status == 0, outcome.err
        assert (
            f"WARNING: corpus.validation: {clause}: its loss will be that of a text that the model has" in outcome.err
        )
        assert outcome.err.count("is part of corpus.train") == 1
    assert f"WARNING: {clause}: this is the loss of a text that the model has seen" in cli("eval-ppl", "run").err
    assert "is part of corpus.train" not in cli("eval-ppl", "run", "--split", "test").err


def test_slices_of_a_saved_dataset_are_told_apart(tmp_path: Path):
    datasets.Dataset.from_dict({"text": ["a"] * 10}).save_to_disk(str(tmp_path / "saved"))
    entry = {"dataset": str(tmp_path / "saved")}
    name = f"the dataset {tmp_path / 'saved'}"
    first, last = entry | {"split": "train[:90%]"}, entry | {"split": "all[90%:]"}
    assert overlap([first], [last]) == []
    assert overlap([entry], [last]) == [f"{name} (all[90%:]) is part of corpus.train"]
    assert overlap([first], [entry]) == [f"a part of {name} (validation) is in corpus.train"]
