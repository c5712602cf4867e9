"""A folder that holds a run already, whole or damaged, is left alone, gone on with or replaced, as it is said."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import pytest
from commands import files_of

Cli = Callable[..., Any]


# --- a folder that holds a run already


def test_a_folder_with_a_run_is_not_touched(finished: tuple[Path, Any], cli: Cli):
    folder = finished[0]
    before = files_of(folder)
    said = cli("pretrain", folder / "c.yaml").sentence()
    assert (
        said == f"{folder / 'run'} already holds a run; --resume continues it, --overwrite deletes it and starts anew"
    )
    assert files_of(folder) == before


def test_a_run_that_is_done_has_nothing_to_resume(finished: tuple[Path, Any], cli: Cli):
    before = files_of(finished[0])
    outcome = cli("pretrain", finished[0] / "c.yaml", "--resume")
    assert outcome.status == 0
    assert "nothing to do: step 6 of 6 is done" in outcome.err
    assert files_of(finished[0]) == before


def test_a_run_is_not_continued_with_another_shape(finished: tuple[Path, Any], cli: Cli, run: Path):
    before = files_of(run)
    changes = [f"run.output_dir={run}", "segments.seq_len=16", "model.d_model=48", "optimizer.lr=1e-4"]
    arguments = [part for change in changes for part in ("--set", change)]
    said = cli("pretrain", finished[0] / "c.yaml", "--resume", *arguments).sentence()
    assert "segments.seq_len was 32 and is now 16" in said
    assert "model.d_model was 32 and is now 48" in said
    assert "optimizer.lr" not in said
    assert files_of(run) == before


def test_overwriting_starts_anew_and_leaves_no_old_step(finished: tuple[Path, Any], cli: Cli, run: Path):
    arguments = ["--set", f"run.output_dir={run}", "--set", "training.max_steps=1"]
    assert cli("pretrain", finished[0] / "c.yaml", "--overwrite", *arguments).status == 0
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-1"]
    assert (run / "latest").read_text(encoding="utf-8") == "checkpoints/step-1\n"


@pytest.mark.parametrize("inside", ["", "deeper/still"])
def test_a_run_folder_that_is_a_file(corpus: corpora.Corpus, cli: Cli, tmp_path: Path, inside: str):
    blocked = tmp_path / "blocked"
    blocked.write_text("", encoding="utf-8")
    config = corpora.config_file(tmp_path, corpus.train, run={"output_dir": str(blocked / inside)})
    assert cli("pretrain", config).sentence() == f"run.output_dir: {blocked} is a file; choose a folder"


# --- damaged checkpoints


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def unmark(folder: Path) -> None:
    (folder / "complete.json").unlink()


def lose_a_file(folder: Path) -> None:
    (folder / "spiece.model").unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (truncate, "model.safetensors has "),
        (flip_a_bit, "model.safetensors is damaged"),
        (unmark, "it was never finished"),
        (lose_a_file, "spiece.model is missing"),
    ],
)
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_used(
    finished: tuple[Path, Any], cli: Cli, run: Path, damage: Callable[[Path], None], said: str
):
    damage(run / "checkpoints" / "step-6")
    warning = f"WARNING: {run / 'checkpoints' / 'step-6'} is not usable: {said}"
    evaluated = cli("eval-ppl", run, "--json")
    assert evaluated.status == 0
    assert json.loads(evaluated.out)["checkpoint"] == str(run / "checkpoints" / "step-4")
    assert warning in evaluated.err
    resumed = cli("pretrain", finished[0] / "c.yaml", "--resume", "--set", f"run.output_dir={run}")
    assert resumed.status == 0, resumed.err
    assert warning in resumed.err
    assert "resuming at step 4" in resumed.err
    assert cli("eval-ppl", run / "checkpoints" / "step-6", "--json").status == 0


def test_a_checkpoint_that_is_named_itself_has_no_stand_in(cli: Cli, run: Path):
    truncate(run / "checkpoints" / "step-6")
    said = cli("eval-ppl", run / "checkpoints" / "step-6").sentence()
    assert said.startswith(f"{run / 'checkpoints' / 'step-6'}: not a usable checkpoint: model.safetensors has ")


def test_where_every_checkpoint_is_damaged_nothing_is_done(finished: tuple[Path, Any], cli: Cli, run: Path):
    for folder in (run / "checkpoints").iterdir():
        truncate(folder)
    before = files_of(run)
    outcome = cli("eval-ppl", run)
    assert outcome.sentence() == f"{run}: every checkpoint is damaged; give another run, or one that is whole"
    numbers = sorted(int(folder.name[5:]) for folder in (run / "checkpoints").iterdir())
    warnings = [line for line in outcome.err.splitlines() if "is not usable" in line]
    assert [line.rpartition("; ")[2] for line in warnings] == [
        *["trying the one before it"] * (len(numbers) - 1),
        "there is none before it",
    ]
    said = cli("pretrain", finished[0] / "c.yaml", "--resume", "--set", f"run.output_dir={run}").sentence()
    assert said == f"{run}: every checkpoint is damaged; --overwrite deletes them and starts anew"
    assert files_of(run) == before
