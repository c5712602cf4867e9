"""Raw files as documents of lines: line ends, separators, counts, pieces, and which files a pattern finds."""

import os
import pickle
import re
from pathlib import Path

import corpora
import pytest
from corpora import documents, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xltrain.data import corpus as corpus_module
from xltrain.data.corpus import Counts, TextPiece, cut_file, read_lines
from xltrain.data.files import find_files
from xltrain.data.prepare import corpus_sources, prepare
from xltrain.errors import UsageError


def test_the_invented_corpus_is_the_published_one(corpus: corpora.Corpus):
    import hashlib

    assert hashlib.sha256(corpus.train.read_bytes()).hexdigest() == corpora.TRAIN_SHA256
    assert hashlib.sha256(corpus.valid.read_bytes()).hexdigest() == corpora.VALID_SHA256


# --- lines and documents


def test_only_a_line_feed_ends_a_line(tmp_path: Path):
    text = "a\x0bb\x0cc\x85d\u2028e\u2029f\x1cg\nh"
    assert list(read_lines(write(tmp_path / "t.txt", text))) == ["a\x0bb\x0cc\x85d\u2028e\u2029f\x1cg\n", "h"]


@pytest.mark.parametrize(
    ("separator", "expected"),
    [
        ("blank_line", [["a\n", "b\n"], ["c\n"], ["d"]]),
        ("line", [["a"], ["b"], ["c"], ["d"]]),
        ("file", [["\n", "a\n", "b\n", " \t\n", "\n", "c\n", "\n", "d"]]),
    ],
)
def test_documents_end_where_the_separator_says(tmp_path: Path, separator: str, expected: list[list[str]]):
    counts = Counts()
    path = write(tmp_path / "t.txt", "\na\nb\n \t\n\nc\n\nd")
    assert documents(path, separator, counts) == expected
    assert counts.documents == len(expected)
    assert (counts.lines, counts.bytes, counts.characters, counts.words) == (7, 13, 13, 4)


def test_a_file_always_ends_a_document(tmp_path: Path):
    paths = [write(tmp_path / name, f"{name}\n") for name in ("a", "b")]
    empty = write(tmp_path / "empty", "\n")
    found = corpora.read_documents([paths[0], empty, paths[1]], separator="file")
    assert [document.lines for document in found] == [["a\n"], ["b\n"]]


@pytest.mark.parametrize(
    "content",
    [
        "no line end",
        "one\n",
        "\n\n\n",
        "a\r\nb\r\n",
        "\ufeffmarked\n",
        "  spaces   between\twords  \n\n \n",
        "語 料\n庫\n",
        "\U0001f600 \U00020000\u0301\n",
        "zero\0byte\n",
    ],
)
def test_counts_are_those_of_wc(tmp_path: Path, content: str):
    counts = Counts()
    documents(write(tmp_path / "t.txt", content), counts=counts)
    cleaned = content.replace("\r", "").replace("\ufeff", "").replace("\0", "")
    assert counts.lines == content.count("\n")
    assert counts.bytes == len(content.encode("utf-8"))
    assert counts.characters == len(cleaned)
    assert counts.words == len(cleaned.split())


MESSY = st.text(st.sampled_from("ab é語\n\n\r\t\u2028\ufeff"), max_size=60)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(MESSY, st.integers(1, 20))
def test_lines_joined_are_the_text_however_the_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, block: int
):
    monkeypatch.setattr(corpus_module, "BLOCK", block)
    cleaned = text.replace("\r", "").replace("\ufeff", "")
    path, counts = write(tmp_path / "t.txt", text), Counts()
    assert "".join(read_lines(path, counts)) == cleaned
    assert (counts.lines, counts.characters, counts.words) == (cleaned.count("\n"), len(cleaned), len(cleaned.split()))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(MESSY)
def test_no_word_is_lost_and_no_document_is_blank(tmp_path: Path, text: str):
    path = write(tmp_path / "t.txt", text)
    words = text.replace("\r", "").replace("\ufeff", "").split()
    for separator in ("blank_line", "line", "file"):
        found = documents(path, separator)
        assert [word for lines in found for line in lines for word in line.split()] == words
        assert all("".join(lines).strip() for lines in found)


# --- pieces


def in_pieces(pieces: list[TextPiece]) -> tuple[list[list[str]], list[str], Counts]:
    """Documents, lines and counts of pieces that have travelled to another process."""
    counts = Counts()
    pieces = [pickle.loads(pickle.dumps(piece)) for piece in pieces]
    found = [document.lines for piece in pieces for document in piece.documents(counts)]
    return found, [line for piece in pieces for line in piece.lines()], counts


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=120)
@given(MESSY, st.integers(1, 25), st.sampled_from(["blank_line", "line", "file"]), st.integers(1, 9))
def test_pieces_one_after_the_other_are_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, size: int, separator: str, block: int
):
    path, counts = write(tmp_path / "t.txt", text), Counts()
    expected = documents(path, separator, counts)
    pieces = cut_file(path, separator=separator, size=size)
    monkeypatch.setattr(corpus_module, "BLOCK", block)
    assert in_pieces(pieces) == (expected, list(read_lines(path)), counts)
    assert sum(piece.size for piece in pieces) == counts.bytes
    if separator == "file":
        assert len(pieces) == 1


def test_a_file_of_many_documents_is_cut_evenly_and_one_of_a_long_document_is_not(tmp_path: Path):
    many = write(tmp_path / "many.txt", "some words\n\n" * 1000)
    sizes = [piece.size for piece in cut_file(many, separator="blank_line", size=1000)]
    assert len(sizes) == 12
    assert all(1000 <= size < 1024 for size in sizes[:-1])
    long = write(tmp_path / "long.txt", "some words\n" * 1000 + "\nend\n")
    assert [piece.size for piece in cut_file(long, separator="blank_line", size=1000)] == [11_001, 4]
    assert [piece.size for piece in cut_file(write(tmp_path / "none", ""), separator="line")] == [0]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(MESSY, st.integers(1, 12), st.sampled_from(["blank_line", "file"]))
def test_the_parts_of_a_long_document_are_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, size: int, separator: str
):
    path, counts, again = write(tmp_path / "t.txt", text), Counts(), Counts()
    monkeypatch.undo()
    whole = documents(path, separator, counts)
    monkeypatch.setattr(corpus_module, "PART_CHARACTERS", size)
    monkeypatch.setattr(corpus_module, "BLOCK", size)
    joined: list[list[str]] = []
    open_document = False
    for part in corpora.read_documents([path], separator=separator, counts=again):
        if open_document:
            joined[-1] += part.lines
        else:
            joined.append(part.lines)
        open_document = not part.complete
    assert not open_document
    assert joined == whole
    assert again == counts


# --- finding files


def test_files_come_in_the_order_of_the_patterns_and_once(tmp_path: Path):
    for name in ("b1.txt", "b2.txt", "a.txt", "[x].txt"):
        write(tmp_path / name, "x")
    (tmp_path / "b9.txt").mkdir()
    patterns = [str(tmp_path / pattern) for pattern in ("b*.txt", "[x].txt", "a.txt", "*.txt")]
    assert [path.name for path in find_files(patterns, key="k")] == ["b1.txt", "b2.txt", "[x].txt", "a.txt"]


def test_a_file_under_several_names_is_read_once_and_that_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A link to a folder above it gives a glob every file forty times."""
    folder = tmp_path / "texts"
    (folder / "inner").mkdir(parents=True)
    first, second = write(folder / "a.txt", "first\n"), write(folder / "inner" / "b.txt", "second\n")
    (folder / "loop").symlink_to(folder)
    (folder / "z.txt").symlink_to(first)
    write(tmp_path / "copy.txt", "first\n")
    for entries in (
        [str(folder / "**" / "*.txt"), str(first), str(tmp_path / "copy.txt")],
        [{"files": [str(folder / "**" / "*.txt"), str(tmp_path / "copy.txt")]}],
    ):
        config = corpora.config_for([], tmp_path, corpus={"train": entries})
        sources = corpus_sources(config)["train"]
        assert [source.name for source in sources] == [str(first), str(second), str(tmp_path / "copy.txt")]
        said = capsys.readouterr().err
        assert re.fullmatch(
            rf"corpus\.train: left out \d+ file\(s\) that are there under another name, as {folder}/loop/a.txt is "
            rf"{first}\n",
            said,
        )
    corpus_sources(corpora.config_for([], tmp_path, corpus={"train": [str(first), f"{folder}/a*"]}))
    assert capsys.readouterr().err == ""


def test_what_can_be_read_only_once_is_refused_as_what_it_is(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(
        UsageError, match=r"pipe is not a regular file, and text is read more than once; give a file, or"
    ):
        find_files([str(tmp_path / "pipe")], key="corpus.train")


@pytest.mark.parametrize(
    ("content", "inner", "warned"),
    [
        ("one two\r\nthree\r\n\r\n" * 50, 0, False),
        ("one two\r\r\nthree\n" * 50, 0, False),
        ("one two\rthree\r\rfour\r" * 50, 149, True),
        ("one two\n" * 200 + "three\rfour\n", 1, False),
        ("one two\n" * 50 + "three\rfour\n", 1, True),
    ],
)
def test_line_ends_of_old_macs_are_told_and_other_carriage_returns_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, inner: int, warned: bool
):
    path = write(tmp_path / "t.txt", content)
    store = prepare(corpora.config_for(path, tmp_path, tokenizer={"kind": "char", "vocab_size": None})).store
    dropped = store.manifest["dropped"]["train"]
    assert (dropped["carriage_returns"], dropped["inner_carriage_returns"]) == (content.count("\r"), inner)
    told = (
        f"WARNING: corpus.train: {inner:,} carriage returns (U+000D) inside lines were removed, which joins the words"
    )
    assert (told in capsys.readouterr().err) == warned


def test_a_folder_is_no_file(tmp_path: Path):
    with pytest.raises(UsageError) as caught:
        find_files([str(tmp_path)], key="corpus.train")
    assert str(caught.value) == f"corpus.train: {tmp_path} is a folder; name files in it, such as {tmp_path}/*.txt"


def test_every_pattern_without_a_match_is_named_with_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.txt", "x")
    with pytest.raises(UsageError) as caught:
        find_files(["a.txt", "missing.txt", "no*.txt"], key="corpus.train")
    expected = f"corpus.train: no file matches missing.txt, no*.txt (working directory {tmp_path})"
    assert str(caught.value) == expected
