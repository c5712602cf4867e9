"""``context``: how much of what came before a model makes use of.

Two measurements. The *curve* is the loss of the same tokens under memories of different lengths, read as a stream. The
*relative effective context length* compares models that are given exactly so many tokens; see
:mod:`xltrain.evaluation.recl`. Both read from left to right, whatever the objective: where every token of a text is
asked for, none is part of a source.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xltrain import console
from xltrain.data.store import Split
from xltrain.data.tokenizer import never_target
from xltrain.errors import UsageError
from xltrain.evaluation.loading import Loaded, adapted, load, read_text
from xltrain.evaluation.per_token import Recorder
from xltrain.evaluation.perplexity import BLOCK_TOKENS, BLOCKS, Protocol, evaluate, standard_error
from xltrain.evaluation.reading import Reader, absolute, refuse_unordered
from xltrain.evaluation.recl import SHARES, THRESHOLD, Search, find_lengths
from xltrain.evaluation.room import empty_cache
from xltrain.objectives.causal import Causal
from xltrain.objectives.left_to_right import LeftToRight
from xltrain.pictures import check_picture
from xltrain.training.build import autocast
from xltrain.training.failures import fitting

LONGEST = 1000
"""Tokens of context that are given at most, where nothing else is said: as in the paper's figures."""

MULTIPLES = (0, 0.25, 0.5, 1, 2, 4, 8)
"""Memory lengths of the curve when none are given, in multiples of the trained one."""


@fitting("lower --batch-size, --mem-lens, --longest or --targets")
def context(
    sources: Sequence[Path],
    *,
    data: list[str],
    split: str,
    mem_lens: list[int],
    clamp_len: int | None,
    batch_size: int | None,
    step: int,
    longest: int | None,
    targets: int,
    picture: Path | None,
) -> dict[str, Any]:
    """Measure; arguments as the command's options.

    Raises:
        UsageError: for models or a text that cannot be measured so.
    """
    if picture is not None:
        check_picture(picture, "--picture")
    if targets and longest is not None and longest < 2 * step:
        raise UsageError(f"--longest: {longest} must be at least twice --step {step}, to compare two context lengths")
    adapt = partial(adapted, same_length=None, clamp_len=clamp_len)
    group = [load(source, adapt=adapt) for source in sources]
    for loaded in group:
        refuse_unordered(loaded.config, what=f"{loaded.checkpoint.folder}: context")
        if loaded.config.two_columns:
            raise UsageError(
                f"{loaded.checkpoint.folder}: context needs a run on running text; this one was trained on pairs, "
                "whose context is their source"
            )
    _require_one_tokenizer(group)
    text = read_text(group[0].config, group[0].tokenizer, data=data, split=split)
    apart = any(_apart(loaded) for loaded in group)
    places = np.zeros(0, dtype=np.int64)
    if targets:
        never_asked = never_target(group[0].tokenizer)
        longest = longest or fitting_context(text, apart=apart, step=step)
        places = choose_targets(text, targets, longest=longest, apart=apart, left_out=never_asked)
    lengths = [memory_lengths(loaded, text, mem_lens) for loaded in group]
    first = max(map(max, lengths)) + 1
    if text.num_tokens - first < BLOCK_TOKENS:
        raise UsageError(
            f"--mem-lens: after {first - 1:,} tokens the text, of {text.num_tokens:,}, leaves too few to score; give a "
            "longer text or shorter memories"
        )
    scored = np.logical_and.reduce([asked(loaded, text) for loaded in group])  # (tokens,)
    scored[:first] = False
    models = [
        {
            "checkpoint": str(loaded.checkpoint.folder),
            "objective": loaded.config.objective.name,
            "seq_len": loaded.config.segments.seq_len,
            "mem_len": loaded.config.segments.mem_len,
            "curve": curve(loaded, text, lengths=own, scored=scored, batch_size=batch_size),
        }
        for loaded, own in zip(group, lengths, strict=True)
    ]
    found: dict[str, Any] = {"text": text.name, "tokens": text.num_tokens, "models": models}
    if targets and longest:
        search = find_lengths(
            lambda length: np.stack([losses_after(loaded, text, places, length) for loaded in group]),
            step=step,
            limit=longest,
            reach=[Reader.of(loaded).room if absolute(loaded.config) else None for loaded in group],
        )
        found["recl"] = {"step": step, "threshold": THRESHOLD, "targets": len(places)} | _search_report(search)
    if picture is not None:
        from xltrain.evaluation.context_picture import draw

        draw(found, picture)
        found["picture"] = str(picture)
    return found


def _require_one_tokenizer(group: Sequence[Loaded]) -> None:
    first = group[0]
    for other in group[1:]:
        if other.tokenizer.files() != first.tokenizer.files():
            raise UsageError(
                f"{other.checkpoint.folder}: its tokenizer is not that of {first.checkpoint.folder}; losses of single "
                "tokens can only be compared between models with the same tokens"
            )


def _apart(loaded: Loaded) -> bool:
    return not loaded.config.segments.cross_documents


# --- loss against the length of memory


def memory_lengths(loaded: Loaded, text: Split, wanted: list[int]) -> list[int]:
    """The memory lengths of a model's curve, ascending.

    Raises:
        UsageError: for lengths that the model cannot have.
    """
    config = loaded.config
    if absolute(config) and any(wanted):
        raise UsageError(f"--mem-lens: {config.model.positions} positions allow no memory; give 0, or leave it out")
    if config.model.same_length and 0 in wanted:
        raise UsageError("--mem-lens: 0 is not allowed: with same_length, memory says how many tokens are seen at all")
    if wanted:
        return sorted(set(wanted))
    if absolute(config):
        return [0]
    trained = config.segments.mem_len or config.segments.seq_len
    lengths = sorted({round(trained * multiple) for multiple in MULTIPLES} - {0 if config.model.same_length else -1})
    fitting = [length for length in lengths if length <= text.num_tokens // 2] or lengths[:1]
    if len(fitting) < len(lengths):
        console.say(f"the text has {text.num_tokens:,} tokens: the curve ends at a memory of {fitting[-1]:,}")
    return fitting


def asked(loaded: Loaded, text: Split) -> np.ndarray:
    """(tokens,) bool: the tokens that a model has a loss for, where a text is read as one stream.

    A causal model predicts from a token before, of the same document where these are kept apart; a permutation model
    is never asked for control symbols.
    """
    if loaded.config.objective.name == "permutation":
        return ~never_target(loaded.tokenizer)[text.tokens]
    return _before(text, apart=_apart(loaded)) > 0


def curve(
    loaded: Loaded, text: Split, *, lengths: list[int], scored: np.ndarray, batch_size: int | None
) -> list[dict[str, Any]]:
    """Loss of the same tokens of a text at every memory length.

    ``scored``: (tokens,) bool, which tokens these are; the model must be :func:`asked` for each.

    ``gain`` is what a memory saves against the shortest one, in nats, with the standard error of the mean difference:
    the targets are the same, so it is far smaller than that of the losses.
    """
    losses = []
    for mem_len in lengths:
        losses.append(losses_in_stream(loaded, text, mem_len=mem_len, batch_size=batch_size)[scored])
        console.say(f"{loaded.checkpoint.folder}: memory {mem_len:,}, loss {losses[-1].mean():.4f}")
    found = []
    for mem_len, loss in zip(lengths, losses, strict=True):
        mean = float(loss.mean())
        found.append(
            {
                "mem_len": mem_len,
                "loss": mean,
                "standard_error": block_error(loss),
                "ppl": math.exp(mean),
                "gain": float((losses[0] - loss).mean()),
                "gain_standard_error": block_error(losses[0] - loss),
                "targets": len(loss),
            }
        )
    return found


def losses_in_stream(loaded: Loaded, text: Split, *, mem_len: int, batch_size: int | None) -> np.ndarray:
    """(tokens,) loss in nats of every token of a text that is read as one stream; NaN where there is none."""
    config, device = loaded.config, loaded.place.device
    query, apart = config.objective.name == "permutation", _apart(loaded)
    never_asked = torch.from_numpy(never_target(loaded.tokenizer)).to(device)
    recorder = Recorder()
    with console.counting(total=text.num_tokens, unit="token", description=f"memory {mem_len:,}") as advanced:
        evaluate(
            loaded.model,
            LeftToRight(apart, given=never_asked) if query else Causal(apart),
            text,
            Protocol(
                mode="stream",
                seq_len=config.segments.seq_len,
                mem_len=mem_len,
                batch_size=batch_size or config.evaluation.batch_size,
                next_token=not query,
            ),
            new_memory=lambda rows: empty_cache(loaded.model, rows=rows, mem_len=mem_len),
            device=device,
            context=lambda: autocast(config.training.precision, device),
            record=recorder,
            advanced=advanced,
        )
    places, losses = recorder.in_order()
    found = np.full(text.num_tokens, np.nan)
    found[places] = losses
    return found


def block_error(losses: np.ndarray) -> float | None:
    """Standard error of the mean of losses in the order of the text, from consecutive blocks of them."""
    blocks = np.array_split(losses, max(1, min(BLOCKS, len(losses) // BLOCK_TOKENS)))
    return standard_error(np.array([block.sum() for block in blocks]), np.array([len(block) for block in blocks]))


# --- loss after exactly so many tokens


def fitting_context(text: Split, *, apart: bool, step: int) -> int:
    """The longest context to give, a multiple of ``step``: 1,000 tokens, or what half of the places have before them.

    Raises:
        UsageError: if that is not twice the step.
    """
    usual = min(LONGEST, int(np.median(_before(text, apart=apart)))) // step * step
    if usual < 2 * step:
        raise UsageError(
            f"--step: half of the tokens of {text.name} have less than {2 * step:,} tokens before them; give a smaller "
            "step, a longer text with --data, or --targets 0 for the curve alone"
        )
    return usual


def _before(text: Split, *, apart: bool) -> np.ndarray:
    """(tokens,) how many tokens stand before each: in its document, where these are kept ``apart``."""
    places = np.arange(text.num_tokens)
    if not apart:
        return places
    return places - np.concatenate([[0], text.ends[:-1]])[np.searchsorted(text.ends, places, side="right")]


def choose_targets(text: Split, count: int, *, longest: int, apart: bool, left_out: np.ndarray) -> np.ndarray:
    """Places (count,) of tokens spread evenly over a text, each with ``longest`` tokens before it.

    Where documents are kept apart, all of these are of the token's own document. ``left_out``: (V,) bool, tokens that
    are not asked for: control symbols, which permutation models never predict.

    Raises:
        UsageError: if there are not two such places.
    """
    places = np.flatnonzero((_before(text, apart=apart) >= longest) & ~left_out[text.tokens])
    if len(places) < 2:
        where = "in one document, since this run keeps documents apart" if apart else "before it"
        raise UsageError(
            f"--longest: no token of {text.name} ({text.num_tokens:,} tokens) has {longest:,} tokens {where}; lower "
            "--longest, or give a longer text with --data"
        )
    return places[np.linspace(0, len(places) - 1, min(count, len(places))).round().astype(np.int64)]


def losses_after(loaded: Loaded, text: Split, places: np.ndarray, length: int) -> np.ndarray:
    """(targets,) loss in nats of the tokens at ``places``, each read after exactly ``length`` tokens and nothing else.

    All of these are within reach of attention: memory is as long as they are. Where it begins with zeros that are seen,
    these are as many as in training. Where absolute positions allow no memory, the last ``seq_len`` tokens are read.
    """
    reader = replace(Reader.of(loaded, mem_len=length), source=False)
    segments = loaded.config.segments
    room = loaded.config.evaluation.batch_size * segments.seq_len * (segments.seq_len + segments.mem_len)
    rows = max(1, room // (min(length, segments.seq_len) * (length + segments.seq_len)))
    losses = []
    batches = [places[start : start + rows] for start in range(0, len(places), rows)]
    with console.counting(total=len(places), unit="target", description=f"{length:,} tokens of context") as done:
        for batch in batches:
            windows = [text.tokens[place - length : place].tolist() for place in batch]
            targets = torch.from_numpy(text.tokens[batch].astype(np.int64)).to(loaded.place.device)
            if loaded.model.zeros_at_first:
                log_probs = reader.after_zeros(windows, zeros=segments.mem_len)
            else:
                log_probs, _ = reader.read(windows)
            losses.append(-log_probs.gather(1, targets[:, None])[:, 0].double().cpu().numpy())
            done(len(batch))
    return np.concatenate(losses)


def _search_report(search: Search) -> dict[str, Any]:
    models = range(len(next(iter(search.losses.values()))))
    return {
        "longest": search.longest,
        "effective": [search.effective.get(model) for model in models],
        "lengths": [{str(share): search.lengths.get((model, share)) for share in SHARES} for model in models],
        "losses": [{"context": length, "losses": loss.tolist()} for length, loss in search.losses.items()],
        "gains": search.steps,
    }
