"""Options and arguments that cannot be, told in one sentence as any other mistake is."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xltrain.config.init_from import MARK
from xltrain.errors import UsageError

_PLAINER = [
    (r"^Invalid value for '(\S+)'[^:]*: ", r"\1: "),
    (r"Input should be greater than or equal to", "must be at least"),
    (r"Input should be a valid integer", "must be a whole number"),
    (r"Input should be", "must be"),
    (r", unable to parse .*", ""),
    (r"^Got unexpected extra arguments?(?:\(s\))? \((.*)\)$", r"unexpected argument \1"),
    (r"^No such option: (\S+) \(Possible options: (.*)\)$", r"No such option: \1; did you mean \2?"),
]
"""What typer, click and pydantic say, and how it is said here."""


def sentence(error: Any) -> str:
    """For click's UsageError: its own words made plainer, what to do instead, and where help is."""
    message = error.format_message()
    if "\n" in message:  # no command at all: its message is the help
        return str(message)
    message = message.rstrip(".")
    for theirs, ours in _PLAINER:
        message = re.sub(theirs, ours, message)
    path, command = ("xltrain", None) if error.ctx is None else (error.ctx.command_path, error.ctx.command)
    advice = next(_advice(message, command), None)
    if advice is not None:
        message = f"{message.partition('; did you mean')[0]}; {advice}"
    return f"xltrain: {message} (help: {path} --help)"


def _advice(message: str, command: Any) -> Iterator[str]:
    """What may have been meant, the likeliest first."""
    params = command.params if command else []
    options = {option for param in params for option in param.opts}
    if found := re.match(r"No such option: --([\w.-]+)", message):
        name = found[1]
        if "--set" in options and (key := _key(name)):
            yield f"a key of the configuration is set by --set {key}=..."
        for param in params:
            metavar = param.metavar or ""
            if param.param_type_name == "argument" and name in {param.name, *metavar.lower().split("_or_")}:
                yield f"{metavar} stands for itself, without --{name}"
        if name == "json" and command is not None and command.name == "score":
            yield "its results are JSON, a line for each"
        if name in ("output", "out") and ("--json" in options or "--per-token" in options):
            yield "what a command finds goes to standard output; > FILE keeps it"
    if found := re.match(r"unexpected argument (\S+)", message):
        if "--set" in options and "=" in found[1]:
            yield f"a key of the configuration is set by --set {found[1]}"
        if "--data" in options:
            yield "a text is given by --data FILE"
        if any(param.metavar == "PROMPT" for param in params):
            yield "a prompt of several words stands in quotes"


def _key(name: str) -> str | None:
    """The key of a configuration that an option is named like."""
    from xltrain.config.schema import Config

    section, _, field = name.replace("-", "_").rpartition(".")
    for own, described in Config.model_fields.items():
        if section in ("", own) and field in getattr(described.annotation, "model_fields", {}):
            return f"{own}.{field}"
    return None


def require_order(command: str, source: Path, other: str | Path | None) -> None:
    """Refuse a run that is given where something else belongs.

    Raises:
        UsageError: if ``other`` is a run or a checkpoint, and ``source`` is not even a folder.
    """
    if other is None or source.is_dir():
        return
    folder = Path(other)
    try:
        is_run = (folder / "checkpoints").is_dir() or (folder / MARK).is_file()
    except (OSError, ValueError):  # a text that could not be a name
        return
    if is_run:
        raise UsageError(f"{source} is no run, and {folder} is; the run comes first: xltrain {command} {folder} ...")
