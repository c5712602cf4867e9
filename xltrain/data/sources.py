"""What an entry of ``corpus.train``, ``corpus.validation`` or ``corpus.test`` stands for.

A source gives *pieces*, which any process can read on its own; all of them in order are the whole source. Everything
that reads text, from the vocabulary to perplexity, reads it through sources.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from xltrain import console
from xltrain.config.text import CorpusConfig, SourceConfig
from xltrain.data.corpus import Counts, Document, Piece, cut_file
from xltrain.data.digests import Digests
from xltrain.data.files import AnyFile, beginning, check_text, find_each, find_files, named_by
from xltrain.data.records import begins_array, fields_of_text, json_pieces, parquet_pieces
from xltrain.errors import UsageError

STANDARD_INPUT = "-"
_PACKED_SUFFIXES = (".gz", ".xz", ".zst", ".bz2")
_JSON_SUFFIXES = (".jsonl", ".ndjson")


class Source(Protocol):
    """Text from one place."""

    @property
    def name(self) -> str:
        """For messages."""
        ...

    def mark(self, digests: Digests) -> Any:
        """Plain data that differs where any byte of the content does, or how it is read; never the place it lies."""
        ...

    def pieces(self) -> list[Piece]: ...


@dataclass(frozen=True)
class FileSource:
    """One file: plain text, JSON Lines or Parquet."""

    file: AnyFile
    format: str
    field: str
    separator: str

    @property
    def name(self) -> str:
        return str(self.file)

    def mark(self, digests: Digests) -> Any:
        content = digests.of(self.file)
        return content if self.format == "text" else [self.format, self.field, content]

    def pieces(self) -> list[Piece]:
        if self.format == "jsonl":
            return list(json_pieces(self.file, field=self.field, separator=self.separator))
        if self.format == "parquet":
            return list(parquet_pieces(self.file, field=self.field, separator=self.separator))
        return list(cut_file(self.file, separator=self.separator))


@dataclass(frozen=True)
class SampledSource:
    """Some documents of another source: those whose hash falls into ``share``."""

    source: Source
    share: float
    seed: int

    @property
    def name(self) -> str:
        return self.source.name

    def mark(self, digests: Digests) -> Any:
        return self.marked(self.source.mark(digests))

    def marked(self, source: Any) -> Any:
        """Its mark, from that of its source."""
        return ["sampled", self.share, self.seed, source]

    def pieces(self) -> list[Piece]:
        return [SampledPiece(piece, self.share, self.seed) for piece in self.source.pieces()]


@dataclass(frozen=True)
class SampledPiece:
    """Some documents of a piece. A document is taken by its own text, so that it does not matter how text is cut."""

    piece: Piece
    share: float
    seed: int

    @property
    def size(self) -> int:
        return max(1, round(self.piece.size * self.share))

    def documents(self, counts: Counts | None = None) -> Iterator[Document]:
        whole = Counts()
        taken: bool | None = None  # of the document whose parts are coming
        for document in self.piece.documents(whole):
            if taken is None:
                taken = self._takes(document)
            if taken:
                _count(document, counts)
                yield document
            elif document.complete and counts is not None:
                counts.unsampled_documents += 1
            if document.complete:
                taken = None
        if counts is not None:
            for name in whole.dropped():
                setattr(counts, name, getattr(counts, name) + getattr(whole, name))

    def lines(self, counts: Counts | None = None) -> Iterator[str]:
        for document in self.documents(counts):
            yield from document.lines

    def _takes(self, document: Document) -> bool:
        key = self.seed.to_bytes(8, "little")
        drawn = hashlib.blake2b("".join(document.lines).encode(), digest_size=8, key=key).digest()
        return int.from_bytes(drawn, "little") < self.share * 2**64


def _count(document: Document, counts: Counts | None) -> None:
    if counts is None:
        return
    counts.documents += document.complete
    for line in document.lines:
        counts.lines += line.endswith("\n")
        counts.bytes += len(line.encode())
        counts.characters += len(line)
        counts.words += len(line.split())


def find_sources(
    entries: Sequence[str | SourceConfig], corpus: CorpusConfig, *, key: str, split: str = "train"
) -> list[Source]:
    """The sources of a list of entries, in its order.

    Raises:
        UsageError: for what is not there, cannot be read, or is plainly no text; nothing has been written by then.
    """
    whole = [entry if isinstance(entry, SourceConfig) else SourceConfig(files=[entry]) for entry in entries]
    if any(STANDARD_INPUT in entry.files for entry in whole):
        raise UsageError(f"{key}: '-', standard input, is for the command prepare; name a file here")
    found_plain = iter(find_each([entry for entry in entries if isinstance(entry, str)], key=key))
    sources: list[Source] = []
    seen: dict[AnyFile, AnyFile] = {}
    for entry, given in zip(whole, entries, strict=True):
        if entry.dataset is not None:
            one: list[Source] = [_dataset(entry, corpus, key=key, split=split)]
        elif isinstance(given, str):
            one = _files(_new(next(found_plain), seen, key=key), entry, corpus, key=key)
        else:
            one = _files(_new(find_files(entry.files, key=key), {}, key=key), entry, corpus, key=key)
        sources += _weighted(one, entry, key=key)
    return sources


def _new(files: Sequence[AnyFile], seen: dict[AnyFile, AnyFile], *, key: str) -> list[AnyFile]:
    """Those of ``files`` that are not ``seen``, and adds them: a file that several patterns match counts once.

    So does one that is there under several names, by links to it or to its folder; that is told.
    """
    found: list[AnyFile] = []
    others: dict[AnyFile, AnyFile] = {}
    for file in files:
        place = file.resolve() if isinstance(file, Path) else file
        if (first := seen.setdefault(place, file)) is file:
            found.append(file)
        elif first != file:
            others[file] = first
    if others:
        one, first = next(iter(others.items()))
        console.say(f"{key}: left out {len(others):,} file(s) that are there under another name, as {one} is {first}")
    return found


def _files(files: Sequence[AnyFile], entry: SourceConfig, corpus: CorpusConfig, *, key: str) -> list[Source]:
    """The sources of an entry's files; says where records are taken for plain text."""
    found: list[Source] = []
    records: dict[AnyFile, list[str]] = {}
    arrays: list[AnyFile] = []
    sequences: list[AnyFile] = []
    with named_by(key):
        for file in files:
            head = beginning(file)
            source = _file(file, head, entry, corpus)
            if entry.format is None and source.format == "text":
                records[file] = fields_of_text(file, head, wanted=source.field)
                arrays += [file] if begins_array(head, wanted=source.field) else []
                sequences += [file] if _begins_fasta(head) else []
            found.append(source)
    if arrays:
        _warn_of_array(arrays[0], key=key)
    if sequences:
        _warn_of_fasta(sequences, entry, key=key)
    if suspected := [file for file, fields in records.items() if fields]:
        _warn_of_records(suspected, records[suspected[0]], entry, corpus, key=key)
    return found


def _begins_fasta(head: bytes) -> bool:
    """Whether a file that begins with ``head`` seems to hold sequences of letters, with a header above each."""
    lines = [line for line in head.removeprefix(b"\xef\xbb\xbf").splitlines() if line]
    letters = [re.fullmatch(rb"[A-Za-z*-]+", line) is not None for line in lines]
    begins = bool(lines) and lines[0].startswith(b">") and any(letters)
    return begins and all(line.startswith(b">") or found for line, found in zip(lines, letters, strict=True))


def _warn_of_fasta(files: Sequence[AnyFile], entry: SourceConfig, *, key: str) -> None:
    others = f" (and {len(files) - 1:,} more of {', '.join(entry.files)})" if len(files) > 1 else ""
    meant = "; if plain text is meant, say so by format: text" if key.startswith("corpus.") else ""
    console.warn(
        f"{key}: {files[0]}{others} seems to be FASTA, but is read as plain text, headers (>) and line breaks too; "
        "write one sequence per line and no headers, as the recipe of docs/data.md, 'Sequences that are no prose', does"
        f"{meant}"
    )


def _warn_of_array(file: AnyFile, *, key: str) -> None:
    ways = f"turn it into JSON Lines (jq -c '.[]' {file} > {file}.jsonl)"
    if key.startswith("corpus."):
        ways += (
            f", or write {{dataset: json, data_files: {file}, split: train}}; if plain text is meant, say so by "
            "format: text"
        )
    console.warn(
        f"{key}: {file} seems to be a JSON array of records, but is read as plain text, braces and names of fields "
        f"too; to read only the text in it, {ways}"
    )


def _warn_of_records(
    files: Sequence[AnyFile], fields: list[str], entry: SourceConfig, corpus: CorpusConfig, *, key: str
) -> None:
    others = f" (and of {len(files) - 1:,} more of {', '.join(entry.files)})" if len(files) > 1 else ""
    known = (entry.text_field or corpus.text_field) in fields
    field = "" if known else ", text_field: " + " or ".join(fields)
    ways = "end its name with .jsonl"
    if key.startswith("corpus."):
        ways = (
            f"write {{files: {entry.files[0]}, format: jsonl{field}}}, or {ways}; if plain text is meant, say so by "
            "format: text"
        )
    console.warn(
        f"{key}: the first lines of {files[0]}{others} are JSON objects, but are read as plain text, braces and names "
        f"of fields too; to read only the text in them, {ways}"
    )


def _file(file: AnyFile, head: bytes, entry: SourceConfig, corpus: CorpusConfig) -> FileSource:
    separator, field = corpus.document_separator, entry.text_field or corpus.text_field
    kind = entry.format or _format_of(file, head)
    if kind != "parquet":
        check_text(file, head)
    if kind == "text" and separator == "record":
        raise UsageError(
            f"corpus.document_separator: record is not allowed with {file}, which is plain text and has no records; "
            "choose blank_line, line or file, or give it format: jsonl if it holds JSON Lines"
        )
    return FileSource(file, kind, field, separator)


def _format_of(file: AnyFile, head: bytes) -> str:
    if head.startswith(b"PAR1"):
        return "parquet"
    return "jsonl" if _unpacked_name(file.name).endswith(_JSON_SUFFIXES) else "text"


def named_as_records(name: str) -> bool:
    """Whether a file, or all that a pattern matches, is of records by its name; Parquet by any other is too."""
    return _unpacked_name(name).endswith((*_JSON_SUFFIXES, ".parquet"))


def _unpacked_name(name: str) -> str:
    name = name.lower()
    for suffix in _PACKED_SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def _dataset(entry: SourceConfig, corpus: CorpusConfig, *, key: str, split: str) -> Source:
    from xltrain.data.hub import open_dataset

    assert entry.dataset is not None
    return open_dataset(
        entry.dataset,
        config=entry.config,
        split=entry.split or split,
        data_files=entry.data_files,
        streaming=entry.streaming,
        field=entry.text_field or corpus.text_field,
        separator=corpus.document_separator,
        key=key,
    )


def _weighted(sources: list[Source], entry: SourceConfig, *, key: str) -> list[Source]:
    """``sources`` as often as the weight says: whole passes, and for the rest of the weight a sample of documents."""
    if entry.weight == 1:
        return sources
    times, share = int(entry.weight), entry.weight % 1
    parts = [f"{times} times"] if times else []
    parts += [f"a sample of {share:.1%} of the documents"] if share else []
    what = entry.dataset or ", ".join(entry.files)
    console.say(f"{key}: {what} is taken with weight {entry.weight:g}: {' and '.join(parts)}")
    return sources * times + [SampledSource(source, share, entry.seed) for source in sources if share]
