"""``generate``: a model goes on with a text.

What a sample becomes depends on its prompt, the seed and its number, not on what else is generated beside it.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xltrain import console
from xltrain.data.tokenizer import SPECIALS, never_target
from xltrain.data.words import WordTokenizer
from xltrain.errors import UsageError
from xltrain.evaluation.loading import Loaded, load
from xltrain.evaluation.reading import Reader, longest_reach, refuse_unordered
from xltrain.evaluation.room import useful
from xltrain.evaluation.sampling import Sampling
from xltrain.evaluation.spelling import Speller
from xltrain.evaluation.texts import Encoder, line_end
from xltrain.evaluation.warnings import warn_of_distances
from xltrain.training.failures import fitting

UNTIL = ("document", "line", "never")


@dataclass
class Sample:
    """One continuation of a prompt; ``log_prob`` in nats under the model itself, whatever it was drawn with.

    number, prompt_number, copy: among all samples, of its prompt, and among the samples of that; all from 0.
    before: what is printed before its text: the prompt, and for pairs the tab after a source.
    ended: whether it came to the mark that it goes up to, which is then its last token and not in its text.
    """

    number: int
    prompt_number: int
    copy: int
    prompt: str
    before: str
    speller: Speller
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    log_prob: float = 0.0
    ended: bool = False

    def report(self) -> dict[str, Any]:
        return {
            "sample": self.number,
            "prompt_number": self.prompt_number,
            "sample_of_prompt": self.copy,
            "prompt": self.prompt,
            "text": self.text,
            "tokens": len(self.tokens),
            "log_prob": self.log_prob,
            "ended": self.ended,
        }


@dataclass(frozen=True)
class Ends:
    """Tokens that end a sample, and what may be chosen at all.

    stops: ids after which a sample is over.
    allowed: (V,) bool.
    end: the mark of a document's end and how it is written where generation goes on after it.
    """

    stops: frozenset[int]
    allowed: np.ndarray
    end: tuple[int, str] | None

    @classmethod
    def of(cls, loaded: Loaded, *, until: str) -> "Ends":
        """Control pieces and, but for words, <unk> are never chosen; <eod> is, for a text has an end.

        Raises:
            UsageError: if the vocabulary cannot tell where ``until`` is.
        """
        config, tokenizer = loaded.config, loaded.tokenizer
        allowed = ~never_target(tokenizer)
        if not isinstance(tokenizer, WordTokenizer) and tokenizer.unk >= 0:
            allowed[tokenizer.unk] = False
        if tokenizer.kind in ("char", "byte"):
            allowed[: len(SPECIALS)] = False  # <eop> too, which only sentencepiece finds in a text
        line = line_end(tokenizer)
        if until == "line" and line is None:
            raise UsageError(
                f"--until line: this run's vocabulary ({tokenizer.kind}) has no token for the end of a line; choose "
                "document or never"
            )
        stops = {
            "never": set(),
            "document": {tokenizer.eod, line if config.two_columns else None},  # a target is one line
            "line": {tokenizer.eod, line},
        }[until]
        end = None
        if tokenizer.eod is not None:
            learned = config.objective.name != "permutation"  # which is never asked for control pieces
            allowed[tokenizer.eod] = learned and (until != "never" or config.segments.cross_documents)
            end = tokenizer.eod, "\n" if config.corpus.document_separator == "line" else "\n\n"
        return cls(frozenset(token for token in stops if token is not None), allowed, end)


def generate(
    source: Path,
    prompts: Sequence[str],
    *,
    sampling: Sampling,
    max_tokens: int,
    num_samples: int,
    until: str,
    start: bool | None,
    mem_len: int | None,
    batch_size: int | None,
    show: Callable[[Sample, str], None],
) -> tuple[dict[str, Any], list[Sample]]:
    """Continue every prompt ``num_samples`` times; arguments as the command's options.

    Args:
        show: called with every piece of text as soon as it is whole, sample by sample in order where one batch has one
            row, and otherwise as the rows of a batch come.

    Returns:
        the JSON object, and the samples.

    Raises:
        UsageError: for a model that cannot generate, and for a prompt that it cannot begin from.
    """
    if until not in UNTIL:
        raise UsageError(f"--until: {until!r} is not allowed; choose {', '.join(UNTIL)}")
    loaded = load(source)
    refuse_unordered(loaded.config, what="generate")
    reader = Reader.of(loaded, mem_len=mem_len)
    if mem_len is not None and reader.mem_len is None:
        raise UsageError("--mem-len: this run's model reads its text again instead of remembering it; leave it out")
    if mem_len == 0:
        raise UsageError("--mem-len: 0 would leave every token without those before it; give at least 1")
    ends = Ends.of(loaded, until=until)
    encoder = Encoder.of(loaded.config, loaded.tokenizer, start=start)
    ids = [encoder.prompt(prompt) for prompt in prompts]
    for number, row in enumerate(ids):
        if not row:
            raise UsageError(
                f"prompt {number + 1} has no token, and nothing stands before it; give a prompt, or --start"
            )
    if mem_len is not None and not loaded.model.zeros_at_first:
        most, usual = max(map(len, ids)) + max_tokens, longest_reach(loaded.config)
        mem_len = useful("--mem-len", mem_len, usual=usual, most=most, where="a prompt and its sample")
        reader = replace(reader, mem_len=mem_len)
        warn_of_distances(
            loaded.trained,
            attention_len=min(mem_len + (not loaded.config.model.same_length), most),
            seq_len=1,
            clamp_len=loaded.config.model.clamp_len,
            one_sided=True,
            way=f"--mem-len {usual}",
        )
    samples = [
        Sample(
            number=number * num_samples + copy,
            prompt_number=number,
            copy=copy,
            prompt=prompt,
            before=prompt + "\t" if encoder.pairs else prompt,
            speller=Speller(loaded.tokenizer, before="" if encoder.pairs else prompt, end=ends.end),
        )
        for number, prompt in enumerate(prompts)
        for copy in range(num_samples)
    ]
    rows = batch_size or loaded.config.evaluation.batch_size
    begin = time.perf_counter()
    kept = [] if reader.mem_len is None else [f"--mem-len (now {reader.mem_len:,})"]
    together = [f"--batch-size (now {rows:,})"] if len(samples) > 1 else []
    with fitting(f"lower {' or '.join([*kept, *together, '--max-tokens'])}"), _progress(samples) as advanced:
        for first in range(0, len(samples), rows):
            batch = samples[first : first + rows]
            _continue(
                reader,
                batch,
                [ids[sample.prompt_number] for sample in batch],
                ends=ends,
                sampling=sampling,
                max_tokens=max_tokens,
                show=show,
                advanced=advanced,
            )
    seconds = time.perf_counter() - begin
    total = sum(len(sample.tokens) for sample in samples)
    found = {
        "checkpoint": str(loaded.checkpoint.folder),
        "mem_len": reader.mem_len,
        "seed": sampling.seed,
        "tokens": total,
        "tokens_per_second": total / seconds,
        "samples": [sample.report() for sample in samples],
    }
    return found, samples


def _progress(samples: list[Sample]) -> AbstractContextManager[Callable[[float], None]]:
    """To be told how many samples are done, and parts of them; a single one shows itself."""
    if len(samples) == 1:
        return nullcontext(lambda count: None)
    return console.counting(total=len(samples), unit="sample", description="generating")


def _continue(
    reader: Reader,
    samples: list[Sample],
    ids: list[list[int]],
    *,
    ends: Ends,
    sampling: Sampling,
    max_tokens: int,
    show: Callable[[Sample, str], None],
    advanced: Callable[[float], None],
) -> None:
    """Generate samples together, one token of each at a time; those that are over leave the batch."""
    different = list(dict.fromkeys(map(tuple, ids)))  # a prompt of several samples is read once
    total = sum(map(len, different))
    with console.counting(
        total=total, unit="token", description="reading the prompt", delay=console.SECONDS_BEFORE_A_BAR
    ) as read:
        log_probs, state = reader.read(different, advanced=read)
    device = log_probs.device
    which = torch.tensor([different.index(tuple(row)) for row in ids], device=device)
    log_probs, state = log_probs[which], state.selected(which)  # (B, V)
    allowed = torch.from_numpy(ends.allowed).to(device)
    running = samples
    for step in range(max_tokens):
        numbers = torch.tensor([sample.number for sample in running], device=device)
        tokens = sampling.choose(log_probs, allowed, samples=numbers, step=step)  # (B,)
        _append(running, tokens, log_probs, ends, show)
        going = [row for row, sample in enumerate(running) if not sample.ended and step < max_tokens - 1]
        over = len(running) - len(going)  # these need no more of their steps
        advanced((len(going) + over * (max_tokens - step)) / max_tokens)
        if not going:
            break
        if len(going) < len(running):
            rows = torch.tensor(going, device=device)
            running, tokens, state = [running[row] for row in going], tokens[rows], state.selected(rows)
        log_probs, state = reader.step(tokens, state)
    for sample in samples:
        _say(sample, sample.speller.finish(), show)


def _append(
    samples: list[Sample], tokens: Tensor, log_probs: Tensor, ends: Ends, show: Callable[[Sample, str], None]
) -> None:
    found = log_probs.gather(1, tokens[:, None])[:, 0].tolist()
    for sample, token, log_prob in zip(samples, tokens.tolist(), found, strict=True):
        sample.tokens.append(token)
        sample.log_prob += log_prob
        sample.ended = token in ends.stops
        if not sample.ended:
            _say(sample, sample.speller.add(token), show)


def _say(sample: Sample, text: str, show: Callable[[Sample, str], None]) -> None:
    if text:
        sample.text += text
        show(sample, text)
