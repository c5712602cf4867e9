"""Writing checkpoints beside the training that goes on.

What is to be saved is copied to the host between two steps; a thread does the rest: it writes into a folder beside the
place, marks it complete, renames it, moves ``latest`` and ``best``, and only then removes what is too old. So whenever
a run is killed, the checkpoints before are as they were. With several processes each writes its own part, and the
first one completes the folder when all have.
"""

import json
import os
import re
import shutil
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from xltrain.config.load import dump_config
from xltrain.config.schema import Config
from xltrain.data.tokenizer import Tokenizer
from xltrain.distributed import Place
from xltrain.errors import FailedElsewhere, XltrainError
from xltrain.model.memory import Memory
from xltrain.training.checkpoint import (
    REPLACED,
    Progress,
    list_checkpoints,
    mark_complete,
    settled,
)
from xltrain.training.disk import sync, write_atomically
from xltrain.training.parallel import is_share
from xltrain.training.tensors import begin_shards, finish_shards, shards_of, write_whole


@dataclass(frozen=True)
class State:
    """What a checkpoint holds, of this process.

    model, optimizer: named tensors.
    memory: of this process's rows, the first of which is ``first_row``.
    """

    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    memory: Memory
    first_row: int
    progress: Progress
    config: Config
    tokenizer: Tokenizer


class Saver:
    """Saves the states of one run, one at a time.

    Args:
        run: the run's folder.
        place: of this process; all processes save together.
        keep: number of checkpoints kept.
        keep_best: whether the best one stays besides, and ``best`` names it.
    """

    def __init__(self, run: Path, place: Place, *, keep: int, keep_best: bool) -> None:
        self.run, self.place, self.keep, self.keep_best = run, place, keep, keep_best
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="saving")
        self._pending: Future[None] | None = None
        self._closing = threading.Event()
        self._count = 0
        self._mode = 0o666 & ~_umask()

    def save(self, state: State) -> None:
        """Copy the state, and write it while the caller goes on.

        Raises:
            XltrainError: if the save before this one failed; the checkpoints before it are as they were.
        """
        self.finish()
        self._count += 1
        building = self.run / "checkpoints" / f"saving-step-{state.progress.step}"
        named = {f"model.{name}": tensor for name, tensor in state.model.items()}
        shards, whole = None, {}
        if any(is_share(tensor) for tensor in named.values()):
            named |= {f"optimizer.{name}": tensor for name, tensor in state.optimizer.items()}
            shards = begin_shards(building, named, self.place.saving_group)
        elif self.place.rank == 0:
            whole = {"model": _copied(state.model), "optimizer": _copied(state.optimizer)}
        memory = _copied(vars(state.memory))
        self._pending = self._thread.submit(self._write, building, state, whole, memory, shards, self._count)

    def look(self) -> None:
        """Raise what a save has failed with, if it has ended."""
        if self._pending is not None and self._pending.done():
            self.finish()

    def finish(self) -> None:
        """Wait until the last save has ended.

        Raises:
            XltrainError: if it failed.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Let a save that is under way end, but wait for no other process."""
        self._closing.set()
        self._thread.shutdown()

    def _write(
        self,
        building: Path,
        state: State,
        whole: Mapping[Any, Mapping[str, Tensor]],
        memory: dict[str, Tensor],
        shards: Future[Any] | None,
        count: int,
    ) -> None:
        peers = self.place.peers
        folder = building.with_name(f"step-{state.progress.step}")
        try:
            building.mkdir(parents=True, exist_ok=True)
            written = [write_whole(building, kind, tensors) for kind, tensors in whole.items()]
            written.append(self._write_memory(building, memory, state.first_row))
            if peers.first:
                written += _write_rest(building, state)
            if shards is not None:
                finish_shards(shards)
                written += shards_of(building, peers.rank)
            for path in written:
                path.chmod(self._mode)  # safetensors leaves its files to their owner alone
            marked = {path.relative_to(building).as_posix(): settled(path) for path in written}
            if not peers.first:
                peers.leave(f"saved/{count}/{peers.rank}", {"found": marked})
                return
            for rank in range(1, peers.world_size):
                marked |= peers.read(f"saved/{count}/{rank}", given_up=self._closing.is_set)
            self._complete(building, folder, marked, state.progress)
        except FailedElsewhere:
            shutil.rmtree(building, ignore_errors=True)
            raise
        except Exception as error:  # of the disk, of safetensors, of another process's shards: all mean the same
            if peers.first:
                shutil.rmtree(building, ignore_errors=True)
            elif shards is not None and shards.exception() is not None:  # all have failed, one tells
                raise FailedElsewhere(XltrainError.exit_code) from error
            else:
                peers.leave(f"saved/{count}/{peers.rank}", {"failed": XltrainError.exit_code})
            raise XltrainError(
                f"{folder}: the checkpoint could not be written: {_reason(error)}; {_way_on(self.run)}"
            ) from error

    def _write_memory(self, building: Path, memory: dict[str, Tensor], first_row: int) -> Path:
        name = "memory.safetensors" if self.place.world_size == 1 else f"memory-{self.place.rank:05d}.safetensors"
        save_file(memory, building / name, metadata={"format": "pt", "first_row": str(first_row)})
        return building / name

    def _complete(self, building: Path, folder: Path, files: dict[str, Any], progress: Progress) -> None:
        mark_complete(building, files)
        old = folder.with_name(f"{REPLACED}{folder.name}")
        if folder.exists():
            folder.rename(old)
        building.rename(folder)
        sync(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
        write_atomically(self.run / "latest", f"checkpoints/{folder.name}\n")
        if not self.keep_best:
            (self.run / "best").unlink(missing_ok=True)  # of a run that was continued; it would soon name nothing
        elif progress.best_step == progress.step:
            write_atomically(self.run / "best", f"checkpoints/{folder.name}\n")
        best = folder.with_name(f"step-{progress.best_step}")
        for path in list_checkpoints(self.run)[self.keep :]:
            if path != best or not self.keep_best:
                shutil.rmtree(path, ignore_errors=True)


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the host, where no later step changes them."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}


def _write_rest(building: Path, state: State) -> list[Path]:
    texts = {"state.json": json.dumps(asdict(state.progress), indent=2), "config.yaml": dump_config(state.config)}
    contents = {name: text.encode() for name, text in texts.items()} | state.tokenizer.files()
    for name, data in contents.items():
        (building / name).write_bytes(data)
    return [building / name for name in contents]


def _umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found


def _reason(error: Exception) -> str:
    """In a line; a failure of several processes comes with a trace of each."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    found = re.search(r"I/O error: (.*?)(?: \(os error \d+\))?$", lines[-1]) if lines else None
    return found[1] if found else lines[-1] if lines else type(error).__name__


def _way_on(run: Path) -> str:
    saved = list_checkpoints(run)
    if not saved:
        return "there is none before it"
    return f"the newest one is {saved[0]}, from which --resume continues"
