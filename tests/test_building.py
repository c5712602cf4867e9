"""Preparation in pieces and processes: the same store however the work is divided, and whatever interrupts it."""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import pytest
from commands import files_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prepared import characters

from xltrain.config.schema import Config
from xltrain.data import building as building_module
from xltrain.data import corpus as corpus_module
from xltrain.data import encoding
from xltrain.data.corpus import Counts, Document
from xltrain.data.encoding import encode_documents
from xltrain.data.kinds import read_tokenizer
from xltrain.data.prepare import Prepared, Waiting, prepare, prepare_part
from xltrain.data.shards import Form, Shard
from xltrain.data.tokenizer import CharTokenizer, Tokenizer
from xltrain.data.words import ByteTokenizer, WordTokenizer
from xltrain.data.workers import write_shards
from xltrain.errors import UsageError, XltrainError

# --- ids do not depend on how text is batched


LINES = st.text(st.sampled_from("ab é語  "), max_size=12)
DOCUMENTS = st.lists(st.lists(LINES, min_size=1, max_size=4), max_size=6)


@st.composite
def parted(draw_: st.DrawFn) -> list[Document]:
    """Documents, some of them in parts, the last of which may be empty."""
    found = []
    for lines in draw_(DOCUMENTS):
        cut = draw_(st.integers(0, len(lines)))
        found += [Document(lines[:cut], complete=False), Document(lines[cut:])] if cut else [Document(lines)]
    return found


def joined(documents: list[Document]) -> list[list[str]]:
    """Lines of whole documents."""
    found: list[list[str]] = []
    is_open = False
    for document in documents:
        if is_open:
            found[-1] += document.lines
        else:
            found.append(list(document.lines))
        is_open = not document.complete
    return found


@pytest.mark.parametrize("between", [None, 3])
@pytest.mark.parametrize(
    "tokenizer",
    [CharTokenizer("ab"), ByteTokenizer(), WordTokenizer(["<unk>", "a", "b", "ab"], eos=False, lower=False)],
    ids=lambda tokenizer: tokenizer.kind,
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(documents=parted(), size=st.integers(1, 20))
def test_ids_are_those_of_every_document_on_its_own(
    monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer, between: int | None, documents: list[Document], size: int
):
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", size)
    ids: list[int] = []
    ends, line_ends = [], []
    for lines in joined(documents):
        inside = []
        for number, line in enumerate(lines):
            if number and between is not None:
                ids.append(between)
            if number:
                inside.append(len(ids))
            ids += tokenizer.encode([line])[0]
        begin = ends[-1] if ends else 0
        line_ends += sorted({place for place in inside if begin < place < len(ids)})
        ids += [] if tokenizer.eod is None else [tokenizer.eod]
        ends.append(len(ids))
    found: dict[str, list[int]] = {"ids": [], "ends": [], "line_ends": []}
    for batch in encode_documents(tokenizer, documents, between=between):
        total = len(found["ids"])
        found["ends"] += (batch.ends + total).tolist()
        found["line_ends"] += (batch.line_ends + total).tolist()
        found["ids"] += batch.ids.tolist()
    assert found == {"ids": ids, "ends": ends, "line_ends": line_ends}


def test_a_very_long_line_is_encoded_in_parts_to_the_ids_of_the_whole(spiece: Path, monkeypatch: pytest.MonkeyPatch):
    tokenizer = read_tokenizer(spiece, kind="sentencepiece")
    words = corpora.vocabulary()
    line = " ".join(words[number * 7 % 400] + ("", ".", "é  ")[number % 3] for number in range(3000)) + "\n"
    whole = tokenizer.encode([line])[0]
    for size in (50, 1_000, 7_001):
        parts = tokenizer.parts(line, size)
        assert "".join(parts) == line
        assert len(parts) > len(line) // (size * 2)
        assert [number for ids in tokenizer.encode(parts) for number in ids] == whole
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 500)
    batches = list(encode_documents(tokenizer, [Document([line])]))
    assert len(batches) > 10
    assert np.concatenate([batch.ids for batch in batches]).tolist() == [*whole, tokenizer.eod]


# --- pieces, shards, processes


TEXT = st.text(st.sampled_from("ab \n\n\r語"), max_size=80)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(
    texts=st.lists(TEXT, min_size=1, max_size=4),
    size=st.integers(1, 60),
    separator=st.sampled_from(["blank_line", "line", "file"]),
)
def test_the_store_is_the_same_however_the_text_is_cut(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    texts: list[str],
    size: int,
    separator: str,
):
    folder = tmp_path_factory.mktemp("cut")
    texts[0] += "a"
    paths = []
    for number, text in enumerate(texts):
        paths.append(folder / f"{number}.txt")
        paths[-1].write_bytes(text.encode())
    stores = []
    for piece_bytes in (1 << 20, size):
        monkeypatch.setattr(corpus_module, "PIECE_BYTES", piece_bytes)
        corpus = {"document_separator": separator, "num_workers": 1, "cache_dir": str(folder / str(piece_bytes))}
        stores.append(prepare(characters(paths, folder, corpus=corpus)).store)
    assert files_of(stores[0].folder) == files_of(stores[1].folder)


def test_processes_and_parts_make_the_same_store(
    corpus: corpora.Corpus, spiece: Path, tmp_path: Path, small_pieces: None, capsys: pytest.CaptureFixture[str]
):
    def config(name: str, workers: int = 1) -> Config:
        found = {"cache_dir": str(tmp_path / name), "num_workers": workers, "validation": [str(corpus.valid)]}
        return corpora.config_for(corpus.train, tmp_path, corpus=found, tokenizer={"path": str(spiece)})

    alone = prepare(config("alone")).store
    assert files_of(prepare(config("two", 2)).store.folder) == files_of(alone.folder)
    assert alone.split("train").counts["tokens"] == 36_953
    waiting = [prepare_part(config("parts"), part=part, parts=3) for part in (2, 3)]
    assert waiting == [Waiting(alone.fingerprint, count, 11) for count in (4, 7)]
    again = prepare_part(config("parts"), part=2, parts=3)
    assert again == waiting[1]
    last = prepare_part(config("parts"), part=1, parts=3)
    assert isinstance(last, Prepared)
    assert files_of(last.store.folder) == files_of(alone.folder)
    assert [path.name for path in (tmp_path / "parts").iterdir()] == [alone.folder.name]
    reused = prepare_part(config("parts"), part=3, parts=3)
    assert isinstance(reused, Prepared)
    assert reused.reused
    for part in (1, 2):
        prepare_part(config("rest"), part=part, parts=3)
    capsys.readouterr()
    assert files_of(prepare(config("rest")).store.folder) == files_of(alone.folder)
    assert "going on with 8 of 11 shards, which are finished" in capsys.readouterr().err


def test_parts_from_the_command_line(corpus: corpora.Corpus, tmp_path: Path, small_pieces: None, cli: Any):
    config = corpora.config_file(tmp_path, corpus.train, tokenizer={"kind": "byte", "vocab_size": None})
    for wrong in ("0/2", "3/2", "2", "1/x"):
        said = f"--shard: '{wrong}' is no part of a whole; write I/N with I from 1 to N, such as 2/4"
        assert cli("prepare", config, "--shard", wrong).sentence() == said
    first = json.loads(cli("prepare", config, "--shard", "1/2", "--json").out)
    assert (first["finished"], first["shards"]) == (5, 10)
    assert "5 of 10 shards of the store are there" in cli("prepare", config, "--shard", "1/2").out
    last = json.loads(cli("prepare", config, "--shard", "2/2", "--json").out)
    assert (last["fingerprint"], last["reused"]) == (first["fingerprint"], False)


def test_small_files_share_a_shard(tmp_path: Path, small_pieces: None, monkeypatch: pytest.MonkeyPatch):
    paths = []
    for number in range(200):
        paths.append(tmp_path / f"{number:03d}.txt")
        paths[-1].write_text(f"text {number}\n" * 20)
    written: list[int] = []
    original = building_module.write_shards

    def counted(shards: list[Shard], *rest: Any, **more: Any) -> Iterator[int]:
        written.append(len(shards))
        yield from original(shards, *rest, **more)

    monkeypatch.setattr(building_module, "write_shards", counted)
    assert prepare(characters(paths, tmp_path, corpus={"num_workers": 1})).store.split("train").num_documents == 200
    assert written == [2]


@dataclass(frozen=True)
class Bad:
    """A piece that cannot be read, as soon as the file ``after`` is there."""

    how: str
    size: int = 1
    after: Path | None = None

    def documents(self, counts: Counts | None = None) -> Iterator[Document]:
        while self.after is not None and not self.after.exists():
            time.sleep(0.01)
        if self.how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        raise UsageError("this text is bad")
        yield

    def lines(self, counts: Counts | None = None) -> Iterator[str]:
        yield from ()


@pytest.mark.parametrize(("how", "kind", "said"), [("refuses", UsageError, "bad"), ("dies", XltrainError, "signal 9")])
def test_what_fails_in_a_process_is_told_and_ends_the_others(
    tmp_path: Path, how: str, kind: type[Exception], said: str
):
    (tmp_path / "bytes.json").write_text("{}")
    shards = [Shard("train", number, (Bad(how),)) for number in range(2)]
    with pytest.raises(kind, match=said):
        list(write_shards(shards, tmp_path, tmp_path, Form(False, False), num_workers=2))
    assert multiprocessing.active_children() == []
    if how == "refuses":
        assert [path.name for path in tmp_path.iterdir()] == ["bytes.json"]


def test_what_is_finished_stays_when_a_process_dies(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "text.txt").write_text("good\n")
    said = {"dies": "signal 9", "refuses": "this text is bad"}
    for how, shared in (("dies", False), ("refuses", False), ("refuses", True)):
        folder, kept = tmp_path / f"{how}-{shared}", how == "dies" or shared
        good = Shard("train", 0, tuple(corpus_module.cut_file(tmp_path / "text.txt", separator="line")))
        bad = Shard("train", 1, (Bad(how, after=folder / "train-000000.json"),))
        building = building_module.Building(folder, [good, bad], ByteTokenizer, Form(False, False), num_workers=2)
        if shared:  # as the last of several machines
            folder.mkdir()
            (folder / building_module.TOGETHER).touch()
        with pytest.raises(XltrainError, match=said[how]), building.alone():
            building.write(building.shards)
        assert building.missing(building.shards) == ([bad] if kept else [good, bad])
        assert ("kept 1 of 2 shards in" in capsys.readouterr().err) == kept
        assert folder.exists() == kept


@pytest.mark.parametrize("change", ["grows", "is touched", "vanishes"])
def test_a_text_that_changes_while_it_is_read_gets_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
):
    path = tmp_path / "text.txt"
    path.write_text("some text\n" * 20)
    original = building_module.write_shards

    def changing(*given: Any, **more: Any) -> Iterator[int]:
        yield from original(*given, **more)
        if change == "grows":
            path.write_text(path.read_text() + "more\n")
        elif change == "vanishes":
            path.unlink()
        else:
            os.utime(path, (1, 1))

    monkeypatch.setattr(building_module, "write_shards", changing)
    for weight in (1, 0.99):
        config = characters([], tmp_path, corpus={"train": [{"files": str(path), "weight": weight}], "num_workers": 1})
        if change == "is touched":
            assert not prepare(config).reused
            continue
        path.write_text("some text\n" * 20)
        said = "changed while it was read; start again" if change == "grows" else "text.txt: cannot be read"
        with pytest.raises(XltrainError, match=said):
            prepare(config)
        assert list((tmp_path / "cache").iterdir()) == []
