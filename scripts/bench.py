"""Paired timings of the permutation step: xltrain against the XLNet of transformers, doing the same work.

Same sizes, same tokens, same targets and visibility, memory carried, dropout on, forward and backward. The two sides take
turns, so a change in the machine's speed meets both; printed are medians, and the median of the ratios pair by pair.

    python scripts/bench.py            # all sizes
    python scripts/bench.py --pairs 5  # quicker
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

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


def ours(size: Size, work: Work, *, dropout: float) -> Callable[[], float]:
    """A function that does one forward and backward and returns the loss."""
    model = LanguageModel(
        vocab_size=size.vocab_size,
        num_layers=size.layers,
        d_model=size.d_model,
        num_heads=size.heads,
        head_dim=size.d_model // size.heads,
        d_inner=4 * size.d_model,
        dropout=dropout,
        attention_dropout=dropout,
        query_stream=True,
        two_sided=True,
    )
    initialise(model, std=0.02)
    memory = [full_memory(model, size)]

    def step() -> float:
        model.zero_grad(set_to_none=True)
        nll, memory[0] = model(work.tokens, work.order, work.targets, memory[0], stream="query", predict=work.predict)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--pairs", type=int, default=0, help="pairs per size; by default 15 small, 4 base")
    parser.add_argument("--dropout", type=float, default=0.1)
    given = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, fp32, dropout {given.dropout}")
    print("permutation step (forward and backward), seconds: xltrain, transformers, ratio")
    for name in given.sizes:
        size = SIZES[name]
        work = Work.sample(size)
        pairs = given.pairs or (15 if name == "small" else 4)
        mine, hf, ratio = paired(
            ours(size, work, dropout=given.dropout), theirs(size, work, dropout=given.dropout), pairs=pairs
        )
        print(f"{size}: {mine:.3f}  {hf:.3f}  {ratio:.2f}x", flush=True)


if __name__ == "__main__":
    main()
