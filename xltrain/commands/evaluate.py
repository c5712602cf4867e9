"""`eval-ppl` and `inspect`."""

from pathlib import Path
from typing import Annotated

import typer

from xltrain import console
from xltrain.commands.options import (
    AsJson,
    ClampLen,
    MemLen,
    Overrides,
    Source,
    SplitName,
    TextFiles,
    show,
    split_name,
    table,
)


def eval_ppl(
    source: Source,
    data: TextFiles = None,
    split: SplitName = None,
    mode: Annotated[
        str,
        typer.Option(
            metavar="stream|document|sliding",
            help="The whole text with memory; each document on its own; windows without memory, all read anew.",
        ),
    ] = "stream",
    seq_len: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens per segment; the run's by default.")
    ] = None,
    mem_len: MemLen = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Rows at once, at most; does not change the result.")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Scored tokens per window (sliding only); 1 by default.")
    ] = None,
    same_length: Annotated[
        bool | None,
        typer.Option(
            "--same-length/--no-same-length",
            help="Every token sees mem_len positions, its own included. By default as in training.",
        ),
    ] = None,
    clamp_len: ClampLen = None,
    left_to_right: Annotated[
        bool, typer.Option("--left-to-right", help="Permutation models: the text's perplexity, token after token.")
    ] = False,
    draws: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Draw targets and orders N times, and report the spread (not causal models)."
        ),
    ] = 1,
    per_token: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the log-probability of every target to FILE, named .jsonl or .tsv."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Perplexity of a text under a trained model."""
    from xltrain.evaluation.command import Options
    from xltrain.evaluation.command import eval_ppl as run

    options = Options(
        data=data or [],
        split=split_name(split, data),
        mode=mode,
        seq_len=seq_len,
        mem_len=mem_len,
        batch_size=batch_size,
        stride=stride,
        same_length=same_length,
        clamp_len=clamp_len,
        left_to_right=left_to_right,
        draws=draws,
        per_token=per_token,
    )
    show(run(source, options), as_json)


def inspect(
    source: Annotated[Path, typer.Argument(metavar="CONFIG_OR_CHECKPOINT", help="A YAML file, or a run's folder.")],
    set_: Overrides = None,
    signal: Annotated[
        bool, typer.Option("--signal", help="Report sizes of activations, scores and gradients at initialisation.")
    ] = False,
    picture: Annotated[Path | None, typer.Option(metavar="PNG", help="Draw the signal report.")] = None,
    processes: Annotated[int, typer.Option(min=1, metavar="N", help="Processes that torchrun would start.")] = 1,
    as_json: AsJson = False,
) -> None:
    """What a configuration or a checkpoint amounts to: parameters, tokens, context, bytes."""
    from xltrain.evaluation.inspect import inspect as run

    found = run(source, overrides=set_ or [], signal=signal, picture=picture, processes=processes)
    if as_json:
        console.out_json(found)
        return
    rows = found.pop("signal", [])
    parts = found.pop("parts")
    show(found, as_json)
    console.out("\nparameters by part")
    show(parts, as_json)
    if rows:
        console.out("\nsignal at initialisation: second moments, entropy in nats, norm of the gradient")
        table(rows)
