"""What a person sees while xltrain works, on standard error, and how results come to standard output.

Results are UTF-8 where standard output is. Where it is anything else (``PYTHONIOENCODING=ascii``, a code page of
Windows), JSON is written in ASCII, which says the same, and characters that the encoding lacks become escapes in other
text, with a word about it.
"""

import codecs
import errno
import io
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO, TypeVar

from xltrain.errors import OutputClosed, XltrainError

Item = TypeVar("Item")

_ESCAPING = "xltrain.escaping"
"""Name of what is done with characters that standard output has not."""

_CLOSED = (errno.EPIPE, errno.EINVAL)
"""What writing into a closed pipe fails with; the second on Windows."""

# Without a terminal a silent phase looks like a hang, so a plain line is printed at least this often.
SECONDS_BETWEEN_LINES = 15.0

# What is seldom long shows a bar only then: a few lines to score, or what a person types.
SECONDS_BEFORE_A_BAR = 1.0

_rank = 0


def speak_as(rank: int) -> None:
    """Say which process of a run this is: all say the same, so only the first is heard."""
    global _rank
    _rank = rank


def open_streams() -> None:
    """Let standard output take every text, whatever its encoding; what was asked for by name is left as it is.

    Streams that a command was started without (``<&-``) are nowhere: empty to read, and silent.
    """
    codecs.register_error(_ESCAPING, _escape)
    sys.stdin = sys.stdin or _nowhere("r")
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    stream = sys.stdout
    replaceable = ("strict",) if _is_utf8(stream) else ("strict", "surrogateescape")
    if isinstance(stream, io.TextIOWrapper) and stream.errors in replaceable:
        stream.reconfigure(errors=_ESCAPING)


def _nowhere(mode: Literal["r", "w"] = "w") -> TextIO:
    return Path(os.devnull).open(mode, encoding="utf-8")


def standard_input() -> BinaryIO:
    """Where to read what is piped in; of a terminal, which would just wait, it is said."""
    if sys.stdin.isatty():
        say("reading what is typed here; Ctrl-D at the beginning of a line ends it")
    return sys.stdin.buffer


_told = False


def _escape(error: UnicodeError) -> tuple[str | bytes, int]:
    global _told
    if not _told and isinstance(error, UnicodeEncodeError) and not _is_utf8(sys.stdout):
        _told = True
        say(
            f"note: standard output is {sys.stdout.encoding}, which lacks some of these characters; they are written "
            "as escapes (PYTHONIOENCODING=utf-8 writes them as they are)"
        )
    return codecs.backslashreplace_errors(error)


def _is_utf8(stream: TextIO) -> bool:
    return codecs.lookup(stream.encoding or "utf-8").name == "utf-8"


def out(text: str = "", *, end: str = "\n") -> None:
    """Print a result on standard output, at once, above a progress bar if one is on screen.

    Raises:
        OutputClosed: if its reader has ended.
        XltrainError: if it cannot be written for another reason.
    """
    try:
        with _bars_aside(sys.stdout):
            print(text, end=end, flush=True)
    except OSError as error:
        _give_up(sys.stdout)
        if error.errno in _CLOSED:
            raise OutputClosed from None
        raise XltrainError(f"standard output: {error.strerror or error}") from error


def out_json(found: Any) -> None:
    """Print a JSON value as one line: in ASCII unless standard output is UTF-8 and the text fit for it.

    What is no number, or infinite, becomes null: JSON knows neither.
    """
    found = _without_infinities(found)
    text = json.dumps(found, ensure_ascii=False)
    if not _is_utf8(sys.stdout) or any("\ud800" <= letter <= "\udfff" for letter in text):
        text = json.dumps(found)
    out(text)


def _without_infinities(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _without_infinities(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [_without_infinities(value) for value in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found


def _bars_aside(stream: TextIO) -> AbstractContextManager[Any]:
    if not (stream.isatty() and sys.stderr.isatty()):
        return nullcontext()
    from tqdm import tqdm

    return tqdm.external_write_mode(file=stream)


def _give_up(stream: TextIO) -> None:
    """Let nothing more be written to a stream that takes nothing, not even at the end what it still holds."""
    with suppress(OSError, ValueError), _nowhere() as nowhere:  # a stream of a test is no file
        os.dup2(nowhere.fileno(), stream.fileno())


def say(message: str) -> None:
    """Print one plain line, above a progress bar if one is on screen."""
    if _rank == 0:
        _print(message)


def fail(message: str) -> None:
    """Print the line that a process ends with, whichever process it is."""
    _print(message if _rank == 0 else f"[process {_rank}] {message}")


def _print(message: str) -> None:
    try:
        with _bars_aside(sys.stderr):
            print(message, file=sys.stderr, flush=True)
    except OSError as error:
        if error.errno not in _CLOSED:
            raise
        _give_up(sys.stderr)  # nobody reads how the work goes; it goes on all the same


def warn(message: str) -> None:
    """Print one line that asks for attention."""
    say(f"WARNING: {message}")


def bar(*, total: int | None, initial: int = 0, unit: str, description: str, delay: float = 0.0) -> Any:
    """A tqdm bar on a terminal; on anything else an object with the same methods that draws nothing.

    ``delay``: seconds before it is shown at all. At its end it stays, unless it was shown below another one.
    """
    from tqdm import tqdm

    return tqdm(
        total=total,
        initial=initial,
        unit=unit,
        desc=description,
        unit_scale=unit != "step",
        dynamic_ncols=True,
        smoothing=0.1,
        delay=delay,
        leave=None,
        disable=_rank != 0 or not sys.stderr.isatty(),
        file=sys.stderr,
    )


def progress(
    items: Iterable[Item], *, done: Callable[[], int], total: int, description: str, delay: float = 0.0
) -> Iterator[Item]:
    """Yield ``items``, with a bar on a terminal and a plain line now and then elsewhere.

    Progress is in bytes, ``done()`` of ``total``: one file may be the whole corpus. What was done before the first item
    does not count for the rate.
    """
    begin = last = time.monotonic()
    first = before = done()
    with bar(total=total, initial=first, unit="B", description=description, delay=delay) as shown:
        for item in items:
            yield item
            now = done()
            if now != before:
                shown.update(now - before)
                before = now
            if shown.disable and (clock := time.monotonic()) - last > SECONDS_BETWEEN_LINES:
                last = clock
                rate = (now - first) / max(clock - begin, 1e-9)
                whole = max(total, now)  # what a compressed file holds is an estimate
                left = f", {rate / 1e6:,.1f} MB/s, {duration((whole - now) / rate)} left" if rate > 0 else ""
                say(f"{description}: {now / 1e6:,.1f} of {whole / 1e6:,.1f} MB ({now / max(whole, 1):.0%}){left}")


@contextmanager
def counting(
    *, total: int | None, unit: str, description: str, delay: float = 0.0
) -> Iterator[Callable[[float], None]]:
    """A function to be told what else is done; a bar on a terminal and a plain line now and then elsewhere.

    ``total``: None where nobody knows it. A part of a unit counts too: one line may be a whole book.
    """
    last, done = time.monotonic(), 0.0
    with bar(total=total, unit=unit, description=description, delay=delay) as shown:

        def count(more: float) -> None:
            nonlocal last, done
            done += more
            shown.update(more)
            if shown.disable and time.monotonic() - last > SECONDS_BETWEEN_LINES:
                last = time.monotonic()
                whole = int(done + 1e-6)  # parts add up but for rounding
                said = f"{whole:,}" if total is None else f"{whole:,} of {total:,}"
                share = "" if total is None else f" ({done / max(total, 1):.0%})"
                say(f"{description}: {said} {unit}s{share}")

        yield count


@contextmanager
def busy(description: str, *, at_once: bool = True) -> Iterator[None]:
    """Say what is done that cannot tell how far it is, and now and then that it still is.

    ``at_once``: not only where it takes long.
    """
    if at_once:
        say(description)
    begin, over = time.monotonic(), threading.Event()

    def remind() -> None:
        while not over.wait(SECONDS_BETWEEN_LINES):
            say(f"{description}: {duration(time.monotonic() - begin)} so far")

    reminder = threading.Thread(target=remind, daemon=True)
    reminder.start()
    try:
        yield
    finally:
        over.set()
        reminder.join()


def duration(seconds: float) -> str:
    """Seconds as a person says them: ``42s``, ``3m05s``, ``2h11m``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
