"""The picture of ``context``: loss against memory, loss against given context, and the gains of every step."""

from pathlib import Path
from typing import Any

from xltrain.evaluation.recl import SHARES
from xltrain.pictures import legend_below, mark_look, named, new_figure, new_handle

STYLE_OF_SHARE = dict(zip(SHARES, ("-", "-.", "--"), strict=True))


def draw(found: dict[str, Any], path: Path) -> None:
    """Write a PNG of what ``context`` found; models keep their colour and mark in all panels."""
    recl = found.get("recl")
    figure = new_figure(14 if recl else 6, 4.2)
    panels = figure.subplots(1, 3 if recl else 1, squeeze=False)[0]
    names = labels([model["checkpoint"] for model in found["models"]])
    for index, model in enumerate(found["models"]):
        look, curve = mark_look(index), model["curve"]
        panels[0].errorbar(
            [point["mem_len"] for point in curve],
            [point["loss"] for point in curve],
            yerr=[2 * (point["gain_standard_error"] or 0.0) for point in curve],
            capsize=3,
            **look | {"linestyle": "-"},
        )
        panels[0].axvline(model["mem_len"], color=look["color"], linestyle=":", linewidth=1)
    smallest = min_positive(found["models"])
    panels[0].set_xscale("symlog", linthresh=smallest, linscale=0.5)
    ticks = sorted({point["mem_len"] for model in found["models"] for point in model["curve"]})
    panels[0].set_xlim(left=-smallest / 4, right=max(1.3 * ticks[-1], 1))
    panels[0].set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    panels[0].minorticks_off()
    panels[0].set_xlabel("memory length (dotted: trained)")
    panels[0].set_ylabel("loss, nats per token")
    panels[0].set_title("the same tokens, with longer memory\n(bars: 2 standard errors of the gain)", fontsize=10)
    if recl:
        _draw_recl(recl, len(names), panels[1], panels[2])
    handles = [new_handle(named(name), **mark_look(index) | {"linestyle": "-"}) for index, name in enumerate(names)]
    legend_below(figure, handles)
    figure.savefig(path, dpi=120)


def _draw_recl(recl: dict[str, Any], models: int, losses: Any, gains: Any) -> None:
    for index in range(models):
        losses.plot(
            [point["context"] for point in recl["losses"]],
            [point["losses"][index] for point in recl["losses"]],
            **mark_look(index) | {"linestyle": "-"},
        )
        for share, style in STYLE_OF_SHARE.items():
            steps = [step for step in recl["gains"] if step["model"] == index and step["r"] == share]
            gains.plot(
                [step["longer"] for step in steps],
                [100 * step["gain"] for step in steps],
                **mark_look(index) | {"linestyle": style},
            )
    losses.set_xlabel("tokens of context")
    losses.set_ylabel("loss, nats per token")
    losses.set_title(f"{recl['targets']:,} tokens after exactly so many others", fontsize=10)
    gains.axhline(100 * recl["threshold"], color="black", linewidth=1, linestyle=":")
    gains.set_xlabel(f"tokens of context, after {recl['step']} fewer")
    gains.set_ylabel("relative gain, % of perplexity")
    gains.set_title("what each step gains over the best of the group\n(dotted: the threshold)", fontsize=10)
    gains.set_ylim(bottom=0)
    gains.legend(
        handles=[new_handle(f"r = {share}", color="grey", linestyle=style) for share, style in STYLE_OF_SHARE.items()],
        fontsize=8,
        handlelength=3,
    )


def labels(checkpoints: list[str]) -> list[str]:
    """Short names of checkpoints that tell them apart: the run's folder, with the step where a run occurs twice."""
    runs = [Path(path).parent.parent.name or path for path in checkpoints]
    steps = [Path(path).name for path in checkpoints]
    return [f"{run} {step}" if runs.count(run) > 1 else run for run, step in zip(runs, steps, strict=True)]


def min_positive(models: list[dict[str, Any]]) -> int:
    """The smallest memory above none, where a logarithmic axis can begin."""
    return min((point["mem_len"] for model in models for point in model["curve"] if point["mem_len"]), default=1)
