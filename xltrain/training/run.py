"""The folder of a run: may it be used, and what is in it to go on from."""

import errno
import math
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
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


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other runs out of the folder; one that is being stopped still saves its state there.

    The folder is made if need be, and taken away again if nothing has been written into it.

    Raises:
        UsageError: if it cannot be made, nothing can be written into it, or another run is at work there.
    """
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise UsageError(f"run.output_dir: {place} is a file; choose a folder")
    made, lock = [place for place in (folder, *folder.parents) if not place.exists()], folder / ".lock"
    with ExitStack() as held:
        held.callback(_remove_empty, made)
        used = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for used in (folder, folder / "checkpoints"):
                if used.exists() and not os.access(used, os.W_OK | os.X_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            used = lock
            free = held.enter_context(locked_if_free(lock))
        except OSError as error:
            problem = f"run.output_dir: {used} cannot be used ({error.strerror}); choose another folder"
            raise UsageError(problem) from None
        if not free:
            raise UsageError(f"{folder}: a run is at work there; wait until it has ended, or choose another folder")
        held.callback(lock.unlink, missing_ok=True)
        yield


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def open_run(config: Config, *, processes: int = 1, resume: bool, overwrite: bool) -> tuple[Checkpoint | None, Deal]:
    """What the run's folder holds: the checkpoint to go on from (None: start at step 0), and each process's rows.

    Only for who is :func:`alone` there: another run would write checkpoints between this look and the first step.

    Raises:
        UsageError: if the folder holds a run and neither ``resume`` nor ``overwrite`` says what to do with it, if all
            its checkpoints are damaged, or if the configuration does not continue that run.
    """
    folder, new = Path(config.run.folder), (None, deal(config.training, processes))
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


def holds_run(folder: Path) -> bool:
    return (folder / "config.yaml").exists() or bool(list_checkpoints(folder))


def start_files(config: Config, checkpoint: Checkpoint | None) -> Path:
    """Make the folder ready: for a new run, without anything of an old one; for both, the resolved config."""
    folder = Path(config.run.folder)
    folder.mkdir(parents=True, exist_ok=True)
    if checkpoint is None:
        _delete_old(folder)
    else:
        set_aside(folder, above=checkpoint.step)
    for leftover in (folder / "checkpoints").glob("saving-*"):
        shutil.rmtree(leftover, ignore_errors=True)
        console.say(f"removed {leftover}, a checkpoint that was not finished")
    write_atomically(folder / "config.yaml", dump_config(config))
    return folder


def _delete_old(folder: Path) -> None:
    """What is left of another run. A checkpoint that stayed would be taken for one of the new run.

    Raises:
        UsageError: if it cannot be deleted.
    """
    try:
        for name in ("checkpoints", "tensorboard"):
            if (folder / name).exists():
                shutil.rmtree(folder / name)
        for name in ("metrics.jsonl", "curves.png", *NAMES):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"{error.filename or folder}: of the run before, cannot be deleted ({error.strerror}); delete {folder}, or "
            "choose another run.output_dir"
        ) from None


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
            "change it back, or start a new run: another run.output_dir, and run.init_from for these weights"
        )


def _flat(data: dict[str, object], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found
