"""Every section and key of a run's configuration, its default and its meaning.

The string under a field is its documentation: ``xltrain`` messages and ``docs/configuration.md`` are made from it.
A section is frozen after loading; nothing in the program changes it.
"""

import re
from typing import Any, Literal

from pydantic import Field

from xltrain.config.base import Count, Float, Length, Problem, Section, TextList
from xltrain.config.model import ModelConfig


class RunConfig(Section):
    """Where a run lives and what makes it repeatable."""

    name: str = Field("run", min_length=1)
    """Name of the run, for logs and for the default output folder."""
    output_dir: str | None = None
    """Folder of the run's files; `runs/NAME` when not given."""
    seed: Length = Field(1234, le=2**32 - 1)
    """Seed of everything that is drawn at random: initialisation, dropout, targets, orders, document shuffling."""

    @property
    def folder(self) -> str:
        return self.output_dir or f"runs/{self.name}"


class CorpusConfig(Section):
    """The raw text."""

    train: TextList = Field(min_length=1)
    """UTF-8 text files or globs to train on."""
    validation: TextList = Field(default_factory=list)
    """Files or globs for validation during training; none: no validation."""
    test: TextList = Field(default_factory=list)
    """Files or globs for a final evaluation with `eval-ppl --split test`."""
    document_separator: Literal["blank_line", "line", "file"] = "blank_line"
    """What ends a document: a blank line, every line, or only the end of a file. Each document ends with `<eod>`."""
    cache_dir: str = ".xltrain"
    """Folder of the tokenizers and token stores, each named by the fingerprint of what it was built from."""


class TokenizerConfig(Section):
    """How text becomes ids."""

    kind: Literal["sentencepiece", "char", "byte", "word"] = "sentencepiece"
    """`sentencepiece`: subwords; `char`: one id per character, line ends included, alphabet sorted by code point;
    `byte`: one id per byte of UTF-8; `word`: words between white space, by frequency (Transformer-XL's corpora)."""
    path: str | None = None
    """An existing tokenizer file (`.model` of sentencepiece, `.json` of char); none: train one on `corpus.train`."""
    vocab_size: Count | None = None
    """Size of the vocabulary. sentencepiece: 8,000 when not given; char and word: all of the text's when not given
    (a smaller word vocabulary has `<unk>` for the rest); byte: it is fixed."""
    eos: bool = True
    """Whether every line, a blank one too, ends with `<eos>` (word only)."""
    lower: bool = False
    """Whether text is lower-cased before it is split (word only)."""
    model_type: Literal["unigram", "bpe"] = "unigram"
    """Algorithm of a trained sentencepiece model."""
    character_coverage: Float = Field(0.9995, ge=0.98, le=1.0)
    """Share of the training text's characters that the vocabulary covers; the rest are `<unk>` (sentencepiece only)."""
    normalization: Literal["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"] = "nmt_nfkc"
    """Normalisation rule of a trained sentencepiece model; `_cf` also folds case."""
    user_defined_symbols: list[str] = Field(default_factory=lambda: ["<eop>"])
    """Pieces that are never split. `<eop>` comes first, so that it has XLNet's id 8."""
    max_sentences: Count = 1_000_000
    """At most this many lines, drawn at random, are used to train the vocabulary (sentencepiece only)."""

    def problems(self) -> list[Problem]:
        found = []
        controls = {"<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>"}
        for symbol in self.user_defined_symbols:
            if not symbol.strip():
                found.append(("user_defined_symbols", f"{symbol!r} is empty; remove it"))
            elif symbol in controls:
                found.append(("user_defined_symbols", f"{symbol!r} is already a control symbol; remove it"))
            elif symbol[0] in "'\"" or (symbol[-1] in "'\"" and len(symbol) > 1):
                found.append(("user_defined_symbols", f"{symbol!r} has quotes in its name; write it without them"))
            elif any(character.isspace() for character in symbol):
                found.append(("user_defined_symbols", f"{symbol!r} contains white space; a symbol cannot"))
        twice = {symbol for symbol in self.user_defined_symbols if self.user_defined_symbols.count(symbol) > 1}
        found += [("user_defined_symbols", f"{symbol!r} is listed twice") for symbol in sorted(twice)]
        if self.kind == "sentencepiece" and self.user_defined_symbols[:1] != ["<eop>"] and self.path is None:
            found.append(("user_defined_symbols", "the first must be '<eop>', which XLNet has at id 8"))
        if self.kind == "byte" and self.path is not None:
            found.append(("path", f"{self.path!r} is not allowed: bytes need no file; leave it out"))
        if self.kind == "byte" and self.vocab_size not in (None, 265):
            found.append(("vocab_size", f"{self.vocab_size} is not allowed: 256 bytes and 9 special pieces make 265"))
        return found


class SegmentsConfig(Section):
    """How the token stream is cut."""

    seq_len: Count = 128
    """Tokens per segment (T)."""
    mem_len: Length = 128
    """Positions of earlier segments that each layer remembers (M); 0: no memory."""
    reuse_len: Length = 0
    """Of a segment, only this many tokens enter memory and the rest is read again (permutation); 0: all of it."""
    bidirectional: bool = False
    """Half of the rows read the other half's text in reverse (XLNet); it needs an even number of rows."""
    shuffle_documents: bool = False
    """Put the documents into a new random order every epoch; off: the order of the files, every epoch."""
    cross_documents: bool = True
    """Whether text may see the document before it; off: attention and memory stop at document boundaries."""


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


class OptimizerConfig(Section):
    """How weights move."""

    name: Literal["adamw", "muon"] = "adamw"
    """`adamw`: Adam with decoupled weight decay (fused where torch offers it); `muon`: Muon for the matrices of linear
    layers, scaled to AdamW's rates, and AdamW for the rest."""
    lr: Float = Field(1e-3, gt=0.0)
    """Peak learning rate."""
    betas: tuple[Float, Float] = (0.9, 0.999)
    """Decay of the running means of the gradient and of its square."""
    eps: Float = Field(1e-6, gt=0.0)
    """Added to the square root in the denominator."""
    weight_decay: Float = Field(0.01, ge=0.0)
    """Decoupled weight decay of matrices and embeddings; norms and biases have none."""
    clip_norm: Float = Field(1.0, ge=0.0)
    """Largest norm of the whole gradient; 0: no clipping."""

    def problems(self) -> list[Problem]:
        return [("betas", f"{beta} must be at least 0 and below 1") for beta in self.betas if not 0.0 <= beta < 1.0]


class ScheduleConfig(Section):
    """How the learning rate moves. Step k (from 1) of a warm-up uses lr * k / warmup_steps."""

    name: Literal["constant", "linear", "cosine", "inverse_sqrt"] = "cosine"
    """Shape of the decay after the warm-up, down to the last step."""
    warmup_steps: Length = 0
    """Optimizer steps of linear warm-up. Too few, with a high rate, leave these models at the unigram entropy."""
    min_lr_ratio: Float = Field(0.01, ge=0.0, le=1.0)
    """Learning rate at the last step, as a share of the peak."""


class TrainingConfig(Section):
    """The loop."""

    max_steps: Count = 1000
    """Optimizer steps."""
    batch_size: Count = 16
    """Rows per process in one optimizer step."""
    accumulate: Count = 1
    """Micro-batches that the rows are split into, to save memory; the result does not change."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """`bf16`: matrix products in bfloat16; weights, softmax, loss and optimizer stay in fp32."""
    device: str = "auto"
    """`auto`: CUDA when there, CPU otherwise."""

    def problems(self) -> list[Problem]:
        found = []
        if self.batch_size % self.accumulate:
            found.append(
                ("accumulate", f"{self.accumulate} does not divide batch_size {self.batch_size}; choose one that does")
            )
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            found.append(("device", f"{self.device!r} is not allowed; choose auto, cpu, cuda or cuda:N"))
        return found


class EvaluationConfig(Section):
    """Validation during training, and the defaults of `eval-ppl`."""

    every: Length = 500
    """Steps between validations; 0: only at the end. The last step is always validated."""
    batch_size: Count = 16
    """Rows that are evaluated at once; it does not change the result."""
    max_tokens: Length = 0
    """Validate on at most this many tokens of the validation text; 0: on all."""


class CheckpointConfig(Section):
    """What is kept of a run."""

    every: Length = 500
    """Steps between checkpoints; 0: only at the end. The last step is always saved."""
    keep: Count = 3
    """Number of checkpoints kept; the oldest goes first."""


class LoggingConfig(Section):
    """What is written about a run."""

    every: Count = 50
    """Steps between lines of `metrics.jsonl` and, without a terminal, of the log."""


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
        if segments.reuse_len:
            if objective.name != "permutation":
                found.append(("segments.reuse_len", f"it needs objective.name permutation, not {objective.name}"))
            if segments.reuse_len >= segments.seq_len:
                found.append(
                    ("segments.reuse_len", f"{segments.reuse_len} must be below segments.seq_len {segments.seq_len}")
                )
        for size in (segments.reuse_len, segments.seq_len - segments.reuse_len):
            if objective.perm_size and size % objective.perm_size:
                found.append(
                    (
                        "objective.perm_size",
                        f"{objective.perm_size} must divide each part of a segment (one has {size})",
                    )
                )
        if segments.bidirectional and self.training.batch_size % 2:
            rows = self.training.batch_size
            found.append(
                ("segments.bidirectional", f"half of the rows run backward: training.batch_size {rows} must be even")
            )
        if objective.num_predict is not None and objective.num_predict > segments.seq_len:
            found.append(
                (
                    "objective.num_predict",
                    f"{objective.num_predict} exceeds segments.seq_len {segments.seq_len}; choose at most that",
                )
            )
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for YAML and JSON."""
        return self.model_dump(mode="json")
