"""Pretraining from a configuration to finished checkpoints."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor

from xltrain import console
from xltrain.config.schema import Config
from xltrain.data.prepare import prepare
from xltrain.data.store import Split, Store
from xltrain.data.streams import Segment, Stream
from xltrain.data.tokenizer import Tokenizer
from xltrain.distributed import Place, find_place
from xltrain.errors import Stopped, UsageError, XltrainError
from xltrain.evaluation.perplexity import Interrupted, Protocol, evaluate
from xltrain.model.memory import Memory
from xltrain.model.transformer import LanguageModel
from xltrain.objectives.draws import Draw
from xltrain.objectives.plan import Objective, Plan
from xltrain.training.build import (
    autocast,
    build_model,
    build_objective,
    build_stream,
    count_parameters,
    one_pair_per_row,
)
from xltrain.training.checkpoint import (
    Checkpoint,
    Progress,
    find_checkpoint,
    list_checkpoints,
    load_weights,
    save_checkpoint,
)
from xltrain.training.guard import PATIENCE, Skips
from xltrain.training.optimizer import build_optimizer, load_state, set_lr
from xltrain.training.report import Reporter, start_lines
from xltrain.training.run import open_run, start_files
from xltrain.training.schedule import configured_lr
from xltrain.training.step import StepStats, train_step
from xltrain.training.update import Updater

PLATEAU_NATS = 0.1
"""A validation loss this close to the unigram entropy means that the model ignores its context."""


def pretrain(config: Config, *, resume: bool = False, overwrite: bool = False) -> Path:
    """Train; returns the run's folder.

    Raises:
        UsageError: for faults found before the first step.
        Stopped: after SIGTERM or SIGINT, once the state is saved.
        XltrainError: if the loss is no number, or a checkpoint cannot be written.
    """
    place = find_place(config.training.device)
    if config.model.attention_backend == "flex" and place.device.type == "cpu":
        raise UsageError("model.attention_backend: flex has no gradient on a CPU; choose math or sdpa")
    torch.backends.cuda.matmul.allow_tf32 = config.training.tf32
    checkpoint = open_run(config, resume=resume, overwrite=overwrite)
    origin = None
    if checkpoint is None and config.run.init_from is not None:
        origin = find_checkpoint(Path(config.run.init_from).expanduser())
    store = prepare(config).store
    run = Run.build(config, place, store, checkpoint)
    if origin is not None:
        load_weights(run.model, origin.weights(place.device), source=origin.folder)
    if run.progress.step >= config.training.max_steps:
        console.say(f"nothing to do: step {run.progress.step:,} of {config.training.max_steps:,} is done")
        return Path(config.run.folder)
    folder = start_files(config, checkpoint)
    for line in start_lines(
        config,
        place=place,
        parameters=count_parameters(run.model),
        notes=run.stream.notes(),
    ):
        console.say(line)
    if checkpoint is not None:
        console.say(f"resuming at step {run.progress.step:,} from {checkpoint.folder}")
    if origin is not None:
        console.say(f"starting from the weights of {origin.folder}; its model section and tokenizer are used")
    reporter = Reporter(folder, config, first_step=run.progress.step, skipped=run.progress.skipped)
    try:
        with _signals() as stop:
            _train(run, reporter, folder, stop)
    finally:
        reporter.close()
    return folder


@dataclass
class Run:
    """All live objects of a run, and how far it has come."""

    config: Config
    place: Place
    tokenizer: Tokenizer
    store: Store
    model: LanguageModel
    objective: Objective
    updater: Updater
    stream: Stream
    memory: Memory
    progress: Progress
    validation: Split | None = None
    loss_sum: Tensor = field(default_factory=lambda: torch.zeros(()))

    @classmethod
    def build(cls, config: Config, place: Place, store: Store, checkpoint: Checkpoint | None) -> "Run":
        """Build everything in the order of dependence, and restore it if there is a checkpoint."""
        device, segments, rows = place.device, config.segments, config.training.batch_size
        tokenizer = store.tokenizer()
        model = build_model(config, vocab_size=tokenizer.vocab_size, device=device)
        if config.training.compile:
            model.compile(dynamic=False)  # in place, so the names of weights stay; all shapes of a run are fixed
        objective = build_objective(config, tokenizer=tokenizer, seq_len=segments.seq_len, device=device)
        updater = Updater(
            build_optimizer(model, config.optimizer),
            config.optimizer,
            precision=config.training.precision,
            device=device,
        )
        stream = build_stream(config, store.split("train"), tokenizer)
        memory = model.empty_memory(rows=rows, mem_len=segments.mem_len)
        progress = Progress(fingerprint=store.training_fingerprint)
        if checkpoint is not None:
            progress, memory = checkpoint.progress(), checkpoint.memory(device)
            if progress.fingerprint != store.training_fingerprint:
                raise UsageError(
                    f"{checkpoint.folder}: this run was trained on another corpus or tokenizer (fingerprint "
                    f"{progress.fingerprint}, now {store.training_fingerprint}); restore it, or choose another "
                    "run.output_dir"
                )
            load_weights(model, checkpoint.weights(device), source=checkpoint.folder)
            load_state(updater.optimizer, checkpoint.optimizer_state(device))
            updater.load_state_dict(progress.updater)
        validation = None
        if store.has("validation"):
            validation = store.split("validation")
            if config.evaluation.max_tokens:
                validation = validation.first(config.evaluation.max_tokens)
        loss_sum = torch.tensor(progress.loss_sum, device=device)
        return cls(
            config, place, tokenizer, store, model, objective, updater, stream, memory, progress, validation, loss_sum
        )

    def step(self) -> StepStats:
        """One optimizer step on the next segment."""
        config, number = self.config, self.progress.step + 1
        segment, position = self.stream.read(self.progress.position)
        new_tokens = int(segment.length.sum())
        segment = segment.to(self.place.device)
        pieces = _micro_batches(config.training.batch_size, config.training.accumulate)
        rows = torch.arange(config.training.batch_size, device=self.place.device)
        stats, memories = train_step(
            self.model,
            self.updater,
            [self._plan(segment, rows, number, start, stop) for start, stop in pieces],
            [self.memory.rows(start, stop) for start, stop in pieces],
            seeds=[_dropout_seed(config.run.seed, number, piece) for piece in range(len(pieces))],
        )
        self.memory = Memory.joined(memories)
        self.loss_sum += stats.loss.masked_fill(stats.skipped, 0.0)
        self.progress = replace(
            self.progress,
            step=number,
            position=position,
            tokens_seen=self.progress.tokens_seen + new_tokens,
            loss_count=self.progress.loss_count + 1,
        )
        return stats

    def _plan(self, segment: Segment, rows: Tensor, step: int, start: int, stop: int) -> Plan:
        draw = Draw(seed=self.config.run.seed, step=step, rows=rows[start:stop])
        return self.objective.plan(segment.rows(start, stop), draw)

    def lr(self, step: int) -> float:
        return configured_lr(self.config, step)

    def line(self) -> tuple[float | None, Skips]:
        """Mean loss of the steps since the last line that were not left out; all steps that were. Begins a new line."""
        skips = self.updater.guard.skips()
        taken = self.progress.loss_count - (skips.total - self.progress.skipped)
        loss = self.loss_sum.item() / taken if taken else None
        self.loss_sum.zero_()
        self.progress = replace(self.progress, loss_count=0, skipped=skips.total)
        return loss, skips

    def save(self, folder: Path) -> Checkpoint:
        self.progress = replace(self.progress, loss_sum=self.loss_sum.item(), updater=self.updater.state_dict())
        return save_checkpoint(
            folder,
            model=self.model,
            optimizer=self.updater.optimizer,
            memory=self.memory,
            progress=self.progress,
            config=self.config,
            tokenizer=self.tokenizer,
            keep=self.config.checkpoint.keep,
        )


@dataclass
class _Stop:
    """Set by a signal, looked at between steps."""

    signal_number: int = 0

    def __call__(self) -> bool:
        return self.signal_number != 0


def _train(run: Run, reporter: Reporter, folder: Path, stop: _Stop) -> None:
    config, last = run.config, run.config.training.max_steps
    tokens_at_line, saved, owed = run.progress.tokens_seen, -1, False
    run.model.train()
    while run.progress.step < last and not stop():
        begin = time.perf_counter()
        lr = run.lr(run.progress.step + 1)
        set_lr(run.updater.optimizer, lr)
        stats = run.step()
        step = run.progress.step
        run.progress = replace(run.progress, seconds=run.progress.seconds + time.perf_counter() - begin)
        reporter.tick()
        if step % config.logging.every == 0 or step == last:
            loss, skips = run.line()
            _require_progress(skips, step, folder)
            reporter.logged(
                step=step,
                loss=loss,
                lr=lr,
                grad_norm=stats.grad_norm.item(),
                skips=skips,
                tokens_seen=run.progress.tokens_seen,
                new_tokens=run.progress.tokens_seen - tokens_at_line,
            )
            tokens_at_line = run.progress.tokens_seen
        aside = time.perf_counter()
        if _due(step, config.evaluation.every, last) and run.validation is not None and not stop():
            _validate(run, run.validation, reporter, stop)
        owed = owed or _due(step, config.checkpoint.every, last)
        if owed and (step == last or not stats.skipped):  # what is left after a bad step may not be worth keeping
            run.save(folder)
            saved, owed = step, False
        reporter.pause(time.perf_counter() - aside)
    if stop():
        if saved != run.progress.step:
            run.save(folder)
        name = signal.Signals(stop.signal_number).name
        message = f"stopped by {name} at step {run.progress.step:,}; the state is saved, --resume continues"
        raise Stopped(message, signal_number=stop.signal_number)
    console.say(f"done: {last:,} steps, {console.duration(run.progress.seconds)} of training; files in {folder}")


def _validate(run: Run, split: Split, reporter: Reporter, stop: _Stop) -> None:
    config, device = run.config, run.place.device
    protocol = Protocol(
        "pairs" if config.two_columns else "stream",
        config.segments.seq_len,
        config.segments.mem_len,
        config.evaluation.batch_size,
        advance=config.segments.reuse_len or None,
        alone=one_pair_per_row(config),
    )
    try:
        # Compiled code is for the fixed shapes of training; what validation remembers sits in ever other places.
        with torch.compiler.set_stance("force_eager"):
            result = evaluate(
                run.model,
                run.objective,
                split,
                protocol,
                new_memory=lambda rows: run.model.empty_cache(rows=rows, mem_len=protocol.mem_len),
                seed=config.run.seed,
                device=device,
                context=lambda: autocast(config.training.precision, device),
                unigram=run.store.unigram(),
                should_stop=stop,
            )
    except Interrupted:
        return
    step = run.progress.step
    reporter.validated(step=step, loss=result.loss, unigram_loss=result.unigram_loss)
    past_warmup = step >= 2 * config.schedule.warmup_steps
    stuck = past_warmup and abs(result.loss - result.unigram_loss) < PLATEAU_NATS
    run.progress = replace(run.progress, stuck=run.progress.stuck + 1 if stuck else 0)
    if run.progress.stuck >= 2:
        console.warn(
            f"validation has stayed at the unigram loss ({result.unigram_loss:.2f} nats) since before step {step:,}: "
            "the model ignores its context. Lower optimizer.lr or raise schedule.warmup_steps and start anew; "
            "models of this family seldom leave this plateau by themselves"
        )


def _due(step: int, every: int, last: int) -> bool:
    return step == last or (every > 0 and step % every == 0)


def _micro_batches(rows: int, pieces: int) -> list[tuple[int, int]]:
    size = rows // pieces
    return [(start, start + size) for start in range(0, rows, size)]


def _dropout_seed(seed: int, step: int, piece: int) -> int:
    """Every (seed, step, micro-batch) has dropout masks of its own; no generator's state needs saving."""
    return (seed * 1_000_003 + step) * 1_009 + piece


def _require_progress(skips: Skips, step: int, folder: Path) -> None:
    if skips.in_a_row < PATIENCE:
        return
    saved = list_checkpoints(folder)
    way_on = f"go on from {saved[0]} with --resume" if saved else "start anew with --overwrite"
    raise XltrainError(
        f"stopped at step {step:,}: the last {skips.in_a_row:,} steps were left out ({skips}), so "
        f"training has diverged. Lower optimizer.lr or raise schedule.warmup_steps, then {way_on}"
    )


@contextmanager
def _signals() -> Iterator[_Stop]:
    """SIGTERM and SIGINT ask for a stop after the current step; a second one ends the process at once."""
    stop = _Stop()

    def ask(number: int, frame: FrameType | None) -> None:
        del frame
        stop.signal_number = number
        console.say(f"{signal.Signals(number).name}: finishing this step and saving; once more ends at once")
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
