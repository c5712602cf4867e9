"""A run's configuration: its sections, their defaults and their meaning.

The string under a field is its documentation: ``xltrain`` messages and ``docs/configuration.md`` are made from it.
A section is frozen after loading; nothing in the program changes it.
"""

from typing import Any, Literal

from pydantic import Field

from xltrain.config.base import Count, Float, Length, Problem, Section
from xltrain.config.model import ModelConfig
from xltrain.config.text import CorpusConfig, SegmentsConfig, TokenizerConfig
from xltrain.config.training import (
    CheckpointConfig,
    DistributedConfig,
    EvaluationConfig,
    LoggingConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainingConfig,
)

FEW_TARGETS = 1000
"""Fewer of these, each off by some nats, give a mean that is off by a tenth of a nat."""


class RunConfig(Section):
    """Where a run lives and what makes it repeatable."""

    name: str = Field("run", min_length=1)
    """Name of the run, for logs and for the default output folder."""
    output_dir: str | None = None
    """Folder of the run's files; `runs/NAME` when not given."""
    seed: Length = Field(1234, le=2**32 - 1)
    """Seed of everything that is drawn at random in training: initialisation, dropout, targets, orders, document
    shuffling. Validation and `eval-ppl` ask the same of every run, whatever its seed."""
    init_from: str | None = None
    """A run, a checkpoint or the result of `import-checkpoint` whose weights to start from, at step 0. The model
    section and the tokenizer come from there, and keys of them that are given must agree with it; the objective's name
    comes from there if none is given."""

    @property
    def folder(self) -> str:
        return self.output_dir or f"runs/{self.name}"


class ObjectiveConfig(Section):
    """What is predicted from what: an objective is an order (design.md, section 2)."""

    name: Literal["causal", "permutation", "masked", "seq2seq"] = "permutation"
    """`causal`: every next token (Transformer-XL); `permutation`: sampled targets, in a sampled order (XLNet);
    `masked`: hidden targets, each on its own (BERT); `seq2seq`: a target's next tokens, after its source (UniLM)."""
    predict_fraction: Float = Field(1 / 6, gt=0.0, le=1.0)
    """Share of a segment's tokens that are targets (permutation, masked); XLNet predicts one in six, BERT 0.15."""
    num_predict: Count | None = None
    """Number of targets per segment, instead of a fraction."""
    max_span: Count = 5
    """Targets are chosen as spans of 1 to this many units, with probability proportional to 1/length."""
    span_unit: Literal["word", "token", "reference"] = "word"
    """What spans count: words, tokens, or tokens from a word's start (`reference`: as released XLNets were trained)."""
    perm_size: Length = 0
    """Blocks of this many positions share one inner order (permutation); 0: a segment's parts are permuted whole."""

    def targets_per_segment(self, seq_len: int) -> int:
        """P: how many tokens of a segment of ``seq_len`` are predicted."""
        if self.name in ("causal", "seq2seq"):
            return seq_len
        return self.num_predict or max(1, round(self.predict_fraction * seq_len))


class Config(Section):
    """A whole run."""

    run: RunConfig = RunConfig()
    corpus: CorpusConfig
    tokenizer: TokenizerConfig = TokenizerConfig()
    segments: SegmentsConfig = SegmentsConfig()
    model: ModelConfig = ModelConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()
    distributed: DistributedConfig = DistributedConfig()

    def problems(self) -> list[Problem]:
        """Faults that show only when several sections are read together."""
        found = []
        segments, model, objective = self.segments, self.model, self.objective
        if model.same_length and objective.name != "causal":
            found.append(("model.same_length", f"it needs objective.name causal, not {objective.name}"))
        if model.positions in ("sinusoid", "learned") and segments.mem_len:
            found.append(
                (
                    "model.positions",
                    f"{model.positions} positions start anew in every segment, so memory would claim wrong places; "
                    "set segments.mem_len 0, or choose relative",
                )
            )
        if model.norm == "batch_norm" and objective.name != "masked":
            found.append(
                (
                    "model.norm",
                    f"batch_norm lets positions see one another, which leaks what {objective.name} predicts; "
                    "it needs objective.name masked",
                )
            )
        if model.same_length and segments.mem_len == 0:
            found.append(("model.same_length", "it needs segments.mem_len above 0: that is the number of keys seen"))
        if segments.initial_memory == "zeros" and (model.norm_position, model.attention_bias) != ("post", False):
            found.append(
                (
                    "segments.initial_memory",
                    "zeros need model.norm_position post and no attention_bias, so that their keys are zero too; "
                    "choose absent",
                )
            )
        if segments.reuse_len:
            if objective.name != "permutation":
                found.append(("segments.reuse_len", f"it needs objective.name permutation, not {objective.name}"))
            if segments.reuse_len >= segments.seq_len:
                found.append(
                    ("segments.reuse_len", f"{segments.reuse_len} must be below segments.seq_len {segments.seq_len}")
                )
        if segments.layout == "pair":
            if objective.name != "permutation":
                found.append(("segments.layout", f"pair needs objective.name permutation, not {objective.name}"))
            if self.tokenizer.kind == "word":
                found.append(("segments.layout", "pair needs pieces <sep> and <cls>, which words lack; choose stream"))
            if not 0 < segments.reuse_len <= segments.seq_len - 5:
                found.append(
                    (
                        "segments.reuse_len",
                        f"layout pair needs 1 to segments.seq_len - 5 (three symbols, a token of each text), "
                        f"not {segments.reuse_len}; XLNet has half of seq_len",
                    )
                )
        found += self._problems_of_stages()
        for size in (segments.reuse_len, segments.seq_len - segments.reuse_len):
            if objective.perm_size and size % objective.perm_size:
                found.append(
                    (
                        "objective.perm_size",
                        f"{objective.perm_size} must divide each part of a segment (one has {size})",
                    )
                )
        found += self._problems_of_columns()
        if self.distributed.strategy == "fsdp" and self.optimizer.name == "adafactor":
            found.append(
                (
                    "distributed.strategy",
                    "fsdp cannot share out what adafactor keeps; choose ddp, or optimizer.name adamw",
                )
            )
        rows = self.training.rows
        if segments.bidirectional and rows % 2:
            found.append(
                (
                    "segments.bidirectional",
                    f"half of the rows run backward: training.batch_size x accumulate, {rows}, must be even",
                )
            )
        if objective.num_predict is not None and objective.num_predict > segments.seq_len:
            found.append(
                (
                    "objective.num_predict",
                    f"{objective.num_predict} exceeds segments.seq_len {segments.seq_len}; choose at most that",
                )
            )
        return found

    def doubts(self) -> list[str]:
        """What is allowed and seldom meant, in sentences."""
        tokens, seq_len = self.evaluation.max_tokens, self.segments.seq_len
        targets = tokens * self.objective.targets_per_segment(seq_len) / seq_len
        if not (self.corpus.validation and 0 < targets < FEW_TARGETS):
            return []
        return [
            f"evaluation.max_tokens: {tokens:,} tokens have about {max(1, round(targets)):,} targets (more if the "
            f"first document is longer): the loss over fewer than {FEW_TARGETS:,} can be a tenth of a nat and more "
            "from the whole text's; give some thousands, or 0 for all"
        ]

    def _problems_of_columns(self) -> list[Problem]:
        """Pairs are read one by one: whatever ties them together is a mistake."""
        segments, name = self.segments, self.objective.name
        if not self.two_columns:
            return []
        found = []
        why = "corpus.document_separator two_columns"
        if name != "seq2seq":
            found.append(("objective.name", f"{why} needs seq2seq, not {name}"))
        if segments.mem_len:
            found.append(("segments.mem_len", f"{why} needs 0, not {segments.mem_len}: pairs do not continue"))
        if segments.cross_documents:
            found.append(("segments.cross_documents", f"{why} needs false: pairs do not see one another"))
        if segments.bidirectional:
            found.append(("segments.bidirectional", f"{why} needs false: a source comes before its target"))
        if segments.seq_len < 2:
            found.append(("segments.seq_len", f"{why} needs at least 2, one token each, not {segments.seq_len}"))
        return found

    @property
    def two_columns(self) -> bool:
        """Whether the text is pairs of a source and a target."""
        return self.corpus.document_separator == "two_columns"

    @property
    def needs_lines(self) -> bool:
        """Whether the token store has to know where lines end."""
        return self.two_columns or self.segments.layout == "pair"

    def _problems_of_stages(self) -> list[Problem]:
        key, stages, seq_len = "schedule.seq_len_stages", self.schedule.seq_len_stages, self.segments.seq_len
        found = []
        if stages and stages[-1][1] != seq_len:
            found.append((key, f"the last stage has {stages[-1][1]} tokens; it must have segments.seq_len, {seq_len}"))
        for _, length in stages:
            if length > seq_len:
                found.append((key, f"{length} exceeds segments.seq_len {seq_len}; earlier stages are shorter"))
            if self.objective.perm_size and length % self.objective.perm_size:
                found.append((key, f"objective.perm_size {self.objective.perm_size} must divide {length}"))
        if stages and (self.segments.reuse_len or self.segments.layout == "pair" or self.two_columns):
            found.append((key, "it needs running text: segments.layout stream, reuse_len 0, and not two columns"))
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for YAML and JSON."""
        return self.model_dump(mode="json")
