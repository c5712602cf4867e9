"""Training throughput on a GPU, in bf16: XLNet base and Transformer-XL WikiText-103 base, and the share of its ceiling.

The ceiling is what one large bf16 matrix product reaches on this card, measured first; a model's share is its
floating-point operations in matrix products (forward and backward, counted by torch) per second, over that. With an
optimizer step and memory carried, as in training. Takes a few minutes at most.

    python scripts/bench_gpu.py
    python scripts/bench_gpu.py --device cpu --shrink 16    # only to see that it runs
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from xltrain.config.load import load_config
from xltrain.config.schema import Config
from xltrain.data.kinds import vocabulary_before_preparation
from xltrain.evaluation.inspect import random_plan
from xltrain.training.build import build_model
from xltrain.training.optimizer import build_optimizer
from xltrain.training.step import train_step
from xltrain.training.update import Updater

CONFIGS = Path(__file__).parent.parent / "configs"
MODELS = {"xlnet-base": 32, "txl-wt103-base": 60}  # rows in one step


def seconds(step: Callable[[], object], *, device: torch.device, repeats: int) -> float:
    """Mean time of a call, after two that are not counted."""
    for _ in range(2):
        step()
    _wait(device)
    begin = time.perf_counter()
    for _ in range(repeats):
        step()
    _wait(device)
    return (time.perf_counter() - begin) / repeats


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def ceiling(device: torch.device, *, size: int) -> float:
    """Floating-point operations per second of a bf16 product of square matrices."""
    one, other = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / seconds(lambda: one @ other, device=device, repeats=20)


def shrunk(config: Config, by: int) -> Config:
    """The same model ``by`` times smaller in depth and segment length, for a try without a GPU."""
    model, segments = config.model, config.segments
    changes = {
        "model": model.model_copy(update={"num_layers": max(1, model.num_layers // by)}),
        "segments": segments.model_copy(
            update={
                "seq_len": segments.seq_len // by,
                "mem_len": segments.mem_len // by,
                "reuse_len": segments.reuse_len // by,
            }
        ),
        "objective": config.objective.model_copy(update={"num_predict": None, "perm_size": 0}),
    }
    return config.model_copy(update=changes)


def measure(name: str, *, device: torch.device, rows: int, by: int, peak: float) -> None:
    """One line of the table."""
    config = load_config(CONFIGS / f"{name}.yaml", ["model.dropout=0.1"])
    config = shrunk(config, by) if by > 1 else config
    vocab_size = vocabulary_before_preparation(config.tokenizer) or 0
    model = build_model(config, vocab_size=vocab_size, device=device).train()
    updater = Updater(build_optimizer(model, config.optimizer), config.optimizer, precision="bf16", device=device)
    plan = random_plan(config, vocab_size, rows=rows, seq_len=config.segments.seq_len, device=device)
    memory = [model.empty_memory(rows=rows, mem_len=config.segments.mem_len)]

    def step() -> None:
        _, memory[:] = train_step(model, updater, [plan], memory, seeds=[1])

    with FlopCounterMode(display=False) as counter:
        step()
    took = seconds(step, device=device, repeats=10 if device.type == "cuda" else 1)
    used = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else float("nan")
    tokens = rows * config.segments.seq_len
    share = counter.get_total_flops() / took / peak
    print(
        f"| {name} | {rows} x {config.segments.seq_len} | {tokens / took:,.0f} | {share:.0%} | {used:.1f} |", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shrink", type=int, default=1, help="divide sizes by this, for a try without a GPU")
    given = parser.parse_args()
    device = torch.device(given.device)
    peak = ceiling(device, size=8192 // given.shrink)
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{card}, torch {torch.__version__}: a bf16 product reaches {peak / 1e12:,.2f} TFLOP/s\n")
    print("| model | rows x tokens | tokens/s | share of that | GiB |\n|---|---|---|---|---|")
    for name, rows in MODELS.items():
        measure(name, device=device, rows=max(1, rows // given.shrink), by=given.shrink, peak=peak)


if __name__ == "__main__":
    main()
