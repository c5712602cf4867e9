"""Text from files of any kind, datasets, other machines and standard input is the same text."""

import bz2
import gzip
import io
import json
import lzma
import pickle
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import corpora
import datasets
import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xltrain.data import corpus as corpus_module
from xltrain.data import records
from xltrain.data.corpus import Counts
from xltrain.data.prepare import Prepared, corpus_sources, fingerprints, prepare, prepare_part
from xltrain.data.sources import Source, find_sources
from xltrain.data.words import ByteTokenizer
from xltrain.errors import UsageError

datasets.disable_progress_bars()

TEXTS = ["one two\nthree\n", "four", "five\n\nsix seven\n", "eight"]


def zstd(data: bytes) -> bytes:
    out = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(out, "zstd") as stream:
        stream.write(data)
    return out.getvalue().to_pybytes()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
    "zst": zstd,
}


def write(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


def json_lines(texts: Iterable[str | None], field: str = "text") -> str:
    return "".join(json.dumps({"id": number, field: text}) + "\n" for number, text in enumerate(texts))


def parquet(path: Path, texts: list[str | None], *, rows: int = 2, kind: Any = None, field: str = "text") -> Path:
    column = pyarrow.array(texts, type=kind or pyarrow.string())
    table = pyarrow.table({"id": list(range(len(texts))), field: column})
    pyarrow.parquet.write_table(table, path, row_group_size=rows)
    return path


def found(entries: list[Any], **corpus: Any) -> list[Source]:
    """Sources of ``corpus.train``."""
    config = corpora.checked({"corpus": {"train": entries} | corpus})
    return corpus_sources(config)["train"]


def documents(entries: list[Any], counts: Counts | None = None, **corpus: Any) -> list[str]:
    """Every document of ``corpus.train`` as one text; the pieces are pickled first, as for another process."""
    texts = []
    for source in found(entries, **corpus):
        for piece in source.pieces():
            texts += ["".join(part.lines) for part in pickle.loads(pickle.dumps(piece)).documents(counts)]
    return texts


def marks(entries: list[Any], **corpus: Any) -> str:
    config = corpora.checked({"corpus": {"train": entries} | corpus, "tokenizer": {"kind": "byte"}})
    return fingerprints(config, corpus_sources(config))["fingerprint"]


def refused(entries: list[Any], **corpus: Any) -> str:
    with pytest.raises(UsageError) as caught:
        documents(entries, **corpus)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- compressed files


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("name", ["a.{}", "renamed.txt"])
def test_a_compressed_file_is_known_by_its_bytes_and_is_the_text_in_it(tmp_path: Path, packer: str, name: str):
    text = "first\nlines\n\nsecond, 語\r\n" * 3
    plain, counts, again = write(tmp_path / "plain.txt", text), Counts(), Counts()
    packed = write(tmp_path / name.format(packer), PACKERS[packer](text.encode()))
    assert documents([str(packed)], counts) == documents([str(plain)], again)
    assert counts == again
    assert (counts.bytes, counts.carriage_returns) == (len(text.encode()), 3)


@pytest.mark.parametrize("packer", PACKERS)
def test_files_packed_one_behind_the_other_are_read_to_the_end(tmp_path: Path, packer: str):
    packed = PACKERS[packer](b"one\n\n") + PACKERS[packer](b"two\n")
    assert documents([str(write(tmp_path / "t", packed))]) == ["one\n", "two\n"]


def test_the_tokens_of_a_packed_corpus_are_those_of_the_plain_one(corpus: corpora.Corpus, tmp_path: Path):
    content = corpus.train.read_bytes()
    plain = prepare(corpora.config_for(corpus.train, tmp_path)).store
    for packer, pack in PACKERS.items():
        packed = write(tmp_path / f"A2-{packer}.txt", pack(content))
        store = prepare(corpora.config_for(packed, tmp_path)).store
        assert store.manifest["splits"] == plain.manifest["splits"]
        assert np.array_equal(store.split("train").tokens, plain.split("train").tokens)
        assert store.fingerprint != plain.fingerprint


# --- records


@pytest.fixture(params=["jsonl", "jsonl.gz", "jsonl.zst", "parquet", "parquet.xz", "folder", "loader", "streamed"])
def entry(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[list[str | None]], Any]:
    """A function that stores texts as records of one kind, and gives the entry for them."""

    def stored(texts: list[str | None]) -> Any:
        kind = request.param
        if kind.startswith("jsonl"):
            content = json_lines(texts).encode()
            pack = PACKERS.get(kind.removeprefix("jsonl."), lambda data: data)
            return str(write(tmp_path / f"records.{kind}", pack(content)))
        if kind.startswith("parquet"):
            path = parquet(tmp_path / "records.parquet", texts)
            return str(write(tmp_path / "packed", lzma.compress(path.read_bytes())) if kind.endswith("xz") else path)
        table = datasets.Dataset.from_dict({"id": list(range(len(texts))), "text": texts})
        if kind == "folder":
            datasets.DatasetDict({"train": table}).save_to_disk(str(tmp_path / "saved"))
            return {"dataset": str(tmp_path / "saved")}
        path = write(tmp_path / "records.jsonl", json_lines(texts))
        return {"dataset": "json", "data_files": [str(path)], "streaming": kind == "streamed"}

    return stored


def test_every_record_is_a_document_with_its_blank_lines(entry: Any):
    counts = Counts()
    assert documents([entry(TEXTS)], counts) == TEXTS
    assert (counts.documents, counts.lines, counts.words) == (4, 5, 8)
    assert counts.bytes == counts.characters == sum(map(len, TEXTS))
    assert documents([entry(TEXTS)], document_separator="record") == TEXTS


def test_records_can_be_lines_or_one_document(entry: Any):
    lines = [line for text in TEXTS for line in text.split("\n") if line]
    assert documents([entry(TEXTS)], document_separator="line") == lines
    assert documents([entry(TEXTS)], document_separator="file") == ["one two\nthree\nfour\nfive\n\nsix seven\neight\n"]


def test_text_in_records_is_cleaned_as_text_in_files_is(entry: Any):
    counts = Counts()
    texts = ["\ufeffa\r\nb\rc", None, "d\0\u2028\x0c\x85e", "", " \u3000\n"]
    assert documents([entry(texts)], counts) == ["a\nbc", "d\u2028\x0c\x85e"]
    dropped = counts.dropped()
    assert dropped == {
        "carriage_returns": 2,
        "nulls": 1,
        "byte_order_marks": 1,
        "empty_records": 3,
        "unsampled_documents": 0,
    }


def test_a_record_that_has_no_text_where_it_should_is_named(tmp_path: Path):
    path = tmp_path / "r.jsonl"
    good = json_lines(["fine"])
    for bad, said in (
        ('{"id": 3}\n', f"the record at byte {len(good)} has no 'text', only id; name the field with the text by corp"),
        ('{"text": 3}\n', f"the record at byte {len(good)}, 'text' is a number, not text"),
        ('{"text": ["a"]}\n', "'text' is a list, not text"),
        ('["text"]\n', "is a list, not an object such as {'text': '...'}"),
        ('{"text": "a}\n', "is not JSON (Unterminated string"),
        ('{"text": "\\ud800"}\n', "holds '\\ud800', half of a surrogate pair"),
    ):
        write(path, good + bad)
        message = refused([str(path)])
        assert message.startswith(f"{path}: the record at byte {len(good)}")
        assert said in message
    write(path, good.encode() + b'{"text": "\xff"}\n')
    assert f"{path}: not UTF-8 text (byte {len(good) + 10} is 0xff)" in refused([str(path)])


def test_a_byte_order_mark_before_json_and_blank_lines_between_are_no_records(tmp_path: Path):
    content = "\ufeff" + json_lines(["a"]).replace("\n", "\r\n") + "\n  \n" + json_lines(["b"]).rstrip("\n")
    assert documents([str(write(tmp_path / "r.ndjson", content))]) == ["a", "b"]


def test_a_column_that_is_not_there_or_holds_no_text_is_named(tmp_path: Path):
    path = parquet(tmp_path / "r.parquet", ["a"], field="words")
    assert refused([str(path)]) == (
        f"{path}: has no column 'text', only id, words; name the field with the text by corpus.text_field"
    )
    assert f"{path}: column 'id' holds int64, not text" in refused([str(path)], text_field="id")
    assert documents([str(path)], text_field="words") == ["a"]
    assert documents([{"files": str(path), "text_field": "words"}]) == ["a"]
    torn = write(tmp_path / "torn.parquet", path.read_bytes()[:-20])
    assert f"{torn}: a Parquet file that cannot be read" in refused([str(torn)])


@pytest.mark.parametrize("kind", ["large_string", "string_view", "dictionary"])
def test_columns_of_every_kind_of_text_are_read(tmp_path: Path, kind: str):
    types = {
        "large_string": pyarrow.large_string(),
        "string_view": pyarrow.string_view(),
        "dictionary": pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
    }
    assert documents([str(parquet(tmp_path / "t.parquet", ["a", None, "b", "a"], kind=types[kind]))]) == ["a", "b", "a"]


def test_the_format_can_be_said_where_the_name_does_not_say_it(tmp_path: Path):
    path = write(tmp_path / "records.json", json_lines(["a"]))
    assert documents([{"files": str(path), "format": "jsonl"}]) == ["a"]
    assert documents([str(path)]) == ['{"id": 0, "text": "a"}\n']
    assert "not allowed with" in refused([str(path)], document_separator="record")
    assert "which is plain text and has no records; choose blank_line, line or file" in refused(
        [str(path)], document_separator="record"
    )


# --- datasets


def test_a_split_or_field_that_a_dataset_lacks_is_named(tmp_path: Path):
    table = datasets.Dataset.from_dict({"words": ["a", "b"]})
    datasets.DatasetDict({"validation": table}).save_to_disk(str(tmp_path / "saved"))
    folder = str(tmp_path / "saved")
    assert "it has the splits validation, not train" in refused([{"dataset": folder}])
    chosen = {"dataset": folder, "split": "validation"}
    assert f"corpus.train: the dataset {folder} (validation) has no field 'text', only words;" in refused([chosen])
    assert documents([chosen | {"text_field": "words"}]) == ["a", "b"]
    config = corpora.checked({"corpus": {"train": ["x"], "validation": [{"dataset": folder, "text_field": "words"}]}})
    assert [
        source.name for source in find_sources(config.corpus.validation, config.corpus, key="k", split="validation")
    ] == [f"{folder} (validation)"]


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


# --- the same treatment in every kind of source


def documents_of_text(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n\n")[:-1]


@pytest.mark.parametrize("normalization", ["nmt_nfkc", "identity"])
def test_line_ends_and_marks_of_other_systems_change_no_token(
    corpus: corpora.Corpus, tmp_path: Path, entry: Any, normalization: str
):
    texts = documents_of_text(corpus.valid)
    foreign = ["\ufeff" + text.replace("\n", "\r\n") for text in texts]
    foreign[1] = foreign[1][:100] + "\r" + foreign[1][100:]
    options = {"tokenizer": {"normalization": normalization, "vocab_size": 200}}
    plain = prepare(corpora.config_for(corpus.valid, tmp_path, **options)).store
    store = prepare(corpora.config_for([], tmp_path, corpus={"train": [entry(foreign)]}, **options)).store
    assert np.array_equal(store.split("train").tokens, plain.split("train").tokens)
    assert np.array_equal(store.split("train").ends, plain.split("train").ends)
    pieces = [store.tokenizer().piece(number) for number in range(store.vocab_size)]
    assert not [piece for piece in pieces if "\r" in piece or "\ufeff" in piece]
    dropped = store.manifest["dropped"]["train"]
    assert (dropped["byte_order_marks"], dropped["carriage_returns"]) == (6, 6 * 49 + 1)


def test_text_that_looks_like_a_control_symbol_is_text_in_every_source(entry: Any, spiece: Path, tmp_path: Path):
    texts = ["a <mask> b <eod> c <unk> </s>\n<cls> <pad> <sep> <s>"] * 50
    sections = {"corpus": {"train": [entry(texts)]}, "tokenizer": {"path": str(spiece), "vocab_size": None}}
    split = prepare(corpora.config_for([], tmp_path, **sections)).store.split("train")
    found = np.bincount(split.tokens, minlength=500)
    assert found[1:7].sum() == 0
    assert found[7] == split.num_documents == 50


def test_records_without_any_text_are_refused_as_an_empty_file_is(entry: Any, tmp_path: Path):
    config = corpora.config_for([], tmp_path, corpus={"train": [entry(["", " ", None, "\ufeff\n"])]})
    with pytest.raises(UsageError, match="contains no text"):
        prepare(config)
    assert not list((tmp_path / "cache").glob("*"))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "gb18030"])
@pytest.mark.parametrize("name", ["records.jsonl", "records.jsonl.gz"])
def test_records_in_another_encoding_are_refused(tmp_path: Path, encoding: str, name: str):
    content = json.dumps({"text": "語料庫的文字"}, ensure_ascii=False).encode(encoding)
    path = write(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content)
    expected = "not UTF-8, it looks like UTF-16" if encoding.startswith("utf-16") else "not UTF-8 text (byte 10 is 0x"
    assert f"{path}: {expected}" in refused([str(path)])


def test_a_source_without_text_among_others_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    empty, full = write(tmp_path / "empty.txt", "\n\n"), write(tmp_path / "full.txt", "text\n")
    config = corpora.config_for([empty, full], tmp_path, tokenizer={"kind": "byte", "vocab_size": None})
    assert prepare(config).store.split("train").num_documents == 1
    assert f"WARNING: corpus.train: {empty} contains no text" in capsys.readouterr().err


def test_perplexity_of_a_text_does_not_depend_on_how_it_is_stored(
    finished: tuple[Path, Any], corpus: corpora.Corpus, cli: Any, tmp_path: Path
):
    texts = documents_of_text(corpus.valid)
    paths = [
        corpus.valid,
        write(tmp_path / "valid.txt.zst", zstd(corpus.valid.read_bytes())),
        write(tmp_path / "valid.jsonl", json_lines(texts)),
        parquet(tmp_path / "valid.parquet", [*texts]),
    ]
    found = []
    for path in paths:
        outcome = cli("eval-ppl", finished[0] / "run", "--data", path, "--json")
        assert outcome.status == 0, outcome.err
        found.append({name: json.loads(outcome.out)[name] for name in ("nll", "targets", "documents", "words")})
    assert found == [found[0]] * 4


@pytest.mark.parametrize(
    "change",
    [
        {"corpus": {"text_field": "id"}},
        {"corpus": {"document_separator": "record"}},
        {"corpus": {"document_separator": "file"}},
    ],
)
def test_how_records_are_read_is_part_of_the_name_of_a_store(tmp_path: Path, change: dict[str, Any]):
    path = str(write(tmp_path / "r.jsonl", json_lines(["a"]).replace("0", '"0"')))
    assert marks([path], **change["corpus"]) != marks([path])
    plain = str(write(tmp_path / "t.txt", "a\n"))
    assert marks([plain], text_field="other") == marks([plain])  # a text file has no fields


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
    assert "nowhere://a.txt: cannot be reached (Protocol not known: nowhere" in refused(["nowhere://a.txt"])


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
