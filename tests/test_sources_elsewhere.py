"""Text from datasets, from other machines and from standard input."""

import gzip
import io
import json
import shutil
from pathlib import Path
from typing import Any

import corpora
import datasets
import fsspec
import pytest
from corpora import write
from stored import documents, json_lines, marks, parquet, refused

from xltrain.data.prepare import prepare
from xltrain.data.sources import find_sources
from xltrain.errors import UsageError

# --- datasets


def test_a_split_or_field_that_a_dataset_lacks_is_named(tmp_path: Path):
    table = datasets.Dataset.from_dict({"words": ["a", "b"]})
    datasets.DatasetDict({"validation": table}).save_to_disk(str(tmp_path / "saved"))
    folder = str(tmp_path / "saved")
    assert refused([folder]).endswith(f"{folder} is a saved dataset; in a configuration it is {{dataset: {folder}}}")
    assert "it has the splits validation, not train" in refused([{"dataset": folder}])
    chosen = {"dataset": folder, "split": "validation"}
    assert f"corpus.train: the dataset {folder} (validation) has no field 'text', only words;" in refused([chosen])
    assert documents([chosen | {"text_field": "words"}]) == ["a", "b"]
    config = corpora.checked({"corpus": {"train": ["x"], "validation": [{"dataset": folder, "text_field": "words"}]}})
    assert [
        source.name for source in find_sources(config.corpus.validation, config.corpus, key="k", split="validation")
    ] == [f"{folder} (validation)"]


def test_slices_of_a_saved_dataset_are_what_they_say(tmp_path: Path):
    """With splits or without, streamed or not; what a saved dataset has not is refused, not passed over."""
    texts = [f"{number}\n" for number in range(20)]
    table = datasets.Dataset.from_dict({"text": texts})
    table.save_to_disk(str(tmp_path / "table"))
    datasets.DatasetDict({"train": table, "dev": table.select([0, 1])}).save_to_disk(str(tmp_path / "splits"))
    for split, expected in (
        ("train", texts),
        ("train[:10%]", texts[:2]),
        ("train[90%:]", texts[18:]),
        ("train[5:7]+dev", texts[5:7] + (texts[:2])),
        ("dev[-1:] + train[:1]", [texts[1], texts[0]]),
    ):
        for streaming in (False, True):
            entry = {"dataset": str(tmp_path / "splits"), "split": split, "streaming": streaming}
            assert documents([entry]) == expected
        if "dev" not in split:
            assert documents([{"dataset": str(tmp_path / "table"), "split": split}]) == expected
    entry = {"dataset": str(tmp_path / "table")}
    assert marks([entry | {"split": "train[:10%]"}]) != marks([entry])
    assert "it has the splits train, dev, not test" in refused(
        [{"dataset": str(tmp_path / "splits"), "split": "test[:1]"}]
    )
    assert "cannot be loaded" in refused([entry | {"split": "train[:x]"}])
    for key in ("config", "data_files"):
        said = f"corpus.train: {tmp_path / 'table'} is a saved dataset, which has no {key}; leave it out"
        assert refused([entry | {key: "x"}]) == said


def test_a_folder_that_is_no_whole_dataset_is_told_what_it_lacks(tmp_path: Path):
    """Nothing in it, no row in it or in one of its splits, a file of it lost or damaged."""
    (tmp_path / "empty" / "inside").mkdir(parents=True)
    said = f"corpus.train: {tmp_path / 'empty'} is a folder without any file; name one that save_to_disk wrote, or one"
    assert refused([{"dataset": str(tmp_path / "empty")}]).startswith(said)
    table = datasets.Dataset.from_dict({"text": ["a", "b"]})
    splits = datasets.DatasetDict({"train": table, "test": table.select([])})
    for name, content, place in (("none", splits["test"], "none"), ("one_without", splits, "one_without/test")):
        content.save_to_disk(str(tmp_path / name))
        said = f"no row is in {tmp_path / place}; save the dataset anew, without what is empty"
        assert refused([{"dataset": str(tmp_path / name)}]).endswith(said)
    for file, change in (
        ("state.json", lambda path: path.write_text("")),
        ("dataset_info.json", Path.unlink),
        ("data-00000-of-00001.arrow", Path.unlink),
        ("data-00000-of-00001.arrow", lambda path: path.write_bytes(path.read_bytes()[:100])),
    ):
        table.save_to_disk(str(tmp_path / "damaged"))
        change(tmp_path / "damaged" / file)
        said = refused([{"dataset": str(tmp_path / "damaged")}])
        assert said.startswith(f"corpus.train: the dataset {tmp_path / 'damaged'} (train) cannot be loaded: ")
        assert said.endswith("; it is damaged or not whole: write it anew by save_to_disk")
        shutil.rmtree(tmp_path / "damaged")
    datasets.DatasetDict({}).save_to_disk(str(tmp_path / "nothing"))
    assert "cannot be loaded: it has no split at all, not train;" in refused([{"dataset": str(tmp_path / "nothing")}])


def test_a_field_that_holds_no_text_is_named_with_its_key(tmp_path: Path):
    datasets.Dataset.from_dict({"text": [["a"]]}).save_to_disk(str(tmp_path / "saved"))
    config = corpora.config_for([], tmp_path, corpus={"train": [{"dataset": str(tmp_path / "saved")}]})
    with pytest.raises(UsageError, match=r"^corpus\.train: .*saved \(train\), field 'text' is a list, not text;"):
        prepare(config)


def test_a_dataset_that_does_not_exist_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    message = refused([{"dataset": str(tmp_path / "nothing")}])
    assert message.startswith(f"corpus.train: the dataset {tmp_path / 'nothing'} (train) cannot be loaded: ")


def test_a_saved_dataset_is_marked_by_its_text(tmp_path: Path):
    def saved(name: str, texts: list[str], **more: list[int]) -> Any:
        datasets.Dataset.from_dict({"text": texts} | more).save_to_disk(str(tmp_path / name))
        return {"dataset": str(tmp_path / name)}

    first = marks([saved("one", ["a", "b"])])
    assert marks([saved("two", ["a", "b"], other=[1, 2])]) == first
    assert marks([saved("two", ["a", "b"]) | {"streaming": True}]) == first
    assert len({first, marks([saved("three", ["a", "c"])]), marks([saved("four", ["ab", ""])])}) == 3


# --- other places


def test_files_behind_addresses_are_files(tmp_path: Path):
    memory = fsspec.filesystem("memory")
    memory.pipe({"/c/b.txt": b"two\n\nthree\n", "/c/a.txt.gz": gzip.compress(b"one\n"), "/c/z.md": b"no"})
    memory.pipe("/c/r.jsonl", json_lines(["four"]).encode())
    parquet(tmp_path / "r.parquet", ["five"])
    memory.pipe("/c/r.parquet", (tmp_path / "r.parquet").read_bytes())
    assert documents(["memory://c/*.txt*"]) == ["one\n", "two\n", "three\n"]
    assert documents(["memory://c/r.jsonl", "memory://c/r.parquet"]) == ["four", "five"]
    before = marks(["memory://c/*.txt*"])
    memory.pipe("/c/b.txt", b"two\n\nthrEe\n")
    assert marks(["memory://c/*.txt*"]) != before
    assert "no file matches memory://c/*.nothing" in refused(["memory://c/*.nothing"])
    path = write(tmp_path / "here.txt", "here\n")
    assert documents([f"file://{path}", str(path)]) == ["here\n"]  # one file, under two names


def test_an_address_that_nobody_knows_is_one_sentence():
    assert "corpus.train: nowhere://a.txt: cannot be reached (Protocol not known: nowhere" in refused(
        ["nowhere://a.txt"]
    )


def test_the_mark_that_a_storage_system_gives_is_trusted_and_its_absence_is_not(monkeypatch: pytest.MonkeyPatch):
    fsspec.filesystem("memory").pipe("/m/a.txt", b"text\n")
    information = {"size": 5, "type": "file", "name": "/m/a.txt"}
    system = type(fsspec.filesystem("memory"))
    seen = {}
    for etag in (None, "1", "2"):
        monkeypatch.setattr(system, "info", lambda self, path, etag=etag, **_: information | {"ETag": etag})
        seen[etag] = marks(["memory://m/a.txt"])
    assert len(set(seen.values())) == 3


# --- standard input


def test_standard_input_is_read_once_and_kept(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = "one two\n\nthree\n"

    class Input:
        buffer = io.BytesIO(gzip.compress(text.encode(), mtime=0))

    config = corpora.config_file(
        tmp_path, tmp_path / "none.txt", tokenizer={"kind": "byte", "vocab_size": None}, corpus={"train": "-"}
    )
    monkeypatch.setattr("sys.stdin", Input)
    outcome = cli("prepare", config, "--json")
    assert outcome.status == 0, outcome.err
    assert json.loads(outcome.out)["splits"]["train"]["documents"] == 2
    kept = next((tmp_path / "cache").glob("standard-input-*"))
    assert f"kept standard input as {kept}" in outcome.err
    again = cli("prepare", config, "--json", "--set", f"corpus.train={kept}")
    assert json.loads(again.out) == json.loads(outcome.out) | {"reused": True}
    assert cli("pretrain", config).sentence() == (
        "corpus.train: '-', standard input, is for the command prepare; name a file here"
    )
    by_option = cli("prepare", config, "--set", "corpus.train=-")
    assert "contains no text" in by_option.sentence()  # nothing is left to read


def test_standard_input_can_hold_records(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Input:
        buffer = io.BytesIO(json_lines(["one", "two"]).encode())

    entries = {"train": [{"files": "-", "format": "jsonl"}]}
    config = corpora.config_file(tmp_path, [], tokenizer={"kind": "byte", "vocab_size": None}, corpus=entries)
    monkeypatch.setattr("sys.stdin", Input)
    outcome = cli("prepare", config, "--json")
    assert outcome.status == 0, outcome.err
    assert json.loads(outcome.out)["splits"]["train"]["characters"] == len("onetwo")
