"""The first signal asks for a stop; a second one ends the process at once, but not the echo of the first.

What is complete is not stopped any more.
"""

import signal
from pathlib import Path
from typing import Any

import pytest
from processes import started
from tiny_runs import config_of, interrupt_after

from xltrain.training import loop, report, signals
from xltrain.training.checkpoint import find_checkpoint
from xltrain.training.live import Run
from xltrain.training.loop import pretrain
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


def raising(original: Any, *, when: Any = lambda *_: True) -> Any:
    """The same function, with SIGTERM before it."""

    def signalled(*arguments: Any, **named: Any) -> Any:
        if when(*arguments):
            signal.raise_signal(signal.SIGTERM)
        return original(*arguments, **named)

    return signalled


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_curves_are_drawn_stops_nothing(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    def draw(folder: Path) -> Path:
        signal.raise_signal(number)
        return folder / "curves.png"

    monkeypatch.setattr(report, "plot_run", draw)
    pretrain(config_of(text, tmp_path, steps=2))  # raises nothing: the command leaves with 0
    said = capsys.readouterr().err.splitlines()
    name = signal.Signals(number).name
    assert f"{name}: the run is complete; drawing its curves; once more ends at once" in said
    assert said[-1].startswith("done: 2 steps")
    assert find_checkpoint(tmp_path).step == 2


def test_a_signal_in_the_last_step_stops_nothing_but_a_validation(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt_after(config_of(text, tmp_path / "validated", steps=2), 2)
    assert find_checkpoint(tmp_path / "validated").progress().validation_owed
    config = config_of(text, tmp_path / "plain", steps=2, corpus__validation=[])
    monkeypatch.setattr(Run, "step", raising(Run.step, when=lambda run: run.progress.step == 1))
    pretrain(config)
    assert capsys.readouterr().err.splitlines()[-1].startswith("done: 2 steps")
    assert find_checkpoint(tmp_path / "plain").step == 2


def test_a_signal_after_the_last_validation_stops_nothing(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loop, "_look_for_plateau", raising(loop._look_for_plateau))
    pretrain(config_of(text, tmp_path, steps=2))
    assert capsys.readouterr().err.splitlines()[-1].startswith("done: 2 steps")
    progress = find_checkpoint(tmp_path).progress()
    assert (progress.step, progress.validation_owed, progress.best_step) == (2, False, 2)
