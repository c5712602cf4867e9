"""Shards written by several processes at once."""

import os
import signal
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from xltrain.data.kinds import load_tokenizer
from xltrain.data.shards import Form, Shard, write_shard
from xltrain.data.tokenizer import SentencePieceTokenizer, Tokenizer
from xltrain.errors import XltrainError

_SECONDS_BETWEEN_TICKS = 1.0


class WorkerDied(XltrainError):
    """A process that encodes text ended without a word; what the others have finished is sound."""


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def write_shards(
    shards: Sequence[Shard], folder: Path, tokenizer_folder: Path, form: Form, *, num_workers: int
) -> Iterator[int]:
    """Write all shards, ``num_workers`` at a time; yields the bytes of text that were encoded meanwhile, at least every
    second, also if that is none.

    A single shard is written in this process, by that many threads where the tokenizer has any.

    Raises:
        WorkerDied: if a process dies. What fails in a process is raised here.
    """
    if num_workers == 1 or len(shards) <= 1:
        tokenizer = _tokenizer(tokenizer_folder, threads=num_workers)
        for shard in shards:
            yield from write_shard(shard, folder, tokenizer, form)
        return
    workers = [_Worker.start(folder, tokenizer_folder, form) for _ in range(min(num_workers, len(shards)))]
    try:
        waiting = iter(shards)
        busy = {worker.connection: worker for worker in workers}
        for worker in workers:
            worker.send(next(waiting, None))
        while busy:
            ready = wait(list(busy), timeout=_SECONDS_BETWEEN_TICKS)
            if not ready:
                yield 0
            for connection in ready:
                worker = busy[connection]  # type: ignore[index]
                message = worker.receive()
                if isinstance(message, BaseException):
                    raise message
                if isinstance(message, int):
                    yield message
                elif (following := next(waiting, None)) is not None:
                    worker.send(following)
                else:
                    worker.send(None)
                    del busy[worker.connection]
    finally:
        for worker in workers:
            worker.stop()


@dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    connection: Connection

    @classmethod
    def start(cls, folder: Path, tokenizer_folder: Path, form: Form) -> "_Worker":
        context = get_context("spawn")  # a fork would copy threads' locks and this process's file locks
        mine, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, folder, tokenizer_folder, form), daemon=True)
        process.start()
        theirs.close()  # so that the end of either process ends the other's reading
        return cls(process, mine)

    def send(self, shard: Shard | None) -> None:
        try:
            self.connection.send(shard)
        except BrokenPipeError:
            raise self._died() from None

    def receive(self) -> int | str | BaseException:
        try:
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._died() from None

    def _died(self) -> WorkerDied:
        self.process.join(timeout=5)
        code = self.process.exitcode
        how = f"signal {-code}" if code is not None and code < 0 else f"status {code}"
        return WorkerDied(f"a process that encodes text died ({how}); if memory ran out, lower corpus.num_workers")

    def stop(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.join()


def _work(connection: Connection, folder: Path, tokenizer_folder: Path, form: Form) -> None:
    """Write the shards that come until None does. The other side's end is noticed at the next message."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the first one decides
    try:
        try:
            tokenizer = _tokenizer(tokenizer_folder, threads=1)
            while (shard := connection.recv()) is not None:
                for read in write_shard(shard, folder, tokenizer, form):
                    connection.send(read)
                connection.send("finished")
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:
            error.add_note(traceback.format_exc())
            connection.send(error)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _tokenizer(folder: Path, *, threads: int) -> Tokenizer:
    tokenizer = load_tokenizer(folder)
    if isinstance(tokenizer, SentencePieceTokenizer):
        tokenizer.num_threads = threads
    return tokenizer
