"""Datasets of the Hugging Face library ``datasets``: by name, or from a folder or files here."""

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from xltrain import console
from xltrain.data.corpus import PIECE_BYTES, Piece
from xltrain.data.digests import Digests
from xltrain.data.files import ONE_TABLE, SPLIT_TABLES
from xltrain.data.records import BATCH, RecordPiece, checked_text
from xltrain.errors import UsageError

STREAM_BYTES = 1 << 30
"""Size that a streamed dataset is taken for in progress, since nobody knows it."""


@dataclass(frozen=True)
class Rows:
    """Rows ``start`` to ``stop`` of a dataset with random access."""

    dataset: Any
    field: str
    name: str
    start: int
    stop: int

    def texts(self) -> Iterator[str | None]:
        for first in range(self.start, self.stop, BATCH):
            for value in self.dataset[first : min(first + BATCH, self.stop)][self.field]:
                yield checked_text(value, f"{self.name}, field '{self.field}'")


@dataclass(frozen=True)
class Streamed:
    """A shard of a dataset that is read from its beginning."""

    dataset: Any
    field: str
    name: str

    def texts(self) -> Iterator[str | None]:
        for row in self.dataset:
            yield checked_text(row[self.field], f"{self.name}, field '{self.field}'")


@dataclass(frozen=True)
class DatasetSource:
    """One split of a dataset.

    dataset: the library's own, map-style or streaming, with the one column that is read.
    identity: what names the content of a dataset that is not here; None: it is read to find out.
    files: what a dataset that is here is mapped from; none where that is not known.
    """

    name: str
    dataset: Any
    field: str
    separator: str
    identity: str | None
    files: tuple[Path, ...] = ()

    def mark(self, digests: Digests) -> Any:
        """What is marked is the text, so that the same one is known again wherever it lies and however it is read."""
        if self.identity is not None:
            return ["dataset", self.field, self.identity]
        name = " ".join(map(str, ("field", self.field, "of", self.name, *self.files)))
        return ["dataset", self.field, digests.of_all(name, self.files, self._digest)]

    def _digest(self) -> str:
        found = hashlib.blake2b(digest_size=16)
        for text in self._records().texts():
            encoded = (text or "").encode()
            found.update(b"%d %d " % (text is None, len(encoded)) + encoded)
        return found.hexdigest()

    def pieces(self) -> list[Piece]:
        if self._is_streamed():
            shards = 1 if self.separator == "file" else max(1, int(getattr(self.dataset, "num_shards", 1)))
            parts = [self.dataset.shard(shards, number) for number in range(shards)] if shards > 1 else [self.dataset]
            size = STREAM_BYTES // shards
            return [
                RecordPiece(self.name, Streamed(part, self.field, self.name), self.separator, size) for part in parts
            ]
        rows = len(self.dataset)
        total = max(1, int(self.dataset.data.nbytes))
        count = 1 if self.separator == "file" else min(max(1, rows), -(-total // PIECE_BYTES))
        bounds = [rows * number // count for number in range(count + 1)]
        return [
            RecordPiece(
                self.name, Rows(self.dataset, self.field, self.name, *ends), self.separator, size=total // count
            )
            for ends in pairwise(bounds)
        ]

    def _records(self) -> Rows | Streamed:
        if self._is_streamed():
            return Streamed(self.dataset, self.field, self.name)
        return Rows(self.dataset, self.field, self.name, 0, len(self.dataset))

    def _is_streamed(self) -> bool:
        from datasets import IterableDataset

        return isinstance(self.dataset, IterableDataset)


def open_dataset(
    dataset: str,
    *,
    config: str | None,
    split: str,
    data_files: Sequence[str],
    streaming: bool,
    field: str,
    separator: str,
    key: str,
) -> DatasetSource:
    """A split of a dataset: of a folder that ``save_to_disk`` wrote, or of whatever ``datasets`` finds by that name.

    Raises:
        UsageError: if it cannot be found or loaded, or has no such split or field.
    """
    import datasets

    name = f"{dataset} ({', '.join(part for part in (config, split) if part)})"
    folder = Path(dataset).expanduser()
    console.say(f"loading the dataset {name}")
    if not sys.stderr.isatty():  # its bars would fill a log
        datasets.disable_progress_bars()
    if folder.is_dir() and not any(path.is_file() for path in folder.rglob("*")):
        raise UsageError(
            f"{key}: {dataset} is a folder without any file; name one that save_to_disk wrote, or one with files of "
            "text"
        )
    try:
        if (folder / SPLIT_TABLES).is_file() or (folder / ONE_TABLE).is_file():
            if idle := [name for name, value in (("config", config), ("data_files", data_files)) if value]:
                raise UsageError(f"{key}: {dataset} is a saved dataset, which has no {idle[0]}; leave it out")
            found, identity = _from_disk(_load_saved(folder), split, streaming), None
        else:
            builder = datasets.load_dataset_builder(
                str(folder) if folder.exists() else dataset, config, data_files=list(data_files) or None
            )
            here = folder.exists() or (data_files and not any("://" in path for path in data_files))
            # What the builder is named after: the files' own marks, or the commit that they are of.
            identity = None if here else f"{builder.dataset_name} {builder.config_id} {builder.hash} {split}"
            if streaming:
                found = builder.as_streaming_dataset(split)
            else:
                builder.download_and_prepare()
                found = builder.as_dataset(split)
    except UsageError:
        raise
    except Exception as error:  # the library's loaders raise whatever their files, its servers and its code do
        problem = " ".join(str(error.args[0] if isinstance(error, KeyError) and error.args else error).split())
        raise UsageError(f"{key}: the dataset {name} cannot be loaded: {problem or type(error).__name__}") from None
    columns = list(found.column_names or [])
    if field not in columns:
        raise UsageError(
            f"{key}: the dataset {name} has no field '{field}', only {', '.join(columns)}; name it by text_field"
        )
    return DatasetSource(name, found.select_columns([field]), field, separator, identity, files=_mapped(found))


def _mapped(rows: Any) -> tuple[Path, ...]:
    """Files that rows with random access are mapped from, with those beside them that say which rows these are."""
    tables = [Path(file["filename"]).absolute() for file in getattr(rows, "cache_files", None) or ()]
    beside = [path.parent / name for path in tables for name in (ONE_TABLE, "dataset_info.json")]
    return tuple(dict.fromkeys([*tables, *filter(Path.is_file, beside)]))


def _load_saved(folder: Path) -> Any:
    import datasets

    try:
        return datasets.load_from_disk(str(folder))
    except IndexError:  # a table without rows was written without a file of rows
        states = (*folder.glob(ONE_TABLE), *folder.glob(f"*/{ONE_TABLE}"))
        empty = [str(state.parent) for state in states if not json.loads(state.read_text())["_data_files"]]
        raise ValueError(f"no row is in {', '.join(empty)}; save the dataset anew, without what is empty") from None
    except Exception as error:
        problem = str(error).rstrip(".")
        raise ValueError(f"{problem}; it is damaged or not whole: write it anew by save_to_disk") from error


def _from_disk(found: Any, split: str, streaming: bool) -> Any:
    """The rows that ``split`` means: splits or slices of them, joined by `+`. One table is every split."""
    import datasets

    names = [part.partition("[")[0].strip() for part in split.split("+")]
    tables = found if hasattr(found, "keys") else dict.fromkeys(names, found)
    if missing := [name for name in names if name not in tables]:
        raise KeyError(f"it has {_named(tables)}, not {missing[0]}; name one by split")
    if split in tables:
        rows = tables[split]
    else:
        sizes = {name: len(table) for name, table in tables.items()}
        parts = datasets.ReadInstruction.from_spec(split).to_absolute(sizes)
        rows = datasets.concatenate_datasets(
            [tables[part.splitname].select(range(part.from_, part.to)) for part in parts]
        )
    return rows.to_iterable_dataset() if streaming else rows


def _named(tables: Mapping[str, Any]) -> str:
    return f"the splits {', '.join(tables)}" if tables else "no split at all"
