"""Scores of texts: the same as token by token, whatever the batch; and what stands at the border of a context."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import pytest
import torch
from loaded import T, loaded, next_log_probs

from xltrain.data.prepare import corpus_sources, make_tokenizer
from xltrain.data.tokenizer import SPECIALS, CharTokenizer, SentencePieceTokenizer
from xltrain.data.words import WordTokenizer
from xltrain.errors import UsageError
from xltrain.evaluation.loading import Loaded, read_text
from xltrain.evaluation.score import Scorer
from xltrain.evaluation.texts import Encoder, Given

Cli = Callable[..., Any]

EOD, MASK = SPECIALS.index("<eod>"), SPECIALS.index("<mask>")
OBJECTIVES = ("causal", "permutation", "seq2seq", "masked")


def texts(*lengths: tuple[int, int], seed: int = 0) -> list[Given]:
    draw = np.random.default_rng(seed)
    return [Given(draw.integers(9, 17, one).tolist(), draw.integers(9, 17, two).tolist()) for one, two in lengths]


def scores(model: Loaded, given: list[Given], *, batch_size: int = 3, mem_len: int = 40) -> list[np.ndarray]:
    return list(Scorer(model, seq_len=T, mem_len=mem_len, batch_size=batch_size).score(given))


VARIOUS = texts((1, 5), (3, 0), (20, 30), (1, T), (1, T + 1), (70, 3), (2, 100), (0, 4), (1, 1), (5, 12), (0, 0))


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("mem_len", [0, 10, 40])
def test_how_many_texts_are_read_at_once_changes_nothing(objective: str, mem_len: int):
    model = loaded(objective)
    alone = scores(model, VARIOUS, batch_size=1, mem_len=mem_len)
    assert [len(found) for found in alone] == [len(given.text) for given in VARIOUS]
    for batch_size in (3, 8):
        for one, many in zip(alone, scores(model, VARIOUS, batch_size=batch_size, mem_len=mem_len), strict=True):
            np.testing.assert_allclose(many, one, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_zeros_that_a_memory_begins_with_are_as_many_in_every_batch(objective: str):
    model = loaded(objective, segments={"initial_memory": "zeros"})
    alone, many = (scores(model, VARIOUS, batch_size=size) for size in (1, 8))
    for one, other in zip(alone, many, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-6)
    fewer = scores(model, VARIOUS, mem_len=10)
    assert not np.allclose(fewer[0], alone[0], atol=1e-3)  # zeros are seen, so a text's scores depend on their number


@pytest.mark.parametrize("same_length", [False, True])
def test_a_window_of_same_length_is_the_same_in_every_batch(same_length: bool):
    model = loaded(model={"same_length": same_length})
    alone, many = (scores(model, VARIOUS, batch_size=size, mem_len=12) for size in (1, 8))
    for one, other in zip(alone, many, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("objective", ["causal", "permutation"])
def test_a_score_is_what_the_model_says_token_by_token(objective: str):
    model = loaded(objective)
    for given in VARIOUS[:7]:
        row = given.context + given.text
        [found] = scores(model, [given], mem_len=200)
        for place in range(len(given.context), len(row)):
            expected = next_log_probs(model, row[:place])[row[place]]
            assert found[place - len(given.context)] == pytest.approx(expected, abs=1e-5)


def test_the_source_of_a_seq2seq_model_sees_itself_from_both_sides():
    model = loaded("seq2seq")
    [given] = texts((6, 8))
    [found] = scores(model, [given])
    row = given.context + given.text
    expected = [next_log_probs(model, row[:place], source=6)[row[place]] for place in range(6, 14)]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    causally = [next_log_probs(model, row[:place])[row[place]] for place in range(6, 14)]
    assert not np.allclose(found, causally, atol=1e-3)


def test_a_masked_models_score_hides_one_token_at_a_time():
    model = loaded("masked")
    [given] = texts((4, 9))
    [found] = scores(model, [given])
    row = given.context + given.text
    for place in range(4, 13):
        shown = torch.tensor([[*row[:place], MASK, *row[place + 1 :]]])
        with torch.no_grad():
            nll, _ = model.model(
                shown,
                torch.zeros_like(shown),
                torch.tensor([[row[place]]]),
                model.model.empty_memory(rows=1, mem_len=0),
                predict=torch.tensor([[place]]),
            )
        assert found[place - 4] == pytest.approx(-float(nll), abs=1e-5)


def test_what_a_text_is_given_adds_up():
    model = loaded()
    whole = texts((1, 60))[0]
    [all_of_it] = scores(model, [whole])
    [beginning] = scores(model, [Given(whole.context, whole.text[:25])])
    [rest] = scores(model, [Given(whole.context + whole.text[:25], whole.text[25:])])
    np.testing.assert_allclose(np.concatenate([beginning, rest]), all_of_it, atol=1e-6)


def test_without_anything_before_it_a_first_token_has_no_score():
    for objective in ("causal", "permutation", "seq2seq"):
        [found] = scores(loaded(objective), texts((0, 4)))
        assert np.isnan(found).tolist() == [True, False, False, False]
    assert not np.isnan(scores(loaded("masked"), texts((0, 4)))[0]).any()


def test_texts_longer_than_a_segment_are_scored_to_the_end_with_memory():
    model = loaded()
    [given] = texts((1, 10 * T))
    with_memory, without = (scores(model, [given], mem_len=mem_len)[0] for mem_len in (40, 0))
    assert not np.isnan(with_memory).any()
    np.testing.assert_allclose(with_memory[:T], without[:T], atol=1e-6)
    assert not np.allclose(with_memory[T:], without[T:], atol=1e-3)


@pytest.mark.parametrize("objective", ["permutation", "masked"])
def test_control_symbols_have_no_score_where_training_never_asks_for_them(objective: str):
    given = Given([9, 10], [11, EOD, 12])
    assert np.isnan(scores(loaded(objective), [given])[0]).tolist() == [False, True, False]
    assert not np.isnan(scores(loaded("causal"), [given])[0]).any()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_documents_that_are_kept_apart_do_not_see_one_another(objective: str):
    def of_second(model: Loaded, before: list[int]) -> np.ndarray:
        return scores(model, [Given([], [*before, EOD, *second.text])])[0][21:]

    first, other, second = texts((0, 20), (0, 20), (0, 30))
    apart = loaded(objective, segments={"cross_documents": False})
    found = of_second(apart, first.text)
    np.testing.assert_allclose(found, of_second(apart, other.text), atol=1e-6)
    assert np.isnan(found).tolist() == [objective != "masked"] + [False] * 29  # a first token follows nothing
    joined = loaded(objective)
    assert not np.allclose(of_second(joined, first.text), of_second(joined, other.text), atol=1e-3)


# --- text as ids


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


# --- the command


def lines_of(outcome: Any) -> list[dict[str, Any]]:
    assert outcome.status == 0, outcome.err
    return [json.loads(line) for line in outcome.out.splitlines()]


def test_lines_are_answered_in_their_order_and_batches_change_nothing(finished: Any, cli: Cli, tmp_path: Path):
    source = tmp_path / "lines.txt"
    lines = corpora.write_text(tmp_path / "text.txt", lines=70, seed=5).read_text().replace("\n\n", "\n").splitlines()
    source.write_text("\n".join([*lines[:20], "", " ".join(lines[20:60])]) + "\n")
    found = [lines_of(cli("score", finished[0] / "run", source, "--batch-size", size)) for size in (1, 3, 8)]
    assert [one["line"] for one in found[0]] == list(range(1, 23))
    assert (found[0][20]["tokens"], found[0][20]["log_prob"]) == (0, 0.0)
    assert found[0][21]["tokens"] > 300
    for other in found[1:]:
        assert [one["tokens"] for one in other] == [one["tokens"] for one in found[0]]
        for one, two in zip(found[0], other, strict=True):
            assert two["log_prob"] == pytest.approx(one["log_prob"], rel=1e-6)


def test_documents_on_lines_of_their_own_score_what_eval_ppl_says(finished: Any, cli: Cli, tmp_path: Path):
    run, text = finished[0] / "run", tmp_path / "one.txt"
    text.write_text(" ".join(corpora.write_text(tmp_path / "t.txt", lines=40, seed=5).read_text().split()) + "\n")
    expected = json.loads(cli("eval-ppl", run, "--data", text, "--mode", "document", "--json").out)
    [found] = lines_of(cli("score", run, text, "--end", "--no-start"))
    assert found["tokens"] == expected["targets"]
    assert found["log_prob"] == pytest.approx(-expected["nll"], rel=1e-6)


def test_json_lines_have_contexts_and_names(finished: Any, cli: Cli, tmp_path: Path):
    source = tmp_path / "lines.jsonl"
    rows = [{"context": "Bada kile", "text": " mo ta.", "id": 7}, {"text": "Bada kile mo ta."}, {"text": "Bada kile"}]
    source.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    given, whole, context = lines_of(cli("score", finished[0] / "run", source, "--per-token"))
    assert given["id"] == 7
    assert given["pieces"] == whole["pieces"][-len(given["pieces"]) :]
    assert given["log_prob"] == pytest.approx(sum(given["log_probs"]))
    assert given["log_prob"] + context["log_prob"] == pytest.approx(whole["log_prob"], rel=1e-6)


def test_what_is_conditioned_on_can_be_left_out(finished: Any, cli: Cli, tmp_path: Path):
    source = tmp_path / "a.txt"
    source.write_text("Bada kile mo.\n")
    run = finished[0] / "run"
    [started], [bare], [ended] = (lines_of(cli("score", run, source, *o)) for o in ([], ["--no-start"], ["--end"]))
    assert bare["tokens"] == started["tokens"] - 1
    assert ended["tokens"] == started["tokens"] + 1
    assert ended["log_prob"] < started["log_prob"]


def test_words_that_run_together_and_unknown_ones_are_warned_of(finished: Any, cli: Cli, tmp_path: Path):
    source = tmp_path / "a.jsonl"
    source.write_text('{"context": "Bada", "text": "kile"}\n{"text": "語料語料語料"}\n')
    outcome = cli("score", finished[0] / "run", source)
    assert "in 1 line the context ends and the text begins inside of a word" in outcome.err
    assert "of the tokens are <unk>" in outcome.err


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


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"text": "a"}\nno json\n', "line 2: not JSON ("),
        ('{"text": "a"}\n\n{"txt": "a"}\n', 'line 3: must be an object with a string "text"'),
        ('{"text": "a", "context": 3}\n', 'line 1: "context" must be a string, not 3'),
        ('{"text": "a\\ud800"}\n', "line 1: '\\ud800' is half of a character"),
        ('{"text": "a", "id": "\\ud800"}\n', 'line 1: "id" cannot be repeated in the answer ('),
        ('{"text": "a", "id": [NaN]}\n', 'line 1: "id" cannot be repeated in the answer ('),
        ('{"text": "a", "id": ' + "[" * 9000 + "]" * 9000 + "}\n", "line 1: not JSON ("),
        ('{"text": "a"}\n["a"]\n', 'line 2: must be an object with a string "text"'),
    ],
)
def test_a_line_that_is_no_item_is_named(finished: Any, cli: Cli, tmp_path: Path, content: str, said: str):
    source = tmp_path / "lines.jsonl"
    source.write_text(content)
    assert cli("score", finished[0] / "run", source).sentence().startswith(f"{source}, {said}")


def test_other_faults_of_score(finished: Any, cli: Cli, tmp_path: Path):
    run, source = finished[0] / "run", tmp_path / "a.txt"
    assert "cannot be read (No such file" in cli("score", run, source).sentence()
    source.write_bytes(b"good\nb\xe4d\n")
    said = cli("score", run, source).sentence()
    assert said.startswith(f"{source}, line 2: not UTF-8 text (byte 2 of the line is")
    assert "iconv -f ENCODING -t UTF-8" in said
    assert "iconv -f ENCODING -t UTF-8" in cli("generate", run, "--file", source).sentence()
    said = cli("eval-ppl", run, "--data", source).sentence()
    assert said.startswith(f"--data: {source}: not UTF-8 text (byte 6 is 0xe4); convert it with iconv -f ENCODING")
    assert cli("score", run, source, "--format", "csv").sentence().startswith("--format: 'csv' is not allowed")


def test_a_word_that_the_vocabulary_lacks_is_named_with_its_line(cli: Cli, tmp_path: Path):
    train, lines = tmp_path / "words.txt", tmp_path / "lines.txt"
    train.write_text("a b c d\nb c d a\n" * 100)
    lines.write_text("a b\nb x\n")
    config = corpora.config_file(
        tmp_path,
        train,
        tokenizer={"kind": "word", "vocab_size": None},
        objective={"name": "causal"},
        training={"max_steps": 1},
    )
    assert cli("pretrain", config).status == 0
    assert cli("score", tmp_path / "run", lines).sentence().startswith("line 2: the word 'x' is not in the vocabulary")
    lines.write_text("a b\n")
    assert [one["tokens"] for one in lines_of(cli("score", tmp_path / "run", lines, "--end"))] == [3]


def test_pairs_are_scored_as_they_are_evaluated(cli: Cli, tmp_path: Path):
    train = tmp_path / "pairs.tsv"
    words = corpora.vocabulary(60)
    train.write_text("".join(f"{words[i % 60]} {words[i * 7 % 60]}\t{words[i * 3 % 60]} mo\n" for i in range(300)))
    for number, positions in enumerate(("relative", "learned")):
        config = corpora.config_file(
            tmp_path,
            train,
            run={"output_dir": str(tmp_path / f"run{number}")},
            corpus={"document_separator": "two_columns", "validation": [str(train)]},
            tokenizer={"vocab_size": 80},
            objective={"name": "seq2seq"},
            segments={"mem_len": 0, "cross_documents": False, "seq_len": 32},
            model={"segment_embeddings": positions == "relative", "positions": positions},
            training={"max_steps": 20},
        )
        assert cli("pretrain", config).status == 0
        run = tmp_path / f"run{number}"
        expected = json.loads(cli("eval-ppl", run, "--json").out)
        found = lines_of(cli("score", run, train, "--end"))
        assert sum(one["tokens"] for one in found) == expected["targets"]
        assert math.fsum(one["log_prob"] for one in found) == pytest.approx(-expected["nll"], rel=1e-6)
    bad = tmp_path / "bad.txt"
    bad.write_text(f"{' '.join(words[:40])}\tmo\n")
    assert cli("score", tmp_path / "run0", bad).status == 0  # relative positions go as far as a pair does
    said = cli("score", run, bad).sentence()
    assert re.match(r"line 1: source and target have \d+ tokens, and this run's learned positions end at 32", said)
    bad.write_text("no tab\n")
    assert "line 1: this run was trained on pairs" in cli("score", run, bad).sentence()
