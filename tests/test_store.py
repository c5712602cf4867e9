"""The token store: what it is named after, how it is built, and that it gives back what went in."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import pytest
from corpora import write
from prepared import characters

from xltrain.config.schema import Config
from xltrain.data.building import TOGETHER
from xltrain.data.locks import locked
from xltrain.data.prepare import corpus_sources, fingerprints, marks_of, prepare
from xltrain.data.store import Split, Store, storage_type
from xltrain.data.streams import Position, TrainingStream
from xltrain.errors import UsageError, XltrainError


def build(config: Config) -> Store:
    return prepare(config).store


def mark(config: Config) -> str:
    return fingerprints(config, marks_of(corpus_sources(config)))["fingerprint"]


# --- what comes out is what went in


def test_the_store_gives_back_tokens_ends_counts_and_unigram_counts(tmp_path: Path):
    train = write(tmp_path / "a.txt", "abba\nc\n\nca\n")
    store = build(characters(train, tmp_path, corpus={"validation": [str(write(tmp_path / "v.txt", "ad\n"))]}))
    split = store.split("train")
    assert split.tokens.tolist() == [10, 11, 11, 10, 9, 12, 9, 7, 12, 10, 9, 7]
    assert split.ends.tolist() == [8, 12]
    assert split.lengths().tolist() == [8, 4]
    assert (split.num_tokens, split.num_documents, store.vocab_size) == (12, 2, 13)
    expected = {"documents": 2, "lines": 4, "bytes": 11, "characters": 11, "words": 3, "tokens": 10, "unknown": 0}
    assert split.counts == expected
    assert store.unigram().tolist() == np.bincount(split.tokens, minlength=13).tolist()
    assert store.split("validation").counts["unknown"] == 1
    assert (store.has("validation"), store.has("test")) == (True, False)
    assert store.tokenizer().decode(split.tokens[:7]) == "abba\nc\n"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("word", "b a <eos> <unk> <eos> b <unk> <eos>"),
        ("byte", [98, 32, 97, 10, 99, 10, "<eod>", 98, 32, 100, 10, "<eod>"]),
    ],
)
def test_words_and_bytes_are_stored_with_their_own_marks(tmp_path: Path, kind: str, expected: Any):
    train = write(tmp_path / "a.txt", "b a\nc\n\nb d\n")
    size = {"word": 4, "byte": None}[kind]
    store = build(
        corpora.config_for(train, tmp_path, tokenizer={"kind": kind, "vocab_size": size, "eos": kind == "word"})
    )
    split, tokenizer = store.split("train"), store.tokenizer()
    wanted = expected.split() if kind == "word" else [f"<0x{e:02X}>" if isinstance(e, int) else e for e in expected]
    assert [tokenizer.piece(int(token)) for token in split.tokens] == wanted
    assert split.num_documents == 2
    assert split.counts["tokens"] == len(wanted) - (0 if kind == "word" else 2)
    assert split.counts["unknown"] == (2 if kind == "word" else 0)


def test_batches_of_documents_join_without_a_seam(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    train = write(tmp_path / "a.txt", "".join(f"document {number}\nends\n\n" for number in range(50)))
    whole = build(characters(train, tmp_path / "whole")).split("train")
    monkeypatch.setattr("xltrain.data.encoding.BATCH_CHARACTERS", 30)
    cut = build(characters(train, tmp_path / "cut")).split("train")
    assert cut.tokens.tolist() == whole.tokens.tolist()
    assert cut.ends.tolist() == whole.ends.tolist()
    assert cut.counts == whole.counts


def test_large_vocabularies_are_stored_in_32_bits(tmp_path: Path):
    points = [*range(0x4E00, 0xA000), *range(0x20000, 0x2A6E0), *range(0x2A700, 0x2B739)]
    assert len(points) == 67_865
    train = write(tmp_path / "all.txt", "".join(map(chr, points)))
    store = build(characters(train, tmp_path))
    assert store.vocab_size == 67_865 + 9
    assert store.manifest["dtype"] == "uint32"
    ids = store.split("train").tokens
    assert ids.tolist() == [*range(9, 67_874), 7]
    assert store.tokenizer().decode(ids[:-1]) == "".join(map(chr, points))


@pytest.mark.parametrize(("vocab_size", "bits"), [(500, 16), (65_536, 16), (65_537, 32), (250_000, 32)])
def test_the_storage_type_follows_the_vocabulary(vocab_size: int, bits: int):
    kind = storage_type(vocab_size)
    assert kind.itemsize * 8 == bits
    assert np.array([vocab_size - 1]).astype(kind).tolist() == [vocab_size - 1]


def test_places_beyond_31_bits_are_read_right(tmp_path: Path):
    total, tail = 2_200_000_000, np.arange(1, 1_001, dtype=np.uint16)
    path = tmp_path / "sparse.tokens"
    with path.open("wb") as file:
        file.seek((total - len(tail)) * 2)
        tail.tofile(file)
    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    split = Split("train", tokens, np.array([total - 600, total]), {})
    stream = TrainingStream(split, total_rows=2, seq_len=500, shuffle=False, seed=0)
    last = stream.segments_per_epoch - 1
    segment, after = stream.read(Position(0, last))
    assert total // 2 + last * 500 == total - 1_000
    assert segment.tokens[1].tolist() == tail[:500].tolist()
    assert segment.document[1].tolist() == [0] * 400 + [1] * 100
    assert int(segment.next_token[1]) == 501
    assert segment.tokens[0].tolist() == [0] * 500
    assert after == Position(1, 0)


# --- the name of a store


@pytest.mark.parametrize(
    "sections",
    [
        {"corpus": {"document_separator": "line"}},
        {"tokenizer": {"vocab_size": 400}},
        {"tokenizer": {"model_type": "bpe"}},
        {"tokenizer": {"character_coverage": 1.0}},
        {"tokenizer": {"normalization": "identity"}},
        {"tokenizer": {"user_defined_symbols": ["<eop>", "<x>"]}},
        {"tokenizer": {"max_sentences": 100}},
        {"tokenizer": {"kind": "char"}},
    ],
)
def test_a_setting_that_can_change_an_id_changes_the_name(tmp_path: Path, sections: dict[str, Any]):
    train = write(tmp_path / "a.txt", "some text\n")
    assert mark(corpora.config_for(train, tmp_path, **sections)) != mark(corpora.config_for(train, tmp_path))


@pytest.mark.parametrize(
    "sections",
    [
        {"run": {"name": "other", "output_dir": "elsewhere", "seed": 8}},
        {"corpus": {"cache_dir": "elsewhere"}},
        {"segments": {"seq_len": 128, "mem_len": 0, "shuffle_documents": True, "cross_documents": False}},
        {"model": {"num_layers": 7, "dropout": 0.3}},
        {"training": {"batch_size": 8, "max_steps": 2}},
        {"objective": {"name": "causal"}},
        {"optimizer": {"lr": 0.1}},
        {"evaluation": {"every": 3}, "checkpoint": {"keep": 1}, "logging": {"every": 7}},
    ],
)
def test_no_other_setting_changes_the_name(tmp_path: Path, sections: dict[str, Any]):
    train = write(tmp_path / "a.txt", "some text\n")
    assert mark(corpora.config_for(train, tmp_path, **sections)) == mark(corpora.config_for(train, tmp_path))


def test_what_a_run_depends_on_changes_with_the_training_text_alone(tmp_path: Path, spiece: Path):
    """A run that goes on is held to it: another validation text will do, another training text will not."""
    found = []
    for train, valid in (("a b c\n", "d\n"), ("a b c\n", "e\n"), ("a b d\n", "d\n")):
        path, corpus = write(tmp_path / "t.txt", train), {"validation": [str(write(tmp_path / "v.txt", valid))]}
        config = corpora.config_for(path, tmp_path, corpus=corpus, tokenizer={"path": str(spiece)})
        store = prepare(config).store
        marks = fingerprints(config, marks_of(corpus_sources(config)))
        assert store.training_fingerprint == marks["training_fingerprint"]
        found.append(store.training_fingerprint)
    assert found[0] == found[1] != found[2]


def test_one_byte_of_any_file_changes_the_name_and_its_path_does_not(tmp_path: Path):
    train, valid = write(tmp_path / "a.txt", "some text\n"), write(tmp_path / "v.txt", "more\n")
    config = characters(train, tmp_path, corpus={"validation": [str(valid)]})
    before = mark(config)
    assert mark(characters(train, tmp_path)) != before
    moved = write(tmp_path / "moved.txt", "some text\n")
    assert mark(characters(moved, tmp_path, corpus={"validation": [str(valid)]})) == before
    write(valid, "more!\n")
    assert mark(config) != before
    write(valid, "more\n")
    write(train, "some texT\n")
    assert mark(config) != before


def test_the_order_and_the_ends_of_files_change_the_name(tmp_path: Path):
    one, two = write(tmp_path / "1.txt", "one\n"), write(tmp_path / "2.txt", "two\n")
    joined = write(tmp_path / "12.txt", "one\ntwo\n")
    names = {mark(characters(files, tmp_path)) for files in ([one, two], [two, one], [joined])}  # type: ignore[arg-type]
    assert len(names) == 3


def test_an_existing_tokenizer_counts_by_its_bytes_and_not_by_how_one_would_be_trained(spiece: Path, tmp_path: Path):
    train = write(tmp_path / "a.txt", "some text\n")
    copy = tmp_path / "copy.model"
    copy.write_bytes(spiece.read_bytes())
    first = mark(corpora.config_for(train, tmp_path, tokenizer={"path": str(spiece)}))
    same = {"path": str(copy), "normalization": "identity", "max_sentences": 5}
    assert mark(corpora.config_for(train, tmp_path, tokenizer=same, run={"seed": 9})) == first
    copy.write_bytes(spiece.read_bytes() + b"\0")
    assert mark(corpora.config_for(train, tmp_path, tokenizer=same)) != first


# --- building


def test_a_second_run_reuses_the_store_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = characters(write(tmp_path / "a.txt", "some text\n"), tmp_path)
    first = prepare(config)
    assert f"wrote the token store {first.store.folder}" in capsys.readouterr().err
    files = {path: path.stat().st_mtime_ns for path in first.store.folder.iterdir()}
    second = prepare(config)
    assert f"reusing the token store {first.store.folder}" in capsys.readouterr().err
    assert (first.reused, second.reused) == (False, True)
    assert second.store == first.store
    assert {path: path.stat().st_mtime_ns for path in second.store.folder.iterdir()} == files
    assert first.store.folder.name == f"store-{first.store.fingerprint}"


def test_long_phases_tell_how_much_of_a_single_file_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("xltrain.console.SECONDS_BETWEEN_LINES", -1.0)
    monkeypatch.setattr("xltrain.data.corpus.BLOCK", 500_000)
    monkeypatch.setattr("xltrain.data.encoding.BATCH_CHARACTERS", 400_000)
    build(characters(write(tmp_path / "a.txt", "some text\n\n" * 100_000), tmp_path))
    log = capsys.readouterr().err
    for phase in ("reading for the vocabulary", "tokenising train"):
        assert f"{phase}: 0.5 of 1.1 MB (45%)" in log
        assert f"{phase}: 1.1 of 1.1 MB (100%)" in log
    assert "\r" not in log


def test_what_killed_builds_of_other_stores_left_is_removed_unless_it_can_be_of_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    cache = tmp_path / "cache"
    for name in (
        "building-dead",
        "building-alive",
        "building-useful",
        "building-old",
        "building-shared",
        "store-other",
    ):
        (cache / name).mkdir(parents=True)
        (cache / name / "train-000000.tokens.writing-1234").write_bytes(b"half")
    for name in ("building-useful", "building-old"):
        (cache / name / "train-000000.json").write_text("{}")
    (cache / "building-shared" / TOGETHER).touch()
    os.utime(cache / "building-old", (0, 0))
    with locked(cache / "building-alive" / "lock"):
        store = build(characters(write(tmp_path / "a.txt", "some text\n"), tmp_path))
    left = {path.name for path in cache.iterdir()}
    assert left == {store.folder.name, "building-alive", "building-useful", "building-shared", "store-other"}
    said = capsys.readouterr().err
    assert "building-useful holds finished shards of another store" in said
    assert "building-dead" not in said


def start_preparing(config: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "xltrain", "prepare", str(config), "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_builders_at_the_same_time_end_with_one_store(corpus: corpora.Corpus, tmp_path: Path):
    config = corpora.write_config(tmp_path / "c.yaml", corpora.settings(corpus.train, tmp_path))
    builders = [start_preparing(config) for _ in range(3)]
    results = [builder.communicate(timeout=60) for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0, 0], results
    assert len({json.loads(out)["fingerprint"] for out, _ in results}) == 1
    assert [path.name[:6] for path in (tmp_path / "cache").iterdir()] == ["store-"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_build_that_is_stopped_leaves_no_store_and_the_next_one_succeeds(
    corpus: corpora.Corpus, tmp_path: Path, number: signal.Signals
):
    long = tmp_path / "long.txt"
    long.write_bytes(corpus.train.read_bytes() * 40)
    config = corpora.write_config(tmp_path / "c.yaml", corpora.settings(long, tmp_path))
    cache = tmp_path / "cache"
    builder = start_preparing(config)
    while builder.poll() is None and not list(cache.glob("building-*")):
        time.sleep(0.01)
    assert builder.poll() is None
    builder.send_signal(number)
    out, err = builder.communicate(timeout=60)
    assert out == ""
    assert builder.returncode == (-9 if number == signal.SIGKILL else 128 + number), err
    left = [path.name for path in cache.iterdir()]
    if number == signal.SIGKILL:
        assert [name for name in left if not name.startswith("building-")] == []
    else:
        assert left == []
        assert err.splitlines()[-1] == f"xltrain: stopped by {number.name}"
    config = corpora.write_config(tmp_path / "c.yaml", corpora.settings(corpus.train, tmp_path))
    assert start_preparing(config).wait(timeout=60) == 0
    assert [path.name[:6] for path in cache.iterdir()] == ["store-"]


def test_a_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = characters(write(tmp_path / "a.txt", "some text\n"), tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("xltrain.data.building.write_shards", full)
    with pytest.raises(XltrainError, match=re.escape(f"written to {tmp_path / 'cache'}: No space left on device; ")):
        prepare(config)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_store_without_its_manifest_is_built_again(tmp_path: Path):
    config = characters(write(tmp_path / "a.txt", "some text\n"), tmp_path)
    folder = build(config).folder
    (folder / "manifest.json").unlink()
    (folder / "train.tokens").write_bytes(b"")
    prepared = prepare(config)
    assert not prepared.reused
    assert prepared.store.split("train").num_tokens == 11


@pytest.mark.parametrize("name", ["train.tokens", "train.ends", "unigram"])
@pytest.mark.parametrize("change", [lambda data: data[:-2], lambda data: data + b"\0\0", lambda data: None])
def test_a_damaged_store_is_named_and_not_read(tmp_path: Path, name: str, change: Any):
    config = characters(write(tmp_path / "a.txt", "some text\n"), tmp_path)
    store = build(config)
    path = store.folder / name
    content = change(path.read_bytes())
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=rf"{name}: damaged, .*; delete .*store-"):
        prepare(config)


def test_a_cache_folder_that_is_a_file_is_refused(tmp_path: Path):
    blocked = write(tmp_path / "blocked", "")
    for place in (blocked, blocked / "inside"):
        config = characters(write(tmp_path / "a.txt", "text\n"), tmp_path, corpus={"cache_dir": str(place)})
        with pytest.raises(UsageError, match=r"corpus\.cache_dir: .*blocked.* cannot be used"):
            build(config)


def test_the_first_tokens_of_a_split_are_whole_documents():
    split = corpora.split_of([5, 3, 4])
    for limit, expected in (
        (1, [5]),
        (5, [5]),
        (7, [5]),
        (8, [5, 8]),
        (11, [5, 8]),
        (12, [5, 8, 12]),
        (99, [5, 8, 12]),
    ):
        found = split.first(limit)
        assert found.ends.tolist() == expected
        assert found.num_tokens == expected[-1]
