"""A text that is scored or goes on becomes the ids that training read, up to the border of its context."""

from pathlib import Path
from typing import Any

import corpora
import pytest

from xltrain.data.prepare import corpus_sources, make_tokenizer
from xltrain.data.tokenizer import SPECIALS, CharTokenizer, SentencePieceTokenizer
from xltrain.data.words import WordTokenizer
from xltrain.errors import UsageError
from xltrain.evaluation.loading import read_text
from xltrain.evaluation.texts import Encoder, Given

EOD = SPECIALS.index("<eod>")


def encoder(
    tokenizer: Any, separator: str = "blank_line", *, start: bool | None = None, **sections: dict[str, Any]
) -> Encoder:
    config = corpora.config_for(Path("a.txt"), Path(), corpus={"document_separator": separator}, **sections)
    return Encoder.of(config, tokenizer, start=start)


CHARACTERS = CharTokenizer("\n abcdefgh")


def shown(tokenizer: Any, ids: list[int]) -> list[str]:
    return [tokenizer.piece(token) for token in ids]


@pytest.mark.parametrize(
    ("separator", "text", "pieces"),
    [
        ("file", "ab\n\nc", ["a", "b", "\n", "\n", "c"]),
        ("blank_line", "ab\n\n\nc", ["a", "b", "\n", "<eod>", "c"]),
        ("blank_line", "\n\nab", ["a", "b"]),
        ("line", "ab\nc", ["a", "b", "<eod>", "c"]),
        ("blank_line", "a\r\n\ufeffb", ["a", "\n", "b"]),
        ("blank_line", "", []),
    ],
)
def test_a_text_is_encoded_as_the_corpus_was(separator: str, text: str, pieces: list[str]):
    assert shown(CHARACTERS, encoder(CHARACTERS, separator).ids(text)) == pieces


def test_what_stands_before_a_text_is_what_stood_before_documents_in_training():
    assert encoder(CHARACTERS).begin() == [EOD]
    assert encoder(CHARACTERS, segments={"cross_documents": False}).begin() == []
    words = WordTokenizer(["<eos>", "a", "b"], eos=True, lower=False)
    assert encoder(words).begin() == [0]
    assert encoder(WordTokenizer(["a", "b"], eos=False, lower=False)).begin() == []
    assert encoder(CHARACTERS, "file").begin() == []  # files may be too few for a model to know their ends
    assert encoder(CHARACTERS, "file", start=True).begin() == [EOD]
    assert encoder(CHARACTERS, start=False).begin() == []
    with pytest.raises(UsageError, match="--start: nothing stands before a text of this run"):
        encoder(CHARACTERS, start=True, segments={"cross_documents": False})


def test_of_a_prompt_only_the_last_document_counts_where_they_are_kept_apart():
    apart = encoder(CHARACTERS, segments={"cross_documents": False})
    assert shown(CHARACTERS, apart.prompt("ab\n\nc\nd")) == ["c", "\n", "d"]
    assert shown(CHARACTERS, encoder(CHARACTERS).prompt("a\n\nc")) == ["<eod>", "a", "\n", "<eod>", "c"]


def test_the_line_of_a_word_vocabulary_is_not_over_at_the_border():
    words = WordTokenizer(["<eos>", "a", "b", "c"], eos=True, lower=False)
    assert encoder(words).continued("a b", " c") == Given([0, 1, 2], [3])
    assert encoder(words).continued("a\nb", " c") == Given([0, 1, 0, 2], [3])
    assert encoder(words, "file").ids("a\n\nb") == [1, 0, 0, 2]


def test_white_space_at_the_border_belongs_where_the_tokenizer_puts_it(spiece: Path):
    tokenizer = SentencePieceTokenizer(spiece.read_bytes())
    whole, context = "Bada kile mo. Nuru ta", "Bada kile mo."
    ids = tokenizer.encode([whole])[0]
    for before, after in ((context, " Nuru ta"), (context + " ", "Nuru ta")):
        given = encoder(tokenizer).continued(before, after)
        assert given == Given([EOD, *tokenizer.encode([context])[0]], given.text)
        assert given.context + given.text == [EOD, *ids]
        assert tokenizer.piece(given.text[0]).startswith("▁")


def test_a_piece_that_reaches_over_the_border_is_the_texts_and_is_marked(spiece: Path):
    tokenizer = SentencePieceTokenizer(spiece.read_bytes())
    long = next(
        piece for token in range(9, 500) if len(piece := tokenizer.piece(token)) > 4 and piece[1:].isalpha()
    ).removeprefix("▁")
    given = encoder(tokenizer).continued(long[:-1], long[-1])
    assert given.joined
    assert given.context + given.text == [EOD, *tokenizer.encode([long])[0]]
    assert tokenizer.decode(given.text).endswith(long[-1])


@pytest.mark.parametrize("separator", ["blank_line", "line", "file"])
@pytest.mark.parametrize("tokenizer", ["char", "byte", "word", "sentencepiece", "identity"])
def test_lines_of_a_text_become_the_tokens_of_such_a_file(tokenizer: str, separator: str, tmp_path: Path):
    train = tmp_path / "train.txt"
    train.write_text("ab ba\nb  a\n\nab\n \nba ab\n\n\n ab a\n" * 30)
    keys: dict[str, Any] = {"kind": tokenizer, "vocab_size": None}
    if tokenizer in ("sentencepiece", "identity"):
        keys = {"vocab_size": 16, "normalization": "identity" if tokenizer == "identity" else "nmt_nfkc"}
    config = corpora.config_for(train, tmp_path, corpus={"document_separator": separator}, tokenizer=keys)
    made = make_tokenizer(config, corpus_sources(config)["train"])
    encoder, file = Encoder.of(config, made), tmp_path / "text.txt"
    for text in (
        "ab\n\nb a\nba\n",
        "ab\nba\n",
        "a\n\n\nb\n",
        " a b\n \nb \n",
        "\n\na b\n",
        "a\r\n\r\nb\r\n",
        "a\u3000b\n\u3000\nb\n",
    ):
        file.write_bytes(text.encode())
        expected = read_text(config, made, data=[str(file)], split="validation").tokens.tolist()
        found = encoder.ids(text)
        without = [
            ids[:-1] if ids[-1] == made.eod else ids for ids in (found, expected)
        ]  # the end of the last document
        assert without[0] == without[1], text


@pytest.mark.parametrize(
    ("train", "records"),
    [
        (["a.txt"], False),
        (["a.jsonl", "data/*.JSONL.gz", "b.ndjson"], True),
        (["a.jsonl", "b.txt"], False),
        ([{"dataset": "json", "data_files": ["a"]}, {"files": ["b"], "format": "parquet"}], True),
        ([{"files": ["a.jsonl"], "format": "text"}], False),
        ([{"files": ["a.parquet", "b.parquet.zst"]}], True),
    ],
)
def test_blank_lines_end_documents_where_they_did_in_training(train: list[Any], records: bool):
    config = corpora.config_for(Path("a.txt"), Path(), corpus={"train": train})
    tokenizer = CharTokenizer("\nab")
    found = Encoder.of(config, tokenizer).ids("a\n\nb")
    assert [tokenizer.piece(token) for token in found] == ["a", "\n", "\n" if records else "<eod>", "b"]
