"""`export-checkpoint`."""

from pathlib import Path
from typing import Annotated

import typer

from xltrain.commands.options import AsJson, Source, show


def export_checkpoint(
    source: Source,
    output: Annotated[Path, typer.Argument(metavar="OUTPUT_DIR", help="Folder to write.")],
    format_: Annotated[
        str, typer.Option("--format", help="huggingface: a folder that transformers loads.")
    ] = "huggingface",
    verify: Annotated[
        bool | None,
        typer.Option("--verify/--no-verify", help="Compare logits with transformers; default: if it is installed."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUTPUT_DIR if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint in a format that other programs load, and check that it gives the same numbers."""
    from xltrain.interop.export import export

    show(export(source, output, format_name=format_, verify=verify, overwrite=overwrite), as_json)
