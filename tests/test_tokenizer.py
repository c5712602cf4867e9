"""Text to ids: vocabularies as XLNet has them, and text that must not become a control symbol."""

import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import pytest
import sentencepiece

from xltrain.data import subwords
from xltrain.data.kinds import load_tokenizer, read_tokenizer
from xltrain.data.prepare import Prepared, prepare
from xltrain.data.subwords import _Cut
from xltrain.data.tokenizer import (
    CONTROLS,
    SPECIALS,
    CharTokenizer,
    Tokenizer,
    never_target,
    starts_word,
    train_characters,
)
from xltrain.errors import UsageError


def written(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def built(train: Path, folder: Path, valid: Path | None = None, **tokenizer: object) -> Prepared:
    splits = {} if valid is None else {"validation": [str(valid)]}
    return prepare(corpora.config_for(train, folder, corpus=splits, tokenizer=tokenizer))


def refused(train: Path, folder: Path, **tokenizer: object) -> str:
    with pytest.raises(UsageError) as caught:
        built(train, folder, **tokenizer)
    assert list((folder / "cache").iterdir()) == []
    assert "\n" not in str(caught.value)
    return str(caught.value)


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
    train = written(tmp_path / "long.txt", [line])
    store = built(train, tmp_path, path=str(spiece)).store
    raw = sentencepiece.SentencePieceProcessor(model_file=str(spiece))
    assert store.split("train").tokens.tolist() == [*raw.encode(line), 7]


def test_text_that_looks_like_a_control_symbol_is_text(corpus: corpora.Corpus, tmp_path: Path):
    lines = corpus.train.read_text(encoding="utf-8").splitlines()
    for number in range(50):
        lines[number * 60 + 3] += " a <mask> b <eod> c <unk> </s> <cls> <pad> <sep> <s>"
    for kind, size in (("sentencepiece", 500), ("char", None)):
        store = built(written(tmp_path / "looks.txt", lines), tmp_path / kind, kind=kind, vocab_size=size).store
        tokens = store.split("train").tokens
        occurrences = np.bincount(tokens, minlength=store.vocab_size)[:8]
        assert occurrences[7] == 60
        assert occurrences[1:7].sum() == 0
        assert store.split("train").tokens[store.split("train").ends - 1].tolist() == [7] * 60


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
    train = written(tmp_path / "t.txt", ["ab ab abc", "abc ab"] * 20)
    message = refused(train, tmp_path, vocab_size=300, model_type="bpe")
    assert message.startswith("tokenizer.vocab_size: 300 is more than this text allows: at most ")


@pytest.mark.parametrize(("among_others", "vocab_size"), [(True, 800), (False, 480)])
def test_lines_too_long_for_sentencepiece_still_teach_it_their_characters(
    corpus: corpora.Corpus, tmp_path: Path, among_others: bool, vocab_size: int
):
    lines = corpora.chinese_lines(200, 2000)
    if among_others:
        lines += corpus.train.read_text(encoding="utf-8").splitlines()
    store = built(written(tmp_path / "long.txt", lines), tmp_path, vocab_size=vocab_size).store
    counts = store.manifest["splits"]["train"]
    assert counts["unknown"] / counts["tokens"] < 0.001


def test_coverage_leaves_out_rare_characters_and_says_how_many_tokens_that_makes_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    lines = corpora.chinese_lines(100, 30, alphabet=60)
    train = written(tmp_path / "train.txt", lines)
    other = [line[:-1] + chr(0x5000 + number) for number, line in enumerate(lines)]
    valid = written(tmp_path / "valid.txt", other)
    store = built(train, tmp_path, valid=valid, vocab_size=90).store
    rates = {name: found["unknown"] / found["tokens"] for name, found in store.manifest["splits"].items()}
    assert rates["validation"] > 0.03 > rates["train"]
    warnings = [line for line in capsys.readouterr().err.splitlines() if "WARNING" in line]
    assert len(warnings) == 1
    assert f"corpus.validation: {rates['validation']:.1%} of the tokens are <unk>" in warnings[0]


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
    built(written(tmp_path / "long.txt", corpora.chinese_lines(3, 2000, alphabet=40)), tmp_path, vocab_size=51)
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
    train = written(tmp_path / "train.txt", lines)
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
    train = written(tmp_path / "t.txt", ["a a a b b c d"])
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
    test = written(tmp_path / "test.txt", ["Bada kile mo."] * 9)
    built(corpus.train, tmp_path, valid=test)
    assert "training a sentencepiece vocabulary of 500" in capsys.readouterr().err


def test_a_text_that_spells_unk_is_told_why_its_brackets_are_lost_once(
    corpus: corpora.Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = corpus.train.read_text(encoding="utf-8").splitlines()[:400]
    train = written(tmp_path / "train.txt", [f"<unk> {line}" for line in words])
    store = built(train, tmp_path, vocab_size=200).store
    said = capsys.readouterr().err
    assert "; the text spells <unk>, from which sentencepiece learns nothing: to keep < and >, add them" in said
    assert "WARNING: corpus.train: " in said
    assert built(train, tmp_path, vocab_size=200).reused
    assert capsys.readouterr().err.count("WARNING: corpus.train: ") == 1  # whoever trains on it may not have made it
    model = store.folder / "spiece.model"
    built(train, tmp_path, path=str(model), vocab_size=None)
    assert f"are <unk>: it has characters that the vocabulary of {model} lacks\n" in capsys.readouterr().err


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


# --- characters


def test_characters_are_numbered_by_code_point_after_the_special_pieces():
    tokenizer = train_characters(["ba\n", "ab c語\n"], vocab_size=None)
    assert tokenizer.alphabet == "\n abc語"
    assert tokenizer.vocab_size == 15
    assert tokenizer.encode(["cab\n", "x語"]) == [[13, 11, 12, 9], [0, 14]]
    assert tokenizer.decode([13, 11, 9]) == "ca\n"
    assert [tokenizer.piece(number) for number in (0, 7, 9)] == ["<unk>", "<eod>", "\n"]


def test_characters_include_line_ends_but_not_where_each_line_is_a_document(tmp_path: Path):
    train = written(tmp_path / "t.txt", ["ab", "ba", "", "aa"])
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
    train = written(tmp_path / "train.txt", ["abcdef" * 20] * 20)
    valid = written(tmp_path / "valid.txt", ["xyz" * 20] * 20)
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
    train = written(tmp_path / "t.txt", corpora.chinese_lines(60, 40, alphabet=30))
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
    tokenizer = built(written(tmp_path / "t.txt", lines), tmp_path, **options).store.tokenizer()
    assert [tokenizer.decode(ids) for ids in tokenizer.encode(lines)] == lines
