"""Runs of some steps, which take a fraction of a second, and their interruption."""

import signal
from pathlib import Path
from typing import Any

import corpora
import pytest

from xltrain.config.schema import Config
from xltrain.errors import Stopped
from xltrain.training.checkpoint import MARK, mark_complete
from xltrain.training.live import Run
from xltrain.training.loop import pretrain


def settings(train: Path, validation: Path, cache: Path, **changes: Any) -> dict[str, Any]:
    """A tiny run that logs every step; about 16 steps per epoch. A change is named ``section__key``."""
    found: dict[str, Any] = {
        "run": {"seed": 7},
        "corpus": {"train": [str(train)], "validation": [str(validation)], "cache_dir": str(cache)},
        "tokenizer": {"kind": "char"},
        "segments": {"seq_len": 16, "mem_len": 24, "shuffle_documents": True},
        "model": {"num_layers": 2, "d_model": 16, "num_heads": 2, "d_inner": 32, "dropout": 0.1},
        "objective": {"name": "permutation"},
        "schedule": {"warmup_steps": 5},
        "training": {"device": "cpu"},
        "evaluation": {"batch_size": 3},
        "checkpoint": {"keep": 10},
        "logging": {"every": 1},
    }
    for key, value in changes.items():
        section, name = key.split("__")
        found.setdefault(section, {})[name] = value
    return found


def config_of(text: Path, output: Path, *, steps: int, **changes: Any) -> Config:
    """Of four rows, saved every 20 steps and not validated."""
    own = {
        "run__output_dir": str(output),
        "training__max_steps": steps,
        "training__batch_size": 4,
        "evaluation__every": 0,
        "checkpoint__every": 20,
    }
    texts = (text / "train.txt", text / "validation.txt")
    return corpora.checked(settings(*texts, text / "cache", **own | changes))


def config_file(folder: Path, **changes: Any) -> Path:
    """Of 30 steps on a text of its own, saved every 10 and validated every 15; where to, a command has to say."""
    own = {"training__max_steps": 30, "evaluation__every": 15, "checkpoint__every": 10}
    texts = (
        corpora.write_text(folder / "text.txt", lines=300, seed=11),
        corpora.write_text(folder / "valid.txt", lines=40, seed=12),
    )
    return corpora.write_config(folder / "config.yaml", settings(*texts, folder / "cache", **own | changes))


def mark_anew(checkpoint: Path) -> None:
    """Let a checkpoint that was changed pass for whole."""
    (checkpoint / MARK).unlink()
    mark_complete(checkpoint)


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
