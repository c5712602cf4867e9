"""No target is visible to its own query stream: on independent uniform symbols nothing can be learned.

With memory, spans and several epochs; and a model that does leak fails the same check, so the check means something.
"""

import math
import random
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import pytest
import torch
from logged import lines_of
from models import two_streams
from torch import Tensor
from windows import CLS, FIRST, SEP, Reading, objective_of

from xltrain.data import pairs
from xltrain.data.pairs import PairStream
from xltrain.data.store import Split
from xltrain.data.streams import Position
from xltrain.model.init import initialise
from xltrain.model.visibility import Visibility
from xltrain.objectives.draws import Draw
from xltrain.training.loop import pretrain

ALPHABET = "abcdefgh"


def validation_loss(folder: Path, **objective: Any) -> float:
    """The last validation loss of a small model on random text: about three epochs of distinct symbols."""
    draw = random.Random(0)
    for name, documents in (("train", 130), ("validation", 40)):
        text = "\n\n".join("".join(draw.choice(ALPHABET) for _ in range(400)) for _ in range(documents))
        (folder / f"{name}.txt").write_text(text)
    config = corpora.checked(
        {
            "run": {"output_dir": str(folder / "run"), "seed": 1},
            "corpus": {
                "train": [str(folder / "train.txt")],
                "validation": [str(folder / "validation.txt")],
                "cache_dir": str(folder / "cache"),
            },
            "tokenizer": {"kind": "char"},
            "segments": {"seq_len": 24, "mem_len": 24, "shuffle_documents": True},
            "model": {"num_layers": 2, "d_model": 32, "num_heads": 2, "d_inner": 64, "dropout": 0.0}
            | {"attention_dropout": 0.0, "init": {"std": 0.1}},
            "objective": {"predict_fraction": 0.25, "max_span": 3} | objective,
            "optimizer": {"lr": 3e-3},
            "schedule": {"warmup_steps": 20},
            "training": {"max_steps": 400, "batch_size": 16, "device": "cpu"},
            "evaluation": {"every": 0},
            "checkpoint": {"every": 0},
            "logging": {"every": 400},
        }
    )
    pretrain(config)
    return lines_of(folder / "run")[-1]["validation_loss"]


@pytest.mark.parametrize("objective", ["permutation", "causal", "seq2seq"])
def test_uniform_symbols_stay_at_their_entropy(tmp_path: Path, objective: str) -> None:
    loss = validation_loss(tmp_path, name=objective)
    # A causal model also scores the end of each document, which it can predict no better than by its frequency.
    assert math.log(8) - 0.01 < loss < math.log(8) + 0.05


def test_a_query_that_sees_its_own_target_would_be_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Visibility.of_segment

    def leaking(*, order: Tensor, slots: Tensor | None = None, **rest: Any) -> Visibility:
        found = original(order=order, slots=slots, **rest)
        if slots is not None:  # the query stream's limit is the content stream's
            found.limit[:, order.shape[1] :] += 1
        return found

    monkeypatch.setattr(Visibility, "of_segment", leaking)
    assert validation_loss(tmp_path, name="permutation") < math.log(8) - 0.5


# --- windows of pairs


def loss_on_random_symbols(steps: int = 300) -> float:
    """Mean training loss of the last hundred steps, on text of eight symbols that nobody has seen before."""
    draw = np.random.default_rng(0)
    lines = draw.integers(3, 12, size=12_000)
    split = Reading([lines[i : i + 40].tolist() for i in range(0, 12_000, 40)], 1, 14, 18).split
    tokens = FIRST + draw.integers(0, 8, size=split.num_tokens)
    split = Split(split.name, tokens, split.ends, split.counts, split.line_ends)
    common: dict[str, Any] = {"total_rows": 16, "seq_len": 32, "reuse_len": 14, "mem_len": 40, "bidirectional": True}
    stream = PairStream(split, sep=SEP, cls=CLS, shuffle=True, seed=5, **common)
    assert stream.segments_per_epoch >= steps
    model = two_streams(
        vocab_size=20, num_layers=2, d_model=32, num_heads=2, head_dim=16, segment_embeddings=True
    ).float()
    initialise(model, std=0.1, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    objective = objective_of(20, 14, num_predict=8)
    memory, position, losses = model.empty_memory(rows=16, mem_len=40), Position(), []
    for step in range(steps):
        segment, position = stream.read(position)
        plan = objective.plan(segment, Draw(seed=1, step=step, rows=torch.arange(16)))
        nll, memory = model(**plan.model_inputs(), memory=memory)
        loss = nll.sum() / plan.num_targets
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return float(np.mean(losses[-100:]))


@pytest.mark.slow
def test_uniform_symbols_stay_at_their_entropy_in_training_too():
    """Neither B nor memory nor the text that is read again holds a target in sight."""
    assert np.log(8) - 0.01 < loss_on_random_symbols() < np.log(8) + 0.06


@pytest.mark.slow
def test_a_b_that_repeats_what_the_window_holds_would_be_found_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        pairs, "choose", lambda row, *, start, begin, size, draws: ((begin, begin + 8), (begin, begin + 7))
    )
    assert loss_on_random_symbols(600) < np.log(8) - 0.1
