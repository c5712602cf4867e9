"""Text to ids: vocabularies as XLNet has them, given ones, and text that must not become a control symbol."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import pytest
import sentencepiece
from corpora import write_lines
from prepared import built, refused

from xltrain.data.kinds import load_tokenizer, read_tokenizer
from xltrain.data.tokenizer import (
    CONTROLS,
    SPECIALS,
    CharTokenizer,
    Tokenizer,
    never_target,
    starts_word,
)
from xltrain.errors import UsageError

# --- sentencepiece


def test_special_pieces_stand_where_xlnet_has_them(spiece: Path):
    tokenizer = read_tokenizer(spiece, kind="sentencepiece")
    assert tuple(tokenizer.piece(number) for number in range(9)) == SPECIALS
    assert (tokenizer.vocab_size, tokenizer.unk, tokenizer.eod) == (500, 0, 7)
    raw = sentencepiece.SentencePieceProcessor(model_file=str(spiece))
    assert [raw.is_control(number) for number in range(9)] == [False] + [True] * 7 + [False]
    assert raw.encode("a<eop>b").count(8) == 1


def test_the_ids_of_the_invented_corpus_are_those_of_the_reference(corpus: corpora.Corpus, tmp_path: Path):
    store = built(corpus.train, tmp_path, valid=corpus.valid).store
    train, valid = store.manifest["splits"]["train"], store.manifest["splits"]["validation"]
    assert (train["tokens"], train["documents"]) == (36_953, 60)
    assert (valid["tokens"], valid["documents"]) == (3_782, 6)
    assert (train["lines"], train["bytes"], train["words"]) == (3_060, 206_416, 29_968)


@pytest.mark.parametrize("normalization", ["nmt_nfkc", "identity"])
def test_stored_ids_are_those_of_each_line_and_an_end_after_each_document(
    corpus: corpora.Corpus, tmp_path: Path, normalization: str
):
    store = built(corpus.train, tmp_path, normalization=normalization).store
    raw = sentencepiece.SentencePieceProcessor(model_file=str(store.folder / "spiece.model"))
    expected: list[int] = []
    for document in corpus.train.read_text(encoding="utf-8").split("\n\n"):
        if document.strip():
            expected += [number for line in document.splitlines() for number in raw.encode(line)] + [7]
    assert store.split("train").tokens.tolist() == expected


def test_a_very_long_line_is_encoded_in_one_piece(corpus: corpora.Corpus, spiece: Path, tmp_path: Path):
    line = " ".join(corpus.train.read_text(encoding="utf-8").split())[:200_000]
    train = write_lines(tmp_path / "long.txt", [line])
    store = built(train, tmp_path, path=str(spiece)).store
    raw = sentencepiece.SentencePieceProcessor(model_file=str(spiece))
    assert store.split("train").tokens.tolist() == [*raw.encode(line), 7]


def test_text_that_looks_like_a_control_symbol_is_text(corpus: corpora.Corpus, tmp_path: Path):
    lines = corpus.train.read_text(encoding="utf-8").splitlines()
    for number in range(50):
        lines[number * 60 + 3] += " a <mask> b <eod> c <unk> </s> <cls> <pad> <sep> <s>"
    for kind, size in (("sentencepiece", 500), ("char", None)):
        store = built(write_lines(tmp_path / "looks.txt", lines), tmp_path / kind, kind=kind, vocab_size=size).store
        tokens = store.split("train").tokens
        occurrences = np.bincount(tokens, minlength=store.vocab_size)[:8]
        assert occurrences[7] == 60
        assert occurrences[1:7].sum() == 0
        assert store.split("train").tokens[store.split("train").ends - 1].tolist() == [7] * 60


def test_an_existing_model_is_used_as_it_is(corpus: corpora.Corpus, spiece: Path, tmp_path: Path):
    store = built(corpus.train, tmp_path, path=str(spiece), vocab_size=None).store
    assert (store.folder / "spiece.model").read_bytes() == spiece.read_bytes()
    message = refused_with_other_size(corpus.train, tmp_path, spiece)
    assert (
        message == f"tokenizer.vocab_size: 600 does not fit {spiece}, which has 500 pieces; correct it, or leave it out"
    )


def refused_with_other_size(train: Path, folder: Path, model: Path) -> str:
    with pytest.raises(UsageError) as caught:  # also when a store of the same model exists already
        built(train, folder, path=str(model), vocab_size=600)
    return str(caught.value)


def test_a_file_that_is_no_tokenizer_is_refused(corpus: corpora.Corpus, spiece: Path, tmp_path: Path):
    other = tmp_path / "other.model"
    for content in (b"not a model", b""):
        other.write_bytes(content)
        assert refused(corpus.train, tmp_path, path=str(other)) == f"{other}: not a sentencepiece model"
    message = refused(corpus.train, tmp_path, kind="char", path=str(spiece), vocab_size=None)
    assert message == f"{spiece}: not a character vocabulary; it holds {{'alphabet': '...'}}"
    wrong = ("{}", "[]", '{"alphabet": 3}', '{"alphabet": ["a", "b"]}', '{"alphabet": "aba"}', "not json")
    for number, content in enumerate(wrong):
        table = tmp_path / f"{number}.json"
        table.write_text(content, encoding="utf-8")
        message = refused(corpus.train, tmp_path, kind="char", path=str(table), vocab_size=None)
        assert message.startswith(f"{table}: not a character vocabulary")
    with pytest.raises(UsageError, match=r"tokenizer\.path: .*missing\.model does not exist \(working directory "):
        built(corpus.train, tmp_path, path=str(tmp_path / "missing.model"))
    with pytest.raises(UsageError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)


# --- a model that somebody else trained


def foreign_model(corpus: corpora.Corpus, path: Path, **options: Any) -> Path:
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus.train), model_prefix=str(path.with_suffix("")), vocab_size=300, minloglevel=2, **options
    )
    return path.with_suffix(".model")


def test_special_pieces_of_a_given_model_are_verified(
    corpus: corpora.Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    spelled = foreign_model(corpus, tmp_path / "spelled.model", user_defined_symbols=["<mask>", "<eop>", "<cls>"])
    assert refused(corpus.train, tmp_path, path=str(spelled), vocab_size=None) == (
        f"tokenizer.path: in {spelled}, <cls>, <mask> is no control symbol, so that text could spell it; "
        "train the model with it among control_symbols, or train one here"
    )
    other = foreign_model(corpus, tmp_path / "other.model", control_symbols=["<eod>", "<mask>"])
    store = built(corpus.train, tmp_path, path=str(other), vocab_size=None).store
    assert store.tokenizer().eod == 3
    expected = "no <cls>, no <sep>, no <pad>, <mask> 4 instead of 6, <eod> 3 instead of 7, no <eop>"
    assert f"note: special pieces of {other} that are not as XLNet has them: {expected}" in capsys.readouterr().err


def test_nothing_is_said_of_a_model_that_is_as_xlnets(
    corpus: corpora.Corpus, spiece: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    built(corpus.train, tmp_path, path=str(spiece), vocab_size=None)
    assert "special pieces" not in capsys.readouterr().err


# --- what objectives ask of a tokenizer


def test_control_symbols_are_never_targets_and_every_other_piece_may_be(spiece: Path):
    for tokenizer in (read_tokenizer(spiece, kind="sentencepiece"), CharTokenizer("<>ab")):
        forbidden = never_target(tokenizer)
        assert [tokenizer.piece(int(number)) for number in np.flatnonzero(forbidden)] == list(CONTROLS)


def check_starts(tokenizer: Tokenizer, expected: Callable[[str], bool]) -> None:
    starts = starts_word(tokenizer)
    assert starts.shape == (tokenizer.vocab_size,)
    for number in range(len(SPECIALS), tokenizer.vocab_size):
        assert starts[number] == expected(tokenizer.piece(number)), tokenizer.piece(number)


def test_words_start_at_spaces_and_punctuation(spiece: Path):
    check_starts(read_tokenizer(spiece, kind="sentencepiece"), lambda piece: piece[0] in "▁.")
    check_starts(CharTokenizer("ab 語"), lambda piece: True)


def test_words_of_scripts_without_spaces_start_anywhere(tmp_path: Path):
    train = write_lines(tmp_path / "t.txt", corpora.chinese_lines(60, 40, alphabet=30))
    store = built(train, tmp_path, vocab_size=60).store
    assert starts_word(store.tokenizer()).all()


# --- text that comes back


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_identity_gives_back_every_line_with_its_spaces(tmp_path: Path, model_type: str):
    draw = random.Random(3)
    symbols = ["滚滚", "长江", " ", "  ", "\t", "\u3000", "，", "word", "É", "e\u0301", "ﬁ", "\x0c", "\u2028"]
    lines = ["".join(draw.choices(symbols, k=draw.randint(1, 12))) for _ in range(400)]
    lines += ["    \t\t", "    indented", "trailing  ", "", "滚" * 5_000]
    options = {"normalization": "identity", "character_coverage": 1.0, "model_type": model_type, "vocab_size": 60}
    tokenizer = built(write_lines(tmp_path / "t.txt", lines), tmp_path, **options).store.tokenizer()
    assert [tokenizer.decode(ids) for ids in tokenizer.encode(lines)] == lines
