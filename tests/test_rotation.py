"""A run that goes on may remove the checkpoint that a command reads; another takes its place, or a sentence says so."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Outcome
from corpora import Corpus

from xltrain.training import checkpoint as checkpoints
from xltrain.training.checkpoint import Checkpoint

Cli = Callable[..., Outcome]
COMMANDS: dict[str, list[Any]] = {
    "eval-ppl": ["eval-ppl", "RUN", "--json"],
    "generate": ["generate", "RUN", "--max-tokens", 2, "--json"],
    "score": ["score", "RUN", "TEXT"],
    "context": ["context", "RUN", "--targets", 0, "--mem-lens", 0, "--json"],
    "inspect": ["inspect", "RUN", "--json"],
    "export-checkpoint": ["export-checkpoint", "RUN", "OUT", "--format", "safetensors", "--json"],
    "mean": ["export-checkpoint", "RUN", "OUT", "--format", "safetensors", "--average", 2, "--json"],
}


def given(name: str, *, run: Path, text: Path, out: Path) -> list[Any]:
    places = {"RUN": run, "TEXT": text, "OUT": out}
    return [places.get(str(argument), argument) for argument in COMMANDS[name]]


def goes_on(patch: pytest.MonkeyPatch, method: str, *, times: int, whole: bool = True) -> None:
    """The run makes its next checkpoint, and removes the one that is read: before ``method`` reads of it.

    ``whole``: all of it; else its weights only, as far as the removal has come by then.
    """
    original, left = getattr(Checkpoint, method), times

    def removed(self: Checkpoint, *arguments: Any, **named: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            shutil.copytree(self.folder, self.folder.with_name(f"step-{self.step + 2}"))
            shutil.rmtree(self.folder) if whole else (self.folder / "model.safetensors").unlink()
        return original(self, *arguments, **named)

    patch.setattr(Checkpoint, method, removed)


@pytest.mark.parametrize(
    ("name", "whole"), [(name, whole) for name in COMMANDS for whole in (True, False) if whole or name != "inspect"]
)
def test_the_newest_takes_the_place_of_one_that_is_removed(
    run: Path, corpus: Corpus, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, whole: bool
):
    goes_on(monkeypatch, "model" if not whole else "tokenizer", times=1, whole=whole)
    outcome = cli(*given(name, run=run, text=corpus.valid, out=tmp_path / "out"))
    assert outcome.status == 0, outcome.err
    folder = run / "checkpoints"
    said = "was removed while it was read: its run goes on, and keeps the newest ones only; reading its newest one"
    assert f"{folder / 'step-6'} {said}" in outcome.err.splitlines()
    if name in ("eval-ppl", "generate", "export-checkpoint"):
        assert json.loads(outcome.out)["checkpoint"] == str(folder / "step-8")
    if name == "mean":
        assert json.loads(outcome.out)["checkpoint"] == f"{folder / 'step-8'}, {folder / 'step-4'}"


def test_the_model_card_needs_nothing_that_is_removed_later(
    run: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Writing and comparing may take longer than all that was there stays."""
    import xltrain.interop.export as module

    original = module._write

    def writing(*arguments: Any, **named: Any) -> None:
        shutil.rmtree(run / "checkpoints", ignore_errors=True)
        original(*arguments, **named)

    monkeypatch.setattr(module, "_write", writing)
    assert cli("export-checkpoint", run, tmp_path / "out", "--format", "safetensors").status == 0
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "trained on" in card
    assert "validation at step 6" in card


def test_one_that_is_removed_while_it_is_checked(run: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch):
    original, left = checkpoints.digest, 1

    def digesting(path: Path) -> str:
        nonlocal left
        if left and path.parent.name == "step-6":
            left = 0
            shutil.copytree(path.parent, path.parent.with_name("step-8"))
            for other in (2, 4, 6):
                shutil.rmtree(path.parent.with_name(f"step-{other}"))
        return original(path)

    monkeypatch.setattr(checkpoints, "digest", digesting)
    outcome = cli("eval-ppl", run, "--json")
    assert outcome.status == 0, outcome.err
    assert json.loads(outcome.out)["checkpoint"].endswith("step-8")


def test_one_that_was_named_has_no_stand_in(run: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch):
    goes_on(monkeypatch, "model", times=1)
    folder = run / "checkpoints" / "step-6"
    assert cli("eval-ppl", folder).sentence() == (
        f"{folder} was removed while it was read: its run goes on, and keeps the newest ones only (checkpoint.keep); "
        "give the run's folder, or copy a checkpoint first"
    )


def test_it_does_not_try_for_ever(run: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch):
    goes_on(monkeypatch, "model", times=9)
    assert cli("eval-ppl", run).sentence() == (
        f"{run}: this run has removed 3 checkpoints while they were read; wait until it has ended, or let it keep more "
        "of them (checkpoint.keep)"
    )


def test_a_mistake_is_told_at_once_though_an_older_one_is_removed_meanwhile(
    run: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
):
    original = Checkpoint.config

    def removed(self: Checkpoint) -> Any:
        shutil.rmtree(run / "checkpoints" / "step-2", ignore_errors=True)
        return original(self)

    monkeypatch.setattr(Checkpoint, "config", removed)
    outcome = cli("eval-ppl", run, "--mode", "sliding", "--mem-len", 3)
    assert outcome.sentence().startswith("--mem-len: sliding windows have no memory")
    assert "was removed" not in outcome.err


def test_what_fails_for_another_reason_is_not_tried_again(run: Path, cli: Cli):
    (run / "checkpoints" / "step-4" / "spiece.model").unlink()  # damaged before
    said = cli("eval-ppl", run, "--mode", "sliding", "--mem-len", 3).sentence()
    assert said.startswith("--mem-len: sliding windows have no memory")
    said = cli("eval-ppl", run / "checkpoints" / "step-4").sentence()
    assert said.endswith("step-4: not a usable checkpoint: spiece.model is missing")
