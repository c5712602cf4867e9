"""Checkpoints: a folder per step, complete when its mark says so.

    checkpoints/step-N/   model.safetensors  optimizer.pt  memory.safetensors  state.json  config.yaml
                          the tokenizer's files, and complete.json, written last: size and digest of every other file

A checkpoint is written into a temporary folder and renamed; ``latest`` names the newest one. Loading checks the mark,
so a save that was cut short or damaged later is found out, named, and passed over for the one before.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from xltrain import console
from xltrain.config.load import dump_config, load_config
from xltrain.config.schema import Config
from xltrain.data.files import digest
from xltrain.data.kinds import load_tokenizer
from xltrain.data.streams import Position
from xltrain.data.tokenizer import Tokenizer
from xltrain.errors import UsageError, XltrainError
from xltrain.model.memory import Memory
from xltrain.model.transformer import LanguageModel
from xltrain.training.build import build_model
from xltrain.training.optimizer import Optimizer

MARK = "complete.json"


@dataclass(frozen=True)
class Progress:
    """How far a run has come; with the tensors of a checkpoint, all that continuing it needs.

    step: optimizer steps finished.
    position: the next segment to read.
    tokens_seen: tokens of all segments read.
    seconds: of training, over all interruptions.
    loss_sum, loss_count: of the steps since the last logged one.
    skipped: steps left out until then.
    updater: state of what judges steps and scales losses (see :mod:`xltrain.training.update`).
    stuck: validations in a row that found the loss at the unigram entropy.
    fingerprint: of the training text and the tokenizer.
    """

    step: int = 0
    position: Position = field(default_factory=Position)
    tokens_seen: int = 0
    seconds: float = 0.0
    loss_sum: float = 0.0
    loss_count: int = 0
    skipped: int = 0
    updater: dict[str, Any] = field(default_factory=dict)
    stuck: int = 0
    fingerprint: str = ""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Progress":
        return cls(**{**data, "position": Position(**data["position"])})


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

    def memory(self, device: torch.device) -> Memory:
        return Memory(**load_file(self.folder / "memory.safetensors", device=str(device)))

    def optimizer_state(self, device: torch.device) -> dict[str, Any]:
        return torch.load(self.folder / "optimizer.pt", map_location=device, weights_only=True)

    def model(self, device: torch.device, config: Config | None = None) -> LanguageModel:
        """The trained model, with the shapes and settings of ``config`` (by default the checkpoint's own)."""
        model = build_model(config or self.config(), vocab_size=self.tokenizer().vocab_size, device=device)
        load_weights(model, self.weights(device), source=self.folder)
        return model

    def weights(self, device: torch.device) -> dict[str, Tensor]:
        try:
            return load_file(self.folder / "model.safetensors", device=str(device))
        except (OSError, SafetensorError) as error:
            raise UsageError(f"{self.folder / 'model.safetensors'}: cannot be read: {error}") from None


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter once, by its name without wrappers."""
    return {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], *, source: Path) -> None:
    """Copy ``tensors`` into the model.

    Raises:
        UsageError: naming every tensor that is missing, unexpected or of another shape; then nothing is copied.
    """
    wanted = weights(model)
    faults = [f"missing {name}" for name in wanted if name not in tensors]
    faults += [f"unexpected {name}" for name in tensors if name not in wanted]
    faults += [
        f"{name} has shape {tuple(tensors[name].shape)}, not {tuple(wanted[name].shape)}"
        for name in wanted
        if name in tensors and tensors[name].shape != wanted[name].shape
    ]
    if faults:
        raise UsageError(f"{source}: the weights do not fit the model: {'; '.join(faults)}")
    for name, tensor in wanted.items():
        tensor.copy_(tensors[name])


def save_checkpoint(
    run: Path,
    *,
    model: nn.Module,
    optimizer: Optimizer,
    memory: Memory,
    progress: Progress,
    config: Config,
    tokenizer: Tokenizer,
    keep: int,
) -> Checkpoint:
    """Write ``checkpoints/step-N`` of a run, move ``latest``, and only then remove the oldest beyond ``keep``.

    Raises:
        XltrainError: if the disk refuses; the previous checkpoints are as they were.
    """
    root = run / "checkpoints"
    folder, building = root / f"step-{progress.step}", root / f"saving-step-{progress.step}"
    try:
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        save_file(weights(model), building / "model.safetensors", metadata={"format": "pt"})
        torch.save(optimizer.state_dict(), building / "optimizer.pt")
        save_file({name: value.contiguous() for name, value in vars(memory).items()}, building / "memory.safetensors")
        (building / "state.json").write_text(json.dumps(asdict(progress), indent=2), encoding="utf-8")
        (building / "config.yaml").write_text(dump_config(config), encoding="utf-8")
        for name, data in tokenizer.files().items():
            (building / name).write_bytes(data)
        for path in building.iterdir():
            path.chmod(0o666 & ~_umask())  # safetensors leaves its files to their owner alone
        mark_complete(building)
        if folder.exists():
            shutil.rmtree(folder)
        building.rename(folder)
        write_atomically(run / "latest", f"checkpoints/{folder.name}\n")
    except (OSError, SafetensorError, RuntimeError) as error:
        shutil.rmtree(building, ignore_errors=True)
        raise XltrainError(f"{folder}: the checkpoint could not be written: {error}") from error
    for old in list_checkpoints(run)[keep:]:
        shutil.rmtree(old, ignore_errors=True)
    return Checkpoint(folder)


def _umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found


def mark_complete(folder: Path) -> None:
    """Write the mark over every other file of a checkpoint's folder, once they are on the disk."""
    files = {path.name: {"bytes": path.stat().st_size, "digest": digest(path)} for path in sorted(folder.iterdir())}
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    write_atomically(folder / MARK, json.dumps(files, indent=2))


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's content, or leave it as it was."""
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


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
    except ValueError:
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
    for folder in list_checkpoints(run):
        fault = damage(folder)
        if fault is None:
            return Checkpoint(folder)
        console.warn(f"{folder} is not usable: {fault}; trying the one before it")
    return None


def find_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint from its own folder, or the newest one of a run's folder.

    Raises:
        UsageError: if there is none, or the one that was named is damaged.
    """
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
    if found is None:
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
