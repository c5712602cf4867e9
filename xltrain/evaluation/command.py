"""``eval-ppl``: a checkpoint and a text in, one table of numbers out."""

import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from xltrain import console
from xltrain.config.schema import Config
from xltrain.data.columns import Pairs, cut_note
from xltrain.data.overlap import trained_on
from xltrain.data.store import Split
from xltrain.data.tokenizer import never_target
from xltrain.errors import UsageError
from xltrain.evaluation.loading import adapted, load, read_text
from xltrain.evaluation.per_token import Recorder, check_file, write
from xltrain.evaluation.perplexity import Protocol, Result, evaluate, report
from xltrain.evaluation.protocol import (
    NEXT_TOKEN,
    draws_targets,
    said_of_targets,
    said_of_text,
    said_of_tokenizer,
    training_unigram,
)
from xltrain.evaluation.reading import absolute
from xltrain.evaluation.room import empty_cache, useful
from xltrain.evaluation.warnings import warn_of
from xltrain.objectives.left_to_right import LeftToRight
from xltrain.objectives.plan import Objective
from xltrain.training.build import autocast, build_objective
from xltrain.training.failures import fitting

MODES = ("stream", "document", "sliding")


@dataclass(frozen=True)
class Options:
    """The command's options, None for what the run itself used."""

    data: list[str]
    split: str
    mode: str
    seq_len: int | None
    mem_len: int | None
    batch_size: int | None
    stride: int | None
    same_length: bool | None
    clamp_len: int | None
    left_to_right: bool
    draws: int
    per_token: Path | None


def eval_ppl(source: Path, options: Options) -> dict[str, Any]:
    """Evaluate.

    Raises:
        UsageError: for a checkpoint, a text or options that cannot be used.
        XltrainError: if the file of ``per_token`` cannot be written.
    """
    if options.mode not in MODES:
        raise UsageError(f"--mode: {options.mode!r} is not allowed; choose {', '.join(MODES)}")
    if options.per_token is not None:
        check_file(options.per_token)
    loaded = load(source, adapt=lambda trained: _checked(trained, options))
    config, tokenizer, model, place = loaded.config, loaded.tokenizer, loaded.model, loaded.place
    text = read_text(config, tokenizer, data=options.data, split=options.split)
    protocol = _fitted(_protocol(config, options), config, options, text)
    if config.segments.layout == "pair":
        console.say(
            "this run was trained on pairs of texts (segments.layout); it is evaluated on the text as it follows"
        )
    if config.two_columns:
        for line in cut_note(Pairs(text, seq_len=protocol.seq_len)):
            console.say(line)
    if options.left_to_right:
        objective: Objective = LeftToRight(
            keep_apart=not config.segments.cross_documents,
            given=torch.from_numpy(never_target(tokenizer)).to(place.device),
        )
    else:
        objective = build_objective(config, tokenizer=tokenizer, seq_len=protocol.seq_len, device=place.device)
    unigram = training_unigram(loaded)
    recorder = None if options.per_token is None else Recorder()
    now = {"--mem-len": protocol.mem_len, "--seq-len": protocol.seq_len, "--batch-size": protocol.batch_size}
    ways = [f"{option} (now {number:,})" for option, number in now.items() if number > (option == "--batch-size")]
    with (
        fitting(f"lower {' or '.join(ways)}"),
        console.counting(total=text.num_tokens * options.draws, unit="token", description="evaluating") as advanced,
    ):
        results = [
            evaluate(
                model,
                objective,
                text,
                protocol,
                new_memory=lambda rows: empty_cache(model, rows=rows, mem_len=protocol.mem_len),
                device=place.device,
                context=lambda: autocast(config.training.precision, place.device),
                unigram=unigram,
                draw=draw,
                record=recorder,
                advanced=advanced,
            )
            for draw in range(options.draws)
        ]
    result = Result.joined(results)
    if result.targets == 0:
        raise UsageError(f"{text.name}: no token of this text has another one before it; there is nothing to predict")
    if recorder is not None and options.per_token is not None:
        query = config.objective.name == "permutation"
        write(options.per_token, recorder, text, tokenizer, query=query)
    whole = config.objective.name == "causal" or options.left_to_right
    found = (
        {"checkpoint": str(loaded.checkpoint.folder), "text": text.name, "objective": config.objective.name}
        | report(result, text, protocol, whole=whole)
        | _said_of_draws(results, options)
        | said_of_text(config, protocol, text, num_layers=model.num_layers)
        | said_of_targets(config, left_to_right=options.left_to_right)
        | said_of_tokenizer(tokenizer)
    )
    entries = options.data or getattr(config.corpus, options.split)
    overlap = trained_on(config.corpus.train, entries, split=options.split)
    warn_of(found, trained=loaded.trained, overlap=overlap, vocab_size=tokenizer.vocab_size, whole=whole)
    return found


def _protocol(config: Config, options: Options) -> Protocol:
    segments = config.segments
    return Protocol(
        mode="pairs" if config.two_columns else options.mode,
        seq_len=options.seq_len or segments.seq_len,
        mem_len=0 if options.mode == "sliding" else segments.mem_len if options.mem_len is None else options.mem_len,
        batch_size=options.batch_size or config.evaluation.batch_size,
        stride=options.stride or 1,
        advance=None if options.left_to_right else segments.reuse_len or None,
        next_token=config.objective.name in NEXT_TOKEN,
    )


def _fitted(protocol: Protocol, config: Config, options: Options, text: Split) -> Protocol:
    """The protocol without what is longer than the text and would only cost time."""
    document = int(text.lengths().max())
    longest, where = (
        (document, "the longest document") if protocol.mode == "document" else (text.num_tokens, "the text")
    )
    seen, where_seen = (longest, where) if config.segments.cross_documents else (document, "the longest document")
    segments, mem_len = config.segments, protocol.mem_len
    seq_len = useful("--seq-len", options.seq_len, usual=segments.seq_len, most=longest, where=where)
    if mem_len and segments.initial_memory == "absent":  # zeros that are seen are never too many
        mem_len = useful("--mem-len", options.mem_len, usual=segments.mem_len, most=seen, where=where_seen)
    return replace(protocol, seq_len=seq_len, mem_len=mem_len, stride=min(protocol.stride, seq_len))


def _checked(trained: Config, options: Options) -> Config:
    """The configuration with what the options change; raises a :class:`UsageError` for what does not go together."""
    config = adapted(trained, same_length=options.same_length, clamp_len=options.clamp_len)
    _check(config, _protocol(config, options), options)
    return config


def _check(config: Config, protocol: Protocol, options: Options) -> None:
    name, segments = config.objective.name, config.segments
    if config.two_columns and (options.mode != "stream" or options.mem_len):
        raise UsageError("this run reads pairs, each on its own and without memory; leave out --mode and --mem-len")
    if config.two_columns and options.per_token is not None:
        raise UsageError("--per-token is for running text; this run reads pairs, which xltrain score takes one by one")
    if protocol.advance and protocol.advance >= protocol.seq_len:
        raise UsageError(f"--seq-len: {options.seq_len} must be above the run's segments.reuse_len {protocol.advance}")
    if options.mode == "sliding" and options.mem_len:
        raise UsageError("--mem-len: sliding windows have no memory; leave it out, or choose --mode stream")
    if options.mode == "sliding" and name != "causal":
        raise UsageError(f"--mode sliding scores next tokens; this run's objective is {name}")
    if options.stride is not None and options.mode != "sliding":
        raise UsageError(f"--stride is for --mode sliding, not {options.mode}")
    if protocol.stride > protocol.seq_len:
        raise UsageError(f"--stride: {options.stride} exceeds the window of {protocol.seq_len} tokens")
    if config.model.same_length and protocol.mem_len == 0:
        raise UsageError("--same-length needs memory; give --mem-len above 0, or --no-same-length")
    if absolute(config) and protocol.mem_len:
        raise UsageError(f"--mem-len: {config.model.positions} positions allow no memory; leave it out")
    if config.model.positions == "learned" and protocol.seq_len > segments.seq_len:
        raise UsageError(
            f"--seq-len: {protocol.seq_len} exceeds the run's segments.seq_len {segments.seq_len}; a model with "
            "learned positions has none beyond it"
        )
    if options.left_to_right and name != "permutation":
        said = "already predicts left to right" if name == "causal" else "has no query stream to predict them with"
        raise UsageError(f"--left-to-right is for permutation models; this run's objective is {name}, which {said}")
    if options.draws > 1 and not draws_targets(config, left_to_right=options.left_to_right):
        raise UsageError(f"--draws: {options.draws} draws would be the same; no targets are sampled here")
    if options.draws > 1 and options.per_token is not None:
        raise UsageError("--per-token writes one draw; leave --draws out")


def _said_of_draws(results: list[Result], options: Options) -> dict[str, Any]:
    losses = [result.loss if result.targets else math.nan for result in results]
    return {
        "left_to_right": options.left_to_right,
        "draws": len(results),
        "loss_spread": statistics.stdev(losses) if len(losses) > 1 else None,
    } | ({"loss_by_draw": losses} if len(losses) > 1 else {})
