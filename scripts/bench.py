"""Paired timings of the training step, against the XLNet of transformers and against itself.

Both sides of a pair do the same work: same sizes, tokens, targets and visibility, memory carried, dropout on, forward
and backward. They take turns, so a change in the machine's speed meets both; printed are medians, and the median of the
ratios pair by pair. Peak memory is what
a process of its own needs for two steps, beyond the libraries.

    python scripts/bench.py                          # everything
    python scripts/bench.py --parts small --pairs 5  # one part, quicker
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from xltrain.model.init import initialise
from xltrain.model.memory import Memory
from xltrain.model.transformer import LanguageModel


@dataclass(frozen=True)
class Size:
    """Sizes of a step, in the letters of the code."""

    layers: int
    d_model: int
    heads: int
    seq_len: int
    mem_len: int
    predict: int
    rows: int
    vocab_size: int

    def __str__(self) -> str:
        return (
            f"{self.layers} layers, d {self.d_model}, T {self.seq_len}, M {self.mem_len}, P {self.predict}, "
            f"B {self.rows}, vocabulary {self.vocab_size:,}"
        )


SIZES = {
    "small": Size(6, 256, 4, 128, 96, 22, 8, 8000),
    "base": Size(12, 768, 12, 512, 384, 85, 2, 32000),
}


@dataclass(frozen=True)
class Work:
    """What one step is given."""

    tokens: Tensor
    order: Tensor
    predict: Tensor
    targets: Tensor

    @classmethod
    def sample(cls, size: Size) -> "Work":
        draw = torch.Generator().manual_seed(3)
        tokens = torch.randint(0, size.vocab_size, (size.rows, size.seq_len), generator=draw)
        places = torch.rand(size.rows, size.seq_len, generator=draw).argsort(1)
        predict = places[:, : size.predict].sort(1).values  # (B, P)
        rank = torch.rand(size.rows, size.predict, generator=draw).argsort(1)
        order = torch.zeros_like(tokens).scatter(1, predict, 1 + rank)
        return cls(tokens, order, predict, tokens.gather(1, predict))


def build(size: Size, **settings: Any) -> LanguageModel:
    model = LanguageModel(
        vocab_size=size.vocab_size,
        num_layers=size.layers,
        d_model=size.d_model,
        num_heads=size.heads,
        head_dim=size.d_model // size.heads,
        d_inner=4 * size.d_model,
        **settings,
    )
    initialise(model, std=0.02)
    return model


def ours(size: Size, work: Work, *, dropout: float, compiled: bool = False) -> Callable[[], float]:
    """A function that does one forward and backward and returns the loss."""
    model = build(size, dropout=dropout, attention_dropout=dropout, query_stream=True, two_sided=True)
    memory = [full_memory(model, size)]
    forward = torch.compile(model, dynamic=False) if compiled else model

    def step() -> float:
        model.zero_grad(set_to_none=True)
        nll, memory[0] = forward(work.tokens, work.order, work.targets, memory[0], stream="query", predict=work.predict)
        loss = nll.mean()
        loss.backward()
        return loss.item()

    return step


def full_memory(model: LanguageModel, size: Size) -> Memory:
    """A memory whose slots all count, as from the second segment on."""
    empty = model.empty_memory(rows=size.rows, mem_len=size.mem_len)
    return Memory(torch.randn_like(empty.states), empty.length + size.mem_len, empty.document)


def theirs(size: Size, work: Work, *, dropout: float) -> Callable[[], float]:
    """The same with transformers' XLNetLMHeadModel."""
    from transformers import XLNetConfig, XLNetLMHeadModel

    model = XLNetLMHeadModel(
        XLNetConfig(
            vocab_size=size.vocab_size,
            d_model=size.d_model,
            n_layer=size.layers,
            n_head=size.heads,
            d_inner=4 * size.d_model,
            ff_activation="gelu",
            dropout=dropout,
            mem_len=size.mem_len,
            use_mems_train=True,
        )
    ).train()
    # Who may not attend to whom: as the order rule, written out as transformers wants it.
    hidden = (work.order[:, None, :] >= work.order[:, :, None]) & (work.order[:, None, :] > 0)  # (B, T, T)
    perm_mask = hidden.float()
    mapping = functional.one_hot(work.predict, size.seq_len).float()  # (B, P, T)
    memory = [[torch.randn(size.mem_len, size.rows, size.d_model) for _ in range(size.layers)]]

    def step() -> float:
        model.zero_grad(set_to_none=True)
        found = model(
            work.tokens, perm_mask=perm_mask, target_mapping=mapping, mems=memory[0], labels=work.targets, use_mems=True
        )
        memory[0] = found.mems
        found.loss.backward()
        return found.loss.item()

    return step


def paired(one: Callable[[], float], other: Callable[[], float], *, pairs: int) -> tuple[float, float, float]:
    """Median seconds of each, and the median of other/one over the pairs; a first pair is not counted."""
    times: list[tuple[float, float]] = []
    for _ in range(pairs + 1):
        begin = time.perf_counter()
        one()
        middle = time.perf_counter()
        other()
        times.append((middle - begin, time.perf_counter() - middle))
    firsts, seconds = zip(*times[1:], strict=True)
    ratios = [second / first for first, second in times[1:]]
    return statistics.median(firsts), statistics.median(seconds), statistics.median(ratios)


def resident(field: str) -> float:
    """Megabytes of this process (Linux): ``VmRSS`` now, ``VmHWM`` at most; rusage would begin with the parent's."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(field)).split()[1]) / 1024


def peak_megabytes(side: str, name: str) -> float:
    """What two steps need at most, beyond the imported libraries: weights, gradients, activations, memory."""
    command = [sys.executable, __file__, "--peak", side, name]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def against_transformers(name: str, *, pairs: int, dropout: float) -> None:
    """Time and peak memory of a permutation step."""
    size = SIZES[name]
    work = Work.sample(size)
    mine, hf, ratio = paired(ours(size, work, dropout=dropout), theirs(size, work, dropout=dropout), pairs=pairs)
    peak, their_peak = peak_megabytes("ours", name), peak_megabytes("theirs", name)
    print(f"\npermutation step, {size}")
    print("|  | seconds | peak MB |\n|---|---|---|")
    print(f"| xltrain | {mine:.3f} | {peak:,.0f} |\n| transformers | {hf:.3f} | {their_peak:,.0f} |")
    print(f"| ratio | {ratio:.2f}x | {peak / their_peak:.2f} |", flush=True)


def compiled(*, pairs: int, dropout: float) -> None:
    """The small step, eager against torch.compile."""
    size = SIZES["small"]
    work = Work.sample(size)
    begin = time.perf_counter()
    fast = ours(size, work, dropout=dropout, compiled=True)
    fast()
    seconds = time.perf_counter() - begin
    one, other, ratio = paired(fast, ours(size, work, dropout=dropout), pairs=pairs)
    print(
        f"\ntorch.compile, {size}: {one:.3f} s, eager {other:.3f} s, {ratio:.2f}x; first step {seconds:.0f} s",
        flush=True,
    )


def lengths(*, pairs: int) -> None:
    """Cost of a causal step against M and against T."""
    print("\ncausal step, 6 layers, d 256, B 4, vocabulary 2,000: seconds, against T = 128, M = 128")
    print("| T | M | seconds | relative | per remembered position, microseconds |\n|---|---|---|---|---|")
    reference = causal(Size(6, 256, 4, 128, 128, 0, 4, 2000))
    bare: dict[int, float] = {}
    for seq_len, mem_len in [(128, 0), (128, 128), (128, 256), (128, 512), (128, 1024), (256, 128), (512, 128)]:
        step = causal(Size(6, 256, 4, seq_len, mem_len, 0, 4, 2000))
        seconds, _, ratio = paired(step, reference, pairs=pairs)
        bare.setdefault(seq_len, seconds)
        each = (seconds - bare[seq_len]) / mem_len * 1e6 if mem_len and seq_len == 128 else 0.0
        print(f"| {seq_len} | {mem_len} | {seconds:.3f} | {1 / ratio:.2f} | {each:,.0f} |", flush=True)


def causal(size: Size) -> Callable[[], float]:
    """A causal step with a full memory."""
    model = build(size)
    tokens = torch.randint(0, size.vocab_size, (size.rows, size.seq_len))
    order = torch.arange(size.seq_len).expand(size.rows, -1)
    memory = full_memory(model, size)

    def step() -> float:
        model.zero_grad(set_to_none=True)
        nll, _ = model(tokens, order, tokens, memory)
        loss = nll.mean()
        loss.backward()
        return loss.item()

    return step


PARTS = ("small", "base", "compile", "lengths")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--pairs", type=int, default=0, help="pairs per part; by default 15, and 4 for base")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--peak", nargs=2, metavar=("SIDE", "SIZE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peak:
        side, name = given.peak
        size = SIZES[name]
        if side == "theirs":
            import transformers.models.xlnet.modeling_xlnet  # noqa: F401 (not counted)
        before = resident("VmRSS")
        step = (ours if side == "ours" else theirs)(size, Work.sample(size), dropout=given.dropout)
        step()
        step()
        print(resident("VmHWM") - before)
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, fp32, dropout {given.dropout}")
    for part in given.parts:
        if part in SIZES:
            pairs = given.pairs or (15 if part == "small" else 4)
            against_transformers(part, pairs=pairs, dropout=given.dropout)
        elif part == "compile":
            compiled(pairs=given.pairs or 15, dropout=given.dropout)
        else:
            lengths(pairs=given.pairs or 5)


if __name__ == "__main__":
    main()
