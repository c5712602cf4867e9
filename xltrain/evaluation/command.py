"""``eval-ppl``: a checkpoint and a text in, one table of numbers out."""

import math
from pathlib import Path
from typing import Any

from xltrain import console
from xltrain.data.columns import Pairs, cut_note
from xltrain.errors import UsageError
from xltrain.evaluation.loading import adapted, read_text, usable_place
from xltrain.evaluation.perplexity import Protocol, evaluate, report
from xltrain.training.build import autocast, build_objective, one_pair_per_row
from xltrain.training.checkpoint import find_checkpoint

MODES = ("stream", "document", "sliding")


def eval_ppl(
    source: Path,
    *,
    data: list[str],
    split: str,
    mode: str,
    seq_len: int | None,
    mem_len: int | None,
    batch_size: int | None,
    stride: int | None,
    same_length: bool | None,
    clamp_len: int | None,
) -> dict[str, Any]:
    """Evaluate; arguments as the command's options, None for what the run itself used.

    Raises:
        UsageError: for a checkpoint or text that cannot be used.
    """
    if mode not in MODES:
        raise UsageError(f"--mode: {mode!r} is not allowed; choose {', '.join(MODES)}")
    checkpoint = find_checkpoint(source)
    config = adapted(checkpoint.config(), same_length=same_length, clamp_len=clamp_len)
    place = usable_place(config.training.device)
    tokenizer = checkpoint.tokenizer()
    if config.two_columns:
        if mode != "stream" or mem_len:
            raise UsageError("this run reads pairs, each on its own and without memory; leave out --mode and --mem-len")
        mode = "pairs"
    protocol = Protocol(
        mode=mode,
        seq_len=seq_len or config.segments.seq_len,
        mem_len=0 if mode == "sliding" else config.segments.mem_len if mem_len is None else mem_len,
        batch_size=batch_size or config.evaluation.batch_size,
        stride=stride or 1,
        advance=config.segments.reuse_len or None,
        alone=one_pair_per_row(config),
    )
    if protocol.advance and protocol.advance >= protocol.seq_len:
        raise UsageError(f"--seq-len: {seq_len} must be above the run's segments.reuse_len {protocol.advance}")
    if mode == "sliding" and mem_len:
        raise UsageError("--mem-len: sliding windows have no memory; leave it out, or choose --mode stream")
    if mode == "sliding" and config.objective.name != "causal":
        raise UsageError(f"--mode sliding scores next tokens; this run's objective is {config.objective.name}")
    if stride is not None and mode != "sliding":
        raise UsageError(f"--stride is for --mode sliding, not {mode}")
    if protocol.stride > protocol.seq_len:
        raise UsageError(f"--stride: {stride} exceeds the window of {protocol.seq_len} tokens")
    if config.model.same_length and protocol.mem_len == 0:
        raise UsageError("--same-length needs memory; give --mem-len above 0, or --no-same-length")
    text = read_text(config, tokenizer, data=data, split=split)
    if config.segments.layout == "pair":
        console.say(
            "this run was trained on pairs of texts (segments.layout); it is evaluated on the text as it follows"
        )
    if config.two_columns:
        for line in cut_note(Pairs(text, seq_len=protocol.seq_len, alone=protocol.alone)):
            console.say(line)
    model = checkpoint.model(place.device, config)
    result = evaluate(
        model,
        build_objective(config, tokenizer=tokenizer, seq_len=protocol.seq_len, device=place.device),
        text,
        protocol,
        new_memory=lambda rows: model.empty_cache(rows=rows, mem_len=protocol.mem_len),
        seed=config.run.seed,
        device=place.device,
        context=lambda: autocast(config.training.precision, place.device),
    )
    if result.targets == 0:
        raise UsageError(f"{text.name}: no token of this text has another one before it; there is nothing to predict")
    found = report(result, text, protocol, whole=config.objective.name == "causal")
    if found["unknown_rate"] > 0.01:
        console.warn(f"{found['unknown_rate']:.1%} of the tokens are <unk>: this perplexity is not comparable")
    if result.loss > math.log(tokenizer.vocab_size):
        console.warn(
            f"a loss of {result.loss:.2f} nats is worse than guessing among {tokenizer.vocab_size:,} tokens: "
            "the model is untrained, or the tokenizer is not the one that it was trained with"
        )
    return {"checkpoint": str(checkpoint.folder), "text": text.name, "objective": config.objective.name} | found
