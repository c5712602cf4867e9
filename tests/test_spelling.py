"""Tokens are spelled one by one as the tokenizer spells them together."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece

from xltrain.data.tokenizer import SPECIALS, CharTokenizer, SentencePieceTokenizer
from xltrain.data.words import ByteTokenizer, WordTokenizer
from xltrain.evaluation.spelling import Speller
from xltrain.evaluation.texts import line_end


def spelled(tokenizer: Any, ids: list[int], **more: Any) -> list[str]:
    speller = Speller(tokenizer, **more)
    return [speller.add(token) for token in ids] + [speller.finish()]


def test_pieces_spell_what_the_tokenizer_decodes(spiece: Path):
    tokenizer = SentencePieceTokenizer(spiece.read_bytes())
    draw = np.random.default_rng(0)
    for _ in range(50):
        ids = draw.integers(8, 500, 20).tolist()
        assert "".join(spelled(tokenizer, ids)) == tokenizer.decode(ids)


def test_a_first_word_is_spaced_from_the_text_before_it(spiece: Path):
    tokenizer = SentencePieceTokenizer(spiece.read_bytes())
    ids = tokenizer.encode(["kile mo"])[0]
    assert "".join(spelled(tokenizer, ids)) == "kile mo"
    assert "".join(spelled(tokenizer, ids, before="Bada")) == " kile mo"
    assert "".join(spelled(tokenizer, ids, before="Bada ")) == "kile mo"
    words = WordTokenizer(["<eos>", "a", "b"], eos=True, lower=False)
    assert spelled(words, [1, 2, 0, 2, 0], before="a") == [" a", " b", "\n", "b", "\n", ""]


@pytest.mark.parametrize("before", ["Bada", "Bada ", "Bada\t", " ", "", "Bada\n", "Bada\n ", "Bada.\nBa  "])
def test_where_white_space_is_kept_it_is_spelled_as_often_as_it_is_there(before: str, tmp_path: Path):
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["Bada  kile\tkile", " kile Bada "] * 20), model_writer=written, vocab_size=30,
        normalization_rule_name="identity", remove_extra_whitespaces=False, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    tokenizer = SentencePieceTokenizer(written.getvalue())
    line = before.rpartition("\n")[2]
    context, [both] = tokenizer.encode([line])[0], tokenizer.encode([f"{line}  kile"])
    assert both[: len(context)] == context
    assert "".join(spelled(tokenizer, both[len(context) :], before=before)) == "  kile"


def test_only_whole_characters_are_spelled():
    tokenizer = ByteTokenizer()
    [ids] = tokenizer.encode(["é語!"])
    assert spelled(tokenizer, ids) == ["", "é", "", "", "語", "!", ""]
    assert spelled(tokenizer, ids[2:4]) == ["", "", "\ufffd"]
    assert spelled(tokenizer, [ids[2], ids[5]]) == ["", "\ufffd!", ""]


def test_bytes_that_sentencepiece_falls_back_to_are_joined(tmp_path: Path):
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["abc bca cab"] * 20), model_writer=written, vocab_size=290, byte_fallback=True,
        control_symbols=["<eod>"], hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    tokenizer = SentencePieceTokenizer(written.getvalue())
    [ids] = tokenizer.encode(["ab 語"])
    assert "".join(spelled(tokenizer, ids)) == "ab 語"
    assert spelled(tokenizer, ids)[-4:] == ["", "", "語", ""]


def test_the_end_of_a_document_is_written_where_generation_goes_on():
    tokenizer = CharTokenizer("ab")
    eod = SPECIALS.index("<eod>")
    assert spelled(tokenizer, [9, eod, 10], end=(eod, "\n\n")) == ["a", "\n\n", "b", ""]
    assert spelled(tokenizer, [9, eod, 10]) == ["a", "", "b", ""]


def test_lines_end_with_what_their_vocabulary_has_for_it(spiece: Path):
    assert line_end(ByteTokenizer()) == len(SPECIALS) + 10
    assert line_end(CharTokenizer("\nab")) == 9
    assert line_end(WordTokenizer(["<eos>", "a"], eos=True, lower=False)) == 0
    assert line_end(WordTokenizer(["a"], eos=False, lower=False)) is None
    assert line_end(SentencePieceTokenizer(spiece.read_bytes())) is None
