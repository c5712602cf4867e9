"""The command line. Only this module and `commands` import typer; the rest is imported when a command runs."""

import os
import re
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from xltrain import console
from xltrain.commands import checkpoints, context, evaluate, generate, misuse, train
from xltrain.errors import FailedElsewhere, OutputClosed, Stopped, UsageError, XltrainError

WIDEST = 110
"""Columns that help takes of a wider terminal."""

app = typer.Typer(
    name="xltrain",
    help="Pretrain language models that remember: Transformer-XL, XLNet and the models they are compared with.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST},
    epilog="xltrain COMMAND --help has a command's options and an example.",
)


class _Command(TyperCommand):
    """A command whose help does not speak of Python's types, and whose example can be copied whole."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [re.sub(r"^\{(.*)\}", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            name, said = param.get_help_record(ctx) or ("", "")
            for theirs, ours in _PLAINER_HELP:
                said = re.sub(theirs, ours, said)
            kind = "Arguments" if param.param_type_name == "argument" else "Options"
            sections[kind].append((re.sub(r" <\S+>$", "", name), said))
        for title, entries in sections.items():
            if entries:
                with formatter.section(title):
                    formatter.write_dl(entries)


_PLAINER_HELP = [
    (r"\bx>=([\d.]+)(?=[\];])", r"at least \1"),
    (r"\b([\d.]+)<=x<=([\d.]+)(?=[\];])", r"\1 to \2"),
    (r"  \[required\]$", ""),  # the usage shows it
]
"""How help writes what is allowed, and how it is written here."""


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        console.out(f"xltrain {version('xltrain')}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback with an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version.")
    ] = False,
) -> None:
    del debug, version  # debug is read by main(), which also has to know it when parsing fails


COMMANDS: list[tuple[str, Callable[..., None], str, str]] = [
    (
        "prepare",
        train.prepare,
        "Turn text into a vocabulary and tokens.",
        "configs/demo.yaml --set tokenizer.vocab_size=4000",
    ),
    (
        "pretrain",
        train.pretrain,
        "Train a model as a configuration says.",
        "configs/demo.yaml --set optimizer.lr=1e-3 --dry-run",
    ),
    ("plot", train.plot, "Draw the curves of one or several runs.", "runs/demo runs/other --output curves.png"),
    (
        "eval-ppl",
        evaluate.eval_ppl,
        "Perplexity of a text under a trained model.",
        "runs/demo --split test --mem-len 256 --json",
    ),
    (
        "export-checkpoint",
        checkpoints.export_checkpoint,
        "Write a checkpoint for other programs.",
        "runs/demo exported --verify",
    ),
    (
        "import-checkpoint",
        checkpoints.import_checkpoint,
        "Read another program's checkpoint.",
        "xlnet-base-cased imported --format huggingface",
    ),
    (
        "generate",
        generate.generate,
        "Go on with a text, or begin one.",
        'runs/demo "Once upon a time" --temperature 0.8 --max-tokens 300',
    ),
    (
        "score",
        generate.score,
        "Log-probabilities of lines of text.",
        "runs/demo sentences.txt --per-token > scores.jsonl",
    ),
    (
        "context",
        context.context,
        "How much of what came before a model uses.",
        "runs/demo runs/other --mem-lens 0,64,256 --picture context.png",
    ),
    (
        "inspect",
        evaluate.inspect,
        "Sizes of a configuration or a checkpoint.",
        "configs/demo.yaml --signal --picture signal.png",
    ),
]
"""Name, function, what it does in half a line, and arguments of the example that help shows."""

for _name, _function, _short, _example in COMMANDS:
    _epilog = f"\b\nExample:\n  xltrain {_name} {_example}"  # after \b, no line is broken
    app.command(_name, cls=_Command, short_help=_short, epilog=_epilog)(_function)


_Misuse: type[Any] = typer.BadParameter.__mro__[1]
"""click's UsageError, wherever the installed typer has its click: options and arguments that cannot be."""


class _Signalled(BaseException):
    """A signal came; not an Exception, so that no library takes it for a failure of its own and goes on."""


def main() -> None:
    """Run the command line; every failure becomes one message and its exit status."""
    _require_utf8()
    console.open_streams()
    try:
        _run()
    except OutputClosed as closed:  # there is nobody to be told
        sys.exit(closed.exit_code)


def _run() -> None:
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
        sys.exit(app(standalone_mode=False, prog_name="xltrain") or 0)  # None, or what `raise typer.Exit` says
    except _Misuse as error:
        console.fail(misuse.sentence(error))
        sys.exit(UsageError.exit_code)
    except OutputClosed:
        raise
    except (SystemExit, _Signalled, Exception) as error:
        if debug or (isinstance(error, SystemExit) and not signals):
            raise
        message, status = _explain(error, signals)
        if message is None:
            raise
        if signals or isinstance(error, Stopped):  # it comes to all processes of a run
            console.say(f"xltrain: {message}")
        elif not isinstance(error, FailedElsewhere):
            console.fail(f"xltrain: {message}")
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
