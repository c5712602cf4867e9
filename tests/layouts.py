"""Every objective with every way of cutting text, and small random texts for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import corpora
import numpy as np
import pytest
import torch

from xltrain.data.columns import ColumnStream
from xltrain.data.pairs import PairStream
from xltrain.data.store import Split
from xltrain.data.streams import Segment, Stream, TrainingStream
from xltrain.objectives.causal import Causal
from xltrain.objectives.draws import Draw
from xltrain.objectives.masked import Masked
from xltrain.objectives.permutation import Permutation
from xltrain.objectives.plan import Objective, Plan
from xltrain.objectives.seq2seq import Seq2Seq

V, T, M = 40, 14, 10
CONTROLS, SEP, CLS, MASK, EOD = 9, 4, 3, 6, 7
STARTS = torch.arange(V) % 2 == 0
NEVER = torch.arange(V) < CONTROLS - 1


@dataclass(frozen=True)
class Case:
    """An objective and how its text is cut: a stream, with a reused part or not, windows of pairs, or two columns."""

    objective: str
    layout: str = "stream"
    bidirectional: bool = False

    @property
    def name(self) -> str:
        return f"{self.objective}, {self.layout}{', both directions' if self.bidirectional else ''}"

    def reuse_len(self, seq_len: int = T) -> int:
        return seq_len // 2 if self.layout in ("reused", "pair") else 0

    @property
    def mem_len(self) -> int:
        return 0 if self.layout == "columns" else M

    def plan(self, segment: Segment, *, step: int, keep_apart: bool, first_row: int = 0) -> Plan:
        rows = torch.arange(first_row, first_row + segment.tokens.shape[0])
        return self.build(keep_apart).plan(segment, Draw(seed=3, step=step, rows=rows))

    def build(self, keep_apart: bool, num_predict: int = 5, seq_len: int = T) -> Objective:
        rule: dict[str, Any] = {"num_predict": num_predict, "max_span": 3, "starts_word": STARTS, "never_target": NEVER}
        if self.objective == "causal":
            return Causal(keep_apart=keep_apart)
        if self.objective == "seq2seq":
            return Seq2Seq(keep_apart=keep_apart)
        if self.objective == "masked":
            return Masked(mask=MASK, keep_apart=keep_apart, **rule)
        functional = (torch.arange(V) == SEP) | (torch.arange(V) == CLS)
        return Permutation(reuse_len=self.reuse_len(seq_len), functional=functional, keep_apart=keep_apart, **rule)

    def stream(self, split: Split, rows: int = 2, seq_len: int = T) -> Stream:
        common: dict[str, Any] = {"total_rows": rows, "seq_len": seq_len, "shuffle": False, "seed": 5}
        if self.layout == "columns":
            return ColumnStream(split, **common)
        common["bidirectional"] = self.bidirectional
        if self.layout == "pair":
            return PairStream(split, reuse_len=self.reuse_len(seq_len), mem_len=M, sep=SEP, cls=CLS, **common)
        return TrainingStream(split, advance=self.reuse_len(seq_len) or None, **common)


CASES = [
    Case("causal"),
    Case("causal", bidirectional=True),
    Case("permutation"),
    Case("permutation", "reused"),
    Case("permutation", "pair"),
    Case("permutation", "pair", bidirectional=True),
    Case("masked"),
    Case("seq2seq"),
    Case("seq2seq", "columns"),
]


def cases(*, objectives: Sequence[str] = (), layouts: Sequence[str] = ()) -> Any:
    """A decorator: the test for every case, or for those of some objectives and layouts."""
    chosen = [
        case
        for case in CASES
        if case.objective in (objectives or [case.objective]) and case.layout in (layouts or [case.layout])
    ]
    return pytest.mark.parametrize("case", chosen, ids=lambda case: case.name)


def text_of(lengths: list[int], *, seed: int = 0) -> Split:
    """Documents with lines of two to six tokens, closed by <eod>; of two columns, these are cut in the middle."""
    draw = np.random.default_rng(seed)
    split = corpora.split_of(lengths)
    tokens = draw.integers(CONTROLS, V, size=split.num_tokens)
    tokens[split.ends - 1] = EOD
    ends = np.cumsum(draw.integers(2, 7, size=split.num_tokens))
    lines = np.setdiff1d(ends[ends < split.num_tokens], split.ends)
    return Split(split.name, tokens, split.ends, split.counts, lines)


def columns_of(split: Split) -> Split:
    middles = split.ends - split.lengths() // 2
    return Split(split.name, split.tokens, split.ends, split.counts, middles)


def text_for(case: Case, lengths: list[int], *, seed: int = 0) -> Split:
    split = text_of(lengths, seed=seed)
    return columns_of(split) if case.layout == "columns" else split
