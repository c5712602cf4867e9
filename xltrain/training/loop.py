"""Pretraining from a configuration to finished checkpoints."""

import math
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from xltrain import console
from xltrain.config.schema import Config
from xltrain.data.prepare import prepare
from xltrain.data.store import Store
from xltrain.distributed import Agreement, Peers, choose_device, disconnect, join, lost_peers
from xltrain.errors import FailedElsewhere, Stopped, UsageError, XltrainError
from xltrain.evaluation.perplexity import Interrupted, Protocol, Result, evaluate, has_targets, unigram_entropy
from xltrain.objectives.masked import AS_IT_IS
from xltrain.training.bins import unsorted_ids
from xltrain.training.build import autocast, count_parameters
from xltrain.training.checkpoint import Checkpoint, find_checkpoint, list_checkpoints
from xltrain.training.dealing import Deal
from xltrain.training.failures import explained
from xltrain.training.flops import Work
from xltrain.training.guard import PATIENCE, Skips
from xltrain.training.live import Run
from xltrain.training.optimizer import set_lr
from xltrain.training.parallel import put_away
from xltrain.training.report import Reporter, origin_lines, start_lines
from xltrain.training.run import alone, open_run, start_files
from xltrain.training.saving import Saver
from xltrain.training.signals import Stop, stop_signals

PLATEAU_NATS = 0.1
"""A validation loss this close to the unigram entropy means that the model ignores its context."""

FALLING_NATS = 0.05
"""Unless it has just fallen by this much: then the model is on its way."""


def pretrain(config: Config, *, resume: bool = False, overwrite: bool = False, peers: Peers | None = None) -> Path:
    """Train; returns the run's folder.

    Args:
        peers: the processes of the run, all of which call this with the same configuration; None: this one alone.

    Raises:
        UsageError: for faults found before the first step.
        Stopped: after SIGTERM or SIGINT, once the state is saved.
        XltrainError: if training has diverged, or a checkpoint cannot be written.
    """
    peers = peers or Peers()
    with ExitStack() as held:
        found = peers.from_first("start", lambda: _prepare(config, peers, held, resume=resume, overwrite=overwrite))
        return _pretrain(config, peers, Start.of(found))


def _pretrain(config: Config, peers: Peers, start: "Start") -> Path:
    torch.backends.cuda.matmul.allow_tf32 = config.training.tf32
    place = join(peers, config.training.device)
    try:
        with explained(config):
            run = Run.build(config, place, start.store, start.checkpoint, dealt=start.deal, origin=start.origin)
        if start.checkpoint is not None:
            _forget_best(run, start.checkpoint.config())
        if run.progress.step > config.training.max_steps:
            console.say(
                f"nothing to do: step {run.progress.step:,} is beyond training.max_steps {config.training.max_steps:,}"
            )
            return Path(config.run.folder)
        if run.progress.step == config.training.max_steps and not run.progress.validation_owed:
            console.say(f"nothing to do: step {run.progress.step:,} of {config.training.max_steps:,} is done")
            return Path(config.run.folder)
        folder = Path(peers.from_first("files", lambda: _ready(run, start)))
        work = Work.of(config, vocab_size=run.tokenizer.vocab_size, place=place)
        _introduce(run, start, work)
        with explained(config):
            _train(run, folder, work)
    except RuntimeError as error:
        if place.world_size > 1 and lost_peers(error):
            if place.rank != 0:
                raise FailedElsewhere(XltrainError.exit_code) from error
            raise XltrainError("another process of this run has ended, see its message; --resume continues") from error
        raise
    finally:
        disconnect()
    return folder


@dataclass(frozen=True)
class Start:
    """What a run starts from, as the first process has found it.

    deal: the rows of each process.
    checkpoint: to go on from; None: at step 0.
    origin: whose weights a new run starts from.
    """

    store: Store
    deal: Deal
    checkpoint: Checkpoint | None
    origin: Checkpoint | None

    @classmethod
    def of(cls, found: dict[str, Any]) -> "Start":
        """From the plain data that processes can send each other."""
        store = Path(found["store"])
        if not store.is_dir():
            raise UsageError(f"corpus.cache_dir: {store} is not there for this process; all need one shared folder")
        checkpoints = {name: found[name] and Checkpoint(Path(found[name])) for name in ("checkpoint", "origin")}
        return cls(Store.open(store), Deal(**found["deal"]), **checkpoints)


def _prepare(config: Config, peers: Peers, held: ExitStack, *, resume: bool, overwrite: bool) -> dict[str, Any]:
    """All that is done once for all processes, before they are connected: it may take hours.

    ``held`` keeps other runs out of this one's folder until it is closed.
    """
    device = choose_device(config.training.device)
    if config.model.attention_backend == "flex" and device.type == "cpu":
        raise UsageError("model.attention_backend: flex has no gradient on a CPU; choose math or sdpa")
    if config.model.norm == "batch_norm" and peers.world_size > 1:
        raise UsageError(
            "model.norm: batch_norm sees the rows of one process only, so the result would depend on the number of "
            f"processes (here {peers.world_size}); choose another norm, or start one process"
        )
    held.enter_context(alone(Path(config.run.folder)))
    checkpoint, dealt = open_run(config, processes=peers.world_size, resume=resume, overwrite=overwrite)
    origin = None
    if checkpoint is None and config.run.init_from is not None:
        origin = find_checkpoint(Path(config.run.init_from).expanduser())
    continues = None if checkpoint is None else checkpoint.progress().fingerprint
    return {
        "store": str(prepare(config, continues=continues).store.folder),
        "deal": vars(dealt),
        "checkpoint": checkpoint and str(checkpoint.folder),
        "origin": origin and str(origin.folder),
    }


def _ready(run: Run, start: Start) -> str:
    """The run's folder, made ready once nothing speaks against training."""
    _require_targets(run)
    return str(start_files(run.config, start.checkpoint))


def _forget_best(run: Run, before: Config) -> None:
    """Losses of different validation texts cannot be compared: if the text has changed, the next one is the lowest."""
    old, new = ((one.corpus.validation, one.evaluation.max_tokens) for one in (before, run.config))
    best = run.progress.best_loss
    if best is None or old == new:
        return
    console.say(
        f"validation is on another text than before: its lowest loss so far, {best:.4f} at step "
        f"{run.progress.best_step:,}, is not compared with those to come"
    )
    run.progress = replace(run.progress, best_loss=None)


def _introduce(run: Run, start: Start, work: Work) -> None:
    text = run.store.manifest["splits"]["train"]
    for line in start_lines(
        run.config,
        place=run.place,
        dealt=run.deal,
        parameters=count_parameters(run.model),
        document_tokens=text["tokens"] / text["documents"],
        tokens=text["tokens"],
        work=work,
        notes=run.stream.notes(),
    ):
        console.say(line)
    cutoffs = run.config.model.adaptive.cutoffs
    if cutoffs and (said := unsorted_ids(run.store.unigram(), cutoffs, kind=run.tokenizer.kind)):
        console.warn(said)
    if start.checkpoint is not None:
        console.say(f"resuming at step {run.progress.step:,} from {start.checkpoint.folder}")
    if start.origin is not None:
        for line in origin_lines(run.config, start.origin):
            console.say(line)


def _train(run: Run, folder: Path, work: Work) -> None:
    """From where the run stands to its last step, or to where a signal stops it."""
    first = run.place.rank == 0
    reporter = Reporter(
        folder if first else None,
        run.config,
        first_step=run.progress.step,
        work=work,
        skipped=run.progress.skipped,
    )
    saver = Saver(folder, run.place, keep=run.config.checkpoint.keep, keep_best=run.config.checkpoint.keep_best)
    with stop_signals(launched=run.place.world_size > 1) as stop:
        try:
            signal_number = _steps(run, reporter, saver, stop)
            saver.finish()
            stop.complete = run.progress.step == run.config.training.max_steps and not run.progress.validation_owed
        finally:
            saver.close()
            reporter.close()
    if signal_number and not stop.complete:
        name = signal.Signals(signal_number).name
        message = f"stopped by {name} at step {run.progress.step:,}; the state is saved, --resume continues"
        raise Stopped(message, signal_number=signal_number)
    console.say(
        f"done: {run.progress.step:,} steps, {console.duration(run.progress.seconds)} of training "
        f"({console.duration(run.progress.elapsed)} with validation and saving); files in {folder}"
    )


def _steps(run: Run, reporter: Reporter, saver: Saver, stop: Stop) -> int:
    """Train, validate and save in turn; returns the signal that ended it, or 0."""
    config, last = run.config, run.config.training.max_steps
    tokens_at_line, saved, owed = run.progress.tokens_seen, run.progress.step, False
    asked = Agreement(run.place)

    def validate() -> bool:
        improved = _validate(run, reporter, lambda: asked(stop.signal_number) != 0)
        return improved and config.checkpoint.keep_best

    run.model.train()
    signal_number = 0
    if run.progress.validation_owed:
        validate()
        saver.save(run.state())  # instead of the checkpoint of this step, which does not know the result
    while run.progress.step < last and not (signal_number := asked(stop.signal_number)):
        begin = time.perf_counter()
        lr = run.lr(run.progress.step + 1)
        set_lr(run.updater.optimizer, lr)
        stats = run.step()
        step = run.progress.step
        trained = time.perf_counter() - begin
        reporter.tick()
        if step % config.logging.every == 0 or step == last:
            loss, skips = run.line()
            _require_progress(skips, step, saver)
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
        improved = _due(step, config.evaluation.every, last) and validate()
        owed = owed or improved or _due(step, config.checkpoint.every, last)
        run.spend(trained, time.perf_counter() - begin)
        # What is left after a bad step may not be worth keeping, unless a validation has just found it the best.
        if owed and (step == last or improved or not stats.skipped):
            saver.save(run.state())
            saved, owed = step, False
        saver.look()
        reporter.pause(time.perf_counter() - aside)
    signal_number = signal_number or asked(stop.signal_number)  # it may have come during the last validation
    if owed or (signal_number and saved != run.progress.step):
        saver.save(run.state())
    return signal_number


def _validate(run: Run, reporter: Reporter, should_stop: Callable[[], bool]) -> bool:
    """Every target of the text once, by all processes together; returns whether no loss before was as low."""
    config, place, split = run.config, run.place, run.validation
    if split is None:
        return False
    run.progress = replace(run.progress, validation_owed=True)
    protocol, unigram = _protocol(config, part=(place.rank, place.world_size)), run.store.unigram()
    try:
        with _uncompiled(config):
            mine = evaluate(
                run.model,
                run.objective,
                split,
                protocol,
                new_memory=lambda rows: run.model.empty_cache(rows=rows, mem_len=protocol.mem_len),
                device=place.device,
                context=lambda: autocast(config.training.precision, place.device),
                unigram=unigram,
                should_stop=should_stop,
            )
    except Interrupted:
        return False
    finally:
        put_away(run.model)
    result = _together(mine, run)
    step, loss = run.progress.step, result.loss
    validated = {"step": step, "store": run.store.fingerprint, "max_tokens": config.evaluation.max_tokens}
    run.progress = replace(run.progress, validation_owed=False, validated=validated)
    reporter.validated(step=step, loss=loss, unigram_loss=result.unigram_loss)
    _look_for_plateau(run, result, training_entropy=unigram_entropy(unigram))
    improved = math.isfinite(loss) and (run.progress.best_loss is None or loss < run.progress.best_loss)
    if improved:
        run.progress = replace(run.progress, best_loss=loss, best_step=step)
    return improved


def _protocol(config: Config, *, part: tuple[int, int] = (0, 1)) -> Protocol:
    return Protocol(
        "pairs" if config.two_columns else "stream",
        config.segments.seq_len,
        config.segments.mem_len,
        config.evaluation.batch_size,
        advance=config.segments.reuse_len or None,
        part=part,
    )


def _uncompiled(config: Config) -> AbstractContextManager[Any]:
    """Compiled code is for the fixed shapes of training; what validation remembers sits in ever other places."""
    return torch.compiler.set_stance("force_eager") if config.training.compile else nullcontext()


def _require_targets(run: Run) -> None:
    """Refuse a validation text that has no loss.

    Raises:
        UsageError
    """
    config, split, device = run.config, run.validation, run.place.device
    if split is None or has_targets(run.model, run.objective, split, _protocol(config), device=device):
        return
    cut = f", cut to evaluation.max_tokens {config.evaluation.max_tokens:,}," if config.evaluation.max_tokens else ""
    raise UsageError(
        f"corpus.validation: in this text{cut} of {split.num_tokens:,} token(s) nothing is predicted; "
        "give a longer one, or leave the key out"
    )


def _together(mine: Result, run: Run) -> Result:
    """The sums of all processes."""
    sums = torch.tensor([mine.nll, mine.targets, mine.unigram_nll], dtype=torch.float64, device=run.place.device)
    nll, targets, unigram_nll = run.place.total(sums).tolist()
    return replace(mine, nll=nll, targets=int(targets), unigram_nll=unigram_nll)


def _look_for_plateau(run: Run, result: Result, *, training_entropy: float) -> None:
    step = run.progress.step
    past_warmup = step >= 2 * run.config.schedule.warmup_steps
    # A validation text unlike the training text can cost as much while training goes well.
    last = run.progress.last_loss
    # Of a masked model's targets some are left as they are, and to copy them is no use of context.
    share = 1.0 - AS_IT_IS if run.config.objective.name == "masked" else 1.0
    learning = last is not None and last < share * training_entropy - PLATEAU_NATS
    low, high = share * result.unigram_loss - PLATEAU_NATS, result.unigram_loss + PLATEAU_NATS
    best = run.progress.best_loss
    falling = best is not None and result.loss < best - FALLING_NATS
    stuck = past_warmup and not learning and not falling and low < result.loss < high
    run.progress = replace(run.progress, stuck=run.progress.stuck + 1 if stuck else 0)
    if run.progress.stuck >= 2:
        console.warn(
            f"validation is at the unigram loss ({result.unigram_loss:.2f} nats) at step {step:,}, as it was before: "
            "the model ignores its context. Lower optimizer.lr or raise schedule.warmup_steps and start anew; "
            "models of this family seldom leave this plateau by themselves"
        )


def _due(step: int, every: int, last: int) -> bool:
    return step == last or (every > 0 and step % every == 0)


def _require_progress(skips: Skips, step: int, saver: Saver) -> None:
    if skips.in_a_row < PATIENCE:
        return
    saver.finish()
    if saver.place.rank != 0:
        raise FailedElsewhere(XltrainError.exit_code)
    saved = list_checkpoints(saver.run)
    way_on = f"go on from {saved[0]} with --resume" if saved else "start anew with --overwrite"
    raise XltrainError(
        f"stopped at step {step:,}: the last {skips.in_a_row:,} steps were left out ({skips}), so "
        f"training has diverged. Lower optimizer.lr or raise schedule.warmup_steps, then {way_on}"
    )
