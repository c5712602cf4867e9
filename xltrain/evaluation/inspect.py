"""``inspect``: what a configuration or a checkpoint amounts to, without preparing its corpus.

Its files are read for two questions: how large a vocabulary of characters or words is, where they are short; and, with
adaptive bins, which store was prepared from them.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xltrain import console
from xltrain.config.init_from import NAMES
from xltrain.config.load import load_config
from xltrain.config.schema import Config
from xltrain.config.training import OptimizerConfig
from xltrain.data.prepare import prepared_before, stores_of
from xltrain.data.streams import Segment
from xltrain.data.tokenizer import SPECIALS
from xltrain.errors import UsageError
from xltrain.evaluation.loading import read_whole
from xltrain.evaluation.signal import as_rows, draw_report, signal_report
from xltrain.model.transformer import LanguageModel
from xltrain.objectives.draws import Draw
from xltrain.objectives.plan import Plan
from xltrain.pictures import check_picture
from xltrain.training.bins import unsorted_ids
from xltrain.training.build import build_model, build_objective, count_parameters
from xltrain.training.checkpoint import Checkpoint
from xltrain.training.dealing import Counts, deal
from xltrain.training.dry_run import assumed_vocabulary
from xltrain.training.failures import fitting
from xltrain.training.optimizer import matrices

FP32 = 4  # bytes
CPU = torch.device("cpu")
SIGNAL_ROWS, SIGNAL_TOKENS = 4, 128


@dataclass
class _Blank:
    """Stands for a tokenizer that is not there yet: special pieces, and words without a spelling."""

    vocab_size: int
    kind: str = "blank"
    unk: int = 0
    eod: int | None = None
    training: dict[str, int] = field(default_factory=dict)

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        raise NotImplementedError

    def parts(self, line: str, size: int) -> Sequence[str]:
        raise NotImplementedError

    def decode(self, ids: Sequence[int]) -> str:
        raise NotImplementedError

    def piece(self, token: int) -> str:
        return SPECIALS[token] if token < len(SPECIALS) else ""

    def files(self) -> dict[str, bytes]:
        return {}


def inspect(
    source: Path, *, overrides: list[str], signal: bool, picture: Path | None, processes: int = 1
) -> dict[str, Any]:
    """Sizes of a YAML file's or a checkpoint's model and run; with ``signal``, the report on its initialisation.

    ``processes``: that the run would have.
    """
    if picture is not None:
        check_picture(picture, "--picture")
    if not source.exists():
        raise UsageError(f"{source}: no such configuration file, run or checkpoint (working directory {Path.cwd()})")
    if source.is_dir() or source.name in NAMES:
        if overrides:
            raise UsageError("--set changes a configuration file; a checkpoint's configuration is fixed")
        config, vocab_size, fingerprint = read_whole(source, _facts)
    else:
        config, fingerprint = load_config(source, overrides), None
        vocab_size, _ = assumed_vocabulary(config)
    with torch.device("meta"):
        model = build_model(config, vocab_size=vocab_size, device=torch.device("meta"))
    _look_at_bins(config, fingerprint)
    found = {"vocab_size": vocab_size} | sizes(config, model, vocab_size, processes)
    if signal or picture:
        with console.busy("measuring signals at initialisation", at_once=False):
            report = report_of(config, vocab_size)
        found["signal"] = as_rows(report)
        if picture:
            draw_report(report, picture)
            found["picture"] = str(picture)
    return found


def _facts(checkpoint: Checkpoint) -> tuple[Config, int, str]:
    """Configuration, vocabulary size, and the fingerprint of the training text: imports have none."""
    trained = (checkpoint.folder / "state.json").is_file()
    fingerprint = checkpoint.progress().fingerprint if trained else ""
    return checkpoint.config(), checkpoint.tokenizer().vocab_size, fingerprint


def _look_at_bins(config: Config, fingerprint: str | None) -> None:
    """Say if the text has other bins than the configuration, where it has been prepared.

    ``fingerprint``: of a run's training text and tokenizer; None: the files tell it, and are digested for it; empty:
        there is no text.
    """
    if not config.model.adaptive.cutoffs or fingerprint == "":
        return
    store = prepared_before(config) if fingerprint is None else next(stores_of(config, fingerprint), None)
    if store is None:
        return
    try:
        unigram = store.unigram()
    except UsageError:  # damaged, which a run will say
        return
    said = unsorted_ids(unigram, config.model.adaptive.cutoffs, kind=store.manifest["tokenizer"]["kind"])
    if said:
        console.warn(said)


def sizes(config: Config, model: LanguageModel, vocab_size: int, processes: int) -> dict[str, Any]:
    """Counts of an optimizer step of all processes, and bytes in each; the model may be on the meta device."""
    segments, rows = config.segments, config.training.rows
    counts = Counts.of(config, deal(config.training, processes))
    parameters = count_parameters(model)
    return {
        "parameters": parameters,
        "parts": parts(model),
        **asdict(counts),
        "documents_apart": not config.segments.cross_documents,
        "weight_bytes": parameters * FP32,
        "optimizer_bytes": optimizer_bytes(config.optimizer, model),
        "memory_bytes": config.model.num_layers * rows * segments.mem_len * config.model.d_model * FP32,
        "activation_bytes": activation_bytes(config, model, vocab_size),
    }


def optimizer_bytes(config: OptimizerConfig, model: LanguageModel) -> int | None:
    """What the optimizer keeps besides weights: Adam's two moments, of which Muon has one for its matrices.

    None for Adafactor, which keeps sums of rows and columns that depend on every weight's shape.
    """
    if config.name == "adafactor":
        return None
    by_muon = set(matrices(model)) if config.name == "muon" else set()
    return FP32 * sum(
        parameter.numel() * (1 if name in by_muon else 2)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    )


def parts(model: LanguageModel) -> dict[str, int]:
    """Parameters by part of the model, shared ones counted once, where they come first."""
    found: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        pieces = name.split(".")
        if pieces[0] == "layers":
            part = {"attention": "attention", "feed_forward": "feed-forward"}.get(pieces[2], "norms")
        elif pieces[0] in ("embedding", "softmax"):
            part = pieces[0]
        else:
            part = "positions and streams" if "norm" not in pieces[0] else "norms"
        found[part] = found.get(part, 0) + parameter.numel()
    return found


def activation_bytes(config: Config, model: LanguageModel, vocab_size: int) -> int | None:
    """What the forward of one micro-batch keeps for its backward, counted by running it without data.

    None where the softmax looks at the targets' values (adaptive).
    """
    if config.model.adaptive.cutoffs:
        return None
    rows = config.training.batch_size
    device = next(model.parameters()).device
    if device.type != "meta":
        model = model.to("meta")
    plan = random_plan(config, vocab_size, rows=rows, seq_len=config.segments.seq_len)
    inputs = {
        key: value.to("meta") if isinstance(value, Tensor) else value for key, value in plan.model_inputs().items()
    }
    kept: dict[int, int] = {}
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage.nbytes()
            alive.append(storage)
        return tensor

    alive: list[Any] = []
    model.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        nll, _ = model(**inputs, memory=model.empty_memory(rows=rows, mem_len=config.segments.mem_len))
    del nll
    return sum(kept.values())


@fitting("choose a smaller model, or leave out --signal")
def report_of(config: Config, vocab_size: int) -> list[Any]:
    """The signal report of a random segment on this configuration's initial weights."""
    model = build_model(config, vocab_size=vocab_size, device=torch.device("cpu"))
    seq_len = config.segments.seq_len
    if not config.segments.reuse_len:
        seq_len = min(seq_len, SIGNAL_TOKENS)
    plan = random_plan(config, vocab_size, rows=SIGNAL_ROWS, seq_len=seq_len)
    window = config.segments.mem_len if config.model.same_length else 0  # how many keys a row sees
    return signal_report(model, plan, mem_len=window)


def random_parts(config: Config, *, rows: int, seq_len: int) -> Tensor | None:
    """(B, T) parts of a segment of random tokens: of what is not reused, one half and the other; None for a stream."""
    if not config.needs_lines:
        return None
    reused = config.segments.reuse_len
    return (torch.arange(seq_len) >= reused + (seq_len - reused) // 2).long().expand(rows, -1)


def random_plan(config: Config, vocab_size: int, *, rows: int, seq_len: int, device: torch.device = CPU) -> Plan:
    """A plan for random tokens, of which all but the control ids count as ordinary words."""
    draw = torch.Generator().manual_seed(config.run.seed)
    tokens = torch.randint(min(len(SPECIALS), vocab_size - 1), vocab_size, (rows, seq_len), generator=draw)
    segment = Segment(
        tokens=tokens,
        length=torch.full((rows,), seq_len),
        next_token=tokens[:, 0],
        document=torch.zeros_like(tokens),
        next_document=torch.zeros(rows, dtype=torch.int64),
        fresh=torch.ones(rows, dtype=torch.bool),
        segment_ids=random_parts(config, rows=rows, seq_len=seq_len),
    )
    objective = build_objective(config, tokenizer=_Blank(vocab_size), seq_len=seq_len, device=device)
    return objective.plan(
        segment.to(device), Draw(seed=config.run.seed, step=0, rows=torch.arange(rows, device=device))
    )
