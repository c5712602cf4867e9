"""Segments that are read while the steps before them run."""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from xltrain.data.streams import Position, Segment, Stream


class ReadAhead:
    """A stream of which a thread reads the next ``depth`` segments before they are asked for.

    It gives what the stream gives. A position that does not follow the last one is read when it is asked for.
    """

    def __init__(self, stream: Stream, *, depth: int) -> None:
        self.stream, self.depth = stream, depth
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead")
        self._coming: deque[Future[tuple[Segment, Position]]] = deque()
        self._next: Position | None = None  # what the first of these is read from

    def notes(self) -> list[str]:
        return self.stream.notes()

    def read(self, position: Position) -> tuple[Segment, Position]:
        """The segment at ``position`` and the position after it."""
        if position != self._next:
            while self._coming:
                self._coming.pop().cancel()
            self._coming.append(self._thread.submit(self.stream.read, position))
        while len(self._coming) <= self.depth:
            self._coming.append(self._thread.submit(self._read_after, self._coming[-1]))
        segment, self._next = self._coming.popleft().result()
        return segment, self._next

    def _read_after(self, before: Future[tuple[Segment, Position]]) -> tuple[Segment, Position]:
        return self.stream.read(before.result()[1])  # there is one thread, so ``before`` is finished
