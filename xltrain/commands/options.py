"""Options that several commands have, and how they print what they found."""

from pathlib import Path
from typing import Annotated, Any

import typer

from xltrain import console
from xltrain.errors import UsageError

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file that describes the run.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Set a key of the configuration; may be given more than once."),
]
Source = Annotated[Path, typer.Argument(metavar="RUN_OR_CHECKPOINT", help="A run's folder, or a checkpoint's.")]
TextFiles = Annotated[
    list[str] | None, typer.Option(metavar="FILE", help="Text file or glob instead of a split; may be repeated.")
]
SplitName = Annotated[
    str | None,
    typer.Option(
        metavar="validation|test", help="Which text of the (first) run's configuration; validation by default."
    ),
]
MemLen = Annotated[int | None, typer.Option(min=0, metavar="N", help="Remembered positions; the run's by default.")]
ClampLen = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="Distances beyond N count as N; 0: off. By default as in training."),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else there.")
]


_WIDTH = 22
"""Of the column of keys, at least, so that what is printed in parts is in line."""


def split_name(split: str | None, data: list[str] | None) -> str:
    """The split to read; where there is ``data``, which is read instead of any, the default.

    Raises:
        UsageError: if both are given.
    """
    if data and split is not None:
        raise UsageError(f"--split {split} and --data exclude each other: --data is the text; leave one of them out")
    return split or "validation"


def show(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        console.out_json(found)
        return
    width = max(_WIDTH, *map(len, found))
    for key, value in found.items():
        console.out(f"{key:<{width}} {_shown(value, digits=6)}")


def table(rows: list[dict[str, Any]]) -> None:
    names = list(rows[0])
    console.out("  ".join(f"{name:>15}" for name in names))
    for row in rows:
        console.out("  ".join(f"{_shown(row[name], digits=5, zeros=True):>15}" for name in names))


def _shown(value: Any, *, digits: int, zeros: bool = False) -> str:
    """For a person: thousands apart, ``digits`` significant digits of what is not whole; ``zeros``: also at its end."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:#,.{digits}g}".rstrip(".") if zeros else f"{value:,.{digits}g}"
    return str(value)
