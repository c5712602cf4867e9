"""Whether a text that is to be evaluated was trained on, as far as that shows without reading all of the corpus."""

import glob
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from filecmp import cmp
from pathlib import Path

from xltrain.config.text import SourceConfig
from xltrain.data.files import ONE_TABLE

Entries = Sequence[str | SourceConfig]


def trained_on(train: Entries, entries: Entries, *, split: str) -> list[str]:
    """A clause for each file and dataset of ``entries`` that is in ``train``, such as "a.txt is part of corpus.train".

    Files here are compared by their bytes, and datasets by name, configuration, files and split. ``split``: what the
    list of ``entries`` is for, which is the split of a dataset that names none.
    """
    return list(dict.fromkeys([*_files_trained_on(train, entries), *_datasets_trained_on(train, entries, split=split)]))


def _files_trained_on(train: Entries, entries: Entries) -> Iterator[str]:
    sizes: dict[int, list[Path]] = {}
    for path in _files(train):
        sizes.setdefault(path.stat().st_size, []).append(path)
    for path in _files(entries):
        same_size = sizes.get(path.stat().st_size, [])
        if any(path.samefile(other) or cmp(path, other, shallow=False) for other in same_size):
            yield f"{path} is part of corpus.train"


def _files(entries: Entries) -> list[Path]:
    patterns = [pattern for entry in entries for pattern in ([entry] if isinstance(entry, str) else entry.files)]
    names = [name for pattern in patterns for name in _matches(pattern)]
    return [path for path in map(Path, names) if path.is_file()]


def _matches(pattern: str) -> list[str]:
    path = Path(pattern).expanduser()
    return [str(path)] if path.is_file() else glob.glob(str(path), recursive=True)  # noqa: PTH207


def _datasets_trained_on(train: Entries, entries: Entries, *, split: str) -> Iterator[str]:
    before = list(_datasets(train, split="train"))
    for dataset in _datasets(entries, split=split):
        found = [how for other in before if (how := dataset.within(other))]
        if found:
            yield (
                f"{dataset.name} is part of corpus.train"
                if "all" in found
                else f"a part of {dataset.name} is in corpus.train"
            )


@dataclass(frozen=True)
class _Dataset:
    """What says which rows an entry means.

    name: for messages.
    place: the dataset's name, or its folder.
    files: what its loader is to read; none where the dataset says that itself.
    parts: of the split, such as ``train[:90%]`` and ``validation``; without names where a folder is one table, whatever
        split is asked for.
    """

    name: str
    place: str
    config: str | None
    files: frozenset[str]
    parts: frozenset[str]

    def within(self, other: "_Dataset") -> str:
        """How much of it is in the other one: ``all``, ``some``, or nothing that is known of."""
        if (self.place, self.config) != (other.place, other.config):
            return ""
        if self.files != other.files and not self.files & other.files:
            return ""
        inside = {part for part in self.parts if part in other.parts or _whole(part) in other.parts}
        if inside == self.parts and self.files <= other.files:
            return "all"
        return "some" if inside or any(_whole(part) in self.parts for part in other.parts) else ""


def _datasets(entries: Entries, *, split: str) -> Iterator[_Dataset]:
    for entry in entries:
        if isinstance(entry, str) or entry.dataset is None:
            continue
        folder = Path(entry.dataset).expanduser()
        place = str(folder.resolve()) if folder.is_dir() else entry.dataset
        files = frozenset(str(Path(path).resolve()) if "://" not in path else path for path in entry.data_files)
        wanted = entry.split or split
        name = f"the dataset {entry.dataset} ({', '.join(part for part in (entry.config, wanted) if part)})"
        parts = frozenset(re.sub(r"\s", "", part) for part in wanted.split("+"))
        if (folder / ONE_TABLE).is_file():
            parts = frozenset(part.removeprefix(_whole(part)) for part in parts)
        yield _Dataset(name, place, entry.config, files, parts)


def _whole(part: str) -> str:
    """The split that a part such as ``train[:90%]`` is cut from."""
    return part.partition("[")[0]
