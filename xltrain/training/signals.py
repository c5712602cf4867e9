"""SIGTERM and SIGINT ask for a stop between two steps."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from xltrain import console

SECONDS_OF_GRACE = 2.0
"""A launcher passes on the signal of a terminal that its processes have got already; that is no second wish."""


@dataclass
class Stop:
    """What this process has been asked for: the number of a signal, or 0.

    complete: all of the run is done and saved; only its picture may be missing yet.
    """

    signal_number: int = 0
    complete: bool = False


@contextmanager
def stop_signals(*, launched: bool) -> Iterator[Stop]:
    """Take note of the first signal; a second one ends the process at once.

    Args:
        launched: whether a launcher started this process; a repetition within moments then counts as the same signal.
    """
    stop = Stop()
    since = 0.0

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal since
        del frame
        if not stop.signal_number:
            stop.signal_number, since = number, time.monotonic()
            still = "the run is complete; drawing its curves" if stop.complete else "finishing this step and saving"
            console.say(f"{signal.Signals(number).name}: {still}; once more ends at once")
            if not launched:
                signal.signal(number, signal.SIG_DFL)
        elif not launched or time.monotonic() - since > SECONDS_OF_GRACE:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
