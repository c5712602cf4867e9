"""The README.md of an export: what the model is, what it was trained on, how well it does, how to load it."""

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from xltrain.config.schema import Config
from xltrain.config.text import CorpusConfig, SourceConfig
from xltrain.data.prepare import stores_of
from xltrain.data.tokenizer import Tokenizer
from xltrain.data.warnings import MANY_UNKNOWN
from xltrain.errors import UsageError
from xltrain.model.transformer import LanguageModel
from xltrain.training.build import count_parameters
from xltrain.training.checkpoint import Checkpoint

WHAT = {
    "causal": "predicts the next token from those before it (Transformer-XL's objective)",
    "permutation": "predicts tokens in sampled orders through a query stream (XLNet's objective)",
    "masked": "predicts hidden tokens from all others (BERT's objective)",
    "seq2seq": "predicts the tokens of a target after its source (UniLM's objective)",
}

TARGETS = {
    "causal": "",
    "permutation": " of the sampled targets",
    "masked": " of the hidden tokens",
    "seq2seq": " of the second parts",
}
"""What a perplexity is of, where it is not the text's."""

OMITTED = ("run", "corpus", "logging", "checkpoint")
"""Sections of which a reader of the model needs nothing."""


def without_places(config: Config) -> Config:
    """The same configuration without the folders of one computer: of files, their names are left."""

    def names(sources: Sequence[str | SourceConfig]) -> list[str | SourceConfig]:
        return [
            Path(source).name
            if isinstance(source, str)
            else source.model_copy(
                update={
                    "files": [Path(path).name for path in source.files],
                    "data_files": [Path(path).name for path in source.data_files],
                    "dataset": source.dataset
                    and (Path(source.dataset).name if Path(source.dataset).exists() else source.dataset),
                }
            )
            for source in sources
        ]

    corpus = {split: names(getattr(config.corpus, split)) for split in ("train", "validation", "test")}
    blank = CorpusConfig.model_fields["cache_dir"].default
    return config.model_copy(
        update={
            "run": config.run.model_copy(update={"output_dir": None, "init_from": None}),
            "corpus": config.corpus.model_copy(update={**corpus, "cache_dir": blank}),
            "tokenizer": config.tokenizer.model_copy(update={"path": None}),
        }
    )


def model_card(
    config: Config,
    vocabulary: Tokenizer,
    model: LanguageModel,
    checkpoints: Sequence[Checkpoint],
    *,
    usage: str,
    dtype: str,
    licence: str,
    name: str,
) -> str:
    """Markdown with the metadata that model hubs read in front.

    Args:
        checkpoints: whose weights, or the mean of whose weights, were exported; the newest first.
        usage: lines of Python that load the folder.
        dtype: of the exported weights.
        licence: identifier for the licence field.
        name: of the folder.
    """
    kind = "AutoModelForMaskedLM" if config.objective.name == "masked" else "AutoModelForCausalLM"
    newest, segments = checkpoints[0], config.segments
    config = without_places(config)
    settings = {key: value for key, value in config.as_dict().items() if key not in OMITTED}
    steps = ", ".join(f"{each.step:,}" for each in checkpoints)
    origin = f"step {steps}" if len(checkpoints) == 1 else f"the mean of steps {steps}"
    memory = (
        f"each layer remembers {segments.mem_len} positions of earlier segments" if segments.mem_len else "no memory"
    )
    rows: list[tuple[str, str]] = [
        ("objective", f"`{config.objective.name}`: {WHAT[config.objective.name]}"),
        ("parameters", f"{count_parameters(model):,}, {dtype}"),
        ("layers, width, heads", f"{config.model.num_layers}, {config.model.d_model}, {config.model.num_heads}"),
        ("segments", f"{segments.seq_len} tokens; {memory}"),
        ("vocabulary", f"{vocabulary.vocab_size:,} ({vocabulary.kind})"),
        ("weights", f"run `{config.run.name}`, {origin}"),
        *_trained(newest),
        *_evaluated(checkpoints, dtype=dtype),
    ]
    table = "\n".join(f"| {key} | {value} |" for key, value in rows)
    return f"""---
license: {licence}
library_name: transformers
tags: [xltrain, {config.objective.name}]
---

# {name}

A language model pretrained with xltrain {version("xltrain")}.

| | |
|---|---|
{table}

## Use

```python
{usage.format(folder=name, auto=kind)}
```

## Configuration of the run

```yaml
{yaml.safe_dump(settings, sort_keys=False, allow_unicode=True).strip()}
```
"""


def _trained(checkpoint: Checkpoint) -> list[tuple[str, str]]:
    """How much it has read, and of what; imported weights do not know."""
    try:
        tokens = checkpoint.progress().tokens_seen
    except (OSError, ValueError, TypeError):
        return []
    sources = ", ".join(f"`{_shown(source)}`" for source in without_places(checkpoint.config()).corpus.train)
    return [("trained on", f"{tokens:,} tokens of {sources}")] if tokens else []


def _shown(source: str | SourceConfig) -> str:
    if isinstance(source, str):
        return source
    return ", ".join([*([source.dataset] if source.dataset else []), *source.files, *source.data_files])


def _evaluated(checkpoints: Sequence[Checkpoint], *, dtype: str) -> list[tuple[str, str]]:
    """The last validation of the run up to the newest step, with what keeps it from being a figure of these weights."""
    checkpoint = checkpoints[0]
    path = checkpoint.folder.parent.parent / "metrics.jsonl"
    found: dict[str, Any] = {}
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            values = json.loads(line)
            if values.get("validation_loss") is not None and values["step"] <= checkpoint.step:
                found = values
    except (OSError, ValueError, KeyError):
        pass
    if not found:
        return []
    config = checkpoint.config()
    perplexity = "beyond counting" if found["validation_ppl"] is None else f"{found['validation_ppl']:.2f}"
    loss = f"{found['validation_loss']:.4f} nats per target, perplexity {perplexity}{TARGETS[config.objective.name]}"
    amount, unknown = _validation_text(checkpoint, config, step=found["step"])
    rows = [
        (
            f"validation at step {found['step']:,}",
            f"{loss}{amount} (knowing frequencies alone: {found['unigram_loss']:.4f})",
        ),
        ("unknown tokens", unknown),
    ]
    steps = [each.step for each in checkpoints]
    caveats = []
    if found["step"] not in steps:
        caveats.append(f"that of another step than {', '.join(f'{step:,}' for step in steps)}")
    if len(steps) > 1:
        alone = "" if caveats else "that of one of the averaged steps alone; "
        caveats.append(f"{alone}the mean of steps, which these weights are, was not evaluated")
    elif dtype != "fp32":
        caveats.append(f"that of the weights before they were rounded to {dtype}")
    if caveats:
        rows.insert(1, ("which is", "; ".join(caveats)))
    return rows


def _validation_text(checkpoint: Checkpoint, config: Config, *, step: int) -> tuple[str, str]:
    """How much of the validation text was read at a step, and how much of it the vocabulary lacks.

    As the token store has it that was read then; another one of the same training text may hold another text.
    """
    progress = checkpoint.progress()
    known = progress.validated if progress.validated.get("step") == step else {}
    limit = known.get("max_tokens", config.evaluation.max_tokens)
    amount = f" on the documents within the first {limit:,} tokens" if limit else ""
    if not known:
        return amount, "not known, since the checkpoint does not say which token store was validated on"
    try:
        store = next(store for store in stores_of(config, progress.fingerprint) if store.fingerprint == known["store"])
        unk, counts = store.manifest["tokenizer"]["unk"], store.manifest["splits"]["validation"]
        unknown, total = counts["unknown"], counts["tokens"]
        if limit:
            read = store.split("validation").first(limit)
            unknown, total = int((read.tokens == unk).sum()) if unk >= 0 else 0, read.num_tokens
            amount = f" on the first {total:,} tokens"
    except (StopIteration, LookupError, UsageError):
        return amount, "not known, since the token store of the validation text was not found"
    text = f"{unknown:,} of {total:,} validation tokens ({unknown / max(1, total):.1%})"
    if unknown > MANY_UNKNOWN * total:
        why = "rare words, or `<unk>` in the text itself" if config.tokenizer.kind == "word" else "unknown characters"
        text += f" are `<unk>`: {why}. Compare this perplexity with those of the same vocabulary only"
    return amount, text
