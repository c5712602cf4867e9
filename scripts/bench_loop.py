"""What everything around the model costs: reading text, choosing targets, logging, checkpoints, at default intervals.

A run of configs/demo.yaml is timed. After every fourth of its steps a bare one is taken: the same forward, backward
and update of a second model, on one fixed segment. On a CPU what is measured is processor time, of all threads and of
the thread that writes checkpoints too, so that other programs on the machine do not matter. Validation and the
drawing of curves at the end are no part of it.

    python scripts/bench_loop.py
    python scripts/bench_loop.py --steps 2000 --set training.device=cuda --set training.precision=bf16
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from stdlib_corpus import write_corpus

from xltrain.config.load import load_config
from xltrain.data.prepare import prepare
from xltrain.distributed import Place
from xltrain.training import live, loop, report
from xltrain.training.live import Run
from xltrain.training.step import train_step

EVERY = 4  # steps of the run between two bare ones
WARM_UP = 20  # steps that are not counted


class Stopwatch:
    """Times the steps of a run, everything between them, and bare steps in between."""

    def __init__(self, bare: Run) -> None:
        self.bare, self.aside, self.inside = bare, 0.0, 0.0
        self.bare_times: list[float] = []
        self.began = 0.0
        self.step = Run.step
        segment, _ = bare.stream.read(bare.progress.position)
        rows = torch.arange(bare.deal.rows, device=bare.planned_on)
        plan = bare._plan(segment.to(bare.planned_on), rows, 1, 0, bare.deal.rows)
        self.room, self.plan = bare.model.softmax.room(plan.targets), plan.to(bare.place.device)

    def bare_step(self) -> None:
        _, (self.bare.memory,) = train_step(
            self.bare.network, self.bare.updater, [self.plan], [self.bare.memory], seeds=[1], rooms=[self.room]
        )
        _wait(self.bare.place.device)

    def timed_step(self, run: Run) -> Any:
        """A step of the run, and now and then a bare one, whose time is no part of the run's."""
        number = run.progress.step
        if number >= WARM_UP and number % EVERY == 0:
            _wait(run.place.device)
            begin = clock()
            self.bare_step()
            self.bare_times.append(clock() - begin)
            self.aside += self.bare_times[-1]
        if number == WARM_UP:
            self.aside, self.inside, self.began = 0.0, 0.0, clock()
        return self.step(run)

    def timed_train_step(self, *given: Any, **named: Any) -> Any:
        begin = clock()
        found = train_step(*given, **named)
        self.inside += clock() - begin
        return found

    def leave_out(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """The same, but its time does not count."""

        def timed(*given: Any) -> Any:
            begin = clock()
            found = work(*given)
            self.aside += clock() - begin
            return found

        return timed


def clock() -> float:
    """Seconds: of processors, or with a GPU, where they mostly wait, of the wall clock."""
    return time.perf_counter() if torch.cuda.is_available() else time.process_time()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=1020, help="of the run; two checkpoints at the default interval")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="change a key of the demo")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(Path(folder))
        config = load_config(
            Path(__file__).parent.parent / "configs" / "demo.yaml",
            [
                f"run.output_dir={folder}/run",
                f"corpus.cache_dir={folder}/cache",
                f"corpus.train=[{folder}/train.txt]",
                f"corpus.validation=[{folder}/validation.txt]",
                "corpus.test=[]",
                "training.device=cpu",
                f"training.max_steps={given.steps}",
                "checkpoint.every=500",
                "logging.every=50",
                "evaluation.every=500",
                "evaluation.max_tokens=2000",
                *given.set,
            ],
        )
        device = torch.device(config.training.device)
        watch = Stopwatch(Run.build(config, Place(device=device), prepare(config).store, None))
        watch.bare.model.train()
        with (
            mock.patch.object(Run, "step", lambda run: watch.timed_step(run)),
            mock.patch.object(live, "train_step", watch.timed_train_step),
            mock.patch.object(loop, "_validate", watch.leave_out(loop._validate)),
            mock.patch.object(report, "plot_run", watch.leave_out(report.plot_run)),
        ):
            loop.pretrain(config, overwrite=True)
        _wait(device)
        spent = clock() - watch.began - watch.aside
    run_step, bare_step = spent / (given.steps - WARM_UP), statistics.mean(watch.bare_times)
    print(f"a step of the run {run_step * 1e3:.2f} ms, bare {bare_step * 1e3:.2f} ms: {run_step / bare_step - 1:+.1%}")
    outside = (spent - watch.inside) / (given.steps - WARM_UP)
    print(f"outside of forward, backward and update {outside * 1e3:.2f} ms: {outside / (run_step - outside):.1%}")


if __name__ == "__main__":
    main()
