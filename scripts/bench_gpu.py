"""What a GPU can do: three checks of half precision, then throughput and memory of two published models in bf16.

Checks: 50 steps in bf16 and in fp16 end within 1 % of the losses in fp32; a run in fp16 that is interrupted goes on to
the last digit; a training step never makes the host wait for the device. They train a small model on the docstrings of
Python's standard library, and the script ends with status 1 if one fails.

Throughput: XLNet base at its 512 tokens and memory of 384, and Transformer-XL WikiText-103 base, with an optimizer step
and memory carried, as in training. A model's share is its floating-point operations in matrix products (forward and
backward, counted by torch) per second, over what one large bf16 product reaches on this card, measured first.

All in all about three minutes on one GPU; a minute or two more with --compile.

    python scripts/bench_gpu.py
    python scripts/bench_gpu.py --device cpu --shrink 16    # only to see that it runs
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from stdlib_corpus import write_corpus
from torch.utils.flop_counter import FlopCounterMode

from xltrain.config.load import load_config
from xltrain.config.schema import Config
from xltrain.data.kinds import vocabulary_before_preparation
from xltrain.data.prepare import prepare
from xltrain.distributed import Place
from xltrain.evaluation.inspect import random_plan
from xltrain.training.build import build_model
from xltrain.training.live import Run
from xltrain.training.loop import pretrain
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


def tiny(folder: Path, name: str, device: torch.device, *changes: str) -> Config:
    """A small XLNet on characters, every step logged, the same text and vocabulary for all runs."""
    return load_config(
        CONFIGS / "demo.yaml",
        [
            f"run.output_dir={folder}/{name}",
            f"corpus.cache_dir={folder}/cache",
            f"corpus.train=[{folder}/train.txt]",
            f"corpus.validation=[{folder}/validation.txt]",
            "corpus.test=[]",
            "tokenizer.kind=char",
            "tokenizer.vocab_size=null",
            f"training.device={device}",
            "schedule.name=constant",
            "schedule.warmup_steps=10",
            "model.dropout=0.1",
            "model.attention_backend=math",  # its backward is the same in every run
            "evaluation.every=0",
            "evaluation.max_tokens=1000",
            "checkpoint.every=0",
            "logging.every=1",
            *changes,
        ],
    )


def losses(config: Config) -> list[float | None]:
    """Of every step that a run has logged."""
    lines = (Path(config.run.folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [line["loss"] for line in map(json.loads, lines) if "loss" in line]


def check_precisions(folder: Path, device: torch.device) -> bool:
    """50 steps in bf16 and fp16 against fp32: the mean of the last ten losses."""
    means = {}
    for precision in ("fp32", "bf16", "fp16"):
        config = tiny(folder, precision, device, "training.max_steps=50", f"training.precision={precision}")
        pretrain(config, overwrite=True)
        last = [loss for loss in losses(config)[-10:] if loss is not None]
        means[precision] = sum(last) / len(last)
    ratios = {name: means[name] / means["fp32"] - 1 for name in ("bf16", "fp16")}
    good = all(abs(ratio) < 0.01 for ratio in ratios.values())
    shown = ", ".join(f"{name} {ratio:+.3%}" for name, ratio in ratios.items())
    return _say(good, f"loss after 50 steps against fp32 ({means['fp32']:.4f}): {shown}")


def check_resume(folder: Path, device: torch.device) -> bool:
    """40 steps in fp16 against 20, a checkpoint, and 20 more."""
    straight, twice = (tiny(folder, name, device, "training.precision=fp16") for name in ("straight", "twice"))
    pretrain(_with_steps(straight, 40), overwrite=True)
    pretrain(_with_steps(twice, 20), overwrite=True)
    pretrain(_with_steps(twice, 40), resume=True)
    return _say(losses(straight) == losses(twice), "40 steps in fp16, straight and with an interruption: same losses")


def _with_steps(config: Config, steps: int) -> Config:
    return config.model_copy(update={"training": config.training.model_copy(update={"max_steps": steps})})


def check_waiting(folder: Path, device: torch.device) -> bool:
    """Steps during which torch refuses every wait of the host for the device."""
    adaptive = ("objective.name=causal", "model.adaptive.cutoffs=[20, 60]", "model.adaptive.div_val=2")
    kinds = {"fp16": ("training.precision=fp16",), "muon": ("optimizer.name=muon",), "adaptive softmax": adaptive}
    results = [_never_waits(folder, device, name, changes) for name, changes in kinds.items()]
    return all(results)


def _never_waits(folder: Path, device: torch.device, name: str, changes: tuple[str, ...]) -> bool:
    config = tiny(folder, name.replace(" ", "-"), device, *changes)
    run = Run.build(config, Place(device=device), prepare(config).store, None)
    run.model.train()
    for _ in range(3):
        run.step()
    said = f"no wait for the device in a step, {name}"
    if device.type != "cuda":
        return _say(True, f"{said}: nothing to see without one")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            run.step()
    except RuntimeError as error:
        return _say(False, f"{said}: {error}")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return _say(True, said)


def _say(good: bool, what: str) -> bool:
    print(f"{'good' if good else 'BAD '}  {what}", flush=True)
    return good


def check(device: torch.device) -> bool:
    """All checks, with algorithms that give the same result every time."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(folder)
        results = [one(folder, device) for one in (check_precisions, check_resume, check_waiting)]
    torch.use_deterministic_algorithms(False)
    return all(results)


def measure(
    name: str,
    *,
    device: torch.device,
    rows: int,
    by: int,
    peak: float,
    changes: tuple[str, ...],
    compiled: bool = False,
) -> None:
    """One line of the table."""
    config = load_config(CONFIGS / f"{name}.yaml", ["model.dropout=0.1", *changes])
    config = shrunk(config, by) if by > 1 else config
    vocab_size = vocabulary_before_preparation(config.tokenizer) or 0
    model = build_model(config, vocab_size=vocab_size, device=device).train()
    updater = Updater(build_optimizer(model, config.optimizer), config.optimizer, precision="bf16", device=device)
    plan = random_plan(config, vocab_size, rows=rows, seq_len=config.segments.seq_len, device=device)
    memory = [model.empty_memory(rows=rows, mem_len=config.segments.mem_len)]
    rooms = [model.softmax.room(plan.targets.cpu())]

    def step() -> None:
        _, memory[:] = train_step(model, updater, [plan], memory, seeds=[1], rooms=rooms)

    with FlopCounterMode(display=False) as counter:
        step()
    flops = counter.get_total_flops()
    if compiled:
        model.compile(dynamic=False)
        step()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    took = seconds(step, device=device, repeats=10 if device.type == "cuda" else 1)
    used = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else float("nan")
    tokens, share = rows * config.segments.seq_len, flops / took / peak
    shape = f"{rows} x {config.segments.seq_len} | {config.segments.mem_len}"
    how = ", ".join([*(change.partition(".")[2] for change in changes), *(["compiled"] if compiled else [])])
    print(f"| {name} | {shape} | {how or '-'} | {tokens / took:,.0f} | {share:.0%} | {used:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shrink", type=int, default=1, help="divide sizes by this, for a try without a GPU")
    parser.add_argument("--compile", action="store_true", help="measure compiled models as well")
    given = parser.parse_args()
    device = torch.device(given.device)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with it
    good = check(device)
    peak = ceiling(device, size=8192 // given.shrink)
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"\n{card}, torch {torch.__version__}: a bf16 product reaches {peak / 1e12:,.2f} TFLOP/s\n")
    print("| model | rows x tokens | memory | with | tokens/s | share of that | GiB |\n|---|---|---|---|---|---|---|")
    recomputed = ("training.activation_checkpointing=true",)  # what it needs again does not count in its share
    for name, rows in MODELS.items():
        for changes, compiled in (((), False), (recomputed, False), *([((), True)] if given.compile else [])):
            rows_here = max(1, rows // given.shrink)
            measure(name, device=device, rows=rows_here, by=given.shrink, peak=peak, changes=changes, compiled=compiled)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
