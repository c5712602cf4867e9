"""What files were digested to, remembered beside the token stores, so that a large corpus is not read at every start.

A digest is kept with the size, the inode and the times of change of its file, and believed while these are the same. A
file that changes twice within a tick of its file system's clock has the same times after both, which git calls racy:
so nothing is kept of a file that was not clearly older when its reading began. What is lost, damaged, or written
by another process meanwhile costs another reading and nothing else. What no file system tells is not noticed: a
mapped page that is written a second time before it reaches the disk.
"""

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from xltrain.data.files import AnyFile, digest

NAME = "digests"
SMALL = 256 << 10
"""Bytes up to which a file is digested at every start: its beginning is read in any case."""
CLEARLY_OLDER = 10 * 10**9
"""Nanoseconds. The times of some file systems are in steps of two seconds, and clocks of several machines differ."""

State = tuple[int, int, int, int]
"""Of a file: size, inode, times of the last change of its content and of anything of it."""

Entry = tuple[str, list[State]]
"""What was found, and how the files were that it was found in."""


class Digests:
    """Digests of the files of a corpus; ``folder``: where they are remembered, nowhere if None."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._known = {} if folder is None else _read(folder / NAME)
        self._new: dict[str, Entry] = {}

    def of(self, file: AnyFile) -> str:
        """Fingerprint of a file, as :func:`xltrain.data.files.digest` gives it."""
        if not isinstance(file, Path):
            return digest(file)
        return self.of_all(str(file.absolute()), [file], lambda: digest(file))

    def of_all(self, name: str, files: Sequence[Path], find: Callable[[], str]) -> str:
        """What ``find`` makes of the content of ``files``, or made of it when they were as they are.

        ``name``: says what is found and in which files.
        """
        began, states = time.time_ns(), _states(files)
        before = self._known.get(name)
        if before is not None and before[1] == states:
            return before[0]
        found = find()
        changed = max((moment for state in states for moment in state[2:]), default=began)
        if changed + CLEARLY_OLDER < began and sum(state[0] for state in states) > SMALL:
            self._known[name] = self._new[name] = found, states
        return found

    def unread(self, files: Iterable[AnyFile]) -> int:
        """How many bytes of files here :meth:`of` would have to read."""
        here = {str(file.absolute()): _states([file]) for file in files if isinstance(file, Path)}
        return sum(
            states[0][0] for name, states in here.items() if states and self._known.get(name, ("", []))[1] != states
        )

    def keep(self) -> None:
        """Add what is new to the file in the folder, if that can be written; files that are gone are forgotten."""
        if self._folder is None or not self._new:
            return
        before = {name: entry for name, entry in _read(self._folder / NAME).items() if _is_there(name)}
        content = json.dumps(before | self._new).encode()
        new = self._folder / f"{NAME}.{secrets.token_hex(4)}"
        with suppress(OSError):
            for leftover in self._folder.glob(f"{NAME}.*"):  # of a process that was killed
                if time.time() - leftover.stat().st_mtime > 3600:
                    leftover.unlink()
        try:
            new.write_bytes(_sum(content) + b"\n" + content)
            new.replace(self._folder / NAME)
        except OSError:
            with suppress(OSError):
                new.unlink(missing_ok=True)


def _is_there(name: str) -> bool:
    """Whether what a name begins with, a path unless it is a dataset's, still exists."""
    if not name.startswith("/"):
        return True
    try:
        Path(name).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # somebody else's, who shares the folder
        return True
    return True


def _states(files: Sequence[Path]) -> list[State]:
    """None at all if one of them is not there."""
    try:
        found = [path.stat() for path in files]
    except OSError:
        return []
    return [(one.st_size, one.st_ino, one.st_mtime_ns, one.st_ctime_ns) for one in found]


def _read(path: Path) -> dict[str, Entry]:
    """What a file remembers; nothing if it is not there or damaged."""
    try:
        written, _, content = path.read_bytes().partition(b"\n")
    except OSError:
        return {}
    if written != _sum(content):
        return {}
    return {name: (found, [tuple(state) for state in states]) for name, (found, states) in json.loads(content).items()}


def _sum(content: bytes) -> bytes:
    """What a file of this form begins with."""
    return hashlib.blake2b(content, digest_size=16, person=b"xltrain 1").hexdigest().encode()
