"""Files here and elsewhere: found by pattern in a stable order, opened, unpacked, and known again by their content."""

import bz2
import codecs
import glob
import gzip
import hashlib
import io
import lzma
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from xltrain.errors import UsageError

HEAD = 4096
"""Bytes from the beginning of a file that show what it is."""

ONE_TABLE, SPLIT_TABLES = "state.json", "dataset_dict.json"
"""File in a folder that ``datasets`` wrote: of a table without splits, and of one with splits."""

SAVED = ("dataset_info.json", SPLIT_TABLES)
"""Files by which a folder that ``datasets`` wrote is known."""

_PACKED = {b"\x1f\x8b": "gzip", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd"}
_BZIP2 = (b"1AY&SY", b"\x17rE8P\x90")  # the first block, or none; "BZh" alone could begin a text
_BETWEEN = " \n\r\t\u3000\u3001\u3002\uff0c"
"""What stands between words and sentences of any script; in UTF-16 a byte of each is one that text hardly has."""
_IDENTIFYING = ("ETag", "etag", "md5Hash", "content_md5", "checksum")
"""What storage systems call the mark of a file's content (S3 and HTTP, Google, Azure, others)."""


@dataclass(frozen=True)
class RemoteFile:
    """A file behind an address that fsspec knows, such as ``s3://bucket/a.txt``."""

    address: str

    @property
    def name(self) -> str:
        return self.address.rstrip("/").rpartition("/")[2]

    def __str__(self) -> str:
        return self.address

    def information(self) -> dict[str, Any]:
        system, path = _system(self.address)
        return dict(system.info(path))

    def open(self) -> BinaryIO:
        system, path = _system(self.address)
        return cast(BinaryIO, system.open(path, "rb"))


AnyFile = Path | RemoteFile


class FaultyFile(UsageError):
    """A file of text that cannot be used; whoever knows which key names it puts that before the sentence."""


@contextmanager
def named_by(key: str) -> Iterator[None]:
    """Add to a :class:`FaultyFile` of this block which key of the configuration, or which option, names it."""
    try:
        yield
    except FaultyFile as error:
        raise UsageError(f"{key}: {error}") from None


def _system(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it.

    Raises:
        FaultyFile: if no file system of that name is known, or its package is not installed.
    """
    import fsspec

    try:
        return fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:  # fsspec's own words name the package, or the protocols that it knows
        raise FaultyFile(f"{address}: cannot be reached ({error})") from None


def find_files(patterns: Sequence[str], *, key: str) -> list[AnyFile]:
    """Files of paths, addresses and globs, in the order of the patterns and sorted within each; a file counts once.

    Raises:
        UsageError: naming every pattern that matches no file.
    """
    return list(dict.fromkeys(file for files in find_each(patterns, key=key) for file in files))


def find_each(patterns: Sequence[str], *, key: str) -> list[list[AnyFile]]:
    """The files of each pattern, sorted; raises as :func:`find_files` does."""
    with named_by(key):
        found = [_remote(pattern) if "://" in pattern else _local(pattern) for pattern in patterns]
    missing = [pattern for pattern, files in zip(patterns, found, strict=True) if not files]
    folders = [pattern for pattern in missing if Path(pattern).expanduser().is_dir()]
    if folders:
        saved = [folder for folder in folders if any((Path(folder) / name).is_file() for name in SAVED)]
        if saved:
            raise UsageError(f"{key}: {saved[0]} is a saved dataset; in a configuration it is {{dataset: {saved[0]}}}")
        raise UsageError(f"{key}: {', '.join(folders)} is a folder; name files in it, such as {folders[0]}/*.txt")
    if other := [pattern for pattern in missing if Path(pattern).expanduser().exists()]:
        raise UsageError(
            f"{key}: {', '.join(other)} is not a regular file, and text is read more than once; give a file, or in "
            "corpus.train for the command prepare '-', standard input"
        )
    if missing:
        raise UsageError(f"{key}: no file matches {', '.join(missing)} (working directory {Path.cwd()})")
    return found


def _local(pattern: str) -> list[AnyFile]:
    path = Path(pattern).expanduser()
    matches = [path] if path.is_file() else sorted(map(Path, glob.glob(str(path), recursive=True)))  # noqa: PTH207
    return [match for match in matches if match.is_file()]


def _remote(pattern: str) -> list[AnyFile]:
    """A local address (``file://``) becomes a path, so that it is the same file under either name."""
    system, path = _system(pattern)
    try:
        names = [path] if system.isfile(path) else sorted(system.glob(path))
        names = [name for name in names if system.isfile(name)]
    except Exception as error:  # every file system has exceptions of its own
        raise FaultyFile(f"{pattern}: cannot be reached ({_one_line(error)})") from None
    if "file" in ((system.protocol,) if isinstance(system.protocol, str) else system.protocol):
        return [Path(name) for name in names]
    return [RemoteFile(system.unstrip_protocol(name)) for name in names]


def file_size(file: AnyFile) -> int:
    """Bytes of a file as it is stored."""
    return file.stat().st_size if isinstance(file, Path) else int(file.information().get("size") or 0)


def open_raw(file: AnyFile) -> BinaryIO:
    return file.open("rb") if isinstance(file, Path) else file.open()


@contextmanager
def reading(file: AnyFile) -> Iterator[BinaryIO]:
    """The content of a file, unpacked where its first bytes say that it is compressed.

    Raises:
        FaultyFile: if it cannot be read, here or in the middle of the block of the ``with``.
    """
    packed = None
    try:
        with open_raw(file) as raw:
            packed = compression(raw.read(HEAD))
            raw.seek(0)
            with _unpacked(raw, packed) as content:
                yield content
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        if packed is None:
            raise FaultyFile(f"{file}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
        raise FaultyFile(f"{file}: a {packed} file that is damaged or cut short ({_one_line(error)})") from None


def _unpacked(raw: BinaryIO, packed: str | None) -> BinaryIO:
    if packed == "gzip":
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    if packed == "bzip2":
        return cast(BinaryIO, bz2.BZ2File(raw))
    if packed == "xz":
        return cast(BinaryIO, lzma.LZMAFile(raw))
    if packed == "zstd":
        import pyarrow

        return io.BufferedReader(pyarrow.CompressedInputStream(raw, "zstd"), 1 << 20)
    return raw


def compression(head: bytes) -> str | None:
    """How the file that begins with ``head`` is compressed; None: not at all."""
    for magic, name in _PACKED.items():
        if head.startswith(magic):
            return name
    return "bzip2" if head.startswith(b"BZh") and head[4:10] in _BZIP2 else None


def beginning(file: AnyFile) -> bytes:
    """The first bytes of a file's content, unpacked."""
    with reading(file) as content:
        return content.read(HEAD)


def is_packed(file: AnyFile) -> bool:
    with open_raw(file) as raw:
        return compression(raw.read(HEAD)) is not None


def check_text(file: AnyFile, head: bytes) -> None:
    """Refuse a file whose content, by its beginning, is plainly not UTF-8 text.

    Raises:
        FaultyFile: naming the file and what it looks like.
    """
    if head.startswith(b"PK\x03\x04"):
        raise FaultyFile(f"{file}: a zip file, not text; unpack it first")
    if compression(head) is not None:
        raise FaultyFile(f"{file}: a {compression(head)} file within another one; unpack it first")
    if (wide := _wide_encoding(head)) is not None:
        raise FaultyFile(f"{file}: not UTF-8, it looks like {wide}; convert it with iconv -f {wide} -t UTF-8")
    if head.count(0) * 10 > len(head):
        raise FaultyFile(
            f"{file}: not text, {head.count(0):,} of its first {len(head):,} bytes are NUL; it is damaged, or of "
            "another format"
        )


def way_to_convert(error: UnicodeDecodeError) -> str:
    """What to do with text that is not UTF-8, as ``error`` found."""
    sample = error.object
    likely = ""
    pairs = re.findall(rb"[\xa1-\xf7][\xa1-\xfe]", sample)
    if len(pairs) * 2 >= 0.9 * len(re.findall(rb"[\x80-\xff]", sample)):  # as in GB 2312, which nearly all of it is
        with suppress(UnicodeDecodeError):
            sample.decode("gb18030")
            likely = " (GB18030, if it is Chinese)"
    return f"convert it with iconv -f ENCODING -t UTF-8, ENCODING being the one that it is in{likely}"


def _wide_encoding(head: bytes) -> str | None:
    """UTF-32 or UTF-16, if the file that begins with ``head`` says so, or has zeros where these have them."""
    if head.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        return "UTF-32"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16"
    if head.count(0) * 10 <= len(head):
        return _utf16_of_other_scripts(head)
    quarter = len(head) // 4
    first, second, third, fourth = (head[place : 4 * quarter : 4].count(0) for place in range(4))
    if first < quarter == third == fourth or fourth < quarter == first == second:
        return "UTF-32LE" if first < quarter else "UTF-32BE"
    even, odd = first + third, second + fourth
    if min(even, odd) * 20 <= max(even, odd):
        return "UTF-16BE" if even > odd else "UTF-16LE"
    return None


def _utf16_of_other_scripts(head: bytes) -> str | None:
    """UTF-16 without many zeros, as that of Chinese or Russian text is: hardly any byte of it is zero.

    It is no UTF-8, or more than a third of it are control characters; and read as UTF-16 it is characters of some
    script, with spaces, line ends or punctuation among them, whose bytes hardly any text in another encoding has.
    """
    with suppress(UnicodeDecodeError):
        codecs.getincrementaldecoder("utf-8")().decode(head)  # whose last character may be cut
        if sum(byte < 32 for byte in head) * 3 <= len(head):
            return None
    for name in ("UTF-16LE", "UTF-16BE"):
        with suppress(UnicodeDecodeError):
            text = codecs.getincrementaldecoder(name)().decode(head)
            between = sum(map(text.count, _BETWEEN))
            kinds = Counter(unicodedata.category(character) for character in text)
            none = kinds["Co"] + kinds["Cn"] + kinds["Cc"] - sum(map(text.count, "\n\r\t"))
            if between > 0 and none * 100 <= len(text) <= between * 200:
                return name
    return None


def digest(file: AnyFile) -> str:
    """Fingerprint of a file's bytes; of a remote file, what its storage calls the mark of its content, if it has one.

    Raises:
        FaultyFile: if the file cannot be read.
    """
    if isinstance(file, RemoteFile):
        information = file.information()
        marks = [str(information[name]) for name in _IDENTIFYING if information.get(name)]
        if marks:
            return f"{marks[0]} {information.get('size')}"
    try:
        with open_raw(file) as raw:
            return hashlib.file_digest(raw, lambda: hashlib.blake2b(digest_size=16)).hexdigest()  # type: ignore[arg-type]
    except OSError as error:
        raise FaultyFile(f"{file}: cannot be read ({error.strerror or error})") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
