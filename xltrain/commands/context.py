"""`context`."""

from pathlib import Path
from typing import Annotated

import typer

from xltrain import console
from xltrain.commands.options import AsJson, ClampLen, SplitName, TextFiles, split_name, table
from xltrain.errors import UsageError

_TITLES = {"standard_error": "std. error", "gain_standard_error": "its std. error"}
"""Headings of a table that are shorter than the keys of the JSON object."""


def context(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_OR_CHECKPOINT", help="Folders of runs or checkpoints; several are compared."),
    ],
    data: TextFiles = None,
    split: SplitName = None,
    mem_lens: Annotated[
        str | None,
        typer.Option(metavar="M,M,...", help="Memory lengths of the curve; by default 0 to 8 times the trained one."),
    ] = None,
    clamp_len: ClampLen = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Rows at once; does not change the result.")
    ] = None,
    step: Annotated[
        int, typer.Option(min=1, metavar="N", help="Tokens by which the given context grows; the paper's is 100.")
    ] = 100,
    longest: Annotated[
        int | None,
        typer.Option(
            min=2, metavar="N", help="The longest context that is given; by default 1,000, if the text has it."
        ),
    ] = None,
    targets: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Tokens that are asked for at every context length; 0: only the curve."),
    ] = 1000,
    picture: Annotated[Path | None, typer.Option(metavar="PNG", help="Draw what was found.")] = None,
    as_json: AsJson = False,
) -> None:
    """How much context a model uses: loss against memory length, and relative effective context length."""
    numbers = [str(source) for source in sources if str(source).isdecimal() and not source.exists()]
    if numbers:
        raise UsageError(f"{numbers[0]}: is no run; --mem-lens takes its numbers with commas between, as in 0,128,512")
    from xltrain.evaluation.context import context as run
    from xltrain.evaluation.meaning import of_reading

    found = run(
        sources,
        data=data or [],
        split=split_name(split, data),
        mem_lens=_lengths(mem_lens),
        clamp_len=clamp_len,
        batch_size=batch_size,
        step=step,
        longest=longest,
        targets=targets,
        picture=picture,
    )
    if as_json:
        console.out_json(found)
        return
    for model in found["models"]:
        reading = f", read {way} from left to right" if (way := of_reading(model["objective"])) else ""
        console.out(f"{model['checkpoint']} ({model['objective']}{reading}, trained with memory {model['mem_len']})")
        table(
            [
                {_TITLES.get(key, key): value for key, value in point.items() if value is not None}
                for point in model["curve"]
            ]
        )
        console.out()
    if "recl" not in found:
        return
    recl = found["recl"]
    console.out(
        f"effective context length, in tokens (step {recl['step']}, {recl['targets']:,} targets): by a model's own mean"
    )
    console.out("loss, and relative to the best of the group on the share r of the tokens that are hardest")
    shares = list(recl["lengths"][0])
    console.out("".join(f"{title:>10}" for title in ("own", *(f"r = {share}" for share in shares))))
    for model, own, lengths in zip(found["models"], recl["effective"], recl["lengths"], strict=True):
        shown = [f"{length:,}" if length else f">= {recl['longest']:,}" for length in (own, *lengths.values())]
        console.out("".join(f"{length:>10}" for length in shown) + f"  {model['checkpoint']}")


def _lengths(given: str | None) -> list[int]:
    if given is None:
        return []
    parts = given.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise UsageError(f"--mem-lens: {given!r} is not allowed; give numbers of positions, as in 0,128,512")
    return [int(part) for part in parts]
