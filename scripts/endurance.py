"""What a long run costs beside its steps: memory that must not grow, and saving that must not be felt.

`memory`: resident set of a run after 200 and after 2,000 steps, with validations and checkpoints in between.
`saving`: turns of steps with and without a save at their beginning; what a save takes from the loop, as a share of the
time between two saves at the default `checkpoint.every`.

    python scripts/endurance.py             # both
    python scripts/endurance.py --parts memory
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from xltrain.config.load import validate
from xltrain.config.schema import Config
from xltrain.config.training import CheckpointConfig
from xltrain.data.prepare import prepare
from xltrain.distributed import Place
from xltrain.training.live import Run
from xltrain.training.loop import pretrain
from xltrain.training.saving import Saver

EARLY, LATE = 200, 2_000
WORDS = ["in", "a", "run", "of", "many", "steps", "nothing", "may", "grow", "that", "does", "not", "have", "to"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=["memory", "saving"], default=["memory", "saving"])
    parser.add_argument("--turns", type=int, default=5, help="pairs of turns for saving")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if "memory" in options.parts:
            early, late = resident(Path(folder))
            print(f"resident set        {early / 2**20:.1f} MiB after {EARLY} steps")
            print(f"                    {late / 2**20:.1f} MiB after {LATE:,}")
            print(f"growth              {late / early - 1:+.2%}")
        if "saving" in options.parts:
            lost, step = saving(Path(folder), turns=options.turns)
            every = CheckpointConfig().every
            print(f"saving              {lost * 1e3:.0f} ms of the loop, a step takes {step * 1e3:.0f} ms")
            print(f"at every {every} steps  {lost / (every * step):.2%} of the loop")


def configured(folder: Path, name: str, **changes: dict[str, Any]) -> Config:
    text = folder / "text.txt"
    if not text.exists():
        lines = [" ".join(WORDS[(line * 7 + word * word) % len(WORDS)] for word in range(12)) for line in range(4_000)]
        text.write_text("\n".join(lines), encoding="utf-8")
    data: dict[str, Any] = {
        "run": {"output_dir": str(folder / name)},
        "corpus": {"train": [str(text)], "validation": [str(text)], "cache_dir": str(folder / "cache")},
        "tokenizer": {"kind": "char"},
        "segments": {"seq_len": 32, "mem_len": 32},
        "model": {"num_layers": 2, "d_model": 32, "num_heads": 2},
        "training": {"max_steps": LATE, "batch_size": 4, "device": "cpu"},
        "evaluation": {"every": 100, "max_tokens": 4_000},
        "checkpoint": {"every": 100},
    }
    config, problems = validate({key: data.get(key, {}) | changes.get(key, {}) for key in data | changes})
    assert config is not None, problems
    return config


def resident(folder: Path) -> tuple[int, int]:
    """Bytes of this process in memory after ``EARLY`` and after ``LATE`` steps."""
    found: dict[int, int] = {}
    original = Run.step

    def stepping(run: Run) -> Any:
        stats = original(run)
        if run.progress.step in (EARLY, LATE):
            found[run.progress.step] = _resident_now()
        return stats

    with mock.patch.object(Run, "step", stepping):
        pretrain(configured(folder, "memory"))
    return found[EARLY], found[LATE]


def _resident_now() -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS: this part needs Linux")


def saving(folder: Path, *, turns: int, steps: int = 6) -> tuple[float, float]:
    """Seconds that a save takes from the steps beside it, and seconds of a step; medians of paired turns."""
    model = {"num_layers": 4, "d_model": 256, "num_heads": 4, "d_inner": 1024}
    config = configured(folder, "saving", model=model, segments={"seq_len": 64, "mem_len": 64})
    place = Place(device=torch.device("cpu"))
    run = Run.build(config, place, prepare(config).store, None)
    run.model.train()
    saver = Saver(Path(config.run.folder), place, keep=1, keep_best=True)

    def turn(*, save: bool) -> float:
        begin = time.perf_counter()
        if save:
            saver.save(run.state())
        for _ in range(steps):
            run.step()
        taken = time.perf_counter() - begin
        saver.finish()
        return taken

    turn(save=True)
    pairs = [(turn(save=True), turn(save=False)) for _ in range(turns)]
    saver.close()
    lost = statistics.median(with_save - without for with_save, without in pairs)
    return lost, statistics.median(without for _, without in pairs) / steps


if __name__ == "__main__":
    main()
