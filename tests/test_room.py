"""No more is remembered than a text has, and what the machine has no room for is told in a sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import pytest
import torch
from loaded import loaded
from logged import without_speed

from xltrain.evaluation import room
from xltrain.training.failures import said_of_memory

Cli = Callable[..., Any]


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """Two documents of different lengths, the first longer than a segment."""
    words = corpora.vocabulary()
    return corpora.write(tmp_path / "short.txt", " ".join(words[:60]) + ".\n\n" + " ".join(words[60:70]) + ".\n")


def figures(cli: Cli, run: Path, *options: object) -> tuple[dict[str, Any], list[str]]:
    outcome = cli("eval-ppl", run, *options, "--json")
    assert outcome.status == 0, outcome.err
    notes = [line for line in outcome.err.splitlines() if line.startswith("note: ")]
    return without_speed(json.loads(outcome.out)), notes


def test_lengths_beyond_the_text_are_those_of_the_text_and_change_nothing(
    finished: tuple[Path, Any], cli: Cli, short: Path
):
    run = finished[0] / "run"
    for mode, where in (("stream", "the text"), ("document", "the longest document")):
        options = ["--data", short, "--mode", mode]
        plain, _ = figures(cli, run, *options, "--mem-len", 1)
        most = plain["tokens"] + 2 if mode == "stream" else len_of_longest(cli, run, short)
        expected, notes = figures(cli, run, *options, "--mem-len", most)
        assert notes == []
        assert expected["attention_len"] == most
        found, notes = figures(cli, run, *options, "--mem-len", 10**12)
        assert notes == [
            f"note: --mem-len: 1,000,000,000,000 is more than the {most} tokens of {where}; {most} is taken for it"
        ]
        assert found == expected
        found, notes = figures(cli, run, *options, "--seq-len", 10**12, "--mem-len", 0)
        assert notes == [
            f"note: --seq-len: 1,000,000,000,000 is more than the {most} tokens of {where}; {most} is taken for it"
        ]
        assert (found["seq_len"], found["attention_len"]) == (most, most)
        assert found["nll"] == pytest.approx(expected["nll"], rel=1e-6)  # everything before is seen either way


def len_of_longest(cli: Cli, run: Path, text: Path) -> int:
    """Tokens of the first document, which is the longest, with its end."""
    first = text.with_name("first.txt")
    first.write_text(text.read_text().partition("\n\n")[0] + "\n")
    return figures(cli, run, "--data", first)[0]["tokens"] + 1


def test_sliding_windows_beyond_the_text_are_one_window(finished: tuple[Path, Any], cli: Cli, short: Path):
    options = ["--data", short, "--mode", "sliding", "--stride", 10**9, "--seq-len"]
    found, _ = figures(cli, finished[0] / "run", *options, 10**12)
    stream, _ = figures(cli, finished[0] / "run", "--data", short, "--seq-len", 10**12, "--mem-len", 0)
    assert found["nll"] == pytest.approx(stream["nll"], rel=1e-6)


def test_a_runs_own_lengths_stay_where_the_text_is_shorter(finished: tuple[Path, Any], cli: Cli, tmp_path: Path):
    text = corpora.write(tmp_path / "tiny.txt", "Bada kile mo.\n")
    found, notes = figures(cli, finished[0] / "run", "--data", text)
    assert (found["seq_len"], found["mem_len"], notes) == (32, 16, [])
    assert found["attention_len"] == found["tokens"] + 1 < 32  # what rows can see, and not what they might
    assert figures(cli, finished[0] / "run", "--data", text, "--mem-len", 1000)[0]["mem_len"] == 16


def test_zeros_that_are_seen_are_as_many_as_was_said(
    train: Callable[..., Path], corpus: corpora.Corpus, cli: Cli, short: Path
):
    run = train(objective={"name": "causal"}, segments={"initial_memory": "zeros"})
    found, notes = figures(cli, run, "--data", short, "--mem-len", 300)
    assert (found["mem_len"], found["attention_len"], notes) == (300, 316, [])
    fewer, _ = figures(cli, run, "--data", short, "--mem-len", 200)
    assert found["nll"] != pytest.approx(fewer["nll"], rel=1e-6)


def test_a_sample_remembers_no_more_than_its_prompt_and_itself(finished: tuple[Path, Any], cli: Cli):
    options = ["generate", finished[0] / "run", "Bada kile", "--json", "--until", "never", "--max-tokens", 60]
    expected = json.loads(cli(*options, "--mem-len", 100).out)
    outcome = cli(*options, "--mem-len", 10**12)
    assert "is more than the " in outcome.err
    assert 60 < json.loads(outcome.out)["mem_len"] < 80
    assert json.loads(outcome.out)["samples"] == expected["samples"]


@pytest.mark.parametrize(
    ("command", "ways"),
    [
        (["eval-ppl"], "lower --mem-len (now 16) or --seq-len (now 32) or --batch-size (now 4)"),
        (["eval-ppl", "--batch-size", 1], "lower --mem-len (now 16) or --seq-len (now 32)"),
        (["score", "{text}"], "lower --batch-size or --mem-len, or cut long lines"),
        (["generate", "Bada kile"], "lower --mem-len (now 47) or --max-tokens"),
        (["generate", "Bada", "--num-samples", 2], "lower --mem-len (now 47) or --batch-size (now 4) or --max-tokens"),
        (["context", "--targets", 0], "lower --batch-size, --mem-lens, --longest or --targets"),
    ],
)
def test_what_does_not_fit_is_told_with_what_to_lower(
    finished: tuple[Path, Any],
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: list[Any],
    ways: str,
):
    text = corpora.write(tmp_path / "text.txt", " ".join(corpora.vocabulary()[:40]) + "\n")
    name, *options = [text if option == "{text}" else option for option in command]
    monkeypatch.setattr(room, "_available", lambda: 10)
    said = cli(name, finished[0] / "run", *options).sentence(status=1)
    assert said.startswith("to remember ")
    assert said.endswith(f"GB are free. To need less: {ways}")
    monkeypatch.undo()

    def full(*_: Any, **__: Any) -> None:
        torch.empty(1 << 55)

    monkeypatch.setattr("xltrain.model.transformer.LanguageModel.hidden", full)
    said = cli(name, finished[0] / "run", *options).sentence(status=1)
    assert said == f"memory is full: there was no room for another 144,115,188.1 GB. To need less: {ways}"


def test_a_signal_report_that_does_not_fit_is_told(
    finished: tuple[Path, Any], cli: Cli, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: Any, **__: Any) -> None:
        torch.empty(1 << 55)

    monkeypatch.setattr("xltrain.evaluation.inspect.signal_report", full)
    said = cli("inspect", finished[0] / "c.yaml", "--signal").sentence(status=1)
    assert said.startswith("memory is full: ")
    assert said.endswith(". To need less: choose a smaller model, or leave out --signal")


def test_other_failures_are_none_of_memory():
    assert said_of_memory(MemoryError()) == "memory is full"
    with pytest.raises(RuntimeError) as failed:
        torch.empty(1 << 61, 8)
    assert said_of_memory(failed.value) is not None
    with pytest.raises(RuntimeError) as failed:
        torch.empty(2) + torch.empty(3)
    assert said_of_memory(failed.value) is None


def test_what_a_memory_takes_is_counted_as_what_it_will_hold(monkeypatch: pytest.MonkeyPatch):
    """Keys and values with twice the room, and distances, in the precision of the forwards."""
    model = loaded().model
    of_one = 5 * 2 * 32 * 10  # of 2 layers, a width of 32, 10 positions
    for dtype, size in ((None, 4), (torch.bfloat16, 2)):
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            monkeypatch.setattr(room, "_available", lambda size=size: of_one * size)
            cache = room.empty_cache(model, rows=1, mem_len=10)
            assert 2 * cache.buffer.keys_values.numel() * size <= of_one * size
            with pytest.raises(MemoryError, match=r"to remember 11 positions in 1 row takes 0\.0 GB, and"):
                room.empty_cache(model, rows=1, mem_len=11)


def test_what_is_free_is_read_where_the_system_says_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    meminfo = corpora.write(tmp_path / "meminfo", "MemTotal: 99 kB\nMemAvailable:    7 kB\n")
    limit = corpora.write(tmp_path / "limit", "max\n")
    monkeypatch.setattr(room, "_LIMITS", ((str(meminfo), "MemAvailable:", 1024), (str(limit), "", 1)))
    assert room._available() == 7168
    corpora.write(limit, "5000\n")
    assert room._available() == 5000
    monkeypatch.setattr(room, "_LIMITS", ((str(tmp_path / "none"), "", 1),))
    assert room._available() is None
