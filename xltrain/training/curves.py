"""Curves of one or several runs from their ``metrics.jsonl``: what ``xltrain plot`` and the end of a run draw."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xltrain.errors import UsageError
from xltrain.pictures import check_picture, new_figure
from xltrain.training.metrics import read_metrics

# Okabe and Ito 2008: apart for every kind of colour vision; without their yellow, which is faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
STYLES = ("-", "--", ":")  # a further round of colours has another style
SMOOTH_FROM = 80  # points; from so many on a line is drawn through their running means


@dataclass(frozen=True)
class Curves:
    """A run's name and its two kinds of lines, oldest first."""

    name: str
    training: list[dict[str, Any]]
    validation: list[dict[str, Any]]


def plot_run(run: Path) -> Path:
    """Draw a run into its own folder, as ``curves.png``."""
    output = run / "curves.png"
    plot([run], output)
    return output


def plot(runs: Sequence[Path], output: Path) -> None:
    """Draw runs on shared axes into a PNG file.

    Raises:
        UsageError: where a run has no metrics, or the file cannot be one.
    """
    check_picture(output, "--output")
    _draw([_read(run, name) for run, name in zip(runs, _names(runs), strict=True)], output)


def _names(runs: Sequence[Path]) -> list[str]:
    """The last part of every path; with the parts before it where that is not enough to tell runs apart."""
    whole = [run.resolve() for run in runs]
    for count in range(1, max(len(path.parts) for path in whole) + 1):
        names = ["/".join(path.parts[-count:]) for path in whole]
        if len(set(names)) == len(set(whole)):
            break
    return names


def _read(run: Path, name: str) -> Curves:
    path = run / "metrics.jsonl"
    if not path.is_file():
        raise UsageError(f"{run}: no run with a metrics.jsonl is here; give the folder of a run (run.output_dir)")
    lines = read_metrics(path)
    training = [line for line in lines if "lr" in line]
    if not training:
        raise UsageError(f"{path}: nothing is logged yet; the first line comes after logging.every steps")
    return Curves(name, training, [line for line in lines if "validation_loss" in line])


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


def _draw(runs: Sequence[Curves], output: Path) -> None:
    figure = new_figure(13, 7)
    grid = figure.subplots(2, 3)
    for axes, panel in zip(grid.flat, PANELS, strict=False):
        for number, run in enumerate(runs):
            style = {
                "color": COLOURS[number % len(COLOURS)],
                "linestyle": STYLES[number // len(COLOURS) % len(STYLES)],
            }
            _line(axes, [(line["step"], panel.value(line)) for line in run.training], style, smooth=panel.smooth)
            if panel.validation:
                points = [(line["step"], line[panel.validation]) for line in run.validation]
                points = [(step, value) for step, value in points if value is not None]
                axes.plot(*_columns(points), "o", markersize=4, **{**style, "linestyle": "none"})
        _finish(axes, panel)
    _legend(grid.flat[-1], runs)
    figure.savefig(output, dpi=120)


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [step for step, _ in points], [value for _, value in points]


def _line(axes: Any, points: list[tuple[float, float | None]], style: dict[str, Any], *, smooth: bool) -> None:
    known = [(step, value) for step, value in points if value is not None]
    if len(known) < SMOOTH_FROM or not smooth:
        axes.plot(*_columns(known), linewidth=1.6, **style)
        return
    axes.plot(*_columns(known), linewidth=0.6, alpha=0.35, **style)
    half = len(known) // SMOOTH_FROM
    means = []
    for place, (step, _) in enumerate(known):
        window = known[max(0, place - half) : place + half + 1]
        means.append((step, sum(value for _, value in window) / len(window)))
    axes.plot(*_columns(means), linewidth=1.6, **style)


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


def _legend(axes: Any, runs: Sequence[Curves]) -> None:
    axes.axis("off")
    for number, run in enumerate(runs):
        last = run.validation[-1]["validation_loss"] if run.validation else None
        label = run.name + (f"\nlast validation loss {last:.4f}" if last is not None else "")
        style = {"color": COLOURS[number % len(COLOURS)], "linestyle": STYLES[number // len(COLOURS) % len(STYLES)]}
        axes.plot([], [], linewidth=1.6, label=label, **style)
    axes.plot([], [], "o", color="grey", markersize=4, label="validation")
    axes.legend(loc="upper left", frameon=False, fontsize=9 if len(runs) < 8 else 7, borderaxespad=0)
