"""Documents to ids, in batches of bounded size."""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

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
    tokenizer: Tokenizer,
    documents: Iterable[Document],
    *,
    between: int | None = None,
    look: Callable[[list[str]], None] = lambda lines: None,
) -> Iterator[Encoded]:
    """Documents as ids, each followed by <eod>, batch by batch.

    A batch may begin and end inside a document, and also inside a line if that is very long.

    Args:
        between: put between the lines of a document.
        look: shown the lines of every batch.
    """
    batch = _Batch(tokenizer, between, look)
    inside = False  # of a document
    for document in documents:
        size = sum(map(len, document.lines))
        if size <= BATCH_CHARACTERS:
            if document.lines:
                batch.add(document.lines, size, inside)
                inside = True
        else:
            for line in document.lines:
                further = inside
                for part in tokenizer.parts(line, BATCH_CHARACTERS) if len(line) > BATCH_CHARACTERS else (line,):
                    batch.add([part], len(part), further)
                    further = False
                    if batch.size >= BATCH_CHARACTERS:
                        yield batch.encode()
                inside = True
        if document.complete:
            batch.closed.append(len(batch.lines))
            inside = False
        if batch.size >= BATCH_CHARACTERS:
            yield batch.encode()
    if batch.lines or batch.closed:
        yield batch.encode()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector from looking for cycles among lists of ids, which takes a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Batch:
    """Lines that wait to be encoded, and what batches before them left open.

    further: of each line, whether it begins one that is not its document's first.
    closed: how many of the lines come before the end of each document that ends here.
    """

    def __init__(self, tokenizer: Tokenizer, between: int | None, look: Callable[[list[str]], None]) -> None:
        self.tokenizer, self.between, self.look = tokenizer, between, look
        self.has_tokens = False  # the document that is open before the first line
        self.line_ended = False  # a line of it, just before the first line
        self._clear()

    def _clear(self) -> None:
        self.lines: list[str] = []
        self.further: list[bool] = []
        self.closed: list[int] = []
        self.size = 0

    def add(self, lines: list[str], size: int, further: bool) -> None:
        """Lines of one document; ``further``: whether the first of them is not its first."""
        self.lines += lines
        self.further += [True] * len(lines)
        self.further[-len(lines)] = further
        self.size += size

    def encode(self) -> Encoded:
        self.look(self.lines)
        with _no_collection():
            encoded = self.tokenizer.encode(self.lines)
            sizes = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
            ids = np.fromiter(chain.from_iterable(encoded), dtype=np.int64, count=int(sizes.sum()))
        found = self._with_symbols(ids, sizes)
        self._clear()
        return found

    def _with_symbols(self, ids: np.ndarray, sizes: np.ndarray) -> Encoded:
        """The ids of the lines, with the symbols that stand between lines and behind documents."""
        eod, between = self.tokenizer.eod, self.between
        starts = np.concatenate([[0], np.cumsum(sizes)])  # of each line among the ids, and the end
        further = np.flatnonzero(self.further)
        closed = np.array(self.closed, dtype=np.int64)
        before = further if between is not None else further[:0]  # the lines before which something is put
        behind = closed if eod is not None else closed[:0]
        turns = np.concatenate([before, behind])
        symbols = np.concatenate([np.full(len(before), between or 0), np.full(len(behind), eod or 0)])
        sorted_ = np.argsort(turns, kind="stable")
        turns, symbols = turns[sorted_], symbols[sorted_]
        ids = np.insert(ids, starts[turns], symbols)
        ends = starts[closed] + np.searchsorted(turns, closed, side="right")
        begins = np.concatenate([[-1 if self.has_tokens else 0], ends])  # of documents, and below where text ends
        text_ends = np.append(ends - (eod is not None), len(ids))
        line_starts = starts[further] + np.searchsorted(turns, further, side="right")
        document = np.searchsorted(closed, further, side="right")
        after_text = begins[document] < line_starts
        line_ends = line_starts[after_text & (line_starts < text_ends[document])]
        if self.line_ended and text_ends[0] > 0:
            line_ends = np.append(line_ends, 0)
        at_end = after_text & (line_starts == len(ids)) & (document == len(closed))
        self.line_ended = bool(at_end.any()) or (self.line_ended and len(ids) == 0)
        self.has_tokens = (self.has_tokens and not len(closed)) or len(ids) > begins[-1] >= 0
        return Encoded(ids, ends, np.unique(line_ends))  # lines without tokens share a place
