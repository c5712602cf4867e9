"""How much memory saves in evaluation: against a sliding window, and against projecting memory anew every segment.

Three parts, each in one process with the same kernels on both sides, which take turns:

- ``window``: what a token costs a model without memory, which reads the whole window again for every token and scores
  its last position only, against a model of the same size that reads segments of T tokens with as much memory. The
  published ratios (Transformer-XL, table 9; one GPU) stand beside ours. The window's side has sinusoids of places
  instead of relative positions, which is cheaper.
- ``cache``: cached keys and values against the same model that projects memory and distances for every segment.
- ``linear``: what a segment costs against M.

With one thread, seconds are the processor's, so that other work on the machine counts less; with more, they are those
of a clock.

    python scripts/bench_eval.py                    # everything
    python scripts/bench_eval.py --parts cache      # one part
    python scripts/bench_eval.py --lengths 800      # the window part, quicker
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from xltrain.model.cache import Cache
from xltrain.model.init import initialise
from xltrain.model.memory import Memory
from xltrain.model.transformer import LanguageModel

PUBLISHED = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
SEGMENTS = (1, 128, 512)


@dataclass(frozen=True)
class Size:
    """A model's sizes, in the letters of the code."""

    layers: int
    d_model: int
    heads: int
    d_inner: int

    def __str__(self) -> str:
        return f"{self.layers} layers, d {self.d_model}, {self.heads} heads, d_inner {self.d_inner:,}"


LARGE, SMALL = Size(12, 512, 8, 2048), Size(6, 256, 4, 1024)
CACHED = [(SMALL, 128, 128, 8, 1.1), (SMALL, 64, 640, 16, 1.8), (SMALL, 128, 1600, 1, 2.0), (LARGE, 1, 3800, 1, 12.0)]
"""Size, T, M, B, and the ratio that is aimed at."""

VOCAB = 205  # as enwik8


def build(size: Size, *, positions: str, backend: str) -> LanguageModel:
    model = LanguageModel(
        vocab_size=VOCAB,
        num_layers=size.layers,
        d_model=size.d_model,
        num_heads=size.heads,
        head_dim=size.d_model // size.heads,
        d_inner=size.d_inner,
        positions=positions,
        backend=backend,
    )
    initialise(model, std=0.02, generator=torch.Generator().manual_seed(1))
    return model.eval()


def full_memory(model: LanguageModel, *, rows: int, mem_len: int) -> Memory:
    """A memory whose slots all count."""
    empty = model.empty_memory(rows=rows, mem_len=mem_len)
    return replace(empty, states=torch.randn_like(empty.states), length=empty.length + mem_len)


def full_cache(model: LanguageModel, *, rows: int, mem_len: int) -> Cache:
    empty = model.empty_cache(rows=rows, mem_len=mem_len)
    empty.buffer.keys_values.normal_()
    return replace(empty, length=empty.length + mem_len)


def reading(model: LanguageModel, memory: Memory | Cache, *, seq_len: int) -> Callable[[], None]:
    """A function that reads one more segment and scores all of it."""
    rows = memory.length.shape[0]
    tokens = torch.randint(0, VOCAB, (rows, seq_len))
    order = torch.arange(seq_len).expand(rows, -1)
    kept = [memory]

    def segment() -> None:
        _, kept[0] = model(tokens, order, tokens, kept[0])

    return segment


def window(model: LanguageModel, *, length: int) -> Callable[[], None]:
    """A function that reads a whole window and scores its last position."""
    tokens = torch.randint(0, VOCAB, (1, length))
    order, last = torch.arange(length)[None], torch.tensor([[length - 1]])
    nothing = model.empty_cache(rows=1, mem_len=0)

    def once() -> None:
        model(tokens, order, tokens[:, -1:], nothing, predict=last)

    return once


def seconds(call: Callable[[], None], *, times: int = 1) -> float:
    """Of one call, the mean of ``times`` of them."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    begin = clock()
    for _ in range(times):
        call()
    return (clock() - begin) / times


def against_windows(lengths: Sequence[int], *, backend: str, pairs: int) -> None:
    print(f"\na token: sliding window against memory; {LARGE}, B 1")
    columns = "".join(f" T {seq_len}, s | ratio |" for seq_len in SEGMENTS)
    print(f"| attention length | window, s |{columns} published |\n{'|---' * (3 + 2 * len(SEGMENTS))}|")
    vanilla = build(LARGE, positions="sinusoid", backend=backend)
    model = build(LARGE, positions="relative", backend=backend)
    for length in lengths:
        whole = window(vanilla, length=length)
        by_segment = {
            seq_len: reading(model, full_cache(model, rows=1, mem_len=length), seq_len=seq_len) for seq_len in SEGMENTS
        }
        for segment in by_segment.values():  # the first one projects the distances
            segment()
        windows: list[float] = []
        each: dict[int, list[float]] = {seq_len: [] for seq_len in SEGMENTS}
        for _ in range(pairs):
            windows.append(seconds(whole))
            for seq_len, segment in by_segment.items():
                each[seq_len].append(seconds(segment, times=10 if seq_len == 1 else 1) / seq_len)
        line = f"| {length:,} | {statistics.median(windows):.2f} |"
        for times in each.values():
            ratio = statistics.median(one / other for one, other in zip(windows, times, strict=True))
            line += f" {statistics.median(times):.5f} | {ratio:,.0f} |"
        print(f"{line} {PUBLISHED.get(length, '-'):,} |", flush=True)


def against_recomputing(*, backend: str, pairs: int) -> None:
    print("\na segment: projections of memory and distances anew every time, or cached")
    print(f"| model | T | M | B | anew, s | cached, s | tokens/s | ratio | at least |\n{'|---' * 9}|")
    for size, seq_len, mem_len, rows, least in CACHED:
        model = build(size, positions="relative", backend=backend)
        anew = reading(model, full_memory(model, rows=rows, mem_len=mem_len), seq_len=seq_len)
        cached = reading(model, full_cache(model, rows=rows, mem_len=mem_len), seq_len=seq_len)
        found = [(seconds(anew), seconds(cached)) for _ in range(pairs + 1)][1:]
        first, second = (statistics.median(times) for times in zip(*found, strict=True))
        ratio = statistics.median(one / other for one, other in found)
        print(
            f"| {size} | {seq_len} | {mem_len:,} | {rows} | {first:.4f} | {second:.4f} "
            f"| {rows * seq_len / second:,.0f} | {ratio:.2f} | {least} |",
            flush=True,
        )


def against_memory_length(*, backend: str, pairs: int) -> None:
    lengths, seq_len = (0, 1000, 2000, 4000, 8000), 64
    print(f"\na segment of {seq_len} tokens against M; {SMALL}, B 1")
    print("| M | seconds | per further remembered position, microseconds |\n|---|---|---|")
    model = build(SMALL, positions="relative", backend=backend)
    calls = [reading(model, full_cache(model, rows=1, mem_len=mem_len), seq_len=seq_len) for mem_len in lengths]
    for call in calls:
        call()
    rounds = [[seconds(call) for call in calls] for _ in range(max(pairs, 5))]
    medians = [statistics.median(times) for times in zip(*rounds, strict=True)]
    slopes = [
        f"{(after - before) / (more - fewer) * 1e6:.1f}"
        for (before, after), (fewer, more) in zip(pairwise(medians), pairwise(lengths), strict=True)
    ]
    for mem_len, median, slope in zip(lengths, medians, ["-", *slopes], strict=True):
        print(f"| {mem_len:,} | {median:.4f} | {slope} |", flush=True)


PARTS = ("window", "cache", "linear")


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--lengths", nargs="*", type=int, default=list(PUBLISHED), help="attention lengths")
    parser.add_argument("--pairs", type=int, default=0, help="rounds per part; by default 1 for windows, else 7")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--backend", default="math", choices=("math", "sdpa"))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(1)
    print(f"torch {torch.__version__}, {given.threads} threads, fp32")
    if "window" in given.parts:
        against_windows(given.lengths, backend=given.backend, pairs=given.pairs or 1)
    if "cache" in given.parts:
        against_recomputing(backend=given.backend, pairs=given.pairs or 7)
    if "linear" in given.parts:
        against_memory_length(backend=given.backend, pairs=given.pairs or 7)


if __name__ == "__main__":
    main()
