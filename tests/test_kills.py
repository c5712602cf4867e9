"""Whatever ends a run, the last good checkpoint is found, and the run goes on as if nothing had happened."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import run_command
from logged import lines_of, without_speed
from processes import started
from tiny_runs import config_file

from xltrain.errors import UsageError
from xltrain.training import loop
from xltrain.training.checkpoint import damage, find_checkpoint, list_checkpoints, newest_checkpoint
from xltrain.training.live import Run


def wait_for(condition: Any, process: Any, seconds: float = 60.0) -> bool:
    """Until ``condition()``, or the process has ended."""
    end = time.monotonic() + seconds
    while not condition():
        if process.exitcode is not None:
            return False
        assert time.monotonic() < end, "too slow"
        time.sleep(0.0005)
    return True


def numbers(run: Path) -> list[dict[str, Any]]:
    """All that was logged, without what measures time."""
    return [without_speed(line) for line in lines_of(run)]


@pytest.mark.parametrize(("kills", "steps"), [(3, 30), pytest.param(20, 150, marks=pytest.mark.slow)])
def test_kills_during_saves_leave_a_run_that_goes_on_to_the_same_end(kills: int, steps: int, tmp_path: Path) -> None:
    """Every kill comes while a checkpoint is written, or shortly after."""
    changes = {"training__max_steps": steps, "training__batch_size": 2, "checkpoint__every": 1, "checkpoint__keep": 3}
    config = config_file(tmp_path, **changes)
    straight, run = tmp_path / "straight", tmp_path / "run"
    assert run_command("pretrain", config, "--set", f"run.output_dir={straight}").status == 0
    before, killed, caught = 0, 0, 0
    while killed < kills:
        process = started("pretrain", config, "--set", f"run.output_dir={run}", "--resume")

        def saving() -> bool:
            return any((run / "checkpoints").glob("saving-*"))

        # Killed runs get a little further each time, so that the kills fall on many steps.
        wanted = before + 1 + killed % 3
        if not wait_for(lambda: newest_name(run) >= wanted, process) or not wait_for(saving, process):  # noqa: B023
            break
        time.sleep(0.002 * (killed % 4))
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        killed += 1
        caught += saving()
        found = newest_checkpoint(run)
        assert found is not None
        assert found.step >= max(before, newest_name(run)), "a finished checkpoint was lost"
        marked = run / (run / "latest").read_text().strip()
        assert damage(marked) is None, "the mark names what is not whole"
        before = found.step
    assert killed == kills, "the run was over before all kills"
    assert caught > 0, "no kill came during a save"
    assert run_command("pretrain", config, "--set", f"run.output_dir={run}", "--resume").status == 0
    assert numbers(run) == numbers(straight)
    assert not list((run / "checkpoints").glob("saving-*"))


def newest_name(run: Path) -> int:
    folders = list_checkpoints(run)
    return int(folders[0].name[5:]) if folders else 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 50 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=50m", "tmpfs", str(place)], check=False)
    if mounted.returncode != 0:
        pytest.skip("no tmpfs can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_one_line_and_leaves_the_checkpoint_before(small_disk: Path, tmp_path: Path) -> None:
    config = config_file(
        tmp_path,
        model__d_model=128,
        model__d_inner=2048,
        checkpoint__every=2,
        training__max_steps=8,
    )
    run = small_disk / "run"
    outcome = run_command("pretrain", config, "--set", f"run.output_dir={run}", "--set", "checkpoint.keep=9")
    sentence = outcome.sentence(status=1)
    assert "step-8: the checkpoint could not be written: No space left on device; " in sentence
    assert f"the newest one is {run}/checkpoints/step-6" in sentence
    found = newest_checkpoint(run)
    assert found is not None
    assert found.step == int((run / "latest").read_text().strip().removeprefix("checkpoints/step-"))
    assert not list((run / "checkpoints").glob("saving-*"))
    shutil.rmtree(run / "checkpoints" / "step-2")  # make room, as a person would
    again = run_command("pretrain", config, "--set", f"run.output_dir={run}", "--resume")
    assert again.status == 0, again.err
    assert f"resuming at step 6 from {run}" in again.err
    assert newest_name(run) == 8


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A configuration and its run of 6 steps, saved at 2, 4 and 6."""
    folder = tmp_path_factory.mktemp("finished")
    config = config_file(folder, training__max_steps=6, checkpoint__every=2, evaluation__every=0)
    assert run_command("pretrain", config, "--set", f"run.output_dir={folder / 'run'}").status == 0
    return config, folder / "run"


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "memory.safetensors", "state.json"])
@pytest.mark.parametrize("how", ["halved", "missing"])
def test_damage_is_named_and_the_checkpoint_before_is_used(
    name: str, how: str, finished: tuple[Path, Path], tmp_path: Path
) -> None:
    config, done = finished
    run = shutil.copytree(done, tmp_path / "run")
    path = run / "checkpoints" / "step-6" / name
    if how == "missing":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size // 2)
    options = ["--set", f"run.output_dir={run}", "--resume"]
    outcome = run_command("pretrain", config, *options)
    assert outcome.status == 0, outcome.err
    assert f"step-6 is not usable: {name} " in outcome.err
    assert f"resuming at step 4 from {run / 'checkpoints' / 'step-4'}" in outcome.err
    assert (run / "checkpoints" / "damaged-step-6").is_dir()
    assert [folder.name for folder in list_checkpoints(run)] == ["step-6", "step-4", "step-2"]
    assert numbers(run) == numbers(done)


def test_what_is_left_of_an_unfinished_checkpoint_is_removed_and_named(
    finished: tuple[Path, Path], tmp_path: Path
) -> None:
    config, done = finished
    run = shutil.copytree(done, tmp_path / "run")
    leftover = run / "checkpoints" / "saving-step-7"
    leftover.mkdir()
    options = ["--set", f"run.output_dir={run}", "--set", "training.max_steps=7", "--resume"]
    outcome = run_command("pretrain", config, *options)
    assert outcome.status == 0, outcome.err
    assert f"removed {leftover}, a checkpoint that was not finished\n" in outcome.err
    assert newest_name(run) == 7


def test_a_checkpoint_whose_replacement_was_killed_comes_back(finished: tuple[Path, Path], tmp_path: Path) -> None:
    config, done = finished
    run = shutil.copytree(done, tmp_path / "run")
    folder = run / "checkpoints" / "step-6"
    folder.rename(folder.with_name("saving-instead-of-step-6"))
    outcome = run_command("pretrain", config, "--set", f"run.output_dir={run}", "--resume")
    assert "nothing to do: step 6 of 6 is done" in outcome.err
    assert damage(folder) is None


def let_validation_find(patch: pytest.MonkeyPatch, losses: dict[int, float]) -> None:
    """The loss of every step that validates, whatever the model says."""
    original = loop._together

    def measured(mine: Any, run: Any) -> Any:
        result = original(mine, run)
        return replace(result, nll=losses[run.progress.step] * result.targets)

    patch.setattr(loop, "_together", measured)


def test_the_best_checkpoint_stays_whatever_rotates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_validation_find(monkeypatch, {3: 4.0, 6: 3.0, 9: 3.5, 12: 3.1, 14: 3.2})
    changes = {"training__max_steps": 14, "evaluation__every": 3, "checkpoint__every": 4, "checkpoint__keep": 1}
    config, run, only = config_file(tmp_path, **changes), tmp_path / "run", tmp_path / "only"
    assert run_command("pretrain", config, "--set", f"run.output_dir={run}").status == 0
    assert (run / "best").read_text() == "checkpoints/step-6\n"
    assert [folder.name for folder in list_checkpoints(run)] == ["step-14", "step-6"]
    assert find_checkpoint(run / "best").progress().best_loss == pytest.approx(3.0)
    assert (run / "latest").read_text() == "checkpoints/step-14\n"
    settings = ["--set", f"run.output_dir={only}", "--set", "checkpoint.keep_best=false"]
    assert run_command("pretrain", config, *settings).status == 0
    assert [folder.name for folder in list_checkpoints(only)] == ["step-14"]
    together = [*settings, "--set", "checkpoint.every=3", "--overwrite"]
    assert run_command("pretrain", config, *together).status == 0
    assert [folder.name for folder in list_checkpoints(only)] == ["step-14"]
    assert not (only / "best").exists()


def test_the_best_loss_of_another_validation_text_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_validation_find(monkeypatch, {3: 3.0, 6: 2.0, 9: 4.0, 12: 3.5, 15: 3.7})
    changes = {"training__max_steps": 6, "evaluation__every": 3, "checkpoint__every": 3, "checkpoint__keep": 1}
    config, run = config_file(tmp_path, **changes), tmp_path / "run"
    options = ["pretrain", config, "--set", f"run.output_dir={run}"]
    assert run_command(*options).status == 0
    assert (run / "best").read_text() == "checkpoints/step-6\n"
    same = run_command(*options, "--resume", "--set", "training.max_steps=9", "--set", "evaluation.batch_size=2")
    assert "another text" not in same.err
    assert (run / "best").read_text() == "checkpoints/step-6\n"
    shorter = [*options, "--resume", "--set", "evaluation.max_tokens=50"]
    other = run_command(*shorter, "--set", "training.max_steps=12")
    assert "its lowest loss so far, 2.0000 at step 6, is not compared with those to come" in other.err
    assert (run / "best").read_text() == "checkpoints/step-12\n"
    assert [folder.name for folder in list_checkpoints(run)] == ["step-12"]
    assert "another text" not in run_command(*shorter, "--set", "training.max_steps=15").err
    assert (run / "best").read_text() == "checkpoints/step-12\n"


def test_a_folder_in_which_a_run_is_still_at_work_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is being stopped still saves its state, which would otherwise be found in the folder of the next."""
    arguments = [
        "pretrain",
        config_file(tmp_path, training__max_steps=4),
        "--set",
        f"run.output_dir={tmp_path / 'run'}",
    ]
    original, seconds = Run.step, []

    def stepping(self: Run) -> Any:
        if self.progress.step == 2:
            seconds.append(run_command(*arguments, "--overwrite"))
        return original(self)

    monkeypatch.setattr(Run, "step", stepping)
    assert run_command(*arguments).status == 0
    assert "run: a run is at work there; wait until it has ended" in seconds[0].sentence(status=2)
    assert newest_name(tmp_path / "run") == 4
    assert not (tmp_path / "run" / ".lock").exists()
    monkeypatch.undo()
    assert run_command(*arguments, "--overwrite").status == 0


@pytest.mark.parametrize("option", ["--resume", "--overwrite"])
def test_a_folder_is_taken_before_its_checkpoints_are_looked_at(
    option: str, finished: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a run that ends while another one prepares would leave checkpoints that the other takes out of the way."""
    config, done = finished
    run = shutil.copytree(done, tmp_path / "run")
    arguments = ["pretrain", config, "--set", f"run.output_dir={run}", "--set", "training.max_steps=8"]
    original, seconds = loop.prepare, []

    def preparing(config: Any, **options: Any) -> Any:
        if not seconds:
            seconds.append(None)  # the second one prepares too, if it is let in
            seconds[0] = run_command(*arguments, "--resume")
        return original(config, **options)

    monkeypatch.setattr(loop, "prepare", preparing)
    outcome = run_command(*arguments, option)
    assert outcome.status == 0, outcome.err
    assert "a run is at work there" in seconds[0].sentence(status=2)
    assert [path.name for path in (run / "checkpoints").iterdir() if not path.name.startswith("step-")] == []
    assert newest_name(run) == 8


def test_of_two_new_runs_in_one_folder_the_second_is_refused_before_it_prepares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run = config_file(tmp_path, training__max_steps=2), tmp_path / "new" / "run"
    seconds: list[Any] = []

    def preparing(config: Any, **options: Any) -> Any:
        if not seconds:
            seconds.append(None)
            seconds[0] = run_command("pretrain", tmp_path / "config.yaml", "--set", f"run.output_dir={run}")
        raise UsageError("the text is not there")

    monkeypatch.setattr(loop, "prepare", preparing)
    assert run_command("pretrain", config, "--set", f"run.output_dir={run}").sentence() == "the text is not there"
    assert "a run is at work there" in seconds[0].sentence()
    assert not (tmp_path / "new").exists(), "a run that did not begin leaves no folder"


def unwritable(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Root may write everywhere, so permissions alone show a test nothing."""
    original = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder and original(path, mode))


@pytest.mark.parametrize("name", ["", "checkpoints"])
def test_a_folder_that_nothing_can_be_written_into_is_refused_before_training(
    name: str, finished: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, done = finished
    run = shutil.copytree(done, tmp_path / "run")
    unwritable(monkeypatch, run / name if name else run)
    for option in ("--resume", "--overwrite"):
        said = run_command("pretrain", config, "--set", f"run.output_dir={run}", option).sentence()
        assert said == f"run.output_dir: {run / name} cannot be used (Permission denied); choose another folder"
    assert numbers(run) == numbers(done)
    assert not (run / ".lock").exists()


def test_a_run_that_cannot_be_deleted_is_not_mixed_with_a_new_one(
    finished: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoints would outrank those of the new one."""
    config, done = finished
    run = shutil.copytree(done, tmp_path / "run")

    def refusing(path: Any, ignore_errors: bool = False, **options: Any) -> None:
        if not ignore_errors:
            raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("xltrain.training.run.shutil.rmtree", refusing)
    outcome = run_command("pretrain", config, "--set", f"run.output_dir={run}", "--overwrite")
    said = outcome.sentence()
    assert said.startswith(f"{run / 'checkpoints'}: of the run before, cannot be deleted (Permission denied); delete")
    assert numbers(run) == numbers(done)


def test_a_best_checkpoint_that_was_deleted_is_told_of(finished: tuple[Path, Path], tmp_path: Path) -> None:
    run = shutil.copytree(finished[1], tmp_path / "run")
    named = run / (run / "best").read_text().strip()
    shutil.rmtree(named)
    said = run_command("eval-ppl", run / "best").sentence()
    assert said == f"{run / 'best'}: names {named}, which is not there; give the run's folder for its newest checkpoint"
