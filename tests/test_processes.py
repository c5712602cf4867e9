"""Several processes train as one does: the same rows, losses, rates and files; they can be stopped and dealt anew."""

import json
from pathlib import Path
from typing import Any

import corpora
import pytest
import yaml
from conftest import run_command
from processes import together


def config_file(folder: Path, **changes: Any) -> Path:
    """A tiny run of 8 rows in 4 micro-batches, which 1, 2 and 4 processes share in ``variant`` ways."""
    text = corpora.write_text(folder / "text.txt", lines=300, seed=11)
    valid = corpora.write_text(folder / "valid.txt", lines=40, seed=12)
    data: dict[str, Any] = {
        "run": {"seed": 7},
        "corpus": {"train": [str(text)], "validation": [str(valid)], "cache_dir": str(folder / "cache")},
        "tokenizer": {"kind": "char"},
        "segments": {"seq_len": 16, "mem_len": 24, "shuffle_documents": True},
        "model": {"num_layers": 2, "d_model": 16, "num_heads": 2, "d_inner": 32, "dropout": 0.1},
        "objective": {"name": "permutation"},
        "schedule": {"warmup_steps": 5},
        "training": {"max_steps": 30, "device": "cpu"},
        "evaluation": {"every": 15, "batch_size": 3},
        "checkpoint": {"every": 10, "keep": 9},
        "logging": {"every": 1},
    }
    for key, value in changes.items():
        section, name = key.split("__")
        data.setdefault(section, {})[name] = value
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def dealt(processes: int) -> list[str]:
    """8 rows in 4 micro-batches, whose dropout is then the same, for so many processes."""
    return ["--set", f"training.batch_size={8 // processes}", "--set", f"training.accumulate={4 // processes}"]


def pretrain(processes: int, config: Path, output: Path, *options: str) -> list[Any]:
    arguments = ["pretrain", config, "--set", f"run.output_dir={output}", *options]
    found = [run_command(*arguments)] if processes == 1 else together(processes, *arguments)
    assert [one.status for one in found] == [0] * processes, [one.err[-2000:] for one in found]
    return found


def curve(run: Path) -> dict[str, dict[int, float]]:
    """Every number that a run has logged, by name and step; speeds aside."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found: dict[str, dict[int, float]] = {}
    for line in lines:
        for name, value in line.items():
            if name not in ("step", "tokens_per_second"):
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
    assert "rows per update     8 (rows per process 4 x processes 2; accumulation 2" in first.err
    assert second.err == ""
