"""Where numbers of a run go: ``metrics.jsonl``, one JSON object per line, and TensorBoard where wanted."""

import json
from pathlib import Path
from typing import Any

from xltrain.training.disk import write_atomically


class MetricsFile:
    """Appends lines; a resumed run first drops the lines of steps that it will do again."""

    def __init__(self, path: Path, *, from_step: int) -> None:
        self.path = path
        if path.exists():
            kept = [line for line in path.read_text(encoding="utf-8").splitlines() if _step(line) <= from_step]
            write_atomically(path, "".join(line + "\n" for line in kept))

    def write(self, **values: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def close(self) -> None:
        """Every line was written as it came."""


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a ``metrics.jsonl``, without one that was cut short."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if _step(line) < float("inf")]


class TensorBoard:
    """Event files under ``folder``; a resumed run replaces the steps that it does again."""

    def __init__(self, folder: Path, *, from_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=from_step + 1)

    def write(self, *, step: int, **values: Any) -> None:
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


def _step(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return float("inf")  # a line that was cut short
