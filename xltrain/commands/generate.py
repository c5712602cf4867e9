"""`score` and `generate`."""

import json
from typing import Annotated

import typer

from xltrain.commands.options import Source

MemLen = Annotated[int | None, typer.Option(min=0, help="Remembered positions; the run's by default.")]


def score(
    source: Source,
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="Lines of text or JSON; - is standard input.")] = "-",
    form: Annotated[
        str, typer.Option("--format", help="lines, jsonl ({'context': ..., 'text': ...}), or auto: by the first line.")
    ] = "auto",
    per_token: Annotated[bool, typer.Option("--per-token", help="Also every piece and its log-probability.")] = False,
    start: Annotated[
        bool, typer.Option("--start/--no-start", help="Whether a document's end stands before each text.")
    ] = True,
    end: Annotated[bool, typer.Option("--end", help="Also score that the text ends.")] = False,
    mem_len: MemLen = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Texts at once; does not change the result.")] = None,
) -> None:
    """Log-probability of every line, or of a continuation given its context; see docs/generation.md."""
    from xltrain.evaluation.score_lines import score_lines

    for found in score_lines(
        source,
        file,
        form=form,
        start=start,
        end=end,
        per_token=per_token,
        mem_len=mem_len,
        batch_size=batch_size,
    ):
        print(json.dumps(found, ensure_ascii=False), flush=True)
