"""Vocabularies of characters."""

from pathlib import Path

import corpora
import pytest
from corpora import write_lines
from prepared import built

from xltrain.data.kinds import load_tokenizer
from xltrain.data.prepare import prepare
from xltrain.data.tokenizer import (
    CharTokenizer,
    train_characters,
)
from xltrain.errors import UsageError


def test_characters_are_numbered_by_code_point_after_the_special_pieces():
    tokenizer = train_characters(["ba\n", "ab c語\n"], vocab_size=None)
    assert tokenizer.alphabet == "\n abc語"
    assert tokenizer.vocab_size == 15
    assert tokenizer.encode(["cab\n", "x語"]) == [[13, 11, 12, 9], [0, 14]]
    assert tokenizer.decode([13, 11, 9]) == "ca\n"
    assert [tokenizer.piece(number) for number in (0, 7, 9)] == ["<unk>", "<eod>", "\n"]


def test_characters_include_line_ends_but_not_where_each_line_is_a_document(tmp_path: Path):
    train = write_lines(tmp_path / "t.txt", ["ab", "ba", "", "aa"])
    for separator, expected in (
        ("blank_line", [[10, 11, 9, 11, 10, 9, 7], [10, 10, 9, 7]]),
        ("line", [[9, 10, 7], [10, 9, 7], [9, 9, 7]]),
        ("file", [[10, 11, 9, 11, 10, 9, 9, 10, 10, 9, 7]]),
    ):
        config = corpora.config_for(
            train,
            tmp_path,
            corpus={"document_separator": separator},
            tokenizer={"kind": "char", "vocab_size": None},
        )
        split = prepare(config).store.split("train")
        begins = [0, *split.ends[:-1]]
        found = [split.tokens[start:stop].tolist() for start, stop in zip(begins, split.ends, strict=True)]
        assert found == expected


def test_a_character_vocabulary_may_be_smaller_than_the_text_but_not_larger():
    lines = ["aaab", "bbac"]
    assert train_characters(lines, vocab_size=11).alphabet == "ab"
    with pytest.raises(
        UsageError, match=r"tokenizer\.vocab_size: 13 is more than this text allows: at most 12 \(3 cha"
    ):
        train_characters(lines, vocab_size=13)
    with pytest.raises(UsageError, match="leaves no room for characters"):
        train_characters(lines, vocab_size=9)


def test_a_character_vocabulary_too_small_for_its_text_is_told_by_its_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    train = write_lines(tmp_path / "train.txt", ["abcdef" * 20] * 20)
    valid = write_lines(tmp_path / "valid.txt", ["xyz" * 20] * 20)
    built(train, tmp_path, valid=valid, kind="char", vocab_size=11)
    said = capsys.readouterr().err
    for name in ("train", "validation"):
        assert f"corpus.{name}: " in said
    assert said.count("are <unk>: tokenizer.vocab_size, 11, leaves out its rarest characters; raise it, or") == 2
    built(train, tmp_path, valid=valid, kind="char", vocab_size=None)
    assert "are <unk>: it has characters that the training text lacks" in capsys.readouterr().err


def test_a_character_vocabulary_is_found_again_by_its_file(tmp_path: Path):
    alphabet = "\n \"'\\abc語\U0001f600"
    for name, data in CharTokenizer(alphabet).files().items():
        (tmp_path / name).write_bytes(data)
    found = load_tokenizer(tmp_path)
    assert isinstance(found, CharTokenizer)
    assert found.alphabet == alphabet
