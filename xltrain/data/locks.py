"""Locks between processes, also of several hosts that share a file system. A process that dies releases its own."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


@contextmanager
def locked(path: Path, *, shared: bool = False, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock on ``path``; ``waiting`` is called once if somebody else has it.

    The file's folder is made if need be. Whoever holds the lock alone may delete both.
    A file system without locks is used without them: what they guard stays right, some work is done twice.
    """
    handle = _acquire(path, shared=shared, block=False)
    if handle is None:
        waiting()
        handle = _acquire(path, shared=shared, block=True)
    assert handle is not None
    try:
        yield
    finally:
        os.close(handle)


@contextmanager
def locked_if_free(path: Path) -> Iterator[bool]:
    """Hold the lock on ``path`` if nobody has it; tells whether it does."""
    handle = _acquire(path, shared=False, block=False)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            os.close(handle)


def _acquire(path: Path, *, shared: bool, block: bool) -> int | None:
    import fcntl

    kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if block else fcntl.LOCK_NB)
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # the folder has just been deleted
            continue
        try:
            fcntl.flock(handle, kind)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                os.close(handle)
                raise
        except BaseException:  # a signal while it waited
            os.close(handle)
            raise
        if _is_still(path, handle):
            return handle
        os.close(handle)  # whoever had it has deleted the file


def _is_still(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
