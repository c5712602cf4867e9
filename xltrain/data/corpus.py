"""Raw text files as documents of lines.

Treatment of what text files contain, the same in vocabulary training, tokenising and evaluation:

- UTF-8 is checked, not guessed; anything else is refused, by file and byte.
- Lines end at LF only. CR, NUL and U+FEFF (byte-order mark) are removed wherever they stand.
- Other separators (U+2028, form feed, ...) are ordinary characters.
- A line of white space only counts as blank.
"""

import glob
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Protocol

from xltrain.errors import UsageError

BLOCK = 1 << 20
PIECE_BYTES = 32 << 20
"""A plain text file is cut into pieces of about this size, so that several processes can read it."""
PART_CHARACTERS = 4_000_000
"""A document longer than this comes in several parts; bounds the memory that its lines take."""
_REMOVED = str.maketrans("", "", "\r\0\ufeff")
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd", b"PK\x03\x04": "zip"}


@dataclass
class Counts:
    """What a text holds. ``lines`` as `wc -l` counts them; ``characters`` include line ends, ``bytes`` are raw."""

    documents: int = 0
    lines: int = 0
    bytes: int = 0
    characters: int = 0
    words: int = 0


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
    """Bytes ``start`` to ``stop`` of a text file, cut where a document ends."""

    path: Path
    start: int
    stop: int
    separator: str

    @property
    def size(self) -> int:
        return self.stop - self.start

    def documents(self, counts: Counts | None = None) -> Iterator[Document]:
        return split_documents(self.lines(counts), separator=self.separator, place=self._line, counts=counts)

    def lines(self, counts: Counts | None = None) -> Iterator[str]:
        return read_lines(self.path, counts, start=self.start, stop=self.stop)

    def _line(self, number: int) -> str:
        with self.path.open("rb") as file:
            before = sum(block.count(b"\n") for block in _blocks(file, self.start))
        return f"{self.path}, line {before + number:,}"


def cut_file(path: Path, *, separator: str, size: int | None = None) -> list[TextPiece]:
    """Pieces of about ``size`` bytes (:data:`PIECE_BYTES`), or of one document where that is longer.

    Only the text around the cuts is read. With ``separator`` ``file`` there is nothing to cut.
    """
    total, size = path.stat().st_size, size or PIECE_BYTES
    bounds = [0]
    if separator != "file":
        with path.open("rb") as file:
            while bounds[-1] + size < total:
                bounds.append(_next_cut(file, bounds[-1] + size, separator))
    if bounds[-1] < total or total == 0:
        bounds.append(total)
    return [TextPiece(path, *ends, separator) for ends in pairwise(bounds)]


def _blocks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The next ``size`` bytes, a block at a time."""
    while block := file.read(min(BLOCK, size)):
        size -= len(block)
        yield block


def _next_cut(file: BinaryIO, place: int, separator: str) -> int:
    """The first place after ``place`` behind which a new document may begin, or the end of the file."""
    file.seek(place)
    file.readline()  # a line that may have begun before
    if separator in ("line", "two_columns"):
        return file.tell()
    while (line := file.readline()) and not _is_blank(line):
        pass
    return file.tell()


def _is_blank(line: bytes) -> bool:
    if b" " < line[:1] < b"\x7f":
        return False
    return not _cleaned(line.decode("utf-8", errors="replace")).strip()


def find_files(patterns: Sequence[str], *, key: str) -> list[Path]:
    """Files of paths and globs, in the order of the patterns and sorted within each; a file counts once.

    Raises:
        UsageError: naming every pattern that matches no file.
    """
    found: dict[Path, None] = {}
    missing = []
    for pattern in patterns:
        path = Path(pattern).expanduser()
        matches = [path] if path.is_file() else sorted(map(Path, glob.glob(str(path), recursive=True)))  # noqa: PTH207
        matches = [match for match in matches if match.is_file()]
        if not matches:
            missing.append(pattern)
        found.update(dict.fromkeys(matches))
    if missing:
        raise UsageError(f"{key}: no file matches {', '.join(missing)} (working directory {Path.cwd()})")
    return list(found)


def check_readable(path: Path) -> None:
    """Refuse what is plainly not UTF-8 text.

    Raises:
        UsageError: naming the file and what it looks like.
    """
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    for magic, name in _COMPRESSED.items():
        if head.startswith(magic):
            raise UsageError(f"{path}: a {name} file, not text; unpack it first")
    if head.startswith(b"BZh") and head[4:10] == b"1AY&SY":  # "BZh" alone could begin a text
        raise UsageError(f"{path}: a bzip2 file, not text; unpack it first")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or head.count(0) * 10 > len(head):
        raise UsageError(f"{path}: not UTF-8, it looks like UTF-16 or UTF-32; convert it with iconv -t UTF-8")


def digest(path: Path) -> str:
    """Fingerprint of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def read_lines(path: Path, counts: Counts | None = None, *, start: int = 0, stop: int | None = None) -> Iterator[str]:
    """Lines of a UTF-8 file, cleaned as said above, with their line ends.

    ``start`` and ``stop`` (the end of the file by default) are bytes, and must be where lines begin.

    Raises:
        UsageError: naming the file and the first byte that is not UTF-8.
    """
    check_readable(path)
    with path.open("rb") as file:
        done = file.seek(start)
        while block := file.read(BLOCK if stop is None else min(BLOCK, stop - done)):
            if done + len(block) != stop:
                block += file.readline()
            try:
                text = _cleaned(block.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise UsageError(
                    f"{path}: not UTF-8 text (byte {done + error.start} is 0x{block[error.start]:02x}); "
                    "convert it with iconv -t UTF-8"
                ) from None
            done += len(block)
            lines = text.split("\n")
            last = lines.pop()
            if counts is not None:
                counts.bytes += len(block)
                counts.lines += len(lines)
                counts.characters += len(text)
                counts.words += len(text.split())
            for line in lines:
                yield line + "\n"
            if last:
                yield last


def _cleaned(text: str) -> str:
    unclean = "\r" in text or "\0" in text or "\ufeff" in text
    return text.translate(_REMOVED) if unclean else text


def read_documents(paths: Iterable[Path], *, separator: str, counts: Counts | None = None) -> Iterator[Document]:
    """Documents of files, ended as ``separator`` (corpus.document_separator) says and at the end of every file."""
    for path in paths:

        def place(number: int, path: Path = path) -> str:
            return f"{path}, line {number:,}"

        yield from split_documents(read_lines(path, counts), separator=separator, place=place, counts=counts)


def split_documents(
    lines: Iterable[str],
    *,
    separator: str,
    place: Callable[[int], str] = "line {:,}".format,
    counts: Counts | None = None,
) -> Iterator[Document]:
    """Documents of the lines of one file.

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
        if separator == "blank_line" and blank:
            if begun or has_text:
                yield _counted(document, counts)
            document, size, has_text, begun = Document(), 0, False, False
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
