"""Text from files of any kind is the same text, cleaned alike."""

import gzip
import json
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from corpora import write
from stored import PACKERS, TEXTS, documents, json_lines, marks, parquet, refused, zstd

from xltrain.data.corpus import Counts
from xltrain.data.prepare import prepare
from xltrain.errors import UsageError

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
        "inner_carriage_returns": 1,
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
