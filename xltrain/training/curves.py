"""Curves of one or several runs from their ``metrics.jsonl``: what ``xltrain plot`` and the end of a run draw."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xltrain import console
from xltrain.errors import UsageError
from xltrain.pictures import (
    check_picture,
    legend_below,
    legend_size,
    line_look,
    mark_look,
    named,
    new_figure,
    new_handle,
    new_legend,
)
from xltrain.training.comparable import compare
from xltrain.training.metrics import read_metrics

WIDTH, HEIGHT = 13.0, 7.0  # inches; a legend below the panels comes on top of that
CELL = (4.2, 3.2)  # inches; the largest legend that stands beside the panels, in the place of a sixth one
LINE_WIDTH = 1.6
SMOOTH_FROM = 80  # points; from so many on a line is drawn through their running means


@dataclass(frozen=True)
class Curves:
    """A run's name, how it differs from the others in what it predicts, and its two kinds of lines, oldest first."""

    name: str
    apart: str
    training: list[dict[str, Any]]
    validation: list[dict[str, Any]]


def plot_run(run: Path) -> Path:
    """Draw a run into its own folder, as ``curves.png``."""
    output = run / "curves.png"
    plot([run], output)
    return output


def plot(runs: Sequence[Path], output: Path) -> None:
    """Draw runs on shared axes into a PNG file; where their losses cannot be compared, the legend and a warning say it.

    Raises:
        UsageError: where a run has no metrics, or the file cannot be one.
    """
    check_picture(output, "--output")
    apart, warnings = compare(runs)
    figure = draw([read(run, *named) for run, *named in zip(runs, _names(runs), apart, strict=True)])
    figure.savefig(output, dpi=120)
    for warning in warnings:
        console.warn(warning)


def _names(runs: Sequence[Path]) -> list[str]:
    """The last part of every path; with the parts before it where that is not enough to tell runs apart."""
    whole = [run.resolve() for run in runs]
    for count in range(1, max(len(path.parts) for path in whole) + 1):
        names = ["/".join(path.parts[-count:]) for path in whole]
        if len(set(names)) == len(set(whole)):
            break
    return names


def read(run: Path, name: str, apart: str = "") -> Curves:
    """A run's lines.

    Raises:
        UsageError: where it has none.
    """
    path = run / "metrics.jsonl"
    if not path.is_file():
        raise UsageError(f"{run}: no run with a metrics.jsonl is here; give the folder of a run (run.output_dir)")
    lines = read_metrics(path)
    training = [line for line in lines if "lr" in line]
    if not training:
        raise UsageError(f"{path}: nothing is logged yet; the first line comes after logging.every steps")
    return Curves(name, apart, training, [line for line in lines if "validation_loss" in line])


@dataclass(frozen=True)
class _Panel:
    """One pair of axes: a value of training lines, and the one of validation lines that belongs to it.

    log: whether the axis is logarithmic where values differ much.
    smooth: whether many points are shown by their running means.
    """

    title: str
    value: Callable[[dict[str, Any]], float | None]
    validation: str = ""
    log: bool = False
    from_zero: bool = False
    smooth: bool = True


def _ppl(line: dict[str, Any]) -> float | None:
    loss = line["loss"]
    return math.exp(loss) if loss is not None and loss < 700 else None


PANELS = (
    _Panel("loss (nats per target)", lambda line: line["loss"], "validation_loss"),
    _Panel("perplexity", _ppl, "validation_ppl", log=True),
    _Panel("learning rate", lambda line: line["lr"], from_zero=True, smooth=False),
    _Panel("gradient norm", lambda line: line["grad_norm"], log=True),
    _Panel("tokens per second", lambda line: line["tokens_per_second"], from_zero=True),
)


def draw(runs: Sequence[Curves]) -> Any:
    """A figure of five panels, as high for many runs as for one: a legend too large for a sixth's place goes below."""
    figure, handles = new_figure(WIDTH, HEIGHT), _handles(runs)
    legend = new_legend(figure, handles)
    width, height = legend_size(figure, legend)
    if width <= CELL[0] and height <= CELL[1]:
        grid = figure.subplots(2, 3)
        panels = list(grid.flat)
        panels.pop().axis("off")
        # Bound to the corner of the sixth panel, once the layout has given it a place.
        legend.set_bbox_to_anchor((0, 1), transform=grid[1, 2].transAxes)
    else:
        legend.remove()
        legend_below(figure, handles)
        cells = figure.add_gridspec(2, 6)
        places = [cells[0, :3], cells[0, 3:], cells[1, :2], cells[1, 2:4], cells[1, 4:]]
        panels = [figure.add_subplot(place) for place in places]
    for axes, panel in zip(panels, PANELS, strict=True):
        for number, run in enumerate(runs):
            _line(axes, [(line["step"], panel.value(line)) for line in run.training], number, smooth=panel.smooth)
            if panel.validation:
                points = [(line["step"], line[panel.validation]) for line in run.validation]
                points = [(step, value) for step, value in points if value is not None]
                axes.plot(*_columns(points), markersize=4, **mark_look(number))
        _finish(axes, panel)
    return figure


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [step for step, _ in points], [value for _, value in points]


def _line(axes: Any, points: list[tuple[float, float | None]], number: int, *, smooth: bool) -> None:
    style = line_look(number)
    known = [(step, value) for step, value in points if value is not None]
    if len(known) < SMOOTH_FROM or not smooth:
        axes.plot(*_columns(known), linewidth=LINE_WIDTH, **style)
        return
    axes.plot(*_columns(known), linewidth=0.6, alpha=0.35, **style)
    half = len(known) // SMOOTH_FROM
    means = []
    for place, (step, _) in enumerate(known):
        window = known[max(0, place - half) : place + half + 1]
        means.append((step, sum(value for _, value in window) / len(window)))
    axes.plot(*_columns(means), linewidth=LINE_WIDTH, **style)


def _finish(axes: Any, panel: _Panel) -> None:
    axes.set_title(panel.title, loc="left", fontsize=11)
    axes.set_xlabel("step")
    axes.xaxis.set_major_formatter(lambda step, _: f"{step:,.0f}")
    axes.margins(x=0.02)
    axes.grid(visible=True, linewidth=0.5, alpha=0.4)
    axes.spines[["top", "right"]].set_visible(False)
    values = [value for line in axes.lines for value in line.get_ydata()]
    if panel.log and values and 0 < 20 * min(values) < max(values):
        axes.set_yscale("log")
    elif panel.from_zero:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}")


def _handles(runs: Sequence[Curves]) -> list[Any]:
    """What the legend shows of every run: its line and mark, and its name."""
    found = []
    for number, run in enumerate(runs):
        last = run.validation[-1]["validation_loss"] if run.validation else None
        label = named(run.name) + (f"\n{named(f'({run.apart})')}" if run.apart else "")
        label += f"\nlast validation loss {last:.4f}" if last is not None else ""
        mark = mark_look(number)["marker"] if run.validation else ""
        found.append(new_handle(label, linewidth=LINE_WIDTH, **line_look(number) | {"marker": mark}))
    if any(run.validation for run in runs):
        found.append(new_handle("validation", color="grey", marker="o", linestyle="none"))
    return found
