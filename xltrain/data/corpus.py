"""Raw text files as documents of lines.

Treatment of what text files contain, the same in vocabulary training, tokenising and evaluation:

- UTF-8 is checked, not guessed; anything else is refused, by file and byte.
- Lines end at LF only. CR, NUL and U+FEFF (byte-order mark) are removed wherever they stand.
- Other separators (U+2028, form feed, ...) are ordinary characters.
- A line of white space only counts as blank.
"""

import glob
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from xltrain.errors import UsageError

BLOCK = 1 << 20
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
    """Lines of one document, each with its line end where it has one."""

    lines: list[str] = field(default_factory=list)


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


def read_lines(path: Path, counts: Counts | None = None) -> Iterator[str]:
    """Lines of a UTF-8 file, cleaned as said above, with their line ends.

    Raises:
        UsageError: naming the file and the first byte that is not UTF-8.
    """
    check_readable(path)
    done = 0
    with path.open("rb") as file:
        while raw := file.readlines(BLOCK):
            block = b"".join(raw)
            try:
                text = block.decode("utf-8")
            except UnicodeDecodeError as error:
                raise UsageError(
                    f"{path}: not UTF-8 text (byte {done + error.start} is 0x{block[error.start]:02x}); "
                    "convert it with iconv -t UTF-8"
                ) from None
            done += len(block)
            text = text.translate(_REMOVED) if _unclean(text) else text
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


def _unclean(text: str) -> bool:
    return "\r" in text or "\0" in text or "\ufeff" in text


def read_documents(paths: Iterable[Path], *, separator: str, counts: Counts | None = None) -> Iterator[Document]:
    """Documents of files, ended as ``separator`` (corpus.document_separator) says and at the end of every file.

    A document without any text is none. Blank lines are part of a document only where the separator is ``file``.
    """
    for path in paths:
        document = Document()
        for line in read_lines(path, counts):
            blank = not line.strip()
            if separator == "line":
                if not blank:
                    yield _counted(Document([line.rstrip("\n")]), counts)
            elif separator == "blank_line" and blank:
                if document.lines:
                    yield _counted(document, counts)
                    document = Document()
            else:
                document.lines.append(line)
        if any(line.strip() for line in document.lines):
            yield _counted(document, counts)


def _counted(document: Document, counts: Counts | None) -> Document:
    if counts is not None:
        counts.documents += 1
    return document
