"""What runs have written into ``metrics.jsonl``, read without the program's own reader."""

import json
from pathlib import Path
from typing import Any


def lines_of(run: Path) -> list[dict[str, Any]]:
    """Every line: of steps that were logged, and of validations."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def without_speed(line: dict[str, Any]) -> dict[str, Any]:
    """All but what depends on the clock."""
    return {name: value for name, value in line.items() if name != "tokens_per_second"}


def series(run: Path, name: str) -> dict[int, Any]:
    """One of the numbers by step, where it was logged; once for each step."""
    found = [(line["step"], line[name]) for line in lines_of(run) if name in line]
    assert [step for step, _ in found] == sorted({step for step, _ in found})
    return dict(found)


def losses(run: Path) -> dict[int, tuple[float, float]]:
    """Loss and norm of the gradient by step."""
    norms = series(run, "grad_norm")
    return {step: (loss, norms[step]) for step, loss in series(run, "loss").items()}
