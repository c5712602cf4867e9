"""Text stored in every way that a source can be, and read back, for the tests of sources."""

import bz2
import gzip
import json
import lzma
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import corpora
import datasets
import pyarrow
import pyarrow.parquet
import pytest
from corpora import write

from xltrain.data.corpus import Counts
from xltrain.data.prepare import corpus_sources, fingerprints, marks_of
from xltrain.data.sources import Source
from xltrain.errors import UsageError

datasets.disable_progress_bars()

TEXTS = ["one two\nthree\n", "four", "five\n\nsix seven\n", "eight"]


def zstd(data: bytes) -> bytes:
    out = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(out, "zstd") as stream:
        stream.write(data)
    return out.getvalue().to_pybytes()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
    "zst": zstd,
}


def json_lines(texts: Iterable[str | None], field: str = "text") -> str:
    return "".join(json.dumps({"id": number, field: text}) + "\n" for number, text in enumerate(texts))


def parquet(path: Path, texts: list[str | None], *, rows: int = 2, kind: Any = None, field: str = "text") -> Path:
    column = pyarrow.array(texts, type=kind or pyarrow.string())
    table = pyarrow.table({"id": list(range(len(texts))), field: column})
    pyarrow.parquet.write_table(table, path, row_group_size=rows)
    return path


def found(entries: list[Any], **corpus: Any) -> list[Source]:
    """Sources of ``corpus.train``."""
    config = corpora.checked({"corpus": {"train": entries} | corpus})
    return corpus_sources(config)["train"]


def documents(entries: list[Any], counts: Counts | None = None, **corpus: Any) -> list[str]:
    """Every document of ``corpus.train`` as one text; the pieces are pickled first, as for another process."""
    texts = []
    for source in found(entries, **corpus):
        for piece in source.pieces():
            texts += ["".join(part.lines) for part in pickle.loads(pickle.dumps(piece)).documents(counts)]
    return texts


def marks(entries: list[Any], **corpus: Any) -> str:
    config = corpora.checked({"corpus": {"train": entries} | corpus, "tokenizer": {"kind": "byte"}})
    return fingerprints(config, marks_of(corpus_sources(config)))["fingerprint"]


def refused(entries: list[Any], **corpus: Any) -> str:
    with pytest.raises(UsageError) as caught:
        documents(entries, **corpus)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def store_records(kind: str, texts: list[str | None], folder: Path) -> Any:
    """Store texts as records of one kind; returns the entry for them."""
    if kind.startswith("jsonl"):
        content = json_lines(texts).encode()
        pack = PACKERS.get(kind.removeprefix("jsonl."), lambda data: data)
        return str(write(folder / f"records.{kind}", pack(content)))
    if kind.startswith("parquet"):
        path = parquet(folder / "records.parquet", texts)
        return str(write(folder / "packed", lzma.compress(path.read_bytes())) if kind.endswith("xz") else path)
    table = datasets.Dataset.from_dict({"id": list(range(len(texts))), "text": texts})
    if kind == "folder":
        datasets.DatasetDict({"train": table}).save_to_disk(str(folder / "saved"))
        return {"dataset": str(folder / "saved")}
    path = write(folder / "records.jsonl", json_lines(texts))
    return {"dataset": "json", "data_files": [str(path)], "streaming": kind == "streamed"}
