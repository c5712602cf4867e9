"""What a vocabulary is trained on, how large it may be, and what it leaves out."""

import random
import time
from collections.abc import Iterable
from pathlib import Path

import corpora
import numpy as np
import pytest
from corpora import write_lines
from prepared import built, refused

from xltrain.data import subwords
from xltrain.data.sampling import draw
from xltrain.data.subwords import _Cut


def test_a_vocabulary_larger_than_the_text_allows_names_the_largest(corpus: corpora.Corpus, tmp_path: Path):
    for size in (8000, 32000):
        message = refused(corpus.train, tmp_path, vocab_size=size)
        assert message.startswith(f"tokenizer.vocab_size: {size:,} is more than this text allows: at most 659;")
    assert built(corpus.train, tmp_path, vocab_size=659).store.vocab_size == 659


def test_a_vocabulary_smaller_than_the_alphabet_names_the_smallest(corpus: corpora.Corpus, tmp_path: Path):
    message = refused(corpus.train, tmp_path, vocab_size=12)
    assert message.startswith("tokenizer.vocab_size: 12 is too small for the characters of this text: at least ")
    smallest = int(message.split("at least ")[1].split(";")[0].replace(",", ""))
    assert built(corpus.train, tmp_path, vocab_size=smallest).store.vocab_size == smallest


def test_a_byte_pair_vocabulary_too_large_is_refused_the_same_way(tmp_path: Path):
    train = write_lines(tmp_path / "t.txt", ["ab ab abc", "abc ab"] * 20)
    message = refused(train, tmp_path, vocab_size=300, model_type="bpe")
    assert message.startswith("tokenizer.vocab_size: 300 is more than this text allows: at most ")


@pytest.mark.parametrize(("among_others", "vocab_size"), [(True, 800), (False, 480)])
def test_lines_too_long_for_sentencepiece_still_teach_it_their_characters(
    corpus: corpora.Corpus, tmp_path: Path, among_others: bool, vocab_size: int
):
    lines = corpora.chinese_lines(200, 2000)
    if among_others:
        lines += corpus.train.read_text(encoding="utf-8").splitlines()
    store = built(write_lines(tmp_path / "long.txt", lines), tmp_path, vocab_size=vocab_size).store
    counts = store.manifest["splits"]["train"]
    assert counts["unknown"] / counts["tokens"] < 0.001


def test_coverage_leaves_out_rare_characters_and_says_how_many_tokens_that_makes_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    lines = corpora.chinese_lines(100, 30, alphabet=60)
    train = write_lines(tmp_path / "train.txt", lines)
    other = [line[:-1] + chr(0x5000 + number) for number, line in enumerate(lines)]
    valid = write_lines(tmp_path / "valid.txt", other)
    store = built(train, tmp_path, valid=valid, vocab_size=90).store
    rates = {name: found["unknown"] / found["tokens"] for name, found in store.manifest["splits"].items()}
    assert rates["validation"] > 0.03 > rates["train"]
    warnings = [line for line in capsys.readouterr().err.splitlines() if "WARNING" in line]
    assert len(warnings) == 1
    assert f"corpus.validation: {rates['validation']:.1%} of the tokens are <unk>" in warnings[0]


def test_training_twice_gives_the_same_vocabulary(corpus: corpora.Corpus, tmp_path: Path):
    one, two = (built(corpus.train, tmp_path / name).store for name in ("one", "two"))
    assert (one.folder / "spiece.model").read_bytes() == (two.folder / "spiece.model").read_bytes()


# --- what a vocabulary is trained on


def test_the_log_says_what_the_vocabulary_is_trained_on(
    corpus: corpora.Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    store = built(corpus.train, tmp_path, max_sentences=1000, vocab_size=300).store
    log = capsys.readouterr().err
    training = store.manifest["training"]
    assert (training["sentences"], training["available_sentences"]) == (1000, 3000)
    said = "training a sentencepiece vocabulary of 300 pieces on 1,000 of 3,000 lines, drawn at random "
    assert said + "(tokenizer.max_sentences allows more)" in log
    built(write_lines(tmp_path / "long.txt", corpora.chinese_lines(3, 2000, alphabet=40)), tmp_path, vocab_size=51)
    log = capsys.readouterr().err
    assert "on 6 of 6 lines; 6 of these are parts of lines that are longer than 4,000 bytes" in log


def test_a_sample_for_the_vocabulary_is_bounded_in_characters(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subwords, "_SMALL_SAMPLE", 100)  # of 40 characters each
    for most, used in ((50, 50), (100, 67), (200, 135), (300, 200)):
        tokenizer = subwords.train_sentencepiece(
            ["ab cd " * 10] * 200,  # 59 characters without the space at the end
            vocab_size=14,
            model_type="unigram",
            character_coverage=1.0,
            normalization="nmt_nfkc",
            user_defined_symbols=["<eop>"],
            max_sentences=most,
        )
        assert tokenizer.training["sentences"] == used


def test_training_does_not_stay_silent(
    corpus: corpora.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("xltrain.console.SECONDS_BETWEEN_LINES", 0.01)
    built(corpus.train, tmp_path)
    assert "of 3,000 lines: 0s so far" in capsys.readouterr().err


def test_characters_that_coverage_drops_are_counted_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lines = corpora.chinese_lines(400, 400, alphabet=300)
    for number in range(60):  # characters that occur once each
        lines[number] += chr(0x6000 + number)
    train = write_lines(tmp_path / "train.txt", lines)
    store = built(train, tmp_path, vocab_size=350, character_coverage=0.9995).store
    occurring = set("".join(lines))
    spelled = {store.tokenizer().piece(number) for number in range(store.vocab_size)}
    dropped = {character for character in occurring if character not in "".join(spelled)}
    assert {chr(0x6000 + number) for number in range(60)} <= dropped
    training = store.manifest["training"]
    assert training["dropped_characters"] == len(dropped)
    assert training["dropped_occurrences"] == sum("".join(lines).count(character) for character in dropped)
    assert f"tokenizer.character_coverage 0.9995 drops {len(dropped)} of the {len(occurring)} characters" in (
        capsys.readouterr().err
    )
    whole = built(train, tmp_path, vocab_size=400, character_coverage=1.0).store.manifest["training"]
    assert (whole["dropped_characters"], whole["dropped_occurrences"]) == (0, 0)


@pytest.mark.parametrize(("kind", "unit"), [("char", "characters"), ("word", "words")])
def test_what_a_smaller_vocabulary_lacks_is_counted(tmp_path: Path, kind: str, unit: str):
    train = write_lines(tmp_path / "t.txt", ["a a a b b c d"])
    size = {"char": 9 + 3, "word": 1 + 2 + 1}[kind]
    training = built(train, tmp_path, kind=kind, vocab_size=size).store.manifest["training"]
    assert training[unit] == {"char": 6, "word": 4}[kind]
    assert training[f"dropped_{unit}"] == {"char": 3, "word": 2}[kind]
    assert training["dropped_occurrences"] == {"char": 3, "word": 2}[kind]


def test_another_validation_text_trains_no_tokenizer(
    corpus: corpora.Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    first = built(corpus.train, tmp_path).store
    assert "training a sentencepiece vocabulary" in capsys.readouterr().err
    second = built(corpus.train, tmp_path, valid=corpus.valid).store
    said = capsys.readouterr().err
    assert f"using the tokenizer of {first.folder}, which has the same training text and settings" in said
    assert "training a sentencepiece vocabulary" not in said
    assert second.folder != first.folder
    assert second.tokenizer().files() == first.tokenizer().files()
    assert second.manifest["training"] == first.manifest["training"]
    built(corpus.train, tmp_path, valid=corpus.valid, vocab_size=400)
    assert "training a sentencepiece vocabulary of 400" in capsys.readouterr().err
    for store in (first, second):  # whose model is another one now
        (store.folder / "spiece.model").write_bytes(b"\x0a\x02ab")
    test = write_lines(tmp_path / "test.txt", ["Bada kile mo."] * 9)
    built(corpus.train, tmp_path, valid=test)
    assert "training a sentencepiece vocabulary of 500" in capsys.readouterr().err


def test_a_text_that_spells_unk_is_told_why_its_brackets_are_lost_once(
    corpus: corpora.Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = corpus.train.read_text(encoding="utf-8").splitlines()[:400]
    train = write_lines(tmp_path / "train.txt", [f"<unk> {line}" for line in words])
    store = built(train, tmp_path, vocab_size=200).store
    said = capsys.readouterr().err
    assert "; the text spells <unk>, from which sentencepiece learns nothing: to keep < and >, add them" in said
    assert "WARNING: corpus.train: " in said
    assert built(train, tmp_path, vocab_size=200).reused
    assert capsys.readouterr().err.count("WARNING: corpus.train: ") == 1  # whoever trains on it may not have made it
    model = store.folder / "spiece.model"
    built(train, tmp_path, path=str(model), vocab_size=None)
    assert f"are <unk>: it has characters that the vocabulary of {model} lacks\n" in capsys.readouterr().err


# --- long lines in vocabulary training


def cut_sentences(lines: Iterable[str]) -> list[str]:
    return list(_Cut().sentences(lines))


def test_long_lines_are_cut_at_spaces_and_nothing_is_lost():
    draw = random.Random(5)
    words = ["".join(draw.choices("abcdé語", k=draw.randint(1, 30))) for _ in range(5_000)]
    pieces = cut_sentences([" ".join(words), "short\n", "  \n"])
    assert max(len(piece.encode("utf-8")) for piece in pieces) <= 4_000
    assert pieces[-1] == "short"
    assert " ".join(pieces[:-1]).split() == words


def test_long_lines_without_spaces_are_cut_between_characters():
    line = "".join(corpora.chinese_lines(1, 10_000))
    pieces = cut_sentences([line])
    assert max(len(piece.encode("utf-8")) for piece in pieces) <= 4_000
    assert "".join(pieces) == line


def test_a_very_long_line_takes_time_in_proportion_to_its_length():
    def seconds(length: int) -> float:
        line = "word " * (length // 5)
        begin = time.perf_counter()
        assert sum(len(piece) + 1 for piece in cut_sentences([line])) == length
        return time.perf_counter() - begin

    seconds(100_000)
    assert min(seconds(8_000_000) for _ in range(3)) < 40 * max(min(seconds(400_000) for _ in range(3)), 1e-3)


# --- the sample that a vocabulary is trained on


def test_a_sample_is_bounded_in_lines_and_characters_and_keeps_the_order():
    lines = [f"{number:05d}" * (1 + number % 3) for number in range(20_000)]
    assert draw(lines, most=20_000, most_characters=10**9).sentences == lines
    for most, most_characters in ((100, 10**9), (10**9, 1_000), (100, 400)):
        sample = draw(lines, most=most, most_characters=most_characters)
        assert (sample.seen, sample.seen_characters) == (20_000, sum(map(len, lines)))
        assert len(sample.sentences) <= most
        assert sum(map(len, sample.sentences)) <= most_characters
        assert len(sample.sentences) == 100 or sum(map(len, sample.sentences)) > most_characters - 40
        assert sample.sentences == sorted(sample.sentences)
        assert sample == draw(lines, most=most, most_characters=most_characters)


def test_every_sentence_is_as_likely_to_be_drawn_as_any_other():
    chosen = np.zeros(50)
    for seed in range(2_000):
        for sentence in draw(
            [str(number).zfill(2) for number in range(50)], most=5, most_characters=99, seed=seed
        ).sentences:
            chosen[int(sentence)] += 1
    assert abs(chosen - 200).max() < 6 * np.sqrt(200 * 0.9)  # six standard deviations
