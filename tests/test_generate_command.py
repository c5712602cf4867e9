"""The generate command: its texts, its options, and what it refuses."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import pytest

Cli = Callable[..., Any]


def test_the_byte_order_mark_of_a_file_is_no_part_of_a_prompt(finished: Any, cli: Cli, tmp_path: Path):
    source = tmp_path / "prompts.txt"
    source.write_bytes(b"\xef\xbb\xbfBada\r\nkile\r\n")
    options = ["--file", source, "--lines", "--max-tokens", 2, "--json"]
    assert [found["prompt"] for found in samples_of(cli("generate", finished[0] / "run", *options))] == ["Bada", "kile"]


def samples_of(outcome: Any) -> list[dict[str, Any]]:
    assert outcome.status == 0, outcome.err
    assert outcome.out.count("\n") == 1
    return json.loads(outcome.out)["samples"]


def test_the_same_seed_gives_the_same_text_in_batches_of_every_size(finished: Any, cli: Cli, tmp_path: Path):
    file = tmp_path / "prompts.txt"
    file.write_text("Bada kile mo.\n\nNuru ta la mo dire. Kile ta.\n")
    options = ["--file", file, "--lines", "--num-samples", 3, "--max-tokens", 25, "--json"]
    run = finished[0] / "run"
    first = samples_of(cli("generate", run, *options))
    assert [sample["sample"] for sample in first] == list(range(9))
    assert len({sample["text"] for sample in first}) == 9
    for size in (1, 4, 9):
        again = samples_of(cli("generate", run, *options, "--batch-size", size))
        assert [sample["text"] for sample in again] == [sample["text"] for sample in first]
        assert [one["log_prob"] for one in again] == pytest.approx([two["log_prob"] for two in first], rel=1e-5)
    other = samples_of(cli("generate", run, *options, "--seed", 1))
    assert all(one["text"] != two["text"] for one, two in zip(first, other, strict=True))


def test_text_is_streamed_after_its_prompt(finished: Any, cli: Cli):
    run = finished[0] / "run"
    outcome = cli("generate", run, "Bada", "--max-tokens", 20)
    [sample] = samples_of(cli("generate", run, "Bada", "--max-tokens", 20, "--json"))
    assert outcome.out == f"Bada{sample['text']}\n"
    assert "tokens/s" in outcome.err
    assert "generating" not in outcome.err
    several = cli("generate", run, "Bada", "--max-tokens", 5, "--num-samples", 2)
    assert [line for line in several.out.splitlines() if line.startswith("---")] == ["--- sample 0", "--- sample 1"]


def test_samples_of_several_prompts_are_told_apart(finished: Any, cli: Cli, tmp_path: Path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Bada\nkile\n")
    options = ["--file", prompts, "--lines", "--max-tokens", 3, "--num-samples", 2]
    out = cli("generate", finished[0] / "run", *options).out
    places = [(prompt, copy) for prompt in (0, 1) for copy in (0, 1)]
    heads = [line for line in out.splitlines() if line.startswith("---")]
    assert heads == [f"--- prompt {prompt}, sample {copy}" for prompt, copy in places]
    samples = samples_of(cli("generate", finished[0] / "run", *options, "--json"))
    assert [(sample["prompt_number"], sample["sample_of_prompt"]) for sample in samples] == places
    assert [sample["prompt"] for sample in samples] == ["Bada", "Bada", "kile", "kile"]
    assert [sample["sample"] for sample in samples] == [0, 1, 2, 3]


def test_what_was_generated_scores_what_it_said(finished: Any, cli: Cli, tmp_path: Path):
    run = finished[0] / "run"
    [sample] = samples_of(cli("generate", run, "Bada kile", "--max-tokens", 12, "--json", "--temperature", 0))
    line = tmp_path / "line.jsonl"
    line.write_text(json.dumps({"context": "Bada kile", "text": sample["text"]}))
    [scored] = [json.loads(line) for line in cli("score", run, line).out.splitlines()]
    assert scored["tokens"] == 12
    assert scored["log_prob"] == pytest.approx(sample["log_prob"], abs=1e-3)


def test_a_text_can_end_with_a_line_or_with_the_document(corpus: corpora.Corpus, cli: Cli, tmp_path: Path):
    lines = tmp_path / "lines.txt"
    lines.write_text("ab\nba\n\n" * 300)
    config = corpora.config_file(
        tmp_path,
        lines,
        tokenizer={"kind": "char", "vocab_size": None},
        objective={"name": "causal"},
        training={"max_steps": 1},
    )
    assert cli("pretrain", config).status == 0
    run, options = tmp_path / "run", ["--json", "--num-samples", 20, "--max-tokens", 60]
    ends = {
        until: samples_of(cli("generate", run, *options, "--until", until)) for until in ("document", "line", "never")
    }
    assert all("\n" not in sample["text"] for sample in ends["line"])
    for sample in (*ends["line"], *ends["document"]):
        assert sample["ended"] or sample["tokens"] == 60
        assert len(sample["text"]) == sample["tokens"] - sample["ended"]
    lengths = {until: sum(sample["tokens"] for sample in found) for until, found in ends.items()}
    assert lengths["line"] < lengths["document"] < lengths["never"]
    for short, long in zip(ends["document"], ends["never"], strict=True):
        assert long["tokens"] == 60
        assert long["text"].startswith(short["text"] + ("\n\n" if short["ended"] else ""))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["a", "--file", "x"], "a prompt and --file exclude each other"),
        (["--file", "nowhere.txt"], "--file: nowhere.txt cannot be read (No such file or directory)"),
        (["--lines"], "--lines needs prompts from a file"),
        (["--top-p", "0"], "--top-p: 0.0 is not allowed"),
        (["--temperature", "inf"], "--temperature: inf is not allowed"),
        (["--seed", 2**63], "--seed: must be less than or equal to 9223372036854775807"),
        (["\udcff"], "the prompt is not UTF-8 text"),
        (["--until", "noon"], "--until: 'noon' is not allowed; choose document, line, never"),
        (["--until", "line"], "--until line: this run's vocabulary (sentencepiece) has no token for the end of a line"),
        (["--mem-len", "0"], "--mem-len: 0 would leave every token without those before it"),
        (["--no-start"], "prompt 1 has no token, and nothing stands before it; give a prompt, or --start"),
    ],
)
def test_an_option_of_generate_that_cannot_be(finished: Any, cli: Cli, options: list[str], said: str):
    assert cli("generate", finished[0] / "run", *options).sentence().startswith(said)


def test_a_masked_model_does_not_generate(corpus: corpora.Corpus, cli: Cli, tmp_path: Path):
    config = corpora.config_file(tmp_path, corpus.train, objective={"name": "masked"}, training={"max_steps": 1})
    assert cli("pretrain", config).status == 0
    said = cli("generate", tmp_path / "run", "Bada").sentence()
    assert said.startswith("generate needs a model that predicts from what comes before")


@pytest.mark.parametrize("content", [b"", b"\n", b"\xef\xbb\xbf\r\n"])
@pytest.mark.parametrize("options", [[], ["--lines"]])
def test_an_empty_file_of_prompts_is_refused(
    finished: Any, cli: Cli, tmp_path: Path, content: bytes, options: list[str], monkeypatch: pytest.MonkeyPatch
):
    file, run = corpora.write(tmp_path / "prompts.txt", content), finished[0] / "run"
    said = "is empty; give a prompt in it, or leave it out to begin a new text"
    assert cli("generate", run, "--file", file, *options).sentence() == f"{file}: {said}"
    monkeypatch.setattr("xltrain.console.standard_input", lambda: io.BytesIO(content))
    assert cli("generate", run, "-", *options).sentence() == f"standard input: {said}"


def test_blank_lines_among_prompts_are_counted(finished: Any, cli: Cli, tmp_path: Path):
    file = corpora.write(tmp_path / "prompts.txt", b"Bada\n\r\nkile\n\n")
    done = cli("generate", finished[0] / "run", "--file", file, "--lines", "--max-tokens", 2, "--json")
    assert [sample["prompt"] for sample in samples_of(done)] == ["Bada", "", "kile", ""]
    assert "note: 2 of 4 prompts are blank lines, and each of these begins a new text" in done.err
    whole = cli("generate", finished[0] / "run", "--file", file, "--max-tokens", 2)
    assert "blank lines" not in whole.err
