"""Text as documents of lines, and the plain text file that is read in pieces.

Treatment of what text contains, in files of any kind and the same in vocabulary training, tokenising and evaluation:

- UTF-8 is checked, not guessed; anything else is refused, by file and byte.
- Lines end at LF only. CR, NUL and U+FEFF (byte-order mark) are removed wherever they stand.
- Other separators (U+2028, form feed, ...) are ordinary characters.
- A line of white space only counts as blank.
"""

import io
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import chain, pairwise
from typing import BinaryIO, Protocol

import numpy as np

from xltrain.data.files import (
    HEAD,
    AnyFile,
    FaultyFile,
    check_text,
    file_size,
    is_packed,
    open_raw,
    reading,
    way_to_convert,
)
from xltrain.errors import UsageError

BLOCK = 1 << 20
PIECE_BYTES = 32 << 20
"""A plain text file is cut into pieces of about this size, so that several processes can read it."""
PART_CHARACTERS = 4_000_000
"""A document longer than this comes in several parts; bounds the memory that its lines take."""
PACKED = 3
"""How many bytes of text a byte of a compressed file is taken for, in progress and in the distribution of work."""
CUTS = {"blank_line": "blank_line", "line": "line", "two_columns": "line", "file": "start"}
"""Behind what a text file may be cut, for each way in which documents end."""
_REMOVED = str.maketrans("", "", "\r\0\ufeff")
_INNER_RETURN = re.compile(r"\r(?=[^\r\n])")


@dataclass
class Counts:
    """What a text holds, and what of it was left out.

    ``lines`` as `wc -l` counts them; ``characters`` include line ends; ``bytes`` are those of the text before anything
    is removed, unpacked and without the JSON around it. The rest counts what is dropped: characters that are removed
    (of carriage returns, also how many had text behind them in their line), records without text, and documents that
    a source's weight leaves out.
    """

    documents: int = 0
    lines: int = 0
    bytes: int = 0
    characters: int = 0
    words: int = 0
    carriage_returns: int = 0
    inner_carriage_returns: int = 0
    nulls: int = 0
    byte_order_marks: int = 0
    empty_records: int = 0
    unsampled_documents: int = 0

    def text(self) -> dict[str, int]:
        """What is there."""
        return {name: value for name, value in asdict(self).items() if name in _OF_TEXT}

    def dropped(self) -> dict[str, int]:
        """What was left out."""
        return {name: value for name, value in asdict(self).items() if name not in _OF_TEXT}

    def add(self, other: "Counts") -> None:
        """Add what another part of the text holds."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


_OF_TEXT = ("documents", "lines", "bytes", "characters", "words")


@dataclass
class Document:
    """Lines of one document, each with its line end where it has one; or its two columns, source and target.

    A very long document comes in several parts, of which only the last is ``complete``.
    """

    lines: list[str] = field(default_factory=list)
    complete: bool = True


class Piece(Protocol):
    """A part of one source, of whole documents, that any process can read on its own: it is picklable.

    The pieces of a source, one after the other, give exactly its documents and its counts. Where a source is cut
    depends on its content alone, never on how many processes read it.
    """

    @property
    def size(self) -> int:
        """About how many bytes it adds to ``Counts.bytes``; for progress, and for an even distribution of work."""
        ...

    def documents(self, counts: Counts | None = None) -> Iterator[Document]:
        """Its documents, added to ``counts`` as they are read."""
        ...

    def lines(self, counts: Counts | None = None) -> Iterator[str]:
        """All its lines, blank ones too, as a vocabulary is trained on them."""
        ...


@dataclass(frozen=True)
class TextPiece:
    """Bytes ``start`` to ``stop`` of a text file, cut where a document ends; all of it without a ``stop``."""

    path: AnyFile
    start: int
    stop: int | None
    separator: str
    size: int

    def documents(self, counts: Counts | None = None) -> Iterator[Document]:
        blocks = read_blocks(self.path, counts, start=self.start, stop=self.stop)
        if self.separator == "blank_line":
            return split_at_blank_lines(blocks, counts=counts)
        lines = chain.from_iterable(blocks)
        return split_documents(lines, separator=self.separator, place=self._line, counts=counts)

    def lines(self, counts: Counts | None = None) -> Iterator[str]:
        return read_lines(self.path, counts, start=self.start, stop=self.stop)

    def _line(self, number: int) -> str:
        with open_raw(self.path) as file:
            before = sum(block.count(b"\n") for block in _blocks(file, self.start))
        return f"{self.path}, line {before + number:,}"


def cut_file(path: AnyFile, *, separator: str, size: int | None = None) -> list[TextPiece]:
    """Pieces of about ``size`` bytes (:data:`PIECE_BYTES`), or of one document where that is longer.

    Only the text around the cuts is read. With ``separator`` ``file`` there is nothing to cut, and a compressed file
    can only be read from its beginning.
    """
    if is_packed(path):
        return [TextPiece(path, 0, None, separator, size=PACKED * file_size(path))]
    bounds = cut_bytes(path, at=CUTS[separator], size=size or PIECE_BYTES)
    return [TextPiece(path, start, stop, separator, size=stop - start) for start, stop in pairwise(bounds)]


def cut_bytes(path: AnyFile, *, at: str, size: int) -> list[int]:
    """Places that cut a file into parts of about ``size`` bytes, its beginning and its end included.

    ``at``: ``line`` or ``blank_line``, behind which it may be cut; ``start``: nowhere else than there.
    """
    total = file_size(path)
    bounds = [0]
    if at != "start":
        with open_raw(path) as file:
            while bounds[-1] + size < total:
                bounds.append(_next_cut(file, bounds[-1] + size, at))
    if bounds[-1] < total or total == 0:
        bounds.append(total)
    return bounds


def _blocks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The next ``size`` bytes, a block at a time."""
    while block := file.read(min(BLOCK, size)):
        size -= len(block)
        yield block


def _next_cut(file: BinaryIO, place: int, at: str) -> int:
    """The first place after ``place`` behind a line, or behind a blank one, or the end of the file."""
    file.seek(place)
    file.readline()  # a line that may have begun before
    if at == "line":
        return file.tell()
    while (line := file.readline()) and not _is_blank(line):
        pass
    return file.tell()


def _is_blank(line: bytes) -> bool:
    if b" " < line[:1] < b"\x7f":
        return False
    return not cleaned_text(line.decode("utf-8", errors="replace")).strip()


def read_lines(
    path: AnyFile, counts: Counts | None = None, *, start: int = 0, stop: int | None = None
) -> Iterator[str]:
    """Lines of a UTF-8 file, cleaned as said above, with their line ends.

    ``start`` and ``stop`` (the end of the file by default) are bytes, and must be where lines begin.

    Raises:
        FaultyFile: naming the file and the first byte that is not UTF-8.
    """
    return chain.from_iterable(read_blocks(path, counts, start=start, stop=stop))


def read_blocks(
    path: AnyFile, counts: Counts | None = None, *, start: int = 0, stop: int | None = None
) -> Iterator[list[str]]:
    """What :func:`read_lines` gives, many lines at a time."""
    with reading(path) as file:
        done = file.seek(start) if start else 0
        while block := file.read(BLOCK if stop is None else min(BLOCK, stop - done)):
            if done + len(block) != stop:
                block += file.readline()
            if done == 0:
                check_text(path, block[:HEAD])
            text = decoded(block, name=str(path), place=done)
            done += len(block)
            yield clean_lines(text, counts, num_bytes=len(block))


def decoded(block: bytes, *, name: str, place: int) -> str:
    """Text of UTF-8 bytes, which stand at ``place`` of what ``name`` says.

    Raises:
        FaultyFile: naming the first byte that is not UTF-8.
    """
    try:
        return block.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"byte {place + error.start} is 0x{block[error.start]:02x}"
        raise FaultyFile(f"{name}: not UTF-8 text ({found}); {way_to_convert(error)}") from None


def clean_lines(text: str, counts: Counts | None, *, num_bytes: int) -> list[str]:
    """Lines of a text that begins where a line does, cleaned as said above, with their line ends.

    ``num_bytes``: how many bytes of UTF-8 it is.
    """
    cleaned = cleaned_text(text)
    lines = io.StringIO(cleaned, newline="\n").readlines()  # split at LF alone, which keeps its place
    if counts is not None:
        counts.bytes += num_bytes
        counts.lines += cleaned.count("\n")
        counts.characters += len(cleaned)
        counts.words += count_words(cleaned)
        if len(cleaned) != len(text):
            returns = text.count("\r")
            counts.carriage_returns += returns
            if returns > text.count("\r\n"):
                counts.inner_carriage_returns += sum(1 for _ in _INNER_RETURN.finditer(text))
            counts.nulls += text.count("\0")
            counts.byte_order_marks += text.count("\ufeff")
    return lines


_SPACES = np.array([chr(byte).isspace() for byte in range(128)])


def count_words(text: str) -> int:
    """``len(text.split())``; without making the words where all is ASCII."""
    if not text.isascii() or not text:
        return len(text.split())
    spaces = _SPACES[np.frombuffer(text.encode(), dtype=np.uint8)]
    return int(np.count_nonzero(spaces[:-1] & ~spaces[1:])) + (not spaces[0])


def cleaned_text(text: str) -> str:
    """``text`` without what is removed from every text."""
    unclean = "\r" in text or "\0" in text or "\ufeff" in text
    return text.translate(_REMOVED) if unclean else text


def split_at_blank_lines(blocks: Iterable[list[str]], *, counts: Counts | None = None) -> Iterator[Document]:
    """Documents of the lines of one file, each ended by a blank line; a document without any text is none."""
    lines: list[str] = []  # of the document that is read
    begun = False  # whether parts of it were given out
    for block in blocks:
        start = 0
        for blank in [number for number, line in enumerate(block) if line.isspace()]:
            lines += block[start:blank]
            start = blank + 1
            if lines or begun:
                yield _counted(Document(lines), counts)
                lines, begun = [], False
        lines += block[start:]
        if lines and sum(map(len, lines)) >= PART_CHARACTERS:
            yield Document(lines, complete=False)
            lines, begun = [], True
    if lines or begun:
        yield _counted(Document(lines), counts)


def split_documents(
    lines: Iterable[str],
    *,
    separator: str,
    place: Callable[[int], str] = "line {:,}".format,
    counts: Counts | None = None,
) -> Iterator[Document]:
    """Documents of the lines of one file, where ``separator`` is ``line``, ``two_columns`` or ``file``.

    A document without any text is none. Blank lines are part of a document only where the separator is ``file``.
    ``place`` says where the n-th of the lines, from 1, is found.

    Raises:
        UsageError: for a line that is not two columns where all should be.
    """
    document, size, has_text, begun = Document(), 0, False, False
    for number, line in enumerate(lines, start=1):
        blank = not line.strip()
        if separator == "two_columns":
            if not blank or "\t" in line:
                yield _counted(Document(two_columns(line, number, place)), counts)
            continue
        if separator == "line":
            if not blank:
                yield _counted(Document([line.rstrip("\n")]), counts)
            continue
        document.lines.append(line)
        size += len(line)
        has_text = has_text or not blank
        if size >= PART_CHARACTERS and (begun or has_text):
            document.complete = False
            yield document
            document, size, begun = Document(), 0, True
    if begun or has_text:
        yield _counted(document, counts)


def two_columns(line: str, number: int, place: Callable[[int], str]) -> list[str]:
    """Source and target of a line; ``number`` and ``place`` as in :func:`split_documents`, for the refusal."""
    columns = line.rstrip("\n").split("\t")
    if len(columns) != 2 or not all(map(str.strip, columns)):
        has = f"has {len(columns) - 1} tabs"
        if len(columns) == 2:
            has = f"has no {'target' if columns[0].strip() else 'source'}"
        raise UsageError(
            f"{place(number)}: {has}; with corpus.document_separator two_columns every line is a source, one tab and "
            "a target"
        )
    return columns


def vocabulary_lines(lines: Iterable[str], *, separator: str) -> Iterator[str]:
    """Of a corpus' lines, what its documents are made of: without line ends or tabs where these separate."""
    for line in lines:
        if separator == "line":
            yield line.rstrip("\n")
        elif separator == "two_columns":
            yield from line.rstrip("\n").split("\t")
        else:
            yield line


def _counted(document: Document, counts: Counts | None) -> Document:
    if counts is not None:
        counts.documents += 1
    return document
