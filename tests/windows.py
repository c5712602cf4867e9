"""XLNet's windows [reused | A SEP B SEP CLS] of documents that are made up, and how they are read by hand."""

from dataclasses import dataclass
from typing import Any

import corpora
import numpy as np
import torch
from hypothesis import strategies as st

from xltrain.data.order import DocumentOrder
from xltrain.data.pairs import PairStream
from xltrain.data.store import Split
from xltrain.objectives.permutation import Permutation

SEP, CLS, FIRST = 4, 3, 10
SEED = 5


@dataclass(frozen=True)
class Reading:
    """Documents of lines of so many tokens, and how rows read them; ids tell places apart and are no symbols."""

    documents: list[list[int]]
    runs: int
    reuse_len: int
    rest: int
    mem_len: int = 0
    shuffle: bool = False
    both: bool = False

    @property
    def rows(self) -> int:
        return 2 * self.runs if self.both else self.runs

    @property
    def seq_len(self) -> int:
        return self.reuse_len + self.rest

    @property
    def split(self) -> Split:
        found = corpora.split_of([sum(lines) for lines in self.documents])
        ends = np.cumsum([length for lines in self.documents for length in lines])
        return Split(found.name, found.tokens + FIRST, found.ends, found.counts, np.setdiff1d(ends, found.ends))

    def stream(self, **more: Any) -> PairStream:
        return PairStream(
            self.split,
            total_rows=self.rows,
            seq_len=self.seq_len,
            reuse_len=self.reuse_len,
            mem_len=self.mem_len,
            sep=SEP,
            cls=CLS,
            shuffle=self.shuffle,
            seed=SEED,
            bidirectional=self.both,
            **more,
        )

    def by_hand(self, epoch: int) -> list[tuple[list[int], list[int], list[int]]]:
        """Tokens, documents and lines of every row's run of an epoch."""
        count = len(self.documents)
        order = DocumentOrder(count, seed=SEED, epoch=epoch).numbers(0, count) if self.shuffle else range(count)
        begins = np.cumsum([0] + [sum(lines) for lines in self.documents])
        text: list[tuple[int, int, int]] = []
        line = 0
        for number, document in enumerate(order):
            token = int(begins[document]) + FIRST
            for length in self.documents[document]:
                text += [(token + i, number, line) for i in range(length)]
                token, line = token + length, line + 1
        size = len(text) // self.runs
        found = [text[run * size : (run + 1) * size] for run in range(self.runs)]
        if self.both:
            found += [row[::-1] for row in found]
        return [tuple(map(list, zip(*row, strict=True))) for row in found]  # type: ignore[misc]


READINGS = st.builds(
    Reading,
    documents=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=6),
    runs=st.integers(1, 3),
    reuse_len=st.integers(1, 7),
    rest=st.integers(5, 14),
    mem_len=st.sampled_from([0, 0, 5, 20]),
    shuffle=st.booleans(),
    both=st.booleans(),
).filter(lambda reading: reading.split.num_tokens >= reading.runs * (reading.seq_len - 3))


# --- what is predicted, seen and remembered


def objective_of(vocab_size: int, reuse_len: int, *, num_predict: int = 6, keep_apart: bool = False) -> Permutation:
    ids = torch.arange(vocab_size)
    return Permutation(
        num_predict=num_predict,
        max_span=3,
        starts_word=ids % 2 == 0,
        never_target=ids < FIRST,
        reuse_len=reuse_len,
        functional=(ids == SEP) | (ids == CLS),
        keep_apart=keep_apart,
    )
