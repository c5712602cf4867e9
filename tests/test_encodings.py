"""What is in a file: bytes that are text, in whatever dress, and bytes that are none."""

import bz2
import gzip
import lzma
from pathlib import Path

import corpora
import numpy as np
import pytest
from corpora import documents, write
from prepared import built, refused

from xltrain.data.prepare import prepare
from xltrain.data.store import Store
from xltrain.errors import UsageError


def same_tokens(one: Store, other: Store) -> bool:
    first, second = one.split("train"), other.split("train")
    return np.array_equal(first.tokens, second.tokens) and np.array_equal(first.ends, second.ends)


@pytest.mark.parametrize("normalization", ["nmt_nfkc", "identity"])
def test_windows_line_ends_and_a_stray_carriage_return_change_nothing(
    corpus: corpora.Corpus, tmp_path: Path, normalization: str
):
    lines = corpus.train.read_bytes().split(b"\n")
    lines[99] = lines[99][:20] + b"\r" + lines[99][20:]
    windows = write(tmp_path / "windows.txt", b"\r\n".join(lines))
    store = built(windows, tmp_path, normalization=normalization).store
    plain = built(corpus.train, tmp_path, normalization=normalization).store
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
    store = built(marked, tmp_path, normalization=normalization).store
    assert same_tokens(store, built(plain, tmp_path, normalization=normalization).store)
    tokenizer = store.tokenizer()
    assert [piece for piece in map(tokenizer.piece, range(store.vocab_size)) if "\ufeff" in piece] == []


def packed(content: bytes) -> bytes:
    """The same bytes at any time of day."""
    return gzip.compress(content, mtime=0)


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
        (packed(b"words\n" * 99)[:-9], "a gzip file that is damaged or cut short"),
        (lzma.compress(b"words\n" * 99)[:-20], "a xz file that is damaged or cut short"),
        (bz2.compress(b"words\n" * 99)[:-9], "a bzip2 file that is damaged or cut short"),
        (b"(\xb5/\xfd" + bytes(range(20)), "a zstd file that is damaged or cut short"),
        (packed(bz2.compress(b"words\n")), "a bzip2 file within another one; unpack it first"),
        (packed("words\n".encode("utf-16")), "not UTF-8, it looks like UTF-16"),
        (packed(b"words \xff\n"), "not UTF-8 text (byte 6 is 0xff)"),
        (packed(b""), "contains no text"),
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
