"""Pictures: PNG files, drawn without a screen or matplotlib's global state; looks and legends of however many lines."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from xltrain.errors import UsageError

# Okabe and Ito 2008: apart for every kind of colour vision; without their yellow, which is faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
STYLES = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)), (0, (8, 4)))  # every further round of colours has another one
MARKS = ("o", "s", "^", "D", "v")  # likewise; only after 30 rounds do style and mark come together again

FONT_SIZE = 9  # points, of legends
NAME_WIDTH = 60  # characters; a longer name goes on in a further line of the legend
MARGIN = 0.1  # inches around a legend


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


def named(name: str) -> str:
    """A name as a legend has it, in lines that are not too long."""
    return fill(name, NAME_WIDTH)


def new_handle(label: str, **look: Any) -> Any:
    """An entry of a legend: a line or mark, and its name."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, markersize=4, **look)


def new_legend(figure: Any, handles: Sequence[Any], *, columns: int = 1) -> Any:
    """A legend for the whole figure, which takes no room from its panels and has no place yet."""
    legend = figure.legend(
        handles,
        ["-"]
        * len(handles),  # names come below: matplotlib leaves out what begins with _, and sets what is in $ as math
        loc="upper left",
        frameon=False,
        fontsize=FONT_SIZE,
        ncols=columns,
        borderaxespad=0,
        handlelength=4.5,
    )
    for handle, text in zip(handles, legend.get_texts(), strict=True):
        text.set_text(handle.get_label())
        text.set_parse_math(False)
    legend.set_in_layout(False)
    return legend


def legend_size(figure: Any, legend: Any) -> tuple[float, float]:
    """Width and height of a legend, in inches."""
    extent = legend.get_window_extent(figure.canvas.get_renderer())
    return extent.width / figure.dpi, extent.height / figure.dpi


def legend_below(figure: Any, handles: Sequence[Any]) -> None:
    """Make a figure higher by a legend below its panels, of as many columns as fit; the panels stay as high."""
    width, height = figure.get_size_inches()
    legend = new_legend(figure, handles)
    column, gap = legend_size(figure, legend)[0], legend.columnspacing * FONT_SIZE / 72
    legend.remove()
    legend = new_legend(figure, handles, columns=max(1, int((width - 2 * MARGIN + gap) / (column + gap))))
    below = legend_size(figure, legend)[1] + 2 * MARGIN
    figure.set_size_inches(width, height + below)
    share = below / (height + below)
    figure.get_layout_engine().set(rect=(0, share, 1, 1 - share))
    legend.set_bbox_to_anchor((MARGIN / width, share), transform=figure.transFigure)
