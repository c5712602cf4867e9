"""``metrics.jsonl``: one JSON object per line, for people's own plots."""

import json
from pathlib import Path
from typing import Any


class MetricsFile:
    """Appends lines; a resumed run first drops the lines of steps that it will do again. No path: nothing is kept."""

    def __init__(self, path: Path | None, *, from_step: int) -> None:
        self.path = path
        if path is not None and path.exists():
            kept = [line for line in path.read_text(encoding="utf-8").splitlines() if _step(line) <= from_step]
            path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")

    def write(self, **values: Any) -> None:
        if self.path is None:
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")


def _step(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return float("inf")  # a line that was cut short
