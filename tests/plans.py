"""Segments of random tokens, and what a plan predicts of them."""

import numpy as np
import torch
from torch import Tensor

from xltrain.data.streams import Segment
from xltrain.objectives.draws import Draw
from xltrain.objectives.plan import IGNORE, Plan

V, T, P = 60, 64, 11
CONTROL = 8  # ids below are control symbols
STARTS = torch.arange(V) % 3 != 1  # two of three tokens start a word


def segment_of(tokens: Tensor, length: int | None = None) -> Segment:
    rows, seq_len = tokens.shape
    lengths = torch.full((rows,), seq_len if length is None else length)
    text = torch.arange(seq_len) < lengths[:, None]
    return Segment(
        tokens=tokens.where(text, 0),
        length=lengths,
        next_token=torch.full((rows,), -1),
        document=torch.zeros_like(tokens),
        next_document=torch.full((rows,), -1),
        fresh=torch.zeros(rows, dtype=torch.bool),
    )


def same(one: Segment, other: Segment) -> bool:
    """In every field, also in which are missing."""
    pairs = [(getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__]
    return all(mine is theirs if mine is None else torch.equal(mine, theirs) for mine, theirs in pairs)


def text_of(rows: int, seq_len: int = T, *, controls: float = 0.0, seed: int = 0) -> Tensor:
    """Random tokens, of which a share are control symbols."""
    draw = np.random.default_rng(seed)
    tokens = draw.integers(CONTROL, V, size=(rows, seq_len))
    return torch.from_numpy(np.where(draw.random((rows, seq_len)) < controls, tokens % CONTROL, tokens))


def draw_of(rows: int, *, seed: int = 7, step: int = 1, first: int = 0) -> Draw:
    return Draw(seed=seed, step=step, rows=torch.arange(first, first + rows))


def targets_of(plan: Plan) -> Tensor:
    """(B, T) bool."""
    assert plan.predict is not None
    found = torch.zeros_like(plan.tokens, dtype=torch.bool)
    for row in range(found.shape[0]):
        found[row, plan.predict[row][plan.targets[row] != IGNORE]] = True
    return found
