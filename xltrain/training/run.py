"""The folder of a run: may it be used, and what is in it to go on from."""

import contextlib
import errno
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xltrain import console
from xltrain.config.init_from import NAMES
from xltrain.config.load import dump_config
from xltrain.config.schema import Config
from xltrain.data.locks import locked_if_free
from xltrain.errors import UsageError
from xltrain.training.checkpoint import (
    Checkpoint,
    list_checkpoints,
    newest_checkpoint,
    put_back,
    set_aside,
)
from xltrain.training.dealing import Deal, deal, deal_again
from xltrain.training.disk import write_atomically
from xltrain.training.schedule import configured_lr

MAY_CHANGE = {
    "run.name",
    "run.output_dir",
    "run.init_from",  # only the first step depends on it
    "corpus.cache_dir",
    "corpus.num_workers",
    "corpus.validation",
    "corpus.test",
    "corpus.train",  # by another path; the bytes are checked through the store's fingerprint
    "tokenizer.path",  # likewise
    "optimizer.lr",
    "optimizer.betas",
    "optimizer.eps",
    "optimizer.weight_decay",
    "optimizer.clip_norm",
    "optimizer.spike_ratio",
    "schedule.name",
    "schedule.warmup_steps",
    "schedule.min_lr_ratio",
    "schedule.decay_steps",
    "training.max_steps",
    "training.accumulate",
    "training.batch_size",  # as long as all rows are as many (see `dealing`)
    "training.precision",
    "training.tf32",
    "training.compile",
    "training.activation_checkpointing",
    "training.device",
    "training.num_workers",
    "model.dropout",
    "model.attention_dropout",
    "model.attention_backend",
    "evaluation",
    "checkpoint",
    "logging",
    "distributed",
}
"""Keys (or whole sections) that a resumed run may have different from the run it continues."""


def open_run(config: Config, *, processes: int = 1, resume: bool, overwrite: bool) -> tuple[Checkpoint | None, Deal]:
    """Check the run's folder; returns the checkpoint to go on from (None: start at step 0), and each process's rows.

    Raises:
        UsageError: if the folder holds a run and neither ``resume`` nor ``overwrite`` says what to do with it, if all
            its checkpoints are damaged, or if the configuration does not continue that run.
    """
    folder, new = Path(config.run.folder), (None, deal(config.training, processes))
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise UsageError(f"run.output_dir: {place} is a file; choose a folder")
    _require_writable(folder)
    put_back(folder)
    if not holds_run(folder) or overwrite:
        if resume:
            console.say(f"{folder} holds no run yet: starting at step 0")
        return new
    if not resume:
        raise UsageError(f"{folder} already holds a run; --resume continues it, --overwrite deletes it and starts anew")
    checkpoint = newest_checkpoint(folder)
    if checkpoint is None and list_checkpoints(folder):
        raise UsageError(f"{folder}: every checkpoint is damaged; --overwrite deletes them and starts anew")
    if checkpoint is None:
        console.say(f"{folder} holds no checkpoint yet: starting at step 0")
        return new
    before, progress = checkpoint.config(), checkpoint.progress()
    _compare(config, before, source=checkpoint.folder)
    dealt = deal_again(
        config.training,
        processes,
        total=progress.rows or before.training.rows,
        rows_before=before.training.rows,
    )
    if processes != progress.processes:
        console.say(
            f"the {dealt.total:,} rows of {progress.processes:,} process(es) go on in {processes:,}, "
            f"{dealt.rows:,} in each"
        )
    _say_lr(config, before, step=progress.step + 1)
    return checkpoint, dealt


def _require_writable(folder: Path) -> None:
    """Find out before hours of preparation that a folder cannot be made, or nothing written into it; leaves nothing."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        problem = f"run.output_dir: {folder} cannot be used ({error.strerror}); choose another folder"
        raise UsageError(problem) from None
    finally:
        for place in made:
            with contextlib.suppress(OSError):
                place.rmdir()


def holds_run(folder: Path) -> bool:
    return (folder / "config.yaml").exists() or bool(list_checkpoints(folder))


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other runs out of the folder; one that is being stopped still saves its state there.

    Raises:
        UsageError: if one is at work there.
    """
    lock = folder / ".lock"
    with locked_if_free(lock) as free:
        if not free:
            raise UsageError(f"{folder}: a run is at work there; wait until it has ended, or choose another folder")
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def start_files(config: Config, checkpoint: Checkpoint | None) -> Path:
    """Make the folder ready: for a new run, without anything of an old one; for both, the resolved config."""
    folder = Path(config.run.folder)
    folder.mkdir(parents=True, exist_ok=True)
    if checkpoint is None:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        shutil.rmtree(folder / "tensorboard", ignore_errors=True)
        for name in ("metrics.jsonl", "curves.png", *NAMES):
            (folder / name).unlink(missing_ok=True)
    else:
        set_aside(folder, above=checkpoint.step)
    for leftover in (folder / "checkpoints").glob("saving-*"):
        shutil.rmtree(leftover, ignore_errors=True)
        console.say(f"removed {leftover}, a checkpoint that was not finished")
    write_atomically(folder / "config.yaml", dump_config(config))
    return folder


def _say_lr(config: Config, before: Config, *, step: int) -> None:
    """A changed schedule or rate bends the curve of the learning rate where the run goes on; that is not hidden."""
    old, new = configured_lr(before, step), configured_lr(config, step)
    if not math.isclose(old, new, rel_tol=1e-6):
        console.say(f"learning rate at step {step:,}: {new:.3e}, which would have been {old:.3e} before these changes")


def _compare(config: Config, saved: Config, *, source: Path) -> None:
    before, now = _flat(saved.as_dict()), _flat(config.as_dict())
    refused = []
    for key in sorted(set(before) | set(now)):
        old, new = before.get(key), now.get(key)
        if old == new:
            continue
        if key in MAY_CHANGE or key.split(".")[0] in MAY_CHANGE:
            console.say(f"resuming with {key} {new!r} (was {old!r})")
        else:
            refused.append(f"{key} was {old!r} and is now {new!r}")
    if refused:
        raise UsageError(
            f"{source}: this run cannot be continued with another configuration: {'; '.join(refused)}; "
            "change it back, or choose another run.output_dir"
        )


def _flat(data: dict[str, object], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found
