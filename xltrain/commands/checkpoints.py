"""`export-checkpoint` and `import-checkpoint`."""

from pathlib import Path
from typing import Annotated

import typer

from xltrain.commands.misuse import require_order
from xltrain.commands.options import AsJson, Source, show


def export_checkpoint(
    source: Source,
    output: Annotated[Path, typer.Argument(metavar="OUTPUT_DIR", help="Folder to write.")],
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="NAME",
            help="huggingface: transformers' XLNet class; remote-code: any model, with code for transformers' "
            "trust_remote_code; transfo-xl: for transformers 4.x; safetensors: weights and configuration.",
        ),
    ] = "huggingface",
    average: Annotated[int, typer.Option(min=1, metavar="N", help="Export the mean of the last N checkpoints.")] = 1,
    dtype: Annotated[str, typer.Option(metavar="fp32|bf16|fp16", help="Of the weights.")] = "fp32",
    licence: Annotated[
        str, typer.Option("--license", metavar="ID", help="Licence named in the model card, as model hubs spell it.")
    ] = "unknown",
    verify: Annotated[
        bool | None,
        typer.Option("--verify/--no-verify", help="Compare logits with transformers; default: if it is installed."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUTPUT_DIR if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint in a format that other programs load, and check that it gives the same numbers."""
    require_order("export-checkpoint", source, output)
    from xltrain.interop.export import export

    found = export(
        source,
        output,
        format_name=format_,
        average=average,
        dtype=dtype,
        licence=licence,
        verify=verify,
        overwrite=overwrite,
    )
    show(found, as_json)


def import_checkpoint(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Another program's checkpoint: a folder or a file.")],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT_DIR", help="Folder to write.")],
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="NAME",
            help="auto, huggingface, xltrain, transfo-xl, tensorflow-xlnet, transformer-xl or nvidia-transformer-xl; "
            "see docs/checkpoints.md.",
        ),
    ] = "auto",
    vocabulary: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The vocabulary, where it does not lie beside the weights."),
    ] = None,
    initial_memory: Annotated[
        str | None,
        typer.Option(
            metavar="absent|zeros",
            help="Before anything is read, rows see nothing (absent, the default) or zeros (transformers 4, TF).",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier import in OUTPUT_DIR.")] = False,
    as_json: AsJson = False,
) -> None:
    """Turn another program's checkpoint into one of ours, to evaluate, to continue (run.init_from) or to export."""
    from xltrain.interop.import_checkpoint import import_checkpoint as run

    found = run(
        source,
        output,
        format_name=format_,
        vocabulary=vocabulary,
        initial_memory=initial_memory,
        overwrite=overwrite,
    )
    if not as_json:
        found.pop("notes")  # said already
    show(found, as_json)
