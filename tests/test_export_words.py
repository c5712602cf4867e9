"""A word vocabulary exported: transformers cuts text as training did."""

from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st
from transformers import AutoTokenizer

from xltrain.data.words import WordTokenizer, train_words
from xltrain.interop.tokenizer import tokenizer_files

TEXT = "the cat sat <unk> on the mat\n\nThe dog\u3000saw\x1cthe\u00a0cat .\n"


def exported(tokenizer: WordTokenizer, folder: Path):
    for name, data in tokenizer_files(tokenizer).items():
        (folder / name).write_bytes(data)
    return AutoTokenizer.from_pretrained(folder)


WORDS = ["the", "The", "CAT", "cat", "<unk>", "zebra", "."]
SPACES = [" ", "  ", "\t", "\n", "\n\n", "\x1c", "\x1f", "\x85", "\u00a0", "\u2028", "\u3000", " \n "]


@pytest.fixture(scope="module", params=[(True, False), (True, True), (False, False)], ids=["eos", "lower", "neither"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    eos, lower = request.param
    ours = train_words(TEXT.splitlines(keepends=True), vocab_size=None, eos=eos, lower=lower)
    return ours, exported(ours, tmp_path_factory.mktemp("words"))


@hypothesis.given(
    parts=st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(SPACES)), max_size=12),
    first=st.sampled_from(["", *SPACES]),
)
def test_ids_are_those_of_training(both, parts: list[tuple[str, str]], first: str):
    ours, theirs = both
    text = first + "".join(word + space for word, space in parts)
    lines = [line + "\n" for line in text.split("\n")[:-1]]  # whole lines, as files have them
    expected = [number for ids in ours.encode(lines) for number in ids]
    assert theirs("".join(lines), add_special_tokens=False)["input_ids"] == expected


def test_special_words_have_their_roles_and_text_comes_back(tmp_path: Path):
    ours = train_words(TEXT.splitlines(keepends=True), vocab_size=None, eos=True, lower=False)
    theirs = exported(ours, tmp_path)
    assert (theirs.unk_token, theirs.eos_token, len(theirs)) == ("<unk>", "<eos>", ours.vocab_size)
    ids = theirs("the cat\nsat zebra\n", add_special_tokens=False)["input_ids"]
    assert theirs.decode(ids) == "the cat\nsat <unk>\n"


def test_without_unk_an_unknown_word_is_refused_there_too(tmp_path: Path):
    ours = train_words(["a b\n"], vocab_size=None, eos=True, lower=False)
    theirs = exported(ours, tmp_path)
    with pytest.raises(Exception, match=r"unk|UNK"):
        theirs("zebra")
