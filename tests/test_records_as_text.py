"""Records in a file whose name does not say so are read as the text that they are, but not without a word."""

import json
from pathlib import Path
from typing import Any

import pytest
from corpora import write
from stored import PACKERS, documents, found, json_lines, refused

from xltrain.data import records

RECORDS = json_lines(["one", "two", "three"])


def said(capsys: pytest.CaptureFixture[str], entries: list[Any], **corpus: Any) -> str:
    found(entries, **corpus)
    return capsys.readouterr().err


@pytest.mark.parametrize(
    "content",
    [
        RECORDS,
        RECORDS.rstrip("\n"),
        "\ufeff\n" + RECORDS.replace("\n", "\r\n\r\n"),
        json_lines(["one"]),
        json_lines(["a long one " * 200_000] * 2),  # longer than what is looked at first
        json_lines([None, "two"]),
    ],
)
@pytest.mark.parametrize("name", ["corpus.txt", "corpus", "corpus.json"])
def test_records_under_another_name_are_told_with_what_reads_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, name: str
):
    path = write(tmp_path / name, content)
    assert said(capsys, [str(path)]) == (
        f"WARNING: corpus.train: the first lines of {path} are JSON objects, but are read as plain text, braces and "
        f"names of fields too; to read only the text in them, write {{files: {path}, format: jsonl}}, or end its name "
        "with .jsonl; if plain text is meant, say so by format: text\n"
    )
    for kind in ("jsonl", "text"):
        assert said(capsys, [{"files": str(path), "format": kind}]) == ""


@pytest.mark.parametrize("packer", PACKERS)
def test_compressed_records_are_told_too(tmp_path: Path, capsys: pytest.CaptureFixture[str], packer: str):
    assert "are JSON objects" in said(capsys, [str(write(tmp_path / "t.txt", PACKERS[packer](RECORDS.encode())))])


def test_the_fields_are_named_where_none_has_the_name_that_is_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = write(tmp_path / "t", "".join(json.dumps({"title": "t", "body": "b", "id": 1}) + "\n" for _ in range(3)))
    assert f"{{files: {path}, format: jsonl, text_field: title or body}}" in said(capsys, [str(path)])
    assert f"{{files: {path}, format: jsonl}}," in said(capsys, [str(path)], text_field="body")
    assert f"{{files: {path}, format: jsonl}}," in said(capsys, [{"files": str(path), "text_field": "title"}])


def test_many_files_are_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name in "abc":
        write(tmp_path / f"{name}.txt", RECORDS if name != "b" else "text\n")
    text = said(capsys, [f"{tmp_path}/*.txt"])
    assert f"the first lines of {tmp_path}/a.txt (and of 1 more of {tmp_path}/*.txt) are" in text
    assert text.count("WARNING") == 1
    assert "or give it format: jsonl if it holds JSON Lines" in refused(
        [f"{tmp_path}/a.txt"], document_separator="record"
    )


@pytest.mark.parametrize(
    "content",
    [
        "plain text\n",
        "",
        "\n\n",
        "{\n  printf();\n}\n",
        "{}\n{}\n",
        '{"version": "1.0", "name": "one object, as configurations of programs are"}\n',
        '{\n  "text": "an object of several lines"\n}\n',
        RECORDS + "and then prose\n",
        '{"a": 1}\n{"a": 2}\n',
        '{"text": "one"}\n["text"]\n',
        '{"a": "one"}\n{"b": "two"}\n',
        '{"text": ' + "[" * 100_000 + "\n",
        "{% block content %}\n{{ name }}\n",
        '"text"\n"text"\n',
        '[{"name": "an array of other things"}]\n',
        '[1, "text"]\n',
        ">a quotation\nof two words\n",
        ">one\n>two\n",
        "MKV\n>one\nMKV\n",
        ">one\n",
    ],
)
def test_other_text_and_code_is_not_taken_for_records(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str):
    assert said(capsys, [str(write(tmp_path / "t.txt", content))]) == ""


def test_an_array_of_records_is_told_with_what_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for indent in (None, 2):
        array = json.dumps([{"id": number, "text": f"text {number}"} for number in range(3)], indent=indent)
        path = write(tmp_path / "t.json", "\ufeff" + array)
        text = said(capsys, [str(path)])
        assert text.startswith(
            f"WARNING: corpus.train: {path} seems to be a JSON array of records, but is read as plain"
        )
        assert f"write {{dataset: json, data_files: {path}, split: train}}" in text
        assert said(capsys, [{"files": str(path), "format": "text"}]) == ""
        assert said(capsys, [str(path)], text_field="title") == ""
    write(path, array)
    assert documents([{"dataset": "json", "data_files": str(path), "split": "train"}]) == ["text 0", "text 1", "text 2"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
def test_sequences_with_headers_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], end: str):
    path = write(tmp_path / "p.fasta", end.join([">sp|P1 a protein", "MKVLA" * 12, "GG*", ">sp|P2", "M" * 6000, ""]))
    assert said(capsys, [str(path)]) == (
        f"WARNING: corpus.train: {path} seems to be FASTA, but is read as plain text, headers (>) and line breaks too; "
        "write one sequence per line and no headers, as the recipe of docs/data.md, 'Sequences that are no prose', "
        "does; if plain text is meant, say so by format: text\n"
    )
    assert said(capsys, [{"files": str(path), "format": "text"}]) == ""
    assert "## Sequences that are no prose" in (Path(__file__).parents[1] / "docs/data.md").read_text()


def test_eval_ppl_says_it_of_its_own_files(
    finished: tuple[Path, Any], cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = write(tmp_path / "t.txt", RECORDS)
    err = cli("eval-ppl", finished[0] / "run", "--data", path, "--json").err
    assert f"WARNING: --data: the first lines of {path} are JSON objects" in err
    assert "to read only the text in them, end its name with .jsonl\n" in err


def test_no_more_is_read_than_the_first_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path / "t.txt", json_lines(["x" * 10_000] * 1_000))
    assert len(list(records._first_lines(path))) == 7  # 64 KiB and what completes the line
    monkeypatch.setattr(records, "_LONGEST", 15_000)
    assert len(list(records._first_lines(path))) == 1  # the second is not whole
    monkeypatch.setattr(records, "reading", None)  # not even opened
    assert records.fields_of_text(path, b"plain text", wanted="text") == []
