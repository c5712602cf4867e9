"""The command line. Only this module imports typer, and it imports the rest when a command runs."""

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from xltrain import console
from xltrain.errors import UsageError, XltrainError

app = typer.Typer(
    name="xltrain",
    help="Pretrain language models that remember: Transformer-XL, XLNet and the models they are compared with.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file that describes the run.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Set a key of the configuration; may be given more than once."),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else there.")
]


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"xltrain {version('xltrain')}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback with an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version.")
    ] = False,
) -> None:
    del debug, version  # debug is read by main(), which also has to know it when parsing fails


@app.command(epilog="Example: xltrain prepare configs/demo.yaml --set tokenizer.vocab_size=4000")
def prepare(config: ConfigPath, set_: Overrides = None, as_json: AsJson = False) -> None:
    """Train the tokenizer and write the token store; a second run finds and reuses them."""
    from xltrain.config.load import load_config
    from xltrain.data.prepare import prepare as build

    prepared = build(load_config(config, set_ or ()))
    store = prepared.store
    found = {
        "vocab_size": store.vocab_size,
        "fingerprint": store.fingerprint,
        "reused": prepared.reused,
        "folder": str(store.folder),
        "splits": store.manifest["splits"],
    }
    if as_json:
        print(json.dumps(found))
        return
    print(f"vocabulary {store.vocab_size:,}, store {store.folder}")
    for name, counts in store.manifest["splits"].items():
        rate = counts["unknown"] / max(1, counts["tokens"])
        per_token = counts["characters"] / max(1, counts["tokens"])
        print(
            f"{name:<11} {counts['documents']:>9,} documents {counts['lines']:>11,} lines {counts['words']:>12,} words "
            f"{counts['characters']:>13,} characters {counts['tokens']:>12,} tokens ({per_token:.2f} characters each), "
            f"unknown {rate:.3%}"
        )


@app.command(epilog="Example: xltrain pretrain configs/demo.yaml --set optimizer.lr=1e-3 --dry-run")
def pretrain(
    config: ConfigPath,
    set_: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in run.output_dir.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete the run in run.output_dir first.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved configuration and what it amounts to, and stop.")
    ] = False,
) -> None:
    """Train a model as the configuration says."""
    from xltrain.config.load import dump_config, load_config

    if resume and overwrite:
        raise UsageError("--resume and --overwrite exclude each other; give one of them")
    loaded = load_config(config, set_ or ())
    if dry_run:
        from xltrain.training.dry_run import amounts

        print(dump_config(loaded))
        print("\n".join(amounts(loaded)))
        return
    from xltrain.interop.huggingface import reasons_against
    from xltrain.training.loop import pretrain as train

    if loaded.objective.name == "permutation" and (reasons := reasons_against(loaded)):
        console.say(f"note: this model has no huggingface export: {'; '.join(reasons)}")
    train(loaded, resume=resume, overwrite=overwrite)


@app.command("eval-ppl", epilog="Example: xltrain eval-ppl runs/demo --split test --mem-len 256 --json")
def eval_ppl(
    source: Annotated[Path, typer.Argument(metavar="RUN_OR_CHECKPOINT", help="A run's folder, or a checkpoint's.")],
    data: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="Text file or glob instead of a split; may be repeated.")
    ] = None,
    split: Annotated[
        str, typer.Option(help="validation or test, as the run's configuration names them.")
    ] = "validation",
    mode: Annotated[str, typer.Option(help="stream, document or sliding; see docs/evaluation.md.")] = "stream",
    seq_len: Annotated[int | None, typer.Option(min=1, help="Tokens per segment; the run's by default.")] = None,
    mem_len: Annotated[int | None, typer.Option(min=0, help="Remembered positions; the run's by default.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Rows at once; does not change the result.")] = None,
    stride: Annotated[
        int | None, typer.Option(min=1, help="Scored tokens per window (sliding only); 1 by default.")
    ] = None,
    same_length: Annotated[
        bool | None, typer.Option("--same-length/--no-same-length", help="Every query sees mem_len keys.")
    ] = None,
    clamp_len: Annotated[int | None, typer.Option(min=0, help="Distances beyond this count as this; 0: off.")] = None,
    as_json: AsJson = False,
) -> None:
    """Perplexity of a text under a trained model."""
    from xltrain.evaluation.command import eval_ppl as run

    found = run(
        source,
        data=data or [],
        split=split,
        mode=mode,
        seq_len=seq_len,
        mem_len=mem_len,
        batch_size=batch_size,
        stride=stride,
        same_length=same_length,
        clamp_len=clamp_len,
    )
    _show(found, as_json)


@app.command("export-checkpoint", epilog="Example: xltrain export-checkpoint runs/demo exported --verify")
def export_checkpoint(
    source: Annotated[Path, typer.Argument(metavar="RUN_OR_CHECKPOINT", help="A run's folder, or a checkpoint's.")],
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

    _show(export(source, output, format_name=format_, verify=verify, overwrite=overwrite), as_json)


@app.command(epilog="Example: xltrain inspect configs/demo.yaml --signal --picture signal.png")
def inspect(
    source: Annotated[Path, typer.Argument(metavar="CONFIG_OR_CHECKPOINT", help="A YAML file, or a run's folder.")],
    set_: Overrides = None,
    signal: Annotated[
        bool, typer.Option("--signal", help="Report sizes of activations, scores and gradients at initialisation.")
    ] = False,
    picture: Annotated[Path | None, typer.Option(metavar="PNG", help="Draw the signal report.")] = None,
    as_json: AsJson = False,
) -> None:
    """What a configuration or a checkpoint amounts to: parameters, tokens, context, bytes."""
    from xltrain.evaluation.inspect import inspect as run

    found = run(source, overrides=set_ or [], signal=signal, picture=picture)
    if as_json:
        print(json.dumps(found))
        return
    rows = found.pop("signal", [])
    parts = found.pop("parts")
    _show(found, as_json)
    print("\nparameters by part")
    _show(parts, as_json)
    if rows:
        print("\nsignal at initialisation: second moments, entropy in nats, norm of the gradient")
        _table(rows)


def _table(rows: list[dict[str, Any]]) -> None:
    names = list(rows[0])
    print("  ".join(f"{name:>15}" for name in names))
    for row in rows:
        print("  ".join(f"{row[name]:>15.4g}" for name in names))


def _show(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        shown = (
            "-"
            if value is None
            else f"{value:,.6g}"
            if isinstance(value, float)
            else f"{value:,}"
            if isinstance(value, int)
            else value
        )
        print(f"{key:<22} {shown}")


class _Signalled(BaseException):
    """A signal came; not an Exception, so that no library takes it for a failure of its own and goes on."""


def main() -> None:
    """Run the command line; every failure becomes one message and its exit status."""
    _require_utf8()
    debug = "--debug" in sys.argv
    sys.argv[1:] = [argument for argument in sys.argv[1:] if argument != "--debug"]  # so it may stand anywhere
    signals: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        signals.append(number)
        raise _Signalled

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        app(standalone_mode=True)
    except (SystemExit, _Signalled, Exception) as error:
        if debug or (isinstance(error, SystemExit) and not signals):
            raise
        message, status = _explain(error, signals)
        if message is None:
            raise
        console.say(f"xltrain: {message}")
        sys.exit(status)


def _explain(error: BaseException, signals: list[int]) -> tuple[str | None, int]:
    """The sentence and the exit status for what ended a command; no sentence for what nobody has foreseen."""
    if signals:  # whatever it looks like: C functions that were interrupted raise failures of their own
        return f"stopped by {signal.Signals(signals[0]).name}", 128 + signals[0]
    if isinstance(error, XltrainError):
        return str(error), error.exit_code
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror or error}", 1
    return None, 1


def _require_utf8() -> None:
    """Start again in Python's UTF-8 mode where file names are not UTF-8, as in the C locale of many job queues.

    Otherwise a path that the configuration writes as 語料 could be neither opened nor printed.
    """
    if sys.getfilesystemencoding() != "utf-8" and "utf8" not in sys._xoptions:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
