"""From configuration sections to live objects: the one place where keys meet constructor arguments."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from xltrain.config.schema import Config
from xltrain.data.columns import ColumnStream
from xltrain.data.pairs import PairStream
from xltrain.data.staged import StagedStream
from xltrain.data.store import Split
from xltrain.data.streams import Stream, TrainingStream
from xltrain.data.tokenizer import Tokenizer, find_piece, never_target, starts_word
from xltrain.errors import UsageError
from xltrain.model.backends import choose_backend
from xltrain.model.init import initialise
from xltrain.model.transformer import LanguageModel
from xltrain.objectives.causal import Causal
from xltrain.objectives.masked import Masked
from xltrain.objectives.permutation import Permutation
from xltrain.objectives.plan import Objective
from xltrain.objectives.seq2seq import Seq2Seq
from xltrain.training.dealing import Deal, deal


def build_model(config: Config, *, vocab_size: int, device: torch.device) -> LanguageModel:
    """An initialised model; the weights depend on the seed and the shapes only, not on the device."""
    wanted = config.model
    if wanted.adaptive.cutoffs and wanted.adaptive.cutoffs[-1] >= vocab_size:
        raise UsageError(
            f"model.adaptive.cutoffs: {wanted.adaptive.cutoffs[-1]:,} is not below the vocabulary size {vocab_size:,}"
        )
    model = LanguageModel(
        **model_arguments(config, vocab_size=vocab_size),
        backend=choose_backend(wanted.attention_backend, device),
        recompute=config.training.activation_checkpointing,
    )
    initialise(
        model,
        std=wanted.init.std,
        distribution=wanted.init.distribution,
        variance=wanted.init.variance,
        parametrization=wanted.parametrization,
        attention_scale=wanted.attention_scale,
        generator=torch.Generator().manual_seed(config.run.seed),
    )
    return model.to(device)


def model_arguments(config: Config, *, vocab_size: int) -> dict[str, Any]:
    """What :class:`LanguageModel` is built from, as plain data; all but the attention backend."""
    wanted = config.model
    return {
        "vocab_size": vocab_size,
        "num_layers": wanted.num_layers,
        "d_model": wanted.d_model,
        "num_heads": wanted.num_heads,
        "head_dim": wanted.head_width,
        "d_inner": wanted.inner_width,
        "activation": wanted.activation,
        "dropout": wanted.dropout,
        "attention_dropout": wanted.attention_dropout,
        "tie_position_bias": wanted.tie_position_bias,
        "clamp_len": wanted.clamp_len,
        "same_length": wanted.same_length,
        "positions": wanted.positions,
        "max_positions": config.segments.seq_len,
        "initial_memory": config.segments.initial_memory,
        "norm": wanted.norm,
        "norm_position": wanted.norm_position,
        "norm_eps": wanted.norm_eps,
        "final_norm": wanted.final_norm,
        "bias": wanted.bias,
        "attention_bias": wanted.attention_bias,
        "attention_scale": wanted.attention_scale,
        "scale_embeddings": wanted.scale_embeddings,
        "tie_embeddings": wanted.tie_embeddings,
        "cutoffs": wanted.adaptive.cutoffs,
        "div_val": wanted.adaptive.div_val,
        "tie_projections": wanted.adaptive.tied_projections,
        "segment_embeddings": wanted.segment_embeddings,
        "query_stream": config.objective.name == "permutation",
        "two_sided": config.objective.name != "causal",
    }


def build_objective(config: Config, *, tokenizer: Tokenizer, seq_len: int, device: torch.device) -> Objective:
    """The objective for segments of ``seq_len`` tokens."""
    keep_apart = not config.segments.cross_documents
    wanted = config.objective
    if wanted.name == "causal":
        return Causal(keep_apart=keep_apart)
    if wanted.name == "seq2seq":
        return Seq2Seq(keep_apart=keep_apart)
    choice: dict[str, Any] = {
        "num_predict": min(wanted.targets_per_segment(seq_len), seq_len),
        "max_span": wanted.max_span,
        "unit": wanted.span_unit,
        "starts_word": torch.from_numpy(starts_word(tokenizer)).to(device),
        "never_target": torch.from_numpy(never_target(tokenizer)).to(device),
        "keep_apart": keep_apart,
    }
    if wanted.name == "masked":
        mask = find_piece(tokenizer, "<mask>")
        if mask is None:
            raise UsageError("objective.name: masked needs a piece <mask>, which the vocabulary lacks")
        return Masked(mask=mask, **choice)
    functional = torch.zeros(tokenizer.vocab_size, dtype=torch.bool, device=device)
    for piece in ("<sep>", "<cls>"):
        if (token := find_piece(tokenizer, piece)) is not None:
            functional[token] = True
    return Permutation(perm_size=wanted.perm_size, reuse_len=config.segments.reuse_len, functional=functional, **choice)


def build_stream(
    config: Config, split: Split, tokenizer: Tokenizer, *, dealt: Deal | None = None, rank: int = 0
) -> Stream:
    """The training text as segments of the rows that are dealt to process ``rank``, by default of all rows.

    Raises:
        UsageError: if the text is too short for them, or the vocabulary lacks a symbol that they need.
    """
    segments, dealt = config.segments, dealt or deal(config.training, 1)
    if segments.layout == "pair":
        sep, cls = find_piece(tokenizer, "<sep>"), find_piece(tokenizer, "<cls>")
        if sep is None or cls is None:
            raise UsageError(
                "segments.layout: pair needs the pieces <sep> and <cls>, which the vocabulary lacks; choose stream, or "
                "another tokenizer"
            )
        return PairStream(
            split,
            total_rows=dealt.total,
            first_row=rank * dealt.rows,
            rows=dealt.rows,
            seq_len=segments.seq_len,
            reuse_len=segments.reuse_len,
            mem_len=segments.mem_len,
            sep=sep,
            cls=cls,
            bidirectional=segments.bidirectional,
            shuffle=segments.shuffle_documents,
            seed=config.run.seed,
        )
    if config.two_columns:
        return ColumnStream(
            split,
            total_rows=dealt.total,
            first_row=rank * dealt.rows,
            rows=dealt.rows,
            seq_len=segments.seq_len,
            shuffle=segments.shuffle_documents,
            seed=config.run.seed,
        )
    stages = config.schedule.seq_len_stages or [(0, segments.seq_len)]
    streams = [
        TrainingStream(
            split,
            total_rows=dealt.total,
            first_row=rank * dealt.rows,
            rows=dealt.rows,
            seq_len=seq_len,
            advance=segments.reuse_len or None,
            unit=math.gcd(*(length for _, length in stages)) if len(stages) > 1 else None,
            bidirectional=segments.bidirectional,
            shuffle=segments.shuffle_documents,
            seed=config.run.seed,
        )
        for _, seq_len in stages
    ]
    if len(streams) == 1:
        return streams[0]
    return StagedStream([(first, stream) for (first, _), stream in zip(stages, streams, strict=True)])


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The context in which a forward of this ``training.precision`` runs."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype={"bf16": torch.bfloat16, "fp16": torch.float16}[precision])


def count_parameters(model: torch.nn.Module) -> int:
    """Parameters, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters())
