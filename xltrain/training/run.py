"""The folder of a run: may it be used, and what is in it to go on from."""

import shutil
from pathlib import Path

from xltrain import console
from xltrain.config.load import dump_config
from xltrain.config.schema import Config
from xltrain.errors import UsageError
from xltrain.training.checkpoint import Checkpoint, list_checkpoints, newest_checkpoint, write_atomically

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
    "schedule",
    "training.max_steps",
    "training.accumulate",
    "training.precision",
    "training.tf32",
    "training.compile",
    "training.activation_checkpointing",
    "training.device",
    "model.dropout",
    "model.attention_dropout",
    "model.attention_backend",
    "evaluation",
    "checkpoint",
    "logging",
}
"""Keys (or whole sections) that a resumed run may have different from the run it continues."""


def open_run(config: Config, *, resume: bool, overwrite: bool) -> Checkpoint | None:
    """Check the run's folder; returns the checkpoint to go on from, or None to start at step 0.

    Raises:
        UsageError: if the folder holds a run and neither ``resume`` nor ``overwrite`` says what to do with it, if all
            its checkpoints are damaged, or if the configuration does not continue that run.
    """
    folder = Path(config.run.folder)
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise UsageError(f"run.output_dir: {place} is a file; choose a folder")
    if not holds_run(folder) or overwrite:
        if resume:
            console.say(f"{folder} holds no run yet: starting at step 0")
        return None
    if not resume:
        raise UsageError(f"{folder} already holds a run; --resume continues it, --overwrite deletes it and starts anew")
    checkpoint = newest_checkpoint(folder)
    if checkpoint is None and list_checkpoints(folder):
        raise UsageError(f"{folder}: every checkpoint is damaged; --overwrite deletes them and starts anew")
    if checkpoint is None:
        console.say(f"{folder} holds no checkpoint yet: starting at step 0")
        return None
    _compare(config, checkpoint)
    return checkpoint


def holds_run(folder: Path) -> bool:
    return (folder / "config.yaml").exists() or bool(list_checkpoints(folder))


def start_files(config: Config, checkpoint: Checkpoint | None) -> Path:
    """Make the folder ready: for a new run, without anything of an old one; for both, the resolved config."""
    folder = Path(config.run.folder)
    folder.mkdir(parents=True, exist_ok=True)
    if checkpoint is None:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        for name in ("metrics.jsonl", "latest"):
            (folder / name).unlink(missing_ok=True)
    for leftover in (folder / "checkpoints").glob("saving-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    write_atomically(folder / "config.yaml", dump_config(config))
    return folder


def _compare(config: Config, checkpoint: Checkpoint) -> None:
    before, now = _flat(checkpoint.config().as_dict()), _flat(config.as_dict())
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
            f"{checkpoint.folder}: this run cannot be continued with another configuration: {'; '.join(refused)}; "
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
