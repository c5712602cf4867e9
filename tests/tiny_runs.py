"""Runs of some steps on the documents of the fixture ``text``, and what they logged."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from xltrain.config.load import validate
from xltrain.config.schema import Config
from xltrain.errors import Stopped
from xltrain.training.live import Run
from xltrain.training.loop import pretrain


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
