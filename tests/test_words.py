"""Word vocabularies: counted with cuts by frequency, or read from a file."""

import json
from pathlib import Path
from typing import Any

import corpora
import pytest
from corpora import write

from xltrain.data.kinds import read_tokenizer
from xltrain.data.prepare import corpus_sources, fingerprints, marks_of, prepare
from xltrain.data.words import WordTokenizer, train_words
from xltrain.errors import UsageError

LINES = ["the cat the dog\n", "The <unk> cat\n"]


def words(**options: Any) -> list[str]:
    return train_words(LINES, **({"vocab_size": None, "eos": True, "lower": False} | options)).words


def test_rare_words_become_unknown():
    assert words() == ["<eos>", "the", "cat", "dog", "The", "<unk>"]
    assert words(min_count=2) == ["<eos>", "the", "cat", "<unk>"]
    assert words(min_count=2, lower=True, eos=False) == ["the", "cat", "<unk>"]
    assert words(min_count=2, vocab_size=3) == ["<eos>", "the", "<unk>"]
    assert words(min_count=1) == words()
    tokenizer = train_words(LINES, vocab_size=None, eos=True, lower=False, min_count=2)
    assert tokenizer.encode(["the dog"]) == [[1, 3, 0]]
    assert tokenizer.training["dropped_words"] == 2
    with pytest.raises(UsageError, match=r"tokenizer\.vocab_size: 9 is more than this text allows: at most 4 words"):
        words(min_count=2, vocab_size=9)


def test_a_word_that_is_not_known_is_refused_by_the_text_that_has_it(tmp_path: Path, cli: Any):
    train, long = write(tmp_path / "t.txt", "the cat\n" * 9), "x" * 3_000
    for word, shown in (("dog", "'dog'"), (long, f"that begins '{'x' * 40}'")):
        valid = write(tmp_path / "v.txt", f"the {word}\n")
        config = corpora.config_file(
            tmp_path, train, corpus={"validation": [str(valid)]}, tokenizer={"kind": "word", "vocab_size": None}
        )
        said = cli("prepare", config).sentence()
        assert said.startswith(
            f"corpus.validation: the word {shown} is not in the vocabulary, which has no <unk>; leave rare"
        )


def test_who_uses_a_trained_model_is_told_which_words_it_has():
    """Not how to train another one. Of words that differ in case only, the most frequent one is named."""
    tokenizer = WordTokenizer(["<eos>", "the", "winter", "Winter", "hunter", "cat"], eos=True, lower=False)
    told = "^the word {} is not in the vocabulary, which has no <unk>; use words of the training text{}$"
    for word, shown, alike in (
        ("WINTER", "'WINTER'", ", such as 'winter' or 'hunter'"),
        ("wimter", "'wimter'", ", such as 'winter'"),
        ("quixotic", "'quixotic'", ""),
        ("x" * 3_000, f"that begins '{'x' * 40}'", ""),
    ):
        with pytest.raises(UsageError, match=told.format(shown, alike)):
            tokenizer.encode([f"the cat {word}"])


def test_the_words_of_a_prompt_and_of_other_texts_are_told_the_same_way(tmp_path: Path, cli: Any):
    train = write(tmp_path / "t.txt", "the cat sat on the mat and saw the dog\n" * 40)
    words = {"kind": "word", "vocab_size": None}
    config = corpora.config_file(tmp_path, train, tokenizer=words, objective={"name": "causal"})
    assert cli("pretrain", config, "--set", "training.max_steps=1").status == 0
    told = "the word 'cats' is not in the vocabulary, which has no <unk>; use words of the training text, such as 'cat'"
    other = write(tmp_path / "other.txt", "the cats\n")
    assert cli("generate", tmp_path / "run", "the cats").sentence() == told
    assert cli("score", tmp_path / "run", other).sentence() == f"line 1: {told}"
    assert cli("eval-ppl", tmp_path / "run", "--data", other).sentence() == f"--data: {told}"


def test_text_without_spaces_is_told_to_have_no_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    told = "WARNING: corpus.train: between spaces, this text has 30 characters on average"
    for kind, expected in (("word", True), ("char", False)):
        path = write(tmp_path / "zh.txt", "".join(line + "\n" for line in corpora.chinese_lines(40, 29)))
        prepare(corpora.config_for(path, tmp_path, tokenizer={"kind": kind, "vocab_size": None}))
        assert (told in capsys.readouterr().err) == expected


def test_a_vocabulary_without_any_word_is_refused():
    for size in (1, 2):
        with pytest.raises(
            UsageError, match=rf"{size} leaves no room for words beside <eos> and <unk>; allow at least 3"
        ):
            words(vocab_size=size)
    with pytest.raises(UsageError, match="1 leaves no room for words beside <unk>; allow at least 2"):
        words(vocab_size=1, eos=False)
    with pytest.raises(
        UsageError, match="min_count: no word of this text occurs 3 times, the most frequent one 2 times"
    ):
        words(min_count=3)


def test_a_list_may_begin_with_a_brace(tmp_path: Path):
    for first in ("{", "{ 17", '{"', "{}"):
        listed = write(tmp_path / "vocab.txt", f"{first}\n}}\nfor\n")
        assert read_tokenizer(listed, kind="word", eos=False).encode([f"for }} {first.split()[0]}"]) == [[2, 1, 0]]


def test_a_list_of_words_is_a_vocabulary(tmp_path: Path):
    listed = write(tmp_path / "vocab.txt", "\ufeffthe 17\r\ncat\n\n<UNK> 3\n")
    tokenizer = read_tokenizer(listed, kind="word")
    assert [tokenizer.piece(number) for number in range(4)] == ["<eos>", "the", "cat", "<UNK>"]
    assert tokenizer.encode(["the dog cat"]) == [[1, 3, 2, 0]]
    plain = read_tokenizer(listed, kind="word", eos=False, lower=True)
    assert plain.encode(["THE cat"]) == [[0, 1]]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "it holds no word; it has one word per line"),
        ("a\nb\na\n", "it lists 'a' twice; it has one word per line"),
        (b"a\n\xff\n", "not UTF-8 text (byte 2)"),
        ("{}", "it holds eos, lower and words"),
        ('{"eos": false, "lower": false, "words": "ab"}', "it holds eos, lower and words"),
        ('{"eos": false, "lower": false, "words": ["a", 3]}', "it holds eos, lower and words"),
        ('{"eos": false, "lower": false, "words": ["a", "b", "a"]}', "it lists 'a' twice"),
        ('{"eos": true, "lower": false, "words": ["a", "<unk>"]}', "it has eos, and no word <eos>"),
    ],
)
def test_a_file_that_is_no_list_of_words_is_refused(tmp_path: Path, content: str | bytes, said: str):
    path = write(tmp_path / "vocab.txt", content)
    with pytest.raises(UsageError) as caught:
        read_tokenizer(path, kind="word")
    assert str(caught.value).startswith(f"{path}: not a word vocabulary")
    assert said in str(caught.value)


def test_a_store_is_named_after_the_list_and_how_it_is_used(tmp_path: Path):
    train = write(tmp_path / "t.txt", "the cat\n")
    names = set()
    for content, options in (("the\ncat\n", {}), ("cat\nthe\n", {}), ("the\ncat\n", {"eos": False})):
        path = write(tmp_path / "vocab.txt", content)
        config = corpora.config_for(
            train, tmp_path, tokenizer={"kind": "word", "vocab_size": None, "path": str(path)} | options
        )
        names.add(fingerprints(config, marks_of(corpus_sources(config)))["fingerprint"])
        store = prepare(config).store
        kept = json.loads((store.folder / "words.json").read_text())
        assert kept["eos"] == options.get("eos", True)
        assert store.split("train").num_tokens == 2 + kept["eos"]
    assert len(names) == 3
    counted = [
        corpora.config_for(train, tmp_path, tokenizer={"kind": "word", "vocab_size": None, "min_count": count})
        for count in (1, 2)
    ]
    assert len({fingerprints(config, marks_of(corpus_sources(config)))["fingerprint"] for config in counted}) == 2
