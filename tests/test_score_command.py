"""The score command: its lines, what it says of them, and what it refuses."""

import io
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import pytest

Cli = Callable[..., Any]


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


@pytest.mark.parametrize("content", [b"", b"\n  \n"])
def test_input_without_a_line_is_refused(
    finished: Any, cli: Cli, tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
):
    """What was to write it may have failed. A blank line is none among JSON, and a text without tokens elsewhere."""
    file, run = corpora.write(tmp_path / "lines.txt", content), finished[0] / "run"
    said = cli("score", run, file, "--format", "jsonl").sentence()
    assert said == f"{file}: holds no line to score; give texts, one a line"
    monkeypatch.setattr("xltrain.console.standard_input", lambda: io.BytesIO(content))
    said = cli("score", run, "--format", "jsonl").sentence()
    assert said == "standard input: holds no line to score; give texts, one a line"
    plain = cli("score", run, file, "--format", "lines")
    assert (plain.status, len(plain.out.splitlines())) == ((0, 2) if content else (2, 0))
