"""Pictures: PNG files, drawn without a screen and without matplotlib's global state."""

from pathlib import Path
from typing import Any

from xltrain.errors import UsageError

# Okabe and Ito 2008: apart for every kind of colour vision; without their yellow, which is faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
STYLES = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)), (0, (8, 4)))  # every further round of colours has another one
MARKS = ("o", "s", "^", "D", "v")  # likewise; only after 30 rounds do style and mark come together again


def line_look(number: int) -> dict[str, Any]:
    """Colour and style of the lines of what is drawn as number ``number``, from 0."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": STYLES[number // len(COLOURS) % len(STYLES)]}


def mark_look(number: int) -> dict[str, Any]:
    """Colour and shape of its single points, which no line joins."""
    mark = MARKS[number // len(COLOURS) % len(MARKS)]
    return {"color": COLOURS[number % len(COLOURS)], "marker": mark, "linestyle": "none"}


def check_picture(path: Path, option: str) -> None:
    """Raise a :class:`UsageError` that names ``option`` where no PNG file can be written to ``path``."""
    if path.suffix.lower() != ".png" or not path.parent.is_dir():
        raise UsageError(f"{option}: {path} must be a .png file in a folder that exists")


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure of so many inches; ``savefig`` writes it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
