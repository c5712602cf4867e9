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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
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

SEED = 1
"""Of these draws. It is not ``run.seed``, so that runs of several seeds are asked for the same targets."""

BLOCKS = 100
"""Runs of text, at most, that the standard error of a loss is computed from."""

BLOCK_TOKENS = 64
"""Tokens of such a run, at least."""


@dataclass(frozen=True)
class Protocol:
    """How a text is read.

    batch_size: rows at once, at most; fewer where warming them would read more than the text itself.
    stride: scored tokens per window, in mode ``sliding``.
    advance: tokens between the starts of segments; None: a whole segment (see ``segments.reuse_len``).
    next_token: whether a row predicts the token after its place, or the one at it.
    part: (which, of how many) equal parts of the text's rows are read here, where several processes share them; then
        ``batch_size`` rows are read in each, and the sums of all parts are those of the whole text.
    """

    mode: str
    seq_len: int
    mem_len: int
    batch_size: int
    stride: int = 1
    advance: int | None = None
    next_token: bool = True
    part: tuple[int, int] = (0, 1)

    def warm_up(self, *, num_layers: int) -> int:
        """Segments after which a row of a stream remembers exactly what a single row would.

        A state of the top layer depends on what all layers of memory reach back to.
        """
        return num_layers * -(-self.mem_len // (self.advance or self.seq_len))

    def rows(self, num_tokens: int, *, num_layers: int) -> int:
        """Rows that read a stream of so many tokens; warming them costs no more than reading it."""
        segments = 1 + max(0, -(-(num_tokens - self.seq_len) // (self.advance or self.seq_len)))
        affordable = segments // max(1, self.warm_up(num_layers=num_layers))
        return max(1, min(self.batch_size, segments, affordable))


@dataclass(frozen=True)
class Result:
    """Totals over all targets, in nats; ``unigram_nll`` is theirs under the training text's unigram counts.

    blocks: (2, G) sums of losses over runs of the text, and their numbers.
    """

    nll: float
    targets: int
    seconds: float
    tokens: int
    unigram_nll: float
    blocks: np.ndarray = field(default_factory=lambda: np.zeros((2, 0)))

    @property
    def loss(self) -> float:
        return self.nll / self.targets

    @property
    def unigram_loss(self) -> float:
        return self.unigram_nll / self.targets

    @property
    def standard_error(self) -> float | None:
        """Of ``loss``; see :func:`standard_error`."""
        return standard_error(*self.blocks)

    @staticmethod
    def joined(results: Sequence["Result"]) -> "Result":
        """Several draws of the same text as one."""
        return Result(
            nll=math.fsum(result.nll for result in results),
            targets=sum(result.targets for result in results),
            seconds=math.fsum(result.seconds for result in results),
            tokens=sum(result.tokens for result in results),
            unigram_nll=math.fsum(result.unigram_nll for result in results),
            blocks=np.sum([result.blocks for result in results], axis=0),
        )


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
    device: torch.device,
    context: Callable[[], Any],
    unigram: np.ndarray | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    draw: int = 0,
    record: Callable[[np.ndarray, np.ndarray], None] | None = None,
    advanced: Callable[[int], None] = lambda tokens: None,
) -> Result:
    """Score a text with dropout off. Sums are kept in float64.

    Where the objective samples targets and orders, they depend on the place in the text and on ``draw`` alone.

    Args:
        new_memory: an empty cache for so many rows.
        context: in which forwards run (autocast).
        unigram: (V,) counts of the training text, for ``unigram_nll``.
        should_stop: asked between segments.
        draw: which of many draws of targets and orders.
        record: given the places in the text and the losses of the targets of every segment.
        advanced: told how many tokens have been scored since the last time.

    Raises:
        Interrupted: if ``should_stop()``.
    """
    was_training = model.training
    model.eval()
    surprise = None if unigram is None else torch.from_numpy(unigram_surprise(unigram)).to(device)
    nll = torch.zeros((), dtype=torch.float64, device=device)
    baseline = torch.zeros((), dtype=torch.float64, device=device)
    targets = torch.zeros((), dtype=torch.int64, device=device)
    blocks = _Blocks(split.num_tokens, device)
    memory: Cache | None = None
    begin = time.perf_counter()
    try:
        for segment, number, scored in _passes(model, split, protocol):
            if should_stop():
                raise Interrupted
            starts, read = _starts(split, protocol, segment, number), _num_scored(segment, scored)
            segment, scored = segment.to(device), scored.to(device)
            rows = segment.tokens.shape[0]
            plan = objective.plan(segment, _drawn(protocol, number, starts, draw=draw, device=device))
            if protocol.mode == "sliding" and int(starts[0]) > 0:  # no window but the first scores its beginning
                plan = _last_places(plan, protocol.stride)
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
            places = torch.arange(wanted.shape[1], device=device) if plan.predict is None else plan.predict
            places = starts.to(device)[:, None] + places + int(protocol.next_token)  # (B, P)
            blocks.add(places, losses, counted)
            if record is not None:
                record(places[counted].cpu().numpy(), losses[counted].double().cpu().numpy())
            advanced(read)
    finally:
        model.train(was_training)
    return Result(
        nll=nll.item(),
        targets=int(targets.item()),
        seconds=time.perf_counter() - begin,
        tokens=split.num_tokens,
        unigram_nll=baseline.item(),
        blocks=blocks.sums.cpu().numpy(),
    )


def has_targets(
    model: nn.Module, objective: Objective, split: Split, protocol: Protocol, *, device: torch.device
) -> bool:
    """Whether ``evaluate`` would find anything to score; it looks no further than the first target."""
    for segment, number, scored in _passes(model, split, protocol):
        starts = _starts(split, protocol, segment, number)
        drawn = _drawn(protocol, number, starts, draw=0, device=device)
        wanted = _scored_targets(objective.plan(segment.to(device), drawn), scored.to(device))  # (B, P)
        if (wanted != IGNORE).any():
            return True
    return False


def _drawn(protocol: Protocol, number: Tensor, starts: Tensor, *, draw: int, device: torch.device) -> Draw:
    """What is drawn for a segment, by its number or, in a document, where all have the same, its place in the text."""
    rows = starts if protocol.mode == "document" else number  # (B,)
    return Draw(seed=SEED, step=EVALUATION_STEP + draw, rows=rows.to(device))


def _passes(model: nn.Module, split: Split, protocol: Protocol) -> Iterator[tuple[Segment, Tensor, Tensor]]:
    which, parts = protocol.part
    whole = replace(protocol, batch_size=protocol.batch_size * parts)
    for segment, number, scored in _whole_passes(model, split, whole):
        rows = segment.tokens.shape[0]
        start, stop = rows * which // parts, rows * (which + 1) // parts
        if start == stop:  # fewer rows than parts: this one reads along, so that all do the same, and scores nothing
            start, stop, scored = 0, 1, torch.zeros_like(scored)
        yield segment.rows(start, stop), number[start:stop], scored[start:stop]


def _whole_passes(model: nn.Module, split: Split, protocol: Protocol) -> Iterator[tuple[Segment, Tensor, Tensor]]:
    seq_len, rows = protocol.seq_len, protocol.batch_size
    if protocol.mode == "pairs":
        return every_pair(split, seq_len=seq_len, rows=rows)
    if protocol.mode == "document":
        return each_document(split, seq_len=seq_len, rows=rows, advance=protocol.advance)
    if protocol.mode == "sliding":
        return sliding_windows(split, seq_len=seq_len, rows=rows, stride=protocol.stride)
    depth = len(model.layers)  # type: ignore[arg-type]
    return whole_text(
        split,
        seq_len=seq_len,
        rows=protocol.rows(split.num_tokens, num_layers=depth),
        warm_up=protocol.warm_up(num_layers=depth),
        advance=protocol.advance,
    )


def _starts(split: Split, protocol: Protocol, segment: Segment, number: Tensor) -> Tensor:
    """(B,) where each row's segment begins in the text; ``number`` is what its pass calls it."""
    if protocol.mode == "sliding":
        return number
    if protocol.mode == "stream":
        return number * (protocol.advance or protocol.seq_len)
    if protocol.mode == "pairs":  # the first pair of the batch, for all of its rows
        return _begins(split, number.numpy())
    return _begins(split, segment.document[:, 0].numpy()) + number


def _begins(split: Split, documents: np.ndarray) -> Tensor:
    """Where documents (B,) begin in the text; only these are looked up, since this is asked for every segment."""
    return torch.from_numpy(np.where(documents > 0, split.ends[documents - 1], 0))


def _num_scored(segment: Segment, scored: Tensor) -> int:
    """Tokens of this segment that are scored, on the processor that read them: asking costs no wait for a device."""
    if scored.dim() == 1:
        return int(segment.length[scored].sum())
    places = torch.arange(scored.shape[1])
    return int((scored & (places < segment.length[:, None])).sum())


def _last_places(plan: Plan, count: int) -> Plan:
    """Predict from the last places only."""
    rows, seq_len = plan.tokens.shape
    last = torch.arange(seq_len - count, seq_len, device=plan.tokens.device)
    return replace(plan, predict=last.expand(rows, -1), targets=plan.targets[:, seq_len - count :])  # (B, P), (B, P)


class _Blocks:
    """Sums of losses over runs of text."""

    def __init__(self, num_tokens: int, device: torch.device) -> None:
        self.size = max(BLOCK_TOKENS, -(-num_tokens // BLOCKS))
        self.numbers = torch.arange(-(-num_tokens // self.size), device=device)  # (G,)
        self.sums = torch.zeros(2, len(self.numbers), dtype=torch.float64, device=device)  # losses, and their number

    def add(self, places: Tensor, losses: Tensor, counted: Tensor) -> None:
        """``places``, ``losses``, ``counted``: (B, P)."""
        within = places.flatten()[:, None] // self.size == self.numbers  # (B*P, G)
        both = torch.stack([losses.double(), counted.double()]).flatten(1)  # (2, B*P)
        self.sums += both @ within.double()


def standard_error(nll: np.ndarray, targets: np.ndarray) -> float | None:
    """Of the mean loss, by (blocks,) sums of losses and their numbers; None with fewer than two blocks of any targets.

    Neighbouring losses depend on one another, so a mean over tokens taken for independent would look too sure. Blocks
    of text nearly do not; their ratio estimate (Cochran 1977, 2.11) lets them have different numbers of targets.
    """
    nll, targets = nll[targets > 0], targets[targets > 0]
    count = len(targets)
    if count < 2:
        return None
    residuals = nll - targets * (nll.sum() / targets.sum())
    return float(math.sqrt(count / (count - 1) * (residuals**2).sum()) / targets.sum())


def _scored_targets(plan: Plan, scored: Tensor) -> Tensor:
    """Targets (B, P) with everything ignored that is not to be scored; ``scored`` is (B,) or (B, T)."""
    if scored.dim() == 1:
        return plan.targets.where(scored[:, None], IGNORE)
    at = scored if plan.predict is None else scored.gather(1, plan.predict)
    return plan.targets.where(at, IGNORE)


def unigram_entropy(counts: np.ndarray) -> float:
    """Nats per token of a text whose ids occur so often, for who knows nothing but that."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


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
        "standard_error": result.standard_error,
        "unigram_loss": result.unigram_loss if result.unigram_nll else None,  # 0: there were no counts
        "ppl": _exp(result.loss),
        "bits_per_target": result.loss / math.log(2),
        "ppl_word": None if per_word is None else _exp(per_word),
        "bits_per_char": per(counts["characters"], 1 / math.log(2)),
        "bits_per_byte": per(counts["bytes"], 1 / math.log(2)),
        "documents": counts["documents"],
        "lines": counts["lines"],
        "words": counts["words"],
        "characters": counts["characters"],
        "bytes": counts["bytes"],
        "unknown": counts["unknown"],
        "unknown_spelled": counts.get("unknown_spelled", 0),
        "unknown_rate": counts["unknown"] / max(1, counts["tokens"]),
        "tokens_per_second": result.tokens / result.seconds,
    }


def _exp(value: float) -> float | None:
    """None where a float cannot hold it, since JSON knows no infinity."""
    return math.exp(value) if value < 700 else None
