"""Several processes train as one does: the same rows, losses, rates and files; they can be stopped and dealt anew."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import corpora
import pytest
import torch
from commands import Outcome, run_command
from hypothesis import given, settings
from hypothesis import strategies as st
from logged import lines_of, without_speed
from processes import together
from tiny_runs import config_file
from torch import nn

from xltrain.config.training import TrainingConfig
from xltrain.data.prepare import prepare
from xltrain.errors import UsageError
from xltrain.evaluation.perplexity import Protocol, _passes
from xltrain.training import loop
from xltrain.training.checkpoint import find_checkpoint, list_checkpoints
from xltrain.training.dealing import Deal, deal_again
from xltrain.training.live import Run
from xltrain.training.update import Updater


def dealt(processes: int) -> list[str]:
    """8 rows in 4 micro-batches, whose dropout is then the same, for so many processes."""
    return ["--set", "training.batch_size=2", "--set", f"training.accumulate={4 // processes}"]


def pretrain(processes: int, config: Path, output: Path, *options: str) -> list[Any]:
    arguments = ["pretrain", config, "--set", f"run.output_dir={output}", *options]
    found = [run_command(*arguments)] if processes == 1 else together(processes, *arguments)
    assert [one.status for one in found] == [0] * processes, [one.err[-2000:] for one in found]
    return found


def curve(run: Path) -> dict[str, dict[int, float]]:
    """Every number that a run has logged, by name and step; speeds aside."""
    found: dict[str, dict[int, float]] = {}
    for line in map(without_speed, lines_of(run)):
        for name, value in line.items():
            if name != "step":
                found.setdefault(name, {})[line["step"]] = value
    return found


def assert_same(one: Path, other: Path, *, steps: int = 30) -> None:
    left, right = curve(one), curve(other)
    assert list(left["loss"]) == list(right["loss"]) == list(range(1, steps + 1))
    assert left.keys() == right.keys()
    for name in left:
        assert right[name] == pytest.approx(left[name], rel=1e-5, abs=1e-5), name
    assert left["lr"] == right["lr"]
    assert left["tokens_seen"] == right["tokens_seen"]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_equal_one_with_all_rows_and_only_the_first_speaks(strategy: str, tmp_path: Path) -> None:
    config = config_file(tmp_path)
    pretrain(1, config, tmp_path / "one", *dealt(1))
    first, second = pretrain(2, config, tmp_path / "two", "--set", f"distributed.strategy={strategy}", *dealt(2))
    assert_same(tmp_path / "one", tmp_path / "two")
    assert "rows per update     8 (rows per process 2 x accumulation 2 x processes 2)" in first.err
    assert second.err == ""


@pytest.mark.parametrize(
    ("strategies", "changes"),
    [
        pytest.param(["fsdp"], {"optimizer__name": "muon", "optimizer__lr": 3e-3}, id="muon"),
        pytest.param(
            ["ddp", "fsdp"],
            {
                "objective__name": "causal",
                "model__adaptive": {"cutoffs": [8, 16], "div_val": 3},
                "optimizer__clip_norm": 0.05,
            },
            id="adaptive and clipped",
        ),
    ],
)
def test_what_looks_at_whole_matrices_or_at_the_whole_gradient_does_so_also_where_they_are_shared_out(
    strategies: list[str], changes: dict[str, Any], tmp_path: Path
) -> None:
    """Of shapes that two processes cannot share equally."""
    shape = {"model__d_model": 18, "model__num_heads": 3, "model__d_inner": 35}
    config = config_file(tmp_path, training__max_steps=15, **shape, **changes)
    pretrain(1, config, tmp_path / "one", *dealt(1))
    for strategy in strategies:
        pretrain(2, config, tmp_path / strategy, "--set", f"distributed.strategy={strategy}", *dealt(2))
        one, other = curve(tmp_path / "one"), curve(tmp_path / strategy)
        for name in ("loss", "validation_loss", "skipped", "lr"):
            assert other[name] == pytest.approx(one[name], rel=1e-5), name
        assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-4)  # muon's products are in bf16
    whole = [dict(find_checkpoint(tmp_path / name).weights(torch.device("cpu"))) for name in ("one", strategies[-1])]
    assert max((whole[0][name] - whole[1][name]).abs().max() for name in whole[0]) < 1e-3


def overflowing(*arguments: object) -> tuple[Outcome, list[float]]:
    """The command, with a scaled loss whose gradient overflows at first; and the scale that each step leaves."""
    original, scales = Updater.step, []

    def scaled(device: str, **options: Any) -> Any:
        return torch.amp.grad_scaler.GradScaler(device, init_scale=2.0**24, **options)

    def stepping(self: Updater, *given: Any, **options: Any) -> Any:
        found = original(self, *given, **options)
        scales.append(self.scaler.get_scale())
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.amp, "GradScaler", scaled)
        patch.setattr(Updater, "step", stepping)
        return run_command(*arguments), scales


def test_an_overflow_lowers_the_scale_of_all_processes_alike(tmp_path: Path) -> None:
    config = config_file(tmp_path, training__max_steps=12, training__precision="fp16")
    alone, scales = overflowing("pretrain", config, "--set", f"run.output_dir={tmp_path / 'one'}", *dealt(1))
    assert alone.status == 0, alone.err
    assert 2.0**24 > scales[0] > scales[-1] == scales[-2]
    options = ["--set", f"run.output_dir={tmp_path / 'two'}", "--set", "distributed.strategy=fsdp", *dealt(2)]
    found = together(2, "pretrain", config, *options, function=overflowing)
    assert [outcome.status for outcome, _ in found] == [0, 0], found[0][0].err
    assert [others for _, others in found] == [scales, scales]
    assert curve(tmp_path / "two")["skipped"] == curve(tmp_path / "one")["skipped"]


def interrupted(step: int, rank: int, *arguments: object) -> Outcome:
    """The command, of which process ``rank`` gets SIGTERM in step ``step``."""
    original = Run.step

    def stepping(self: Run) -> Any:
        if self.progress.step == step - 1 and self.place.rank == rank:
            signal.raise_signal(signal.SIGTERM)
        return original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "step", stepping)
        return run_command(*arguments)


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ("fsdp", "ddp"),
        pytest.param("ddp", "ddp", marks=pytest.mark.slow),
        pytest.param("fsdp", "fsdp", marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_in_one_process_and_then_in_four(first: str, last: str, tmp_path: Path) -> None:
    """The rows, what they remember, and even dropout stay the same: micro-batches are of two rows throughout."""
    config = config_file(tmp_path, training__batch_size=2, training__accumulate=2)
    run = tmp_path / "run"
    pretrain(1, config, tmp_path / "straight", *dealt(1))
    command = ["pretrain", config, "--set", f"run.output_dir={run}"]
    stopped = together(2, 10, 1, *command, "--set", f"distributed.strategy={first}", function=interrupted)
    assert [one.status for one in stopped] == [143, 143], [one.err for one in stopped]
    assert stopped[0].err.count("stopped by SIGTERM at step") == 1
    assert stopped[1].err == ""
    at = find_checkpoint(run).progress()
    assert (at.rows, at.processes) == (8, 2)
    assert at.step in (10, 11)
    alone = interrupted(20, 0, *command, "--resume")
    assert alone.status == 143
    assert "the 8 rows of 2 process(es) go on in 1, 8 in each" in alone.err
    assert "rows per update     8 (rows per process 2 x accumulation 4 x processes 1)" in alone.err
    finished = pretrain(4, config, run, "--set", f"distributed.strategy={last}", "--resume")
    assert "rows per update     8 (rows per process 2 x accumulation 1 x processes 4)" in finished[0].err
    assert_same(tmp_path / "straight", run)
    evaluated = run_command("eval-ppl", run, "--json")
    assert json.loads(evaluated.out)["loss"] == pytest.approx(curve(run)["validation_loss"][30], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_four_processes_equal_one(strategy: str, tmp_path: Path) -> None:
    config = config_file(tmp_path)
    pretrain(1, config, tmp_path / "one", *dealt(1))
    pretrain(4, config, tmp_path / "four", "--set", f"distributed.strategy={strategy}", *dealt(4))
    assert_same(tmp_path / "one", tmp_path / "four")


def test_weights_without_a_part_in_the_loss_are_no_trouble(tmp_path: Path) -> None:
    """A causal model neither has a mask vector nor, in plain text, reads the vectors of parts."""
    config = config_file(tmp_path, objective__name="causal", model__segment_embeddings=True, training__max_steps=5)
    pretrain(1, config, tmp_path / "one", *dealt(1))
    pretrain(2, config, tmp_path / "two", *dealt(2))
    assert_same(tmp_path / "one", tmp_path / "two", steps=5)


def preparing_slowly(*arguments: object) -> Outcome:
    """The command, with a preparation that takes longer than a collective may."""
    import torch.distributed as dist

    def slowly(config: Any, **options: Any) -> Any:
        assert not dist.is_initialized(), "a collective would run out of time"
        assert os.environ["RANK"] == "0", "only one process prepares"
        time.sleep(3)
        return prepare(config, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "prepare", slowly)
        patch.setattr(dist.distributed_c10d, "default_pg_timeout", timedelta(seconds=1))
        return run_command(*arguments)


def test_one_process_prepares_while_the_others_wait_as_long_as_it_takes(tmp_path: Path) -> None:
    config = config_file(tmp_path, training__max_steps=2)
    arguments = ["pretrain", config, "--set", f"run.output_dir={tmp_path / 'run'}", *dealt(2)]
    found = together(2, *arguments, function=preparing_slowly)
    assert [one.status for one in found] == [0, 0], [one.err[-2000:] for one in found]


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("corpus.validation", "nowhere.txt", "nowhere.txt"),
        ("model.d_model", "15", "model.d_model"),
        ("model.norm", "batch_norm", "batch_norm sees the rows of one process only"),
    ],
)
def test_a_mistake_is_told_once_and_ends_all(key: str, value: str, sentence: str, tmp_path: Path) -> None:
    """In the preparation, in the configuration, and in what several processes cannot do."""
    config = config_file(tmp_path, objective__name="masked" if "norm" in key else "permutation")
    first, second = together(
        2, "pretrain", config, "--set", f"run.output_dir={tmp_path / 'run'}", "--set", f"{key}={value}"
    )
    assert sentence in first.err
    assert (first.status, second.status) == (2, 2)
    assert second.err == ""
    assert not (tmp_path / "run").exists()


def test_rows_that_cannot_be_dealt_are_refused_with_the_rule() -> None:
    given_ones = TrainingConfig(batch_size=2, accumulate=2)
    assert deal_again(given_ones, 2, total=8, rows_before=4) == Deal(rows=4, processes=2, pieces=2)
    assert deal_again(given_ones, 1, total=8, rows_before=4) == Deal(rows=8, processes=1, pieces=4)
    assert deal_again(given_ones, 8, total=8, rows_before=4) == Deal(rows=1, processes=8, pieces=1)
    assert deal_again(TrainingConfig(batch_size=8), 1, total=8, rows_before=4).pieces == 1
    assert deal_again(TrainingConfig(batch_size=1, accumulate=4), 2, total=8, rows_before=4).pieces == 4
    with pytest.raises(UsageError, match=r"reads 8 rows at once.*3 processes cannot share them.*divides 8"):
        deal_again(given_ones, 3, total=8, rows_before=4)
    with pytest.raises(UsageError, match=r"batch_size x accumulate was 4 and is now 16.*with 4 processes set it to 2"):
        deal_again(TrainingConfig(batch_size=16), 4, total=8, rows_before=4)


@given(parts=st.integers(1, 5), rows=st.integers(1, 4), tokens=st.integers(2, 90))
@settings(max_examples=25)
def test_every_target_of_a_validation_counts_once_whoever_reads_it(parts: int, rows: int, tokens: int) -> None:
    """Also where there are fewer rows than processes; and all processes read equally many segments."""
    split = corpora.split_of([tokens])
    model = SimpleNamespace(layers=[None, None])
    scored: list[int] = []
    counts = set()
    for part in range(parts):
        protocol = Protocol("stream", 8, 8, rows, part=(part, parts))
        segments = list(_passes(model, split, protocol))  # type: ignore[arg-type]
        counts.add(len(segments))
        for segment, _, wanted in segments:
            for row in range(len(wanted)):
                if wanted[row]:
                    scored += segment.tokens[row, : segment.length[row]].tolist()
    assert sorted(scored) == split.tokens.tolist()
    assert len(counts) == 1


def test_the_rows_of_all_processes_are_said_before_anything_runs(tmp_path: Path) -> None:
    """By ``inspect`` without a launcher, and by a dry run of several processes, once."""
    config = config_file(tmp_path, training__batch_size=8, training__accumulate=2)
    found = json.loads(run_command("inspect", config, "--processes", 2, "--json").out)
    assert (found["rows_per_update"], found["tokens_per_step"]) == (32, 512)
    first, second = together(2, "pretrain", config, "--dry-run")
    assert "rows per update     32 (rows per process 8 x accumulation 2 x processes 2)" in first.out
    assert "tokens per update   512 (32 rows x seq_len 16)" in first.out
    assert second.out == second.err == ""


def compiled_in_python(*arguments: object) -> Outcome:
    """The command, with a compiler that needs no C++: graphs are made, but not turned into machine code."""
    original = nn.Module.compile
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Module, "compile", lambda self, **options: original(self, backend="eager", **options))
        return run_command(*arguments)


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_compiled_models_in_two_processes_save_what_everyone_loads(strategy: str, tmp_path: Path) -> None:
    changes = {"model__dropout": 0.0, "model__attention_dropout": 0.0}  # compilers draw other masks
    config = config_file(tmp_path, training__max_steps=6, checkpoint__every=3, **changes)
    pretrain(1, config, tmp_path / "one", *dealt(1))
    run = tmp_path / "two"
    options = ["--set", "training.compile=true", "--set", f"distributed.strategy={strategy}", *dealt(2)]
    command = ["pretrain", config, "--set", f"run.output_dir={run}"]
    found = together(2, *command, *options, function=compiled_in_python)
    assert [one.status for one in found] == [0, 0], [one.err[-3000:] for one in found]
    assert_same(tmp_path / "one", run, steps=6)
    names = [find_checkpoint(folder).weights(torch.device("cpu")).keys() for folder in (tmp_path / "one", run)]
    assert names[0] == names[1]
    shutil.rmtree(run / "checkpoints" / "step-6")
    assert run_command(*command, *dealt(1), "--resume").status == 0
    assert_same(tmp_path / "one", run, steps=6)


@pytest.mark.slow
def test_torchrun_passes_a_signal_on_and_a_killed_process_ends_all(tmp_path: Path) -> None:
    config = config_file(tmp_path, training__max_steps=100_000, checkpoint__every=20)
    run = tmp_path / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "xltrain", "pretrain"]
    command += [str(config), "--set", f"run.output_dir={run}", "--resume"]

    def launched(log: Path, *, until: int) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, stdout=log.open("w"), stderr=subprocess.STDOUT)
        end = time.monotonic() + 120
        while not list_checkpoints(run) or int(list_checkpoints(run)[0].name[5:]) < until:
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < end
            time.sleep(0.05)
        return process

    first = launched(tmp_path / "first", until=20)
    first.send_signal(signal.SIGTERM)
    first.wait(timeout=60)
    said = (tmp_path / "first").read_text()
    assert said.count("xltrain: stopped by SIGTERM at step") == 1, said[-3000:]
    stopped = find_checkpoint(run).progress().step

    second = launched(tmp_path / "second", until=stopped + 20)
    workers = subprocess.run(
        ["pgrep", "-P", str(second.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    assert len(workers) == 2
    os.kill(int(workers[1]), signal.SIGKILL)
    second.wait(timeout=60)
    assert second.returncode != 0
    assert find_checkpoint(run).progress().step >= stopped + 20
    assert f"resuming at step {stopped:,}" in (tmp_path / "second").read_text()
