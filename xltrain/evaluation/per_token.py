"""The loss of every target, in the order of the text, as a file of one line per target."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from xltrain.data.store import Split
from xltrain.data.tokenizer import Tokenizer
from xltrain.errors import UsageError, XltrainError

FORMATS = (".jsonl", ".tsv")
COLUMNS = ("position", "document", "token", "id", "log_probability", "query")


class Recorder:
    """Collects places and losses in whatever order batches bring them."""

    def __init__(self) -> None:
        self._positions: list[np.ndarray] = []
        self._losses: list[np.ndarray] = []

    def __call__(self, positions: np.ndarray, losses: np.ndarray) -> None:
        """``positions`` and ``losses``: (n,) of the targets that count."""
        self._positions.append(positions)
        self._losses.append(losses.astype(np.float64))

    def in_order(self) -> tuple[np.ndarray, np.ndarray]:
        """(targets,) places in the text, ascending, and their losses in nats."""
        positions = np.concatenate([np.zeros(0, dtype=np.int64), *self._positions])
        losses = np.concatenate([np.zeros(0), *self._losses])
        order = np.argsort(positions, kind="stable")
        return positions[order], losses[order]


def check_file(path: Path) -> None:
    """Refuse, before any work, a file that could not be written.

    Raises:
        UsageError: naming it.
    """
    if path.suffix not in FORMATS:
        raise UsageError(f"--per-token: {path} must end in .jsonl (JSON Lines) or .tsv (columns with a heading)")
    if not path.parent.is_dir():
        raise UsageError(f"--per-token: {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise UsageError(f"--per-token: {path} is a folder; name a file")


def write(path: Path, recorder: Recorder, split: Split, tokenizer: Tokenizer, *, query: bool) -> None:
    """Write the file beside its place and rename it, so that a half-written one is never seen.

    ``query``: whether targets were predicted from the query stream.

    Raises:
        XltrainError: if it cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            if path.suffix == ".tsv":
                file.write("\t".join(COLUMNS) + "\n")
            for row in _rows(recorder, split, tokenizer, query=query):
                if path.suffix == ".tsv":  # strings as JSON writes them: a token may be a tab or a line end
                    row["token"] = json.dumps(row["token"], ensure_ascii=False)
                    row["query"] = int(row["query"])
                    file.write("\t".join(str(row[name]) for name in COLUMNS) + "\n")
                else:
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise XltrainError(f"--per-token: cannot write {path}: {error.strerror or error}") from error


def _rows(recorder: Recorder, split: Split, tokenizer: Tokenizer, *, query: bool) -> Iterator[dict[str, Any]]:
    positions, losses = recorder.in_order()
    documents = np.searchsorted(split.ends, positions, side="right")
    for position, document, loss in zip(positions.tolist(), documents.tolist(), losses.tolist(), strict=True):
        token = int(split.tokens[position])
        yield {
            "position": position,
            "document": document,
            "token": tokenizer.piece(token),
            "id": token,
            "log_probability": -loss,
            "query": query,
        }
