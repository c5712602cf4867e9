"""Texts that come as records: JSON Lines, Parquet, and Hugging Face datasets.

A record's text is cleaned as any other text is. With ``document_separator`` ``blank_line`` or ``record`` every record
is a document, blank lines included; with ``line`` every line of it is one; with ``file`` all records of a file, or of
a dataset, follow one another as lines of one document.
"""

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from shutil import copyfileobj
from typing import Any, BinaryIO, Protocol, cast

from xltrain.data.corpus import (
    PACKED,
    PIECE_BYTES,
    Counts,
    Document,
    clean_lines,
    cleaned_text,
    cut_bytes,
    decoded,
    split_documents,
)
from xltrain.data.files import AnyFile, FaultyFile, file_size, is_packed, open_raw, reading

BATCH = 1_000
"""Records that are taken from a table at once."""

_AROUND = b" \t\r\n\0\xef\xbb\xbf"
"""White space, and what is removed from text: what may stand around a record."""
_LOOKED_AT = 10
"""So many lines show whether a file holds records; two are enough where these are long."""
_LONG, _LONGEST = 64 << 10, 16 << 20
"""Bytes of the lines that are looked at: beyond the first two no more than these, and no more than those in all."""


class Records(Protocol):
    """Some of the records of a source; picklable."""

    def texts(self) -> Iterator[str | None]:
        """The text of each, or None where it has none."""
        ...


@dataclass(frozen=True)
class RecordPiece:
    """A piece of a source that holds records."""

    name: str
    records: Records
    separator: str
    size: int

    def documents(self, counts: Counts | None = None) -> Iterator[Document]:
        if self.separator == "file":
            yield from split_documents(self.lines(counts), separator="file", counts=counts)
            return
        inside = self.separator if self.separator in ("line", "two_columns") else "file"
        for text in self._counted(counts):

            def place(number: int, text: str = text) -> str:
                return f"{self.name}, line {number:,} of the record that begins {text[:40]!r}"

            lines = clean_lines(text, counts, num_bytes=len(text.encode()))
            yield from split_documents(lines, separator=inside, place=place, counts=counts)

    def lines(self, counts: Counts | None = None) -> Iterator[str]:
        for text in self._counted(counts):
            joined = text if self.separator != "file" or text.endswith("\n") else text + "\n"
            yield from clean_lines(joined, counts, num_bytes=len(joined.encode()))

    def _counted(self, counts: Counts | None) -> Iterator[str]:
        """Texts of the records; those without any are counted and left out, except where they are blank lines."""
        for text in self.records.texts():
            if text is not None and (self.separator == "file" or cleaned_text(text).strip()):
                yield text
            elif counts is not None:
                counts.empty_records += 1


# --- JSON Lines


@dataclass(frozen=True)
class JsonLines:
    """Lines between two places of a file, each a JSON object with the text in ``field``."""

    path: AnyFile
    field: str
    start: int = 0
    stop: int | None = None

    def texts(self) -> Iterator[str | None]:
        with reading(self.path) as file:
            place = file.seek(self.start) if self.start else 0
            while place != self.stop and (line := file.readline()):
                if line.strip(_AROUND):
                    yield self._text(line, place)
                place += len(line)

    def _text(self, line: bytes, place: int) -> str | None:
        where = f"{self.path}: the record at byte {place}"
        try:
            record = json.loads(decoded(line, name=str(self.path), place=place).strip("\ufeff\0 \t\r\n"))
        except (ValueError, RecursionError) as error:
            raise FaultyFile(f"{where} is not JSON ({error}); each line has to hold one object") from None
        if not isinstance(record, dict):
            raise FaultyFile(f"{where} is {_kind(record)}, not an object such as {{'{self.field}': '...'}}")
        if self.field not in record:
            raise FaultyFile(f"{where} has no '{self.field}', {_choice(list(record))}")
        return checked_text(record[self.field], f"{where}, '{self.field}'")


def fields_of_text(file: AnyFile, head: bytes, *, wanted: str) -> list[str]:
    """Fields that hold text, of a file whose first lines are all JSON objects; of any other file, none.

    One line alone may be anything; it has to hold the field ``wanted``. Of a file that does not begin like an object,
    nothing is read but ``head``, its beginning.
    """
    if not head.lstrip(_AROUND).startswith(b"{"):
        return []
    lines = list(_first_lines(file))
    try:
        records = [json.loads(line.decode().strip("\ufeff\0 \t\r\n")) for line in lines]
    except (ValueError, RecursionError):
        return []
    if not all(isinstance(record, dict) for record in records):
        return []
    fields = dict.fromkeys(name for record in records for name, value in record.items() if isinstance(value, str))
    common = [name for name in fields if all(name in record for record in records)]
    return common if len(records) > 1 or wanted in common else []


def begins_array(head: bytes, *, wanted: str) -> bool:
    """Whether a file that begins with ``head`` seems to hold a JSON array of objects with text in ``wanted``."""
    field = re.escape(json.dumps(wanted, ensure_ascii=False).encode())
    begins = re.match(rb'[\s\xef\xbb\xbf]*\[\s*\{\s*"', head)
    return begins is not None and re.search(field + rb'\s*:\s*"', head) is not None


def _first_lines(file: AnyFile) -> Iterator[bytes]:
    """The first lines that are not blank, whole ones only."""
    found, place = 0, 0
    with reading(file) as content:
        while found < _LOOKED_AT and (found < 2 or place < _LONG):
            line = content.readline(_LONGEST - place)
            place += len(line)
            if not line or (place == _LONGEST and not line.endswith(b"\n")):
                return
            if line.strip(_AROUND):
                found += 1
                yield line


def json_pieces(path: AnyFile, *, field: str, separator: str, size: int | None = None) -> list[RecordPiece]:
    """Pieces of about ``size`` bytes of a JSON Lines file; one if it is compressed, or one document."""
    if is_packed(path):
        return [RecordPiece(str(path), JsonLines(path, field), separator, size=PACKED * file_size(path))]
    bounds = cut_bytes(path, at="start" if separator == "file" else "line", size=size or PIECE_BYTES)
    return [
        RecordPiece(str(path), JsonLines(path, field, *ends), separator, size=ends[1] - ends[0])
        for ends in pairwise(bounds)
    ]


# --- Parquet


@dataclass(frozen=True)
class RowGroups:
    """Row groups of a Parquet file, with the text in the column ``field``."""

    path: AnyFile
    field: str
    groups: tuple[int, ...]

    def texts(self) -> Iterator[str | None]:
        with _table(self.path) as table:
            batches = table.iter_batches(batch_size=BATCH, row_groups=list(self.groups), columns=[self.field])
            for batch in batches:
                for value in batch.column(0):
                    yield checked_text(_python_value(value, self.path), f"{self.path}, column '{self.field}'")


def _python_value(value: Any, path: AnyFile) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        raise FaultyFile(f"{path}: not UTF-8 text ({error.reason} in {error.object[:20]!r})") from None


@contextmanager
def _table(path: AnyFile) -> Iterator[Any]:
    """The Parquet file, unpacked first where it is compressed as a whole.

    Raises:
        FaultyFile: if it is not Parquet, here or where its pages are read.
    """
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    with tempfile.TemporaryFile() as unpacked, open_raw(path) as raw:
        file: BinaryIO = raw
        if is_packed(path):
            with reading(path) as content:
                copyfileobj(content, unpacked)
            file = cast(BinaryIO, unpacked)
        try:
            yield ParquetFile(file)
        except (ArrowException, OSError) as error:
            raise FaultyFile(f"{path}: a Parquet file that cannot be read ({' '.join(str(error).split())})") from None


def parquet_pieces(path: AnyFile, *, field: str, separator: str, size: int | None = None) -> list[RecordPiece]:
    """Pieces of whole row groups, of about ``size`` bytes of text each.

    Raises:
        FaultyFile: if there is no such column, or it holds no text.
    """
    size = size or PIECE_BYTES
    with _table(path) as table:
        _check_column(table, path, field)
        column = next(
            number for number in range(table.metadata.num_columns) if table.schema.column(number).path == field
        )
        sizes = [
            table.metadata.row_group(number).column(column).total_uncompressed_size
            for number in range(table.metadata.num_row_groups)
        ]
    groups: list[list[int]] = [[]]
    held = 0
    for number, bytes_of_group in enumerate(sizes):
        if held >= size and separator != "file":
            groups.append([])
            held = 0
        groups[-1].append(number)
        held += bytes_of_group
    return [
        RecordPiece(
            str(path), RowGroups(path, field, tuple(group)), separator, size=sum(sizes[number] for number in group)
        )
        for group in groups
    ]


def _check_column(table: Any, path: AnyFile, field: str) -> None:
    import pyarrow

    names = table.schema_arrow.names
    if field not in names:
        raise FaultyFile(f"{path}: has no column '{field}', {_choice(names)}")
    kind = table.schema_arrow.field(field).type
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind) or str(kind) == "string_view"):
        raise FaultyFile(f"{path}: column '{field}' holds {kind}, not text; {_choice(names)}")


# --- what all have in common


def checked_text(value: Any, where: str) -> str | None:
    """``value``, which has to be text or nothing.

    Raises:
        FaultyFile: if it is neither, or half of a surrogate pair, which is no character.
    """
    if value is None:
        return None
    if not isinstance(value, str):
        raise FaultyFile(f"{where} is {_kind(value)}, not text; name the field with the text by corpus.text_field")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise FaultyFile(f"{where} holds {value[error.start]!r}, half of a surrogate pair; it is not text") from None
    return value


def _choice(names: list[str]) -> str:
    listed = ", ".join(map(str, names[:8])) + (", ..." if len(names) > 8 else "")
    return f"only {listed or 'nothing'}; name the field with the text by corpus.text_field"


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", bool: "true or false", int: "a number", float: "a number"}.get(
        type(value), "null" if value is None else f"of type {type(value).__name__}"
    )
