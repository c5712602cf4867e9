"""Raw files as documents of lines: encodings, line ends, separators and counts."""

import bz2
import gzip
import lzma
import os
import pickle
import re
from pathlib import Path

import corpora
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xltrain.data import corpus as corpus_module
from xltrain.data.corpus import Counts, TextPiece, cut_file, read_lines
from xltrain.data.files import find_files
from xltrain.data.prepare import corpus_sources, prepare
from xltrain.data.store import Store
from xltrain.errors import UsageError


def write(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


def documents(path: Path, separator: str = "blank_line", counts: Counts | None = None) -> list[list[str]]:
    return [found.lines for found in corpora.read_documents([path], separator=separator, counts=counts)]


def built(train: Path | list[Path], folder: Path, **tokenizer: object) -> Store:
    return prepare(corpora.config_for(train, folder, tokenizer=tokenizer)).store


def same_tokens(one: Store, other: Store) -> bool:
    first, second = one.split("train"), other.split("train")
    return np.array_equal(first.tokens, second.tokens) and np.array_equal(first.ends, second.ends)


def refused(train: Path, folder: Path) -> str:
    """The message for a corpus that must be refused, after a look that nothing is left behind."""
    with pytest.raises(UsageError) as caught:
        built(train, folder)
    assert list((folder / "cache").glob("*")) == []
    return str(caught.value)


def test_the_invented_corpus_is_the_published_one(corpus: corpora.Corpus):
    import hashlib

    assert hashlib.sha256(corpus.train.read_bytes()).hexdigest() == corpora.TRAIN_SHA256
    assert hashlib.sha256(corpus.valid.read_bytes()).hexdigest() == corpora.VALID_SHA256


# --- what is in a file


@pytest.mark.parametrize("normalization", ["nmt_nfkc", "identity"])
def test_windows_line_ends_and_a_stray_carriage_return_change_nothing(
    corpus: corpora.Corpus, tmp_path: Path, normalization: str
):
    lines = corpus.train.read_bytes().split(b"\n")
    lines[99] = lines[99][:20] + b"\r" + lines[99][20:]
    windows = write(tmp_path / "windows.txt", b"\r\n".join(lines))
    store = built(windows, tmp_path, normalization=normalization)
    plain = built(corpus.train, tmp_path, normalization=normalization)
    assert store.fingerprint != plain.fingerprint
    assert same_tokens(store, plain)
    assert store.manifest["splits"]["train"]["documents"] == 60
    tokenizer = store.tokenizer()
    assert [piece for piece in map(tokenizer.piece, range(store.vocab_size)) if "\r" in piece] == []


@pytest.mark.parametrize("normalization", ["nmt_nfkc", "identity"])
def test_a_byte_order_mark_is_no_text_in_any_file(corpus: corpora.Corpus, tmp_path: Path, normalization: str):
    lines = corpus.train.read_bytes().splitlines(keepends=True)
    parts = [b"".join(lines[start : start + 1020]) for start in (0, 1020, 2040)]
    plain = [write(tmp_path / f"{number}.txt", part) for number, part in enumerate(parts)]
    marked = [write(tmp_path / f"bom{number}.txt", b"\xef\xbb\xbf" + part) for number, part in enumerate(parts)]
    store = built(marked, tmp_path, normalization=normalization)
    assert same_tokens(store, built(plain, tmp_path, normalization=normalization))
    tokenizer = store.tokenizer()
    assert [piece for piece in map(tokenizer.piece, range(store.vocab_size)) if "\ufeff" in piece] == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "words and words\n".encode("utf-16-le"),
            "not UTF-8, it looks like UTF-16LE; convert it with iconv -f UTF-16LE",
        ),
        (
            "words and words\n".encode("utf-16-be"),
            "not UTF-8, it looks like UTF-16BE; convert it with iconv -f UTF-16BE",
        ),
        ("words, 语料\n".encode("utf-32-le"), "not UTF-8, it looks like UTF-32LE; convert it with iconv -f UTF-32LE"),
        ("words, 语料\n".encode("utf-32-be"), "not UTF-8, it looks like UTF-32BE; convert it with iconv -f UTF-32BE"),
        (bytes(1000), "not text, 1,000 of its first 1,000 bytes are NUL; it is damaged"),
        (b"abc\0\0\0d\0\0\0\0e" * 99, "not text, 693 of its first 1,188 bytes are NUL; it is damaged"),
        ("words and words\n".encode("utf-16"), "not UTF-8, it looks like UTF-16"),
        ("语料库的文字\n".encode("gb18030"), "not UTF-8 text (byte 0 is 0xd3)"),
        (
            "caf\u00e9\n".encode("latin-1"),
            "; convert it with iconv -f ENCODING -t UTF-8, ENCODING being the one that it is in",
        ),
        ("语料库的文字\n".encode("gbk"), "ENCODING being the one that it is in (GB18030, if it is Chinese)"),
        ("words and words\n".encode("utf-16"), "convert it with iconv -f UTF-16 -t UTF-8"),
        ("words and words\n".encode("utf-32"), "convert it with iconv -f UTF-32 -t UTF-8"),
        (gzip.compress(b"words\n" * 99)[:-9], "a gzip file that is damaged or cut short"),
        (lzma.compress(b"words\n" * 99)[:-20], "a xz file that is damaged or cut short"),
        (bz2.compress(b"words\n" * 99)[:-9], "a bzip2 file that is damaged or cut short"),
        (b"(\xb5/\xfd" + bytes(range(20)), "a zstd file that is damaged or cut short"),
        (gzip.compress(bz2.compress(b"words\n")), "a bzip2 file within another one; unpack it first"),
        (gzip.compress("words\n".encode("utf-16")), "not UTF-8, it looks like UTF-16"),
        (gzip.compress(b"words \xff\n"), "not UTF-8 text (byte 6 is 0xff)"),
        (gzip.compress(b""), "contains no text"),
        (b"PAR1 and no more", "a Parquet file that cannot be read"),
        (b"PK\x03\x04" + bytes(range(20)), "a zip file, not text"),
        (b"", "contains no text"),
        (b"\n\n\n", "contains no text"),
        (b"    ", "contains no text"),
        ("\ufeff\r\n\u3000\n", "contains no text"),
    ],
)
def test_what_is_no_text_is_refused_by_name_and_nothing_is_left(tmp_path: Path, content: bytes | str, said: str):
    path = write(tmp_path / "A2.txt", content)
    message = refused(path, tmp_path)
    assert message.startswith("corpus.train: ")
    assert str(path) in message
    assert said in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "line",
    [
        "语料库的文字，没有标记。\n",
        "Все счастливые семьи похожи друг на друга.\n",
        "吾輩は猫である。名前はまだ無い。\n",
        "모든 인간은 태어날 때부터 자유로우며\n",
        "كل الناس أحرار\n",
        "सभी मनुष्यों को गौरव और अधिकारों के मामले में\n",
    ],
)
@pytest.mark.parametrize("order", ["LE", "BE"])
def test_utf_16_without_a_mark_is_named_in_any_script(tmp_path: Path, line: str, order: str):
    """Of Chinese no byte is zero, and what Russian becomes is even UTF-8, of control characters."""
    for copies in (2, 999):  # the beginning that is looked at may end within a character
        path = write(tmp_path / "wide.txt", (line * copies).encode(f"utf-16-{order}"))
        said = f"{path}: not UTF-8, it looks like UTF-16{order}; convert it with iconv -f UTF-16{order} -t UTF-8"
        assert refused(path, tmp_path) == f"corpus.train: {said}"


@pytest.mark.parametrize(
    "encoding", ["gb18030", "big5", "shift_jis", "euc_jp", "euc_kr", "cp1251", "koi8_r", "latin-1"]
)
@pytest.mark.parametrize("shift", [0, 1])
def test_other_encodings_are_not_taken_for_utf_16(tmp_path: Path, encoding: str, shift: int):
    for line in (
        "语料库的文字，没有标记。\n",
        "кошка и мышка\n",
        "私は猫、です。\n",
        "고양이 한 마리\n",
        "caf\u00e9 \u00fc\n",
    ):
        if not (text := line.encode(encoding, errors="ignore")).strip(b" \n").isascii():
            path = write(tmp_path / "other.txt", b"x" * shift + text * 200)
            assert "not UTF-8 text (byte " in refused(path, tmp_path)


def test_text_with_a_control_character_here_and_there_is_text(tmp_path: Path):
    path = write(tmp_path / "t.txt", "one \0 two\x01 three \x1e\n" * 99 + "1\t2\t3\t4\n" * 999)
    assert documents(path) == [["one  two\x01 three \x1e\n"] * 99 + ["1\t2\t3\t4\n"] * 999]


@pytest.mark.parametrize("copies", [1, 8])  # within the first block that is read, and after it
def test_a_fault_deep_in_a_file_is_named_by_its_byte(corpus: corpora.Corpus, tmp_path: Path, copies: int):
    good = corpus.train.read_bytes() * copies
    path = write(tmp_path / "bad.txt", good + b"ab\xffcd\n")
    message = refused(path, tmp_path)
    assert message.startswith(f"corpus.train: {path}: not UTF-8 text (byte {len(good) + 2} is 0xff)")


@pytest.mark.parametrize("content", [b"", b"\n\n\n", b"   "])
def test_an_empty_validation_file_is_refused_as_an_empty_training_file_is(
    corpus: corpora.Corpus, tmp_path: Path, content: bytes
):
    empty = write(tmp_path / "empty.txt", content)
    config = corpora.config_for(corpus.train, tmp_path, corpus={"validation": [str(empty)]})
    with pytest.raises(UsageError, match=r"corpus\.validation: .*empty\.txt contains no text"):
        prepare(config)
    assert list((tmp_path / "cache").iterdir()) == []


def test_text_that_begins_like_an_archive_is_text(tmp_path: Path):
    assert documents(write(tmp_path / "t.txt", "BZh is how it begins\n")) == [["BZh is how it begins\n"]]


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
