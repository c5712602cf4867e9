"""Sources in pieces and with weights: all pieces in order are the whole."""

import gzip
import shutil
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import pytest
from corpora import write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stored import documents, found, json_lines, marks, parquet

from xltrain.data import corpus as corpus_module
from xltrain.data import digests, records
from xltrain.data.corpus import Counts
from xltrain.data.prepare import Prepared, prepare, prepare_part
from xltrain.data.words import ByteTokenizer

# --- weights


def test_a_weight_takes_whole_passes_and_a_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    texts = [f"document {number}\n" for number in range(400)]
    path = write(tmp_path / "t.txt", "\n".join(texts))
    counts = Counts()
    taken = documents([{"files": str(path), "weight": 2.25}], counts)
    assert taken[:800] == texts * 2
    rest = taken[800:]
    assert 70 < len(rest) < 130
    assert [text for text in texts if text in rest] == rest
    assert counts.documents == len(taken)
    assert counts.unsampled_documents == 400 - len(rest)
    assert counts.characters == counts.bytes - 0 == sum(map(len, taken)) + 2 * 399  # blank lines of whole passes
    assert f"corpus.train: {path} is taken with weight 2.25: 2 times and a sample of 25.0% of the documents" in (
        capsys.readouterr().err
    )
    assert documents([{"files": str(path), "weight": 2.25}]) == taken
    other = documents([{"files": str(path), "weight": 0.25, "seed": 1}])
    assert other != rest
    more = documents([{"files": str(path), "weight": 0.5}])
    assert set(rest) < set(more)


def test_a_weight_and_its_seed_change_the_store_where_they_change_the_text(tmp_path: Path):
    path = str(write(tmp_path / "t.txt", "a\n\nb\n"))
    plain = marks([path])
    assert marks([{"files": path}]) == plain
    assert marks([{"files": path, "seed": 3}]) == plain
    assert marks([{"files": path, "format": "text"}]) == plain
    assert len({plain, *(marks([{"files": path, "weight": w}]) for w in (0.5, 2, 2.5))}) == 4
    assert marks([{"files": path, "weight": 0.5}]) != marks([{"files": path, "weight": 0.5, "seed": 1}])


def test_a_file_is_digested_once_however_often_it_is_taken_and_copies_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    one, other, copy = write(tmp_path / "a", "text\n"), write(tmp_path / "b", "else\n"), write(tmp_path / "c", "text\n")
    digested: list[Path] = []
    original = digests.digest

    def counted(file: Path) -> str:
        digested.append(file)
        return original(file)

    monkeypatch.setattr(digests, "digest", counted)
    told = "note: corpus.train: 1 source(s) have the same content as others, as"
    entries: Any
    for entries, expected, copies in (
        ([{"files": str(one), "weight": 2.5}, str(other)], [one, other], None),
        ([str(one), str(other), str(copy)], [one, other, copy], f"{told} {copy} has that of {one},"),
        ([str(one), {"files": str(one), "weight": 2}], [one, one], f"{told} {one} has that of {one},"),
    ):
        digested.clear()
        tokenizer = {"kind": "byte", "vocab_size": None}
        prepare(corpora.config_for([], tmp_path, corpus={"train": entries}, tokenizer=tokenizer))
        assert digested == expected
        said = capsys.readouterr().err
        assert copies in said if copies else "have the same content" not in said


def test_weights_are_for_training_only():
    from xltrain.config.load import validate

    _, problems = validate({"corpus": {"train": ["a"], "validation": {"files": "a", "weight": 2}}})
    assert problems == [("corpus.validation.0.weight", "is for corpus.train; other text is read once")]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, ("corpus.train.0.files", "give either files or dataset")),
        ({"files": "a", "dataset": "b"}, ("corpus.train.0.files", "give either files or dataset")),
        ({"files": "a", "split": "b"}, ("corpus.train.0.split", "goes with dataset, not with files; leave it out")),
        (
            {"dataset": "a", "format": "text"},
            ("corpus.train.0.format", "goes with files, not with dataset; leave it out"),
        ),
        ({"files": "a", "wieght": 2}, ("corpus.train.0.wieght", "no such key; did you mean 'weight'?")),
        (
            {"files": "a", "weight": 0},
            ("corpus.train.0.weight", "0 is not allowed: input should be greater than 0"),
        ),
        (
            {"files": "a", "weight": 1e9},
            ("corpus.train.0.weight", "1000000000.0 is not allowed: input should be less than or equal to 1000"),
        ),
        (3, ("corpus.train.0", "3 is not allowed: input should be a valid string; put it in quotes")),
    ],
)
def test_a_mistake_in_an_entry_is_named_by_its_place(given: Any, problem: tuple[str, str]):
    from xltrain.config.load import validate

    assert validate({"corpus": {"train": [given]}})[1] == [problem]


# --- pieces


LINES = st.lists(st.text(st.sampled_from("ab é語\n\r\u2028\ufeff"), max_size=12), max_size=8)


MIXES = st.lists(st.tuples(LINES, st.sampled_from(["txt", "jsonl", "parquet", "gz"])), min_size=1, max_size=3)


def stored_mix(folder: Path, mix: list[tuple[list[str], str]], weight: float) -> list[Any]:
    """Entries for texts that are stored in files of the given kinds."""
    entries = []
    for number, (texts, kind) in enumerate(mix):
        path = folder / f"{number}.{kind}"
        if kind == "parquet":
            parquet(path, [*texts], rows=1)
        elif kind == "jsonl":
            write(path, json_lines(texts))
        else:
            text = "".join(texts).encode()
            write(path, gzip.compress(text) if kind == "gz" else text)
        entries.append({"files": str(path), "weight": weight})
    return entries


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(
    MIXES,
    st.integers(1, 30),
    st.sampled_from(["blank_line", "line", "file"]),
    st.sampled_from([1, 0.5, 1.5]),
)
def test_all_pieces_in_order_are_the_whole_whatever_their_size(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mix: list[tuple[list[str], str]],
    size: int,
    separator: str,
    weight: float,
):
    monkeypatch.undo()
    entries = stored_mix(tmp_path, mix, weight)
    whole, pieces = Counts(), Counts()
    expected = documents(entries, whole, document_separator=separator)
    for module in (corpus_module, records):
        monkeypatch.setattr(module, "PIECE_BYTES", size)
    assert documents(entries, pieces, document_separator=separator) == expected
    assert pieces == whole


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(MIXES, st.integers(1, 30), st.sampled_from(["blank_line", "line"]), st.sampled_from([1, 1.5]), st.integers(1, 3))
def test_the_token_stream_is_that_of_each_document_on_its_own(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mix: list[tuple[list[str], str]],
    size: int,
    separator: str,
    weight: float,
    parts: int,
):
    monkeypatch.undo()
    first = {"files": str(write(tmp_path / "first.txt", "some text\n"))}
    entries = [first, *stored_mix(tmp_path, mix, weight)]
    corpus = {"train": entries, "document_separator": separator, "num_workers": 1}
    config = corpora.config_for([], tmp_path, corpus=corpus, tokenizer={"kind": "byte", "vocab_size": None})
    expected = [(text, ByteTokenizer().encode([text])[0]) for text in documents(entries, document_separator=separator)]
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    for module in (corpus_module, records):
        monkeypatch.setattr(module, "PIECE_BYTES", size)
    done = [prepare_part(config, part=part, parts=parts) for part in range(1, parts + 1)][-1]
    assert isinstance(done, Prepared)
    split = done.store.split("train")
    assert split.tokens.tolist() == [number for _, ids in expected for number in [*ids, 7]]
    assert split.ends.tolist() == np.cumsum([len(ids) + 1 for _, ids in expected]).tolist()
    assert split.counts["documents"] == len(expected)


@pytest.mark.parametrize("streaming", [False, True])
def test_the_pieces_of_a_dataset_are_the_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streaming: bool):
    texts = [f"document {number}" for number in range(30)]
    files = [write(tmp_path / f"{n}.jsonl", json_lines(texts[10 * n : 10 * n + 10])) for n in range(3)]
    entry = {"dataset": "json", "data_files": list(map(str, files)), "streaming": streaming}
    monkeypatch.setattr("xltrain.data.hub.PIECE_BYTES", 200)
    monkeypatch.setattr("xltrain.data.hub.BATCH", 3)
    (source,) = found([entry])
    assert len(source.pieces()) >= 3
    assert documents([entry]) == texts
    assert documents([entry], document_separator="file") == ["".join(text + "\n" for text in texts)]
