"""The ways a command can fail, and the exit status of each.

A user never sees a traceback for these (unless ``--debug``): the message is the whole report, so each one says
what is wrong, where, what is allowed and what to do.
"""


class XltrainError(Exception):
    """A later failure: something broke although the request was sound."""

    exit_code = 1


class UsageError(XltrainError):
    """A fault in usage, configuration or data that was found before any work started."""

    exit_code = 2


class Stopped(XltrainError):
    """The run was asked to stop by a signal, and has saved its state."""

    def __init__(self, message: str, *, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


class FailedElsewhere(XltrainError):
    """Another process of the run has failed and said why; this one ends without a word."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("")
        self.exit_code = exit_code


class OutputClosed(XltrainError):
    """Whoever read what this command prints has ended (``| head``); it ends too, without a word."""

    exit_code = 141
    """128 + SIGPIPE, as a shell says of programs that this signal has ended."""

    def __init__(self) -> None:
        super().__init__("")
