"""Checkpoints on disk: a folder per step, complete when its mark says so.

    checkpoints/step-N/   weights and optimizer (see :mod:`xltrain.training.tensors`)
                          memory*.safetensors  state.json  config.yaml  the tokenizer's files
                          complete.json, written last: size and digest of every other file

``latest`` names the newest checkpoint of a run, ``best`` the one with the lowest validation loss. Loading checks the
mark, so a save that was cut short or damaged later is found out, named, and passed over for the one before.
"""

import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from xltrain import console
from xltrain.config.init_from import MARK, NAMES
from xltrain.config.load import load_config
from xltrain.config.schema import Config
from xltrain.data.files import digest
from xltrain.data.kinds import load_tokenizer
from xltrain.data.streams import Position
from xltrain.data.tokenizer import Tokenizer
from xltrain.errors import UsageError
from xltrain.model.memory import Memory
from xltrain.model.transformer import LanguageModel
from xltrain.training.build import build_model
from xltrain.training.disk import sync, write_atomically
from xltrain.training.tensors import fill, shapes

REPLACED = "saving-instead-of-"
"""Before the name of a checkpoint while another of the same step takes its place."""


@dataclass(frozen=True)
class Progress:
    """How far a run has come; with the tensors of a checkpoint, all that continuing it needs.

    step: optimizer steps finished.
    position: the next segment to read.
    rows: of all processes; their memories are saved, and a continued run reads on in the same rows.
    processes: that the rows were dealt to.
    tokens_seen: tokens of all segments read.
    seconds: of training, over all interruptions.
    elapsed: seconds in all, with validation and logging; of saving only what the steps waited for before this one.
    loss_sum, loss_count: of the steps since the last logged one.
    last_loss: that was logged; None before the first line, and for one whose steps were all left out.
    skipped: steps left out until then.
    updater: state of what judges steps and scales losses (see :mod:`xltrain.training.update`).
    stuck: validations in a row that found the loss at the unigram entropy.
    best_loss, best_step: the lowest validation loss, and where it was found.
    validation_owed: whether the validation of this step was interrupted, and is to be done again.
    validated: of the last validation: its ``step``, the fingerprint of its token ``store``, and evaluation's
        ``max_tokens``; empty before it, and where an earlier version wrote this.
    fingerprint: of the training text and the tokenizer.
    """

    step: int = 0
    position: Position = field(default_factory=Position)
    rows: int = 0
    processes: int = 1
    tokens_seen: int = 0
    seconds: float = 0.0
    elapsed: float = 0.0
    loss_sum: float = 0.0
    loss_count: int = 0
    last_loss: float | None = None
    skipped: int = 0
    updater: dict[str, Any] = field(default_factory=dict)
    stuck: int = 0
    best_loss: float | None = None
    best_step: int = 0
    validation_owed: bool = False
    validated: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = ""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Progress":
        known = {name: data[name] for name in (entry.name for entry in fields(cls)) if name in data}
        return cls(**{**known, "position": Position(**data["position"])})


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    folder: Path

    @property
    def step(self) -> int:
        """Steps finished; 0 for weights that were imported."""
        number = self.folder.name.removeprefix("step-")
        return int(number) if number.isdigit() else 0

    def config(self) -> Config:
        return load_config(self.folder / "config.yaml", resolved=True)

    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.folder)

    def progress(self) -> Progress:
        return Progress.from_dict(json.loads((self.folder / "state.json").read_text(encoding="utf-8")))

    def memory(self, device: torch.device, *, first_row: int = 0, rows: int | None = None) -> Memory:
        """What the rows from ``first_row`` on remember (all rows by default), whoever saved them."""
        parts = []
        for path in self.folder.glob("memory*.safetensors"):
            with safe_open(path, framework="pt", device=str(device)) as file:
                begin = int((file.metadata() or {}).get("first_row", 0))
                held = file.get_slice("length").get_shape()[0]
                start = max(0, first_row - begin)
                stop = held if rows is None else min(held, first_row + rows - begin)
                if start < stop:
                    states = file.get_slice("states")[:, start:stop]  # (L, b, M, D)
                    others = {name: file.get_slice(name)[start:stop] for name in ("length", "document")}
                    parts.append((begin, Memory(states=states, **others)))
        return Memory.joined([part for _, part in sorted(parts, key=lambda entry: entry[0])])

    def model(self, device: torch.device, config: Config | None = None) -> LanguageModel:
        """The trained model, with the shapes and settings of ``config`` (by default the checkpoint's own)."""
        model = build_model(config or self.config(), vocab_size=self.tokenizer().vocab_size, device=device)
        self.restore(model)
        return model

    def restore(self, model: nn.Module, *, optional: Collection[str] = ()) -> None:
        """Give a model, or the shares of it that this process has, its trained weights.

        ``optional``: names of weights that either may lack; the model then keeps its own.

        Raises:
            UsageError: naming every other weight that is missing, unexpected or of another shape.
        """
        wanted = weights(model)
        found = {name: shape for name, (shape, _) in shapes(self.folder, "model").items()}
        for name in optional:
            if (name in wanted) != (name in found):
                wanted.pop(name, None)
                found.pop(name, None)
        _require_fit(found, wanted, source=self.folder)
        fill(self.folder, "model", wanted)

    def weights(self, device: torch.device) -> dict[str, Tensor]:
        """All weights, whole."""
        found = {
            name: torch.empty(shape, dtype=dtype, device=device)
            for name, (shape, dtype) in shapes(self.folder, "model").items()
        }
        fill(self.folder, "model", found)
        return found


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter once, by its name without wrappers, and what a norm keeps of the rows it has seen."""
    return {name: tensor.detach() for name, tensor in [*model.named_parameters(), *model.named_buffers()]}


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], *, source: Path) -> None:
    """Copy ``tensors`` into the model.

    Raises:
        UsageError: naming every tensor that is missing, unexpected or of another shape; then nothing is copied.
    """
    wanted = weights(model)
    _require_fit({name: tensor.shape for name, tensor in tensors.items()}, wanted, source=source)
    for name, tensor in wanted.items():
        tensor.copy_(tensors[name])


def _require_fit(found: Mapping[str, torch.Size], wanted: Mapping[str, Tensor], *, source: Path) -> None:
    faults = [f"missing {name}" for name in wanted if name not in found]
    faults += [f"unexpected {name}" for name in found if name not in wanted]
    faults += [
        f"{name} has shape {tuple(found[name])}, not {tuple(wanted[name].shape)}"
        for name in wanted
        if name in found and found[name] != wanted[name].shape
    ]
    if faults:
        raise UsageError(f"{source}: the weights do not fit the model: {'; '.join(faults)}")


def settled(path: Path) -> dict[str, Any]:
    """What the mark says of a file, once it is on the disk."""
    sync(path)
    return {"bytes": path.stat().st_size, "digest": digest(path)}


def mark_complete(folder: Path, files: Mapping[str, Any] | None = None) -> None:
    """Write the mark over the files of a checkpoint's folder: those of which ``settled`` is given, by default all."""
    if files is None:
        files = {path.name: settled(path) for path in sorted(folder.iterdir())}
    write_atomically(folder / MARK, json.dumps(files, indent=2))


def list_checkpoints(run: Path) -> list[Path]:
    """Folders of checkpoints, the newest step first."""
    found = [path for path in (run / "checkpoints").glob("step-*") if path.name[5:].isdigit()]
    return sorted(found, key=lambda path: -int(path.name[5:]))


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        files = json.loads((folder / MARK).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "it was never finished"
    except (OSError, ValueError):
        return f"{MARK} is damaged"
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected["bytes"]:
            return f"{name} has {path.stat().st_size:,} bytes, not {expected['bytes']:,}"
        if digest(path) != expected["digest"]:
            return f"{name} is damaged"
    return None


def newest_checkpoint(run: Path) -> Checkpoint | None:
    """The newest undamaged checkpoint of a run; damaged ones are named and passed over."""
    folders = list_checkpoints(run)
    for folder in folders:
        fault = damage(folder)
        if fault is None:
            return Checkpoint(folder)
        way_on = "there is none before it" if folder == folders[-1] else "trying the one before it"
        console.warn(f"{folder} is not usable: {fault}; {way_on}")
    return None


def put_back(run: Path) -> None:
    """Undo the renaming of a checkpoint that a kill has stopped halfway."""
    for old in (run / "checkpoints").glob(f"{REPLACED}step-*"):
        folder = old.with_name(old.name.removeprefix(REPLACED))
        if not folder.exists():
            old.rename(folder)


def set_aside(run: Path, *, above: int) -> None:
    """Take what is left of checkpoints above a step out of the way of those to come; nothing is deleted."""
    for folder in list_checkpoints(run):
        if int(folder.name[5:]) > above:
            aside = folder.with_name(f"damaged-{folder.name}")
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)
            console.say(f"kept what is left of {folder.name} as {aside}")


def find_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint from its own folder, the newest one of a run's folder, or the one that RUN/best or RUN/latest names.

    Raises:
        UsageError: if there is none, or the one that was named is damaged.
    """
    if path.name in NAMES and path.is_file():
        named = path.parent / path.read_text(encoding="utf-8").strip()
        if not named.is_dir():
            raise UsageError(
                f"{path}: names {named}, which is not there; give the run's folder for its newest checkpoint"
            )
        path = named
    if (path / MARK).is_file() or (path.name.startswith("step-") and path.is_dir()):
        fault = damage(path)
        if fault is not None:
            raise UsageError(f"{path}: not a usable checkpoint: {fault}")
        return Checkpoint(path)
    if path.is_file():
        raise UsageError(f"{path}: a file, where a run's or a checkpoint's folder is needed{_run_of(path)}")
    if not path.is_dir():
        raise UsageError(f"{path}: no such run or checkpoint folder (working directory {Path.cwd()})")
    found = newest_checkpoint(path)
    if found is None and list_checkpoints(path):
        raise UsageError(f"{path}: every checkpoint is damaged; give another run, or one that is whole")
    if found is None:
        if (path / "config.json").is_file():
            raise UsageError(
                f"{path}: is no run, but another program's folder or an export; import-checkpoint reads it"
            )
        raise UsageError(f"{path}: holds no complete checkpoint; give a run's folder or a checkpoints/step-N folder")
    return found


def _run_of(path: Path) -> str:
    """Where the run of a configuration is, if this is one."""
    if path.suffix not in (".yaml", ".yml"):
        return ""
    try:
        folder = Path(load_config(path).run.folder)
    except UsageError:
        return ""
    if newest_checkpoint(folder) is None:
        return f"; its run would be {folder}, which holds no checkpoint yet: xltrain pretrain {path} makes one"
    return f"; its run is {folder}"
