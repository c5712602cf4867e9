"""Commands as a person gives them, within this process, and what they leave behind."""

import contextlib
import io
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from xltrain.cli import main


@dataclass(frozen=True)
class Outcome:
    """What a command left behind: exit status, standard output, standard error."""

    status: int
    out: str
    err: str

    def sentence(self, status: int = 2) -> str:
        """The one sentence of a command that failed."""
        assert self.status == status, self.err
        assert self.out == ""
        assert "Traceback" not in self.err
        lines = [line for line in self.err.splitlines() if line.startswith("xltrain: ")]
        assert self.err.splitlines()[-1:] == lines, self.err
        return lines[0].removeprefix("xltrain: ")


def run_command(*arguments: object) -> Outcome:
    """Run ``xltrain ARGUMENTS`` within this process."""
    out, err = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    status = 0
    with (
        mock.patch.object(sys, "argv", ["xltrain", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return Outcome(status, out.getvalue(), err.getvalue())


def files_of(folder: Path) -> dict[str, bytes]:
    """The content of every file of a folder by its path within."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
