"""Interrupted equals uninterrupted, to the last digit (CPU, fp32, one thread)."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from xltrain.config.load import validate
from xltrain.config.schema import Config
from xltrain.errors import Stopped, UsageError
from xltrain.training.checkpoint import list_checkpoints, newest_checkpoint
from xltrain.training.live import Run
from xltrain.training.loop import pretrain
from xltrain.training.tensors import shapes


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some hundred short documents, and a validation file."""
    folder = tmp_path_factory.mktemp("text")
    draw = torch.Generator().manual_seed(1)
    words = ["lo", "ra", "mi", "tu", "ken", "sol", "dar", "vi", "pa", "ne"]
    for name, documents in (("train", 36), ("validation", 8)):
        lines = []
        for _ in range(documents):
            picked = torch.randint(0, len(words), (int(torch.randint(4, 14, (1,), generator=draw)),), generator=draw)
            lines.append(" ".join(words[i] for i in picked.tolist()) + ".\n\n")
        (folder / f"{name}.txt").write_text("".join(lines))
    return folder


def config_of(text: Path, output: Path, *, steps: int, **changes: Any) -> Config:
    """A tiny run that logs every step; about 16 steps per epoch."""
    data: dict[str, Any] = {
        "run": {"output_dir": str(output), "seed": 7},
        "corpus": {
            "train": [str(text / "train.txt")],
            "validation": [str(text / "validation.txt")],
            "cache_dir": str(text / "cache"),
        },
        "tokenizer": {"kind": "char"},
        "segments": {"seq_len": 16, "mem_len": 24, "shuffle_documents": True},
        "model": {"num_layers": 2, "d_model": 16, "num_heads": 2, "d_inner": 32, "dropout": 0.1},
        "objective": {"name": "permutation"},
        "optimizer": {"lr": 1e-3},
        "schedule": {"warmup_steps": 5},
        "training": {"max_steps": steps, "batch_size": 4, "device": "cpu"},
        "evaluation": {"every": 0, "batch_size": 3},
        "checkpoint": {"every": 20, "keep": 10},
        "logging": {"every": 1},
    }
    for key, value in changes.items():
        section, name = key.split("__")
        data[section][name] = value
    config, problems = validate(data)
    assert config is not None
    assert not problems
    return config


def losses(folder: Path) -> dict[int, tuple[float, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: (line["loss"], line["grad_norm"]) for line in lines if "loss" in line}


def test_the_stop_falls_in_the_second_epoch(text: Path, tmp_path: Path) -> None:
    """So that the tests below say something about epochs: what is resumed at step 20 is not in the first."""
    run = config_of(text, tmp_path, steps=20)
    pretrain(run)
    checkpoint = newest_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.progress().position.epoch >= 1
    assert checkpoint.progress().position.segment > 0


@pytest.mark.parametrize("objective", ["permutation", "causal", "masked", "seq2seq"])
@pytest.mark.parametrize(("accumulate", "optimizer"), [(1, "adamw"), (2, "adamw"), (1, "muon")])
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


def interrupt_after(config: Config, step: int, *, resume: bool = False) -> None:
    """Train as configured, but be interrupted by SIGTERM during step ``step``; the loop finishes it and saves."""
    original = Run.step

    def stepping(self: Run) -> Any:
        if self.progress.step == step - 1:
            signal.raise_signal(signal.SIGTERM)
        return original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "step", stepping)
        with pytest.raises(Stopped) as stopped:
            pretrain(config, resume=resume)
    assert stopped.value.exit_code == 143


@pytest.mark.parametrize("stops", [(3, 17), (16, 33)])
def test_two_interruptions(text: Path, tmp_path: Path, stops: tuple[int, int]) -> None:
    pretrain(config_of(text, tmp_path / "straight", steps=40))
    config = config_of(text, tmp_path / "twice", steps=40)
    interrupt_after(config, stops[0])
    interrupt_after(config, stops[1], resume=True)
    pretrain(config, resume=True)
    assert losses(tmp_path / "straight") == losses(tmp_path / "twice")


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
                text, folder, steps=10, training__accumulate=pieces, model__dropout=0.0, model__attention_dropout=0.0
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


def test_a_changed_architecture_is_refused_with_both_values(text: Path, tmp_path: Path) -> None:
    pretrain(config_of(text, tmp_path, steps=3))
    with pytest.raises(UsageError, match=r"model\.d_model was 16 and is now 32"):
        pretrain(config_of(text, tmp_path, steps=6, model__d_model=32), resume=True)
    with pytest.raises(UsageError, match=r"segments\.seq_len was 16 and is now 8"):
        pretrain(config_of(text, tmp_path, steps=6, segments__seq_len=8), resume=True)
    (text / "other.txt").write_text("lo ra mi tu ken sol dar vi pa ne.\n\n" * 40)
    with pytest.raises(UsageError, match="another corpus or tokenizer"):
        pretrain(config_of(text, tmp_path, steps=6, corpus__train=[str(text / "other.txt")]), resume=True)


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


def test_another_validation_text_may_be_used_on_resume(text: Path, tmp_path: Path) -> None:
    pretrain(config_of(text, tmp_path, steps=3))
    (text / "valid2.txt").write_text("lo ra mi tu ken.\n\n" * 9)
    pretrain(config_of(text, tmp_path, steps=5, corpus__validation=[str(text / "valid2.txt")]), resume=True)
    assert newest_checkpoint(tmp_path).step == 5  # type: ignore[union-attr]
