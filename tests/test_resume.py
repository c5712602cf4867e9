"""Interrupted equals uninterrupted, to the last digit (CPU, fp32, one thread)."""

import contextlib
import errno
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import corpora
import hypothesis
import pytest
import torch
import yaml
from hypothesis import strategies as st
from logged import lines_of, losses, series, without_speed
from safetensors.torch import load_file
from tiny_runs import config_of, interrupt_after, mark_anew

from xltrain.config.load import validate
from xltrain.config.schema import Config
from xltrain.data.prepare import prepare
from xltrain.data.streams import Position, TrainingStream
from xltrain.distributed import Place
from xltrain.errors import Stopped, UsageError
from xltrain.model.transformer import LanguageModel
from xltrain.training import loop
from xltrain.training.checkpoint import find_checkpoint, list_checkpoints, newest_checkpoint
from xltrain.training.live import Run
from xltrain.training.loop import pretrain
from xltrain.training.metrics import MetricsFile, read_metrics
from xltrain.training.tensors import shapes


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_stop_falls_in_the_second_epoch(text: Path, tmp_path: Path) -> None:
    """So that the tests below say something about epochs: what is resumed at step 20 is not in the first."""
    run = config_of(text, tmp_path, steps=20)
    pretrain(run)
    checkpoint = newest_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.progress().position.epoch >= 1
    assert checkpoint.progress().position.segment > 0


@pytest.mark.parametrize(
    ("objective", "accumulate", "optimizer"),
    [
        *((objective, 1, "adamw") for objective in ("permutation", "causal", "masked", "seq2seq")),
        ("permutation", 2, "adamw"),
        ("causal", 1, "muon"),
    ],
)
def test_forty_straight_equal_twenty_and_twenty(
    text: Path, tmp_path: Path, objective: str, accumulate: int, optimizer: str
) -> None:
    changes = {"objective__name": objective, "training__accumulate": accumulate, "optimizer__name": optimizer}
    pretrain(config_of(text, tmp_path / "straight", steps=40, **changes))
    # The schedule's horizon is 40 in both; only where the run stops differs.
    stopped = config_of(text, tmp_path / "twice", steps=40, **changes)
    interrupt_after(stopped, 20)
    pretrain(stopped, resume=True)
    straight, resumed = losses(tmp_path / "straight"), losses(tmp_path / "twice")
    assert sorted(resumed) == list(range(1, 41))
    assert straight == resumed


def everything(folder: Path) -> list[dict[str, Any]]:
    """All lines of ``metrics.jsonl``, validations too, without what depends on the clock."""
    return [without_speed(line) for line in lines_of(folder)]


FORWARDS = 40 * 2 + 3 * 10
"""Of the run below: two micro-batches in each of 40 steps, and three validations of ten segments."""


@pytest.fixture(scope="module")
def straight(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, done = tmp_path_factory.mktemp("straight"), 0
    original = LanguageModel.forward

    def forward(self: LanguageModel, *arguments: Any, **named: Any) -> Any:
        nonlocal done
        done += 1
        return original(self, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LanguageModel, "forward", forward)
        pretrain(with_validations(text, folder))
    assert done == FORWARDS
    return folder


def with_validations(text: Path, folder: Path) -> Config:
    return config_of(text, folder, steps=40, training__accumulate=2, evaluation__every=15, logging__every=3)


@hypothesis.given(st.lists(st.integers(1, FORWARDS), min_size=1, max_size=3))
@hypothesis.settings(max_examples=3)
@hypothesis.example([4, 1])
@hypothesis.example([32, 2, 33])
@hypothesis.example([FORWARDS - 3])
def test_interruptions_at_any_forward_change_nothing(
    text: Path, straight: Path, tmp_path_factory: pytest.TempPathFactory, stops: list[int]
) -> None:
    """In any epoch, between micro-batches, and within validations, up to three times in a run.

    ``stops``: how many forward passes a process gets to do before its SIGTERM.
    """
    config = with_validations(text, folder := tmp_path_factory.mktemp("interrupted"))
    original = LanguageModel.forward
    done = 0

    def forward(self: LanguageModel, *arguments: Any, **named: Any) -> Any:
        nonlocal done
        done += 1
        if done == wanted:
            signal.raise_signal(signal.SIGTERM)
        return original(self, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LanguageModel, "forward", forward)
        for wanted in stops:  # noqa: B007 (forward looks at it)
            done = 0
            with contextlib.suppress(Stopped):
                pretrain(config, resume=True)
    pretrain(config, resume=True)
    assert everything(folder) == everything(straight)
    one, other = find_checkpoint(folder), find_checkpoint(straight)
    assert replace(one.progress(), seconds=0.0, elapsed=0.0) == replace(other.progress(), seconds=0.0, elapsed=0.0)
    for name in ("model.safetensors", "optimizer.safetensors", "memory.safetensors"):
        left, right = load_file(one.folder / name), load_file(other.folder / name)
        assert left.keys() == right.keys()
        assert all(torch.equal(left[key], right[key]) for key in left)
    assert (folder / "best").read_text() == (straight / "best").read_text()


def interrupt_in_validation(config: Config) -> None:
    """Train as configured, or go on, until SIGTERM comes in the next validation."""
    original = loop.evaluate

    def evaluating(*arguments: Any, **named: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return original(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "evaluate", evaluating)
        with pytest.raises(Stopped):
            pretrain(config, resume=True)
    assert find_checkpoint(Path(config.run.folder)).progress().validation_owed


def test_a_validation_that_is_done_again_leaves_its_checkpoint_the_best(text: Path, tmp_path: Path) -> None:
    config = with_validations(text, tmp_path)
    interrupt_in_validation(config)
    interrupt_after(config, 16, resume=True)
    at = find_checkpoint(tmp_path / "best").progress()
    assert (at.step, at.best_step, at.validation_owed) == (15, 15, False)


def test_a_run_beyond_its_last_step_does_no_validation_that_it_owes(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt_in_validation(config_of(text, tmp_path, steps=40, evaluation__every=3))
    pretrain(config_of(text, tmp_path, steps=2, evaluation__every=3), resume=True)
    assert "nothing to do: step 3 is beyond training.max_steps 2\n" in capsys.readouterr().err
    assert find_checkpoint(tmp_path).progress().validation_owed
    assert [line for line in everything(tmp_path) if "validation_loss" in line] == []


def test_a_last_validation_that_is_done_again_is_done_once(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it finds no lower loss than before."""
    original = loop._together
    monkeypatch.setattr(
        loop, "_together", lambda mine, run: replace(original(mine, run), nll=float(run.progress.step), targets=1)
    )
    config = config_of(text, tmp_path, steps=4, evaluation__every=3)
    interrupt_after(config, 3)
    interrupt_in_validation(config)
    for _ in range(2):
        pretrain(config, resume=True)
    assert [line["step"] for line in everything(tmp_path) if "validation_loss" in line] == [3, 4]
    assert not find_checkpoint(tmp_path).progress().validation_owed
    assert (tmp_path / "best").read_text() == "checkpoints/step-3\n"


def test_the_stops_above_fall_into_training_validation_and_every_epoch(straight: Path) -> None:
    steps = [line["step"] for line in everything(straight) if "validation_loss" in line]
    assert steps == [15, 30, 40]
    assert find_checkpoint(straight).progress().position.epoch >= 2


def test_time_is_counted_over_interruptions(text: Path, tmp_path: Path) -> None:
    config = config_of(text, tmp_path, steps=6)
    interrupt_after(config, 3)
    before = find_checkpoint(tmp_path).progress()
    pretrain(config, resume=True)
    after = find_checkpoint(tmp_path).progress()
    assert 0 < before.seconds <= before.elapsed
    assert after.seconds > before.seconds
    assert after.elapsed > before.elapsed


def test_a_late_step_is_reached_at_once(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that was read before is read again: resuming at step 19,990 reads as much as at step 2."""
    config = config_of(text, tmp_path, steps=2)
    pretrain(config)
    done = tmp_path / "checkpoints" / "step-2"
    state = json.loads((done / "state.json").read_text())
    state |= {"step": 19_990, "position": {"epoch": 1_249, "segment": 7}}
    (done / "state.json").write_text(json.dumps(state))
    late = done.rename(done.with_name("step-19990"))
    mark_anew(late)
    original, read = TrainingStream.read, []

    def reading(self: TrainingStream, position: Position) -> Any:
        read.append(position)
        return original(self, position)

    monkeypatch.setattr(TrainingStream, "read", reading)
    pretrain(config_of(text, tmp_path, steps=20_000, training__num_workers=0), resume=True)
    assert len(read) == 10
    assert read[0] == Position(epoch=1_249, segment=7)
    assert "resuming at step 19,990" in capsys.readouterr().err
    assert max(losses(tmp_path)) == 20_000


def test_a_schedule_that_bends_is_told(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pretrain(config_of(text, tmp_path, steps=20))
    pretrain(config_of(text, tmp_path, steps=10), resume=True)
    assert "nothing to do: step 20 is beyond training.max_steps 10\n" in capsys.readouterr().err
    pretrain(config_of(text, tmp_path, steps=20, schedule__name="linear"), resume=True)
    pretrain(config_of(text, tmp_path, steps=40), resume=True)
    said = capsys.readouterr().err
    rate = series(tmp_path, "lr")
    assert rate[21] > 10 * rate[20]
    assert f"learning rate at step 21: {rate[21]:.3e}, which would have been {rate[20]:.3e}" in said


def test_validation_in_between_disturbs_nothing(text: Path, tmp_path: Path) -> None:
    pretrain(config_of(text, tmp_path / "without", steps=40))
    pretrain(config_of(text, tmp_path / "with", steps=40, evaluation__every=10))
    assert losses(tmp_path / "without") == losses(tmp_path / "with")


def test_accumulation_does_not_change_the_result(text: Path, tmp_path: Path) -> None:
    found = []
    for pieces in (1, 2, 4):
        folder = tmp_path / str(pieces)
        pretrain(
            config_of(
                text,
                folder,
                steps=10,
                training__batch_size=4 // pieces,
                training__accumulate=pieces,
                model__dropout=0.0,
                model__attention_dropout=0.0,
            )
        )
        found.append(torch.tensor([loss for loss, _ in losses(folder).values()]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[0], found[2], rtol=1e-5, atol=1e-6)


def test_rotation_keeps_the_newest(text: Path, tmp_path: Path) -> None:
    pretrain(config_of(text, tmp_path, steps=30, checkpoint__every=5, checkpoint__keep=2))
    assert [folder.name for folder in list_checkpoints(tmp_path)] == ["step-30", "step-25"]
    assert (tmp_path / "latest").read_text() == "checkpoints/step-30\n"


def test_everything_loads_without_pickled_objects(text: Path, tmp_path: Path) -> None:
    pretrain(config_of(text, tmp_path, steps=3))
    folder = tmp_path / "checkpoints" / "step-3"
    assert not [path for path in folder.rglob("*") if path.suffix in (".pt", ".pkl", ".bin", ".metadata")]
    names = {path.name for path in folder.iterdir()}
    assert {"model.safetensors", "optimizer.safetensors", "memory.safetensors"} < names
    assert all(dtype == torch.float32 for _, dtype in shapes(folder, "optimizer").values())


def test_a_longer_run_goes_on_and_a_finished_one_has_nothing_to_do(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretrain(config_of(text, tmp_path, steps=3))
    pretrain(config_of(text, tmp_path, steps=3), resume=True)
    assert "nothing to do: step 3 of 3 is done" in capsys.readouterr().err
    pretrain(config_of(text, tmp_path, steps=5, logging__every=2), resume=True)
    assert "resuming at step 3" in capsys.readouterr().err


def test_the_resolved_config_is_kept(text: Path, tmp_path: Path) -> None:
    config = config_of(text, tmp_path, steps=2)
    pretrain(config)
    again, problems = validate(yaml.safe_load((tmp_path / "config.yaml").read_text()))
    assert not problems
    assert again == config


def test_losses_do_not_depend_on_how_many_segments_are_read_ahead(corpus: corpora.Corpus, tmp_path: Path):
    found = []
    for workers in (0, 1, 2, 4):
        config = corpora.config_for(
            corpus.train,
            tmp_path,
            run={"output_dir": str(tmp_path / str(workers))},
            tokenizer={"kind": "byte", "vocab_size": None},
            training={"num_workers": workers, "max_steps": 20},
            logging={"every": 1},
            segments={"shuffle_documents": True},
        )
        found.append(series(pretrain(config), "loss"))
    assert len(found[0]) == 20
    assert found == [found[0]] * 4


@pytest.mark.parametrize(
    ("mem_len", "held"),
    [(0, [0, 0, 0]), (4, [4, 4, 4]), (16, [16, 16, 16]), (25, [16, 25, 25]), (50, [16, 32, 48, 50])],
)
def test_any_length_of_memory_fills_as_the_text_is_read(
    text: Path, tmp_path: Path, mem_len: int, held: list[int]
) -> None:
    """Shorter than a segment of 16, as long, longer, and no multiple of it; a later segment changes nothing."""
    config = config_of(text, tmp_path, steps=5, segments__mem_len=mem_len)
    run = Run.build(config, Place(torch.device("cpu")), prepare(config).store, None)
    for expected in [*held, *[mem_len] * (5 - len(held))]:
        assert run.step().loss.isfinite()
        assert run.memory.length.tolist() == [expected] * 4
        assert run.memory.states.shape[2] == mem_len


def test_a_full_disk_while_the_lines_of_steps_to_come_are_dropped_loses_none(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            MetricsFile(path, from_step=1)
    assert [line["step"] for line in read_metrics(path)] == [1, 2]
    assert list(tmp_path.iterdir()) == [path]
    MetricsFile(path, from_step=1)
    assert [line["step"] for line in read_metrics(path)] == [1]


def full(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_validation_text_without_targets_is_refused_before_the_first_step(text: Path, tmp_path: Path) -> None:
    valid = tmp_path / "valid.txt"
    valid.write_text("lo\n")
    changes = {"objective__name": "causal", "tokenizer__kind": "word", "tokenizer__eos": False}
    config = config_of(text, tmp_path / "run", steps=2, corpus__validation=[str(valid)], **changes)
    with pytest.raises(UsageError, match=r"corpus\.validation: in this text of 1 token\(s\) nothing is predicted"):
        pretrain(config)
    assert not (tmp_path / "run").exists()
