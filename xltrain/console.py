"""What a person sees while xltrain works. Everything here goes to standard error; standard output is for results."""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Item = TypeVar("Item")

# Without a terminal a silent phase looks like a hang, so a plain line is printed at least this often.
SECONDS_BETWEEN_LINES = 15.0

_rank = 0


def speak_as(rank: int) -> None:
    """Say which process of a run this is: all say the same, so only the first is heard."""
    global _rank
    _rank = rank


def say(message: str) -> None:
    """Print one plain line, above a progress bar if one is on screen."""
    if _rank == 0:
        _print(message)


def fail(message: str) -> None:
    """Print the line that a process ends with, whichever process it is."""
    _print(message if _rank == 0 else f"[process {_rank}] {message}")


def _print(message: str) -> None:
    if sys.stderr.isatty():
        from tqdm import tqdm

        tqdm.write(message, file=sys.stderr)
    else:
        print(message, file=sys.stderr, flush=True)


def warn(message: str) -> None:
    """Print one line that asks for attention."""
    say(f"WARNING: {message}")


def bar(*, total: int | None, initial: int = 0, unit: str, description: str) -> Any:
    """A tqdm bar on a terminal; on anything else an object with the same methods that draws nothing."""
    from tqdm import tqdm

    return tqdm(
        total=total,
        initial=initial,
        unit=unit,
        desc=description,
        unit_scale=unit != "step",
        dynamic_ncols=True,
        smoothing=0.1,
        disable=_rank != 0 or not sys.stderr.isatty(),
        file=sys.stderr,
    )


def progress(items: Iterable[Item], *, done: Callable[[], int], total: int, description: str) -> Iterator[Item]:
    """Yield ``items``, with a bar on a terminal and a plain line now and then elsewhere.

    Progress is in bytes, ``done()`` of ``total``: one file may be the whole corpus. What was done before the first item
    does not count for the rate.
    """
    begin = last = time.monotonic()
    first = before = done()
    with bar(total=total, initial=first, unit="B", description=description) as shown:
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
def counting(*, total: int, unit: str, description: str) -> Iterator[Callable[[int], None]]:
    """A function to be told what else is done; a bar on a terminal and a plain line now and then elsewhere."""
    last, done = time.monotonic(), 0
    with bar(total=total, unit=unit, description=description) as shown:

        def count(more: int) -> None:
            nonlocal last, done
            done += more
            shown.update(more)
            if shown.disable and time.monotonic() - last > SECONDS_BETWEEN_LINES:
                last = time.monotonic()
                say(f"{description}: {done:,} of {total:,} {unit}s ({done / max(total, 1):.0%})")

        yield count


@contextmanager
def busy(description: str) -> Iterator[None]:
    """Say what is done that cannot tell how far it is, and now and then that it still is."""
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
