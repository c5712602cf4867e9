"""How long models stay at the unigram entropy: optimizer steps until validation is 0.1 nat below it.

Each row changes one thing of configs/demo.yaml; three seeds each. Results are in docs/results.md.

    python scripts/plateau.py                  # everything; hours of one core are spread over the cores there are
    python scripts/plateau.py --only warmup    # rows whose name contains "warmup"
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from stdlib_corpus import write_corpus

ROWS: dict[str, list[str]] = {
    "as shipped": [],
    "pre-norm": ["model.norm_position=pre", "model.final_norm=true"],
    "init std 0.02": ["model.init.std=0.02"],
    "init std 0.1": ["model.init.std=0.1"],
    "init xavier": ["model.init.variance=xavier"],
    "init orthogonal, lecun": ["model.init.variance=lecun", "model.init.distribution=orthogonal"],
    "warmup 0": ["schedule.warmup_steps=0"],
    "warmup 100": ["schedule.warmup_steps=100"],
    "warmup 1000": ["schedule.warmup_steps=1000"],
    "lr 2e-3": ["optimizer.lr=2e-3"],
    "lr 5e-4": ["optimizer.lr=5e-4"],
    "muon": ["optimizer.name=muon"],
    "muon, pre-norm": ["optimizer.name=muon", "model.norm_position=pre", "model.final_norm=true"],
}
EVERY = 50  # steps between looks at the validation text
ENOUGH = 0.1  # nats below the unigram loss


def steps_needed(arguments: tuple[str, int, int, str]) -> tuple[str, int, int | None, float]:
    """Train until the plateau is left, or ``limit`` steps; the number of steps, or None, and the last gap in nats."""
    name, seed, limit, corpus = arguments
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    from xltrain.config.load import load_config
    from xltrain.data.prepare import prepare
    from xltrain.distributed import find_place
    from xltrain.evaluation.perplexity import Protocol, evaluate
    from xltrain.training.build import autocast
    from xltrain.training.live import Run
    from xltrain.training.optimizer import set_lr

    torch.set_num_threads(1)
    given = [
        *ROWS[name],
        f"run.seed={seed}",
        "training.device=cpu",
        f"corpus.train=[{corpus}/train.txt]",
        f"corpus.validation=[{corpus}/validation.txt]",
        "corpus.test=[]",
        f"corpus.cache_dir={corpus}/cache-{seed}",
        "evaluation.max_tokens=8000",
    ]
    config = load_config(Path(__file__).parent.parent / "configs" / "demo.yaml", given)
    place = find_place("cpu")
    run = Run.build(config, place, prepare(config).store, None)
    assert run.validation is not None
    protocol = Protocol("stream", config.segments.seq_len, config.segments.mem_len, batch_size=8)
    gap = 0.0
    for step in range(1, limit + 1):
        set_lr(run.updater.optimizer, run.lr(step))
        run.step()
        if step % EVERY == 0:
            result = evaluate(
                run.model,
                run.objective,
                run.validation,
                protocol,
                new_memory=lambda rows: run.model.empty_cache(rows=rows, mem_len=protocol.mem_len),
                device=place.device,
                context=lambda: autocast("fp32", place.device),
                unigram=run.store.unigram(),
            )
            gap = result.unigram_loss - result.loss
            if gap > ENOUGH:
                return name, seed, step, gap
    return name, seed, None, gap


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--limit", type=int, default=1500, help="give up after so many steps")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    given = parser.parse_args()
    names = [name for name in ROWS if given.only in name]
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(Path(folder))
        work = [(name, seed, given.limit, folder) for name in names for seed in range(1, given.seeds + 1)]
        found: dict[str, list[tuple[int | None, float]]] = {name: [] for name in names}
        with ProcessPoolExecutor(given.processes) as pool:
            for name, seed, steps, gap in pool.map(steps_needed, work):
                print(json.dumps({"row": name, "seed": seed, "steps": steps, "gap": round(gap, 3)}), file=sys.stderr)
                found[name].append((steps, gap))
    print(f"| changed | steps to {ENOUGH} nat below the unigram loss, per seed | median |")
    print("|---|---|---|")
    for name, results in found.items():
        shown = ", ".join(str(steps) if steps else f"not in {given.limit}" for steps, _ in results)
        median = statistics.median([steps or float("inf") for steps, _ in results])
        print(f"| {name} | {shown} | {'-' if median == float('inf') else f'{median:.0f}'} |")


if __name__ == "__main__":
    main()
