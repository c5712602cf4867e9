"""Loss of a model on a text: every target once, whatever the batch size.

Protocols (``mode``):

- ``stream``: the text as one stream, memory carried from segment to segment. With several rows, each first reads the
  text before its part until its memory is what a single row's would be.
- ``document``: every document on its own, with empty memory.
- ``sliding``: no memory; windows of ``seq_len`` tokens of which only the last ``stride`` are scored.
- ``pairs``: every pair of two-column text on its own.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from xltrain.data.columns import every_pair
from xltrain.data.passes import each_document, sliding_windows, whole_text
from xltrain.data.store import Split
from xltrain.data.streams import Segment
from xltrain.model.cache import Cache
from xltrain.objectives.draws import Draw
from xltrain.objectives.plan import IGNORE, Objective, Plan

EVALUATION_STEP = 2**40
"""The ``step`` of draws made in evaluation: none that training reaches, and always the same."""


@dataclass(frozen=True)
class Protocol:
    """How a text is read.

    stride: scored tokens per window, in mode ``sliding``.
    advance: tokens between the starts of segments; None: a whole segment (see ``segments.reuse_len``).
    alone: one pair to a row, in mode ``pairs``.
    """

    mode: str
    seq_len: int
    mem_len: int
    batch_size: int
    stride: int = 1
    advance: int | None = None
    alone: bool = False


@dataclass(frozen=True)
class Result:
    """Totals over all targets, in nats; ``unigram_nll`` is theirs under the training text's unigram counts."""

    nll: float
    targets: int
    seconds: float
    tokens: int
    unigram_nll: float

    @property
    def loss(self) -> float:
        return self.nll / self.targets

    @property
    def unigram_loss(self) -> float:
        return self.unigram_nll / self.targets


class Interrupted(Exception):
    """``should_stop`` said so."""


@torch.no_grad()
def evaluate(
    model: nn.Module,
    objective: Objective,
    split: Split,
    protocol: Protocol,
    *,
    new_memory: Callable[[int], Cache],
    seed: int,
    device: torch.device,
    context: Callable[[], Any],
    unigram: np.ndarray | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Score a text with dropout off. Sums are kept in float64.

    Args:
        new_memory: an empty cache for so many rows.
        seed: of targets and orders where the objective samples them; they depend on it and on the place in the text.
        context: in which forwards run (autocast).
        unigram: (V,) counts of the training text, for ``unigram_nll``.
        should_stop: asked between segments.

    Raises:
        Interrupted: if ``should_stop()``.
    """
    was_training = model.training
    model.eval()
    surprise = None if unigram is None else torch.from_numpy(unigram_surprise(unigram)).to(device)
    nll = torch.zeros((), dtype=torch.float64, device=device)
    baseline = torch.zeros((), dtype=torch.float64, device=device)
    targets = torch.zeros((), dtype=torch.int64, device=device)
    memory: Cache | None = None
    begin = time.perf_counter()
    try:
        for segment, number, scored in _passes(model, split, protocol):
            if should_stop():
                raise Interrupted
            segment, scored = segment.to(device), scored.to(device)
            rows = segment.tokens.shape[0]
            plan = objective.plan(segment, Draw(seed=seed, step=EVALUATION_STEP, rows=number.to(device)))
            wanted = _scored_targets(plan, scored)  # (B, P)
            with context():
                if memory is None or memory.length.shape[0] != rows:  # a smaller last batch: its rows are fresh anyway
                    memory = new_memory(rows)
                losses, memory = model(**{**plan.model_inputs(), "targets": wanted}, memory=memory)
            nll += losses.double().sum()
            counted = wanted != IGNORE
            targets += counted.sum()
            if surprise is not None:
                baseline += surprise[wanted.clamp(min=0)].where(counted, 0.0).sum()
    finally:
        model.train(was_training)
    return Result(
        nll=nll.item(),
        targets=int(targets.item()),
        seconds=time.perf_counter() - begin,
        tokens=split.num_tokens,
        unigram_nll=baseline.item(),
    )


def _passes(model: nn.Module, split: Split, protocol: Protocol) -> Iterator[tuple[Segment, Tensor, Tensor]]:
    seq_len, rows = protocol.seq_len, protocol.batch_size
    if protocol.mode == "pairs":
        return every_pair(split, seq_len=seq_len, rows=rows, alone=protocol.alone)
    if protocol.mode == "document":
        return each_document(split, seq_len=seq_len, rows=rows, advance=protocol.advance)
    if protocol.mode == "sliding":
        return sliding_windows(split, seq_len=seq_len, rows=rows, stride=protocol.stride)
    # A state of the top layer depends on what L layers of memory reach back to; after reading that much, a row
    # remembers exactly what a single row would.
    depth = len(model.layers) * -(-protocol.mem_len // (protocol.advance or seq_len))  # type: ignore[arg-type]
    return whole_text(split, seq_len=seq_len, rows=rows, warm_up=depth, advance=protocol.advance)


def _scored_targets(plan: Plan, scored: Tensor) -> Tensor:
    """Targets (B, P) with everything ignored that is not to be scored; ``scored`` is (B,) or (B, T)."""
    if scored.dim() == 1:
        return plan.targets.where(scored[:, None], IGNORE)
    at = scored if plan.predict is None else scored.gather(1, plan.predict)
    return plan.targets.where(at, IGNORE)


def unigram_surprise(counts: np.ndarray) -> np.ndarray:
    """(V,) -ln p of every id under its share of the training text, each count raised by one."""
    return -np.log((counts + 1.0) / (counts.sum() + len(counts)))


def report(result: Result, split: Split, protocol: Protocol, *, whole: bool) -> dict[str, Any]:
    """The JSON object of ``eval-ppl``.

    ``whole``: every token of the text is a target (left-to-right models). Only then do words, characters and bytes of
    the text measure what the loss is about; otherwise these figures are null.
    """
    counts = split.counts

    def per(unit: int, scale: float = 1.0) -> float | None:
        return result.nll * scale / unit if whole and unit else None

    per_word = per(counts["words"])
    return {
        "mode": protocol.mode,
        "seq_len": protocol.seq_len,
        "mem_len": protocol.mem_len,
        "tokens": counts["tokens"],
        "targets": result.targets,
        "nll": result.nll,
        "loss": result.loss,
        "ppl": _exp(result.loss),
        "ppl_word": None if per_word is None else _exp(per_word),
        "bits_per_char": per(counts["characters"], 1 / math.log(2)),
        "bits_per_byte": per(counts["bytes"], 1 / math.log(2)),
        "documents": counts["documents"],
        "words": counts["words"],
        "characters": counts["characters"],
        "bytes": counts["bytes"],
        "unknown_rate": counts["unknown"] / max(1, counts["tokens"]),
        "tokens_per_second": result.tokens / result.seconds,
    }


def _exp(value: float) -> float | None:
    """None where a float cannot hold it, since JSON knows no infinity."""
    return math.exp(value) if value < 700 else None
