"""Where this process stands among the processes of a run. The only place that reads the environment.

A launcher (torchrun, or anything that sets ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR`` and
``MASTER_PORT``) starts the same command several times. :func:`find_peers` says which of them this is (without torch,
for a process that was started alone, which is a run of one); :func:`join` chooses the device and connects them.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xltrain import console
from xltrain.errors import FailedElsewhere, UsageError, XltrainError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SECONDS_BETWEEN_LOOKS = 0.2
"""How often a waiting process looks whether what it waits for has happened."""

SECONDS_FOR_READERS = 5.0
"""How long a process that has failed waits for the others to learn of it."""


@dataclass(frozen=True)
class Peers:
    """The processes of a run, and which of them this is; they can leave each other notes.

    store: the notes, where there are several processes. Waiting for one has no time limit, unlike a collective.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    store: Any = None

    @property
    def first(self) -> bool:
        return self.rank == 0

    def from_first(self, name: str, work: Callable[[], Any]) -> Any:
        """What ``work()`` returned in the first process (plain data), in all of them; the others wait for it.

        Raises:
            FailedElsewhere: in the others, if ``work()`` failed in the first one, which raises what it raised.
        """
        if self.world_size == 1:
            return work()
        if not self.first:
            return self.read(name)
        try:
            found = work()
        except BaseException as error:
            self.leave(name, {"failed": error.exit_code if isinstance(error, XltrainError) else 1})
            self._wait_for_readers(name)
            raise
        self.leave(name, {"found": found})
        return found

    def leave(self, name: str, note: dict[str, Any]) -> None:
        self.store.set(name, json.dumps(note))

    def read(self, name: str, *, given_up: Callable[[], bool] = lambda: False) -> Any:
        """What is ``found`` in a note, once it is there.

        Raises:
            FailedElsewhere: if the note says that its writer failed, nobody can write it any more, or ``given_up()``.
        """
        try:
            while not self.store.check([name]):
                if given_up():
                    raise FailedElsewhere(1)
                time.sleep(SECONDS_BETWEEN_LOOKS)
            note = json.loads(self.store.get(name))
        except RuntimeError:  # the process that keeps the notes has ended
            raise FailedElsewhere(1) from None
        if "failed" in note:
            self.store.add(f"{name} was read", 1)
            raise FailedElsewhere(note["failed"])
        return note["found"]

    def _wait_for_readers(self, name: str) -> None:
        """Notes may end with this process; the others get a moment to read this one."""
        end = time.monotonic() + SECONDS_FOR_READERS
        while self.store.add(f"{name} was read", 0) < self.world_size - 1 and time.monotonic() < end:
            time.sleep(SECONDS_BETWEEN_LOOKS)


@dataclass(frozen=True)
class Place:
    """The device of this process, and what it needs to work with the others.

    host_group: processes connected over the CPU, for what the device need not know.
    saving_group: the same for the thread that saves.
    """

    device: "torch.device"
    peers: Peers = field(default_factory=Peers)
    host_group: Any = None
    saving_group: Any = None

    @property
    def rank(self) -> int:
        return self.peers.rank

    @property
    def world_size(self) -> int:
        return self.peers.world_size

    def total(self, value: "Tensor") -> "Tensor":
        """The sum of ``value`` over all processes; in place, without waiting for the device."""
        if self.world_size > 1:
            import torch.distributed as dist

            dist.all_reduce(value)
        return value

    def host_total(self, value: int) -> int:
        """The sum of ``value`` over all processes; they wait for one another."""
        if self.world_size == 1:
            return value
        import torch
        import torch.distributed as dist

        found = torch.tensor(value)
        dist.all_reduce(found, group=self.host_group)
        return int(found.item())


class Agreement:
    """All processes find out at the same step that one of them wants to stop.

    The question goes round while a step is computed, and its answer is looked at before the next one: nobody waits.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._asked: tuple[Any, Any] | None = None

    def __call__(self, wish: int) -> int:
        """The largest ``wish`` (0: none) of any process; with several processes, as of the call before this one.

        All processes must call it equally often.
        """
        if self._place.world_size == 1:
            return wish
        import torch
        import torch.distributed as dist

        answer = 0
        if self._asked is not None:
            work, wishes = self._asked
            work.wait()
            answer = int(wishes.item())
        wishes = torch.tensor(max(wish, answer))
        work = dist.all_reduce(wishes, op=dist.ReduceOp.MAX, group=self._place.host_group, async_op=True)
        self._asked = work, wishes
        return answer


def find_peers() -> Peers:
    """What the launcher says of this process. Only the first one speaks from here on (see :mod:`xltrain.console`).

    Raises:
        UsageError: if the launcher's variables do not fit together.
    """
    world_size = _number("WORLD_SIZE", 1)
    if world_size == 1:
        return Peers()
    rank = _number("RANK", -1)
    if not 0 <= rank < world_size:
        raise UsageError(f"WORLD_SIZE is {world_size} but RANK is {os.environ.get('RANK')!r}; start with torchrun")
    console.speak_as(rank)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise UsageError(f"WORLD_SIZE is {world_size} but {name} is not set; start with torchrun")
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(iter(rendezvous("env://", rank, world_size)))
    return Peers(rank=rank, world_size=world_size, local_rank=_number("LOCAL_RANK", rank), store=store)


def _number(name: str, default: int) -> int:
    value = os.environ.get(name, str(default))
    if not value.removeprefix("-").isdigit():
        raise UsageError(
            f"the environment variable {name} is {value!r}; a launcher such as torchrun sets it to a number"
        )
    return int(value)


def join(peers: Peers, device: str) -> Place:
    """Choose the device of this process (``training.device``) and connect it with the others."""
    chosen = choose_device(device)
    if peers.world_size == 1:
        return Place(device=chosen)
    import torch
    import torch.distributed as dist

    if chosen.type == "cuda":
        if chosen.index is not None:
            raise UsageError(f"training.device: {device} is one device for {peers.world_size} processes; choose cuda")
        if peers.local_rank >= torch.cuda.device_count():
            raise UsageError(
                f"more processes on this machine than CUDA devices ({torch.cuda.device_count()}); start one for each, "
                "or set training.device cpu"
            )
        chosen = torch.device("cuda", peers.local_rank)
        torch.cuda.set_device(chosen)
    dist.init_process_group(
        "nccl" if chosen.type == "cuda" else "gloo",
        store=dist.PrefixStore("group", peers.store),
        rank=peers.rank,
        world_size=peers.world_size,
        device_id=chosen if chosen.type == "cuda" else None,
    )
    return Place(
        device=chosen,
        peers=peers,
        host_group=dist.new_group(backend="gloo"),
        saving_group=dist.new_group(backend="gloo"),
    )


def disconnect() -> None:
    """Disconnect from the other processes, if there are any."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def lost_peers(error: RuntimeError) -> bool:
    """Whether a collective failed because another process has ended."""
    import torch.distributed as dist

    return isinstance(error, dist.DistError) or "gloo" in str(error)


def find_place(device: str) -> Place:
    """The place of a command that works in one process.

    Raises:
        UsageError: for a device that is not there, and where a launcher started several processes.
    """
    if _number("WORLD_SIZE", 1) > 1:
        raise UsageError("only pretrain runs in several processes; start this command without torchrun")
    return Place(device=choose_device(device))


def choose_device(device: str) -> "torch.device":
    """The device of this name; ``auto``: CUDA where it is there.

    Raises:
        UsageError: for a device that is not there.
    """
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    found = torch.device(device)
    if found.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"training.device: {device} is not there (torch sees no CUDA device); use auto or cpu")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"training.device: {device} is not there; torch sees {torch.cuda.device_count()} CUDA device(s)"
        )
    return found
