"""A word vocabulary exported: transformers cuts text as training did."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from commands import Outcome
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

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


@pytest.mark.parametrize(("eos", "min_count", "padding"), [(True, 1, "<eos>"), (False, 2, "<unk>"), (False, 1, None)])
def test_shorter_texts_of_a_batch_are_padded_on_the_left(
    tmp_path: Path, eos: bool, min_count: int, padding: str | None
):
    """With a symbol that is in the vocabulary already: the model has a row for each of its words and no more."""
    lines = ["a b\n", "a b c\n"]
    ours = train_words(lines, vocab_size=None, eos=eos, lower=False, min_count=min_count)
    theirs = exported(ours, tmp_path)
    assert (theirs.pad_token, len(theirs)) == (padding, ours.vocab_size)
    if padding is None:
        return
    batch = theirs(["a", "a b a"], padding=True)
    (fill,) = ours.encode([""]) if padding == "<eos>" else ours.encode(["c"])
    assert batch["input_ids"][0] == [*fill, *fill, *theirs("a")["input_ids"]]
    assert batch["attention_mask"] == [[0, 0, 1], [1, 1, 1]]


def test_a_padded_batch_is_continued_as_each_of_its_texts_alone(
    train: Callable[..., Path], cli: Callable[..., Outcome], tmp_path: Path
):
    run = train(
        objective={"name": "causal"}, tokenizer={"kind": "word", "vocab_size": 100}, model={"init": {"std": 1.0}}
    )
    done = cli("export-checkpoint", run, tmp_path / "out", "--format", "remote-code")
    assert done.status == 0, done.err
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out", trust_remote_code=True)
    known = [word for word in tokenizer.get_vocab() if word.isalpha()]
    texts = [" ".join(known[:3]), " ".join(known[3:10])]
    options = {"max_new_tokens": 8, "do_sample": False}

    def continued(texts: list[str]) -> list[list[int]]:
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        return model.generate(**batch, **options)[:, batch["input_ids"].shape[1] :].tolist()

    alone = [continued([text])[0] for text in texts]
    assert continued(texts) == alone
    assert alone[0] != alone[1]
