"""Whatever may take long says how far it is: a bar on a terminal, and elsewhere a plain line now and then."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Outcome
from corpora import Corpus, config_file

from xltrain import console

Cli = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for every piece of work, not every fifteen seconds."""
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.0)


@pytest.fixture(scope="module")
def masked(corpus: Corpus, cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("masked")
    config = config_file(folder, corpus.train, objective={"name": "masked"}, training={"max_steps": 1})
    assert cli("pretrain", config).status == 0
    return folder / "run"


def shares(said: str, what: str) -> list[int]:
    """Per cent, of every line on this work."""
    return [int(found[1]) for line in said.splitlines() if (found := re.match(rf"{what}: .* \((\d+)%\)", line))]


def beginning(path: Path, corpus: Corpus, *, lines: int, joined: bool = False) -> Path:
    text = "".join(corpus.valid.read_text(encoding="utf-8").splitlines(keepends=True)[:lines])
    path.write_text(text.replace("\n", " ") if joined else text, encoding="utf-8")
    return path


@pytest.mark.parametrize("joined", [True, False])
def test_a_masked_model_tells_how_far_it_is_within_a_line(
    masked: Path, corpus: Corpus, cli: Cli, tmp_path: Path, joined: bool
):
    """It reads a segment anew for every token."""
    text = beginning(tmp_path / "a.txt", corpus, lines=10, joined=joined)
    outcome = cli("score", masked, text)
    found = shares(outcome.err, "scoring")
    assert len(found) > 10
    assert found == sorted(found)
    assert found[-1] == 100
    assert f"of {1 if joined else 10} lines" in outcome.err


def test_every_line_counts_once_whatever_is_asked_of_it(run: Path, masked: Path, cli: Cli, tmp_path: Path):
    """Lines of no token, of one token, and of many segments."""
    text = tmp_path / "a.txt"
    text.write_text("\nB\n" + "bada kile " * 40 + "\nbada\n", encoding="utf-8")
    for model in (run, masked):
        for start in ([], ["--no-start"]):
            said = cli("score", model, text, *start).err
            assert said.splitlines()[-1] == "scoring: 4 of 4 lines (100%)"


def test_lines_of_standard_input_are_counted(
    run: Path, corpus: Corpus, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with beginning(tmp_path / "a.txt", corpus, lines=30).open(encoding="utf-8") as file:
        monkeypatch.setattr("sys.stdin", file)
        assert cli("score", run).err.splitlines()[-1] == "scoring: 30 lines"


def test_generating_tells_of_parts_of_samples_and_of_long_prompts(run: Path, corpus: Corpus, cli: Cli, tmp_path: Path):
    prompt = beginning(tmp_path / "a.txt", corpus, lines=40)
    outcome = cli("generate", run, "--file", prompt, "--num-samples", 3, "--max-tokens", 20, "--batch-size", 2)
    read = shares(outcome.err, "reading the prompt")
    assert len(read) > 10
    assert read[len(read) // 2 - 1] == 100  # in each of two batches
    found = shares(outcome.err, "generating")
    assert len(found) == 40
    assert found == sorted(found)
    assert found[-1] == 100
    ended = cli("generate", run, "--num-samples", 2, "--max-tokens", 400, "--temperature", 3.0)
    assert shares(ended.err, "generating")[-1] == 100  # samples that end early count whole


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["eval-ppl", "RUN", "--data", "TEXT"], ["reading .*valid.txt", "evaluating"]),
        (["eval-ppl", "RUN", "--mode", "sliding"], ["evaluating"]),
        (
            ["context", "RUN", "--targets", 8, "--step", 10, "--longest", 20, "--mem-lens", "0,8"],
            ["memory 8", "20 tok"],
        ),
    ],
)
def test_what_reads_a_text_tells_how_much_of_it(
    run: Path, corpus: Corpus, cli: Cli, arguments: list[object], what: list[str]
):
    places = {"RUN": run, "TEXT": corpus.valid}
    outcome = cli(*(places.get(str(argument), argument) for argument in arguments))
    assert outcome.status == 0, outcome.err
    for work in what:
        assert shares(outcome.err, f"{work}.*")[-1] == 100


def test_what_cannot_tell_how_far_it_is_says_what_it_does(run: Path, cli: Cli, tmp_path: Path):
    exported = cli("export-checkpoint", run, tmp_path / "e", "--format", "safetensors")
    for said in (f"writing {tmp_path / 'e'}", "comparing its logits with those that a new model computes from it"):
        assert f"{said}: 0s so far" in exported.err.splitlines()
    imported = cli("import-checkpoint", tmp_path / "e", tmp_path / "i")
    for said in (f"reading {tmp_path / 'e'}, an export of xltrain itself", f"writing {tmp_path / 'i'}"):
        assert re.search(f"{said}.*: 0s so far", imported.err)


def test_what_takes_no_time_needs_no_word(run: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 60.0)
    assert cli("export-checkpoint", run, tmp_path / "e", "--format", "safetensors").err == ""
