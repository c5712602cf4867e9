"""The first signal asks for a stop; a second one ends the process at once, but not the echo of the first."""

import signal

import pytest
from processes import started

from xltrain.training import signals
from xltrain.training.signals import stop_signals


def signalled(*numbers: int, launched: bool, grace: float) -> None:
    signals.SECONDS_OF_GRACE = grace
    with stop_signals(launched=launched) as stop:
        for number in numbers:
            signal.raise_signal(number)
        assert stop.signal_number == numbers[0]


def alone(*numbers: int) -> None:
    signalled(*numbers, launched=False, grace=60.0)


def echoed(*numbers: int) -> None:
    signalled(*numbers, launched=True, grace=60.0)


def later(*numbers: int) -> None:
    signalled(*numbers, launched=True, grace=-1.0)


@pytest.mark.parametrize(
    ("function", "numbers", "status"),
    [
        (alone, [signal.SIGINT], 0),
        (alone, [signal.SIGINT, signal.SIGINT], -signal.SIGINT),
        (alone, [signal.SIGTERM, signal.SIGTERM], -signal.SIGTERM),
        (echoed, [signal.SIGINT, signal.SIGINT, signal.SIGTERM], 0),
        (later, [signal.SIGINT, signal.SIGTERM], -signal.SIGTERM),
    ],
)
def test_what_a_second_signal_does(function: object, numbers: list[int], status: int) -> None:
    process = started(*numbers, function=function)
    process.join(60)
    assert process.exitcode == status


def test_the_handlers_before_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with stop_signals(launched=False) as stop:
        assert stop.signal_number == 0
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
