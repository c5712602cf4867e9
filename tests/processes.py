"""Several processes that run a command together, as torchrun would start them."""

import multiprocessing
import os
import socket
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from commands import Outcome, run_command

TOO_LONG = 120.0


@cache
def _context() -> ForkServerContext:
    """Processes that begin with torch imported, and with nothing else of this one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["xltrain.training.loop", "xltrain.interop.huggingface", "pytest", "hypothesis"])
    return context


def together(count: int, *arguments: object, function: Any = run_command) -> list[Outcome]:
    """``function(*arguments)``, by default ``xltrain ARGUMENTS``, in so many processes at once; what each returned."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ProcessPoolExecutor(count, mp_context=_context(), max_tasks_per_child=1) as pool:
        running = [pool.submit(_one, rank, count, port, function, arguments) for rank in range(count)]
        return [one.result(timeout=TOO_LONG) for one in running]


def started(*arguments: object, function: Any = run_command) -> BaseProcess:
    """``function(*arguments)``, by default ``xltrain ARGUMENTS``, in a process of its own, to be watched and killed."""
    process = _context().Process(target=_alone, args=(function, *arguments), daemon=True)
    process.start()
    return process


def _alone(function: Any, *arguments: object) -> None:
    torch.set_num_threads(1)
    function(*arguments)


def _one(rank: int, count: int, port: int, function: Any, arguments: tuple[object, ...]) -> Any:
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(count),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    return function(*arguments)
