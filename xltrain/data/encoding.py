"""Documents to ids, in batches of bounded size."""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from xltrain.data.corpus import Document
from xltrain.data.tokenizer import Tokenizer

BATCH_CHARACTERS = 1_000_000
"""Text that is encoded at once. A batch is larger only where one line is, and its tokenizer cannot cut it."""


@dataclass(frozen=True)
class Encoded:
    """A run of documents, end to end.

    ids: all of them, boundary symbols included.
    ends: where in ``ids`` documents end.
    line_ends: where in ``ids`` a line ends that more tokens of its document follow.
    """

    ids: np.ndarray
    ends: np.ndarray
    line_ends: np.ndarray


def encode_documents(
    tokenizer: Tokenizer, documents: Iterable[Document], *, between: int | None = None
) -> Iterator[Encoded]:
    """Documents as ids, each followed by <eod>, batch by batch; ``between``: put between the lines of a document.

    A batch may begin and end inside a document, and also inside a line if that is very long.
    """
    joiner = _Joiner(eod=tokenizer.eod, between=between)
    lines: list[str] = []
    further: list[bool] = []  # whether each begins a line that is not its document's first
    closed: list[int] = []  # how many of the lines come before the end of each document that ends in this batch
    size, inside = 0, False
    for document in documents:
        for line in document.lines:
            for part in (line,) if len(line) <= BATCH_CHARACTERS else tokenizer.parts(line, BATCH_CHARACTERS):
                if size >= BATCH_CHARACTERS:
                    yield joiner.join(tokenizer.encode(lines), further, closed)
                    lines, further, closed, size = [], [], [], 0
                lines.append(part)
                further.append(inside)
                size += len(part)
                inside = False
            inside = True
        if document.complete:
            closed.append(len(lines))
            inside = False
    if lines or closed:
        yield joiner.join(tokenizer.encode(lines), further, closed)


@dataclass
class _Joiner:
    """Lays encoded lines end to end, with what stands between them. Knows what the batches before left open."""

    eod: int | None
    between: int | None
    has_tokens: bool = False  # the line that is being read
    line_ended: bool = False  # an earlier line of the document ended at the last token so far

    def join(self, encoded: list[list[int]], further: list[bool], closed: list[int]) -> Encoded:
        ids, ends, line_ends = array("q"), array("q"), array("q")
        begin = 0
        for stop in [*closed, None]:
            for found, is_further in zip(encoded[begin:stop], further[begin:stop], strict=True):
                if is_further:
                    if self.between is not None:  # it belongs to the line that it ends
                        if self.line_ended:
                            line_ends.append(len(ids))
                        ids.append(self.between)
                        self.has_tokens = True
                    self.line_ended = self.line_ended or self.has_tokens
                    self.has_tokens = False
                if found:
                    if self.line_ended:
                        line_ends.append(len(ids))
                        self.line_ended = False
                    ids.extend(found)
                    self.has_tokens = True
            if stop is not None:
                begin = stop
                self.has_tokens = self.line_ended = False
                if self.eod is not None:
                    ids.append(self.eod)
                ends.append(len(ids))
        return Encoded(_as_numbers(ids), _as_numbers(ends), _as_numbers(line_ends))


def _as_numbers(found: "array[int]") -> np.ndarray:
    return np.frombuffer(found, dtype=np.int64) if found else np.zeros(0, dtype=np.int64)
