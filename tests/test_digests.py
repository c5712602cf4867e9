"""A large corpus is digested once: what has not changed is not read again, and whatever has changed is noticed."""

import io
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import datasets
import fsspec
import pytest

from xltrain.data import digests as module
from xltrain.data.digests import CLEARLY_OLDER, NAME, SMALL, Digests
from xltrain.data.files import HEAD, RemoteFile, digest
from xltrain.data.prepare import corpus_sources, marks_of, prepare
from xltrain.errors import UsageError

datasets.disable_progress_bars()

LINE = "some words of a line\n"


def large(path: Path, line: str = LINE) -> Path:
    """A file that is worth remembering, of at least two lines."""
    path.write_text(line * (SMALL // len(line) + 2))
    return path


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an hour later than the files of the test were written."""
    now = time.time_ns
    monkeypatch.setattr(module.time, "time_ns", lambda: now() + 3600 * 10**9)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Bytes of corpus files that were read since it was last asked."""
    total = 0

    class Counted(io.FileIO):
        def readinto(self, buffer: Any) -> int:
            nonlocal total
            found = super().readinto(buffer)
            total += found
            return found

    for place in ("files", "corpus", "records"):
        opened = lambda path: io.BufferedReader(Counted(str(path)))  # noqa: E731
        monkeypatch.setattr(f"xltrain.data.{place}.open_raw", opened)

    def asked() -> int:
        nonlocal total
        found, total = total, 0
        return found

    return asked


def settings(train: list[Path], folder: Path, **corpus: Any) -> dict[str, Any]:
    byte = {"kind": "byte", "vocab_size": None}
    return corpora.settings(train, folder, tokenizer=byte, corpus={"num_workers": 1, **corpus})


def kept(folder: Path) -> dict[str, Any]:
    return json.loads((folder / NAME).read_bytes().partition(b"\n")[2])


# --- what is not read again


def test_the_second_start_reads_only_the_beginnings_of_files(tmp_path: Path, later: None, read: Callable[[], int]):
    paths = [large(tmp_path / "a.txt"), large(tmp_path / "b.txt", "other words\n")]
    valid = large(tmp_path / "v.txt", "more words\n")
    config = corpora.checked(settings(paths, tmp_path, validation=[str(valid)]))
    size = sum(path.stat().st_size for path in (*paths, valid))
    beginnings = 3 * 4 * HEAD
    assert not prepare(config).reused
    assert read() >= 2 * size  # to digest it, and to tokenise it
    second = prepare(config)
    assert (second.reused, read() <= beginnings) == (True, True)
    assert set(kept(tmp_path / "cache")) == {str(path) for path in (*paths, valid)}
    (tmp_path / "cache" / NAME).unlink()
    assert prepare(config).store.folder == second.store.folder
    assert size <= read() <= size + beginnings
    assert prepare(config).reused
    assert read() <= beginnings


def test_a_start_that_has_to_build_reads_known_files_once(tmp_path: Path, later: None, read: Callable[[], int]):
    path = large(tmp_path / "a.txt", LINE * 100_000)
    prepare(corpora.checked(settings([path], tmp_path)))
    read()
    assert not prepare(corpora.checked(settings([path], tmp_path, document_separator="line"))).reused
    assert read() < 2 * path.stat().st_size


def test_a_saved_dataset_is_read_once(tmp_path: Path, later: None, monkeypatch: pytest.MonkeyPatch):
    texts = [LINE * 100] * (SMALL // len(LINE) // 100 + 1)
    folder, reads = tmp_path / "saved", 0
    original = datasets.Dataset.__getitem__

    def counted(self: Any, key: Any) -> Any:
        nonlocal reads
        reads += 1
        return original(self, key)

    monkeypatch.setattr(datasets.Dataset, "__getitem__", counted)

    def save(texts: list[str]) -> None:
        datasets.Dataset.from_dict({"text": texts, "other": texts[::-1]}).save_to_disk(str(folder))

    def mark(memory: Digests, **entry: Any) -> Any:
        config = corpora.config_for([], tmp_path, corpus={"train": [{"dataset": str(folder)} | entry]})
        found = marks_of(corpus_sources(config), memory)["train"]
        memory.keep()
        return found

    save(["first", *texts])
    entries: list[dict[str, Any]] = [{}, {"split": "train[:50%]"}, {"text_field": "other"}]
    marks = [mark(Digests(tmp_path), **entry) for entry in entries]
    assert (reads > 0, len(set(map(str, marks)))) == (True, 3)
    reads = 0
    assert [mark(Digests(tmp_path), **entry) for entry in entries] == marks
    assert reads == 0
    assert [mark(Digests(), **entry) for entry in entries] == marks
    save(["other", *texts])
    assert mark(Digests(tmp_path)) not in marks


# --- what is noticed


def test_whatever_changes_a_file_is_noticed(tmp_path: Path, later: None):
    path = large(tmp_path / "a.txt")
    changed = path.read_bytes().replace(b"some", b"SOME", 1)

    def written_over() -> None:
        path.write_bytes(changed)

    def written_over_and_set_back() -> None:
        with path.open("r+b") as file:
            file.write(changed)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def replaced_by_one_as_old() -> None:
        other = tmp_path / "new"
        other.write_bytes(changed)
        os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
        other.replace(path)

    for change in (written_over, written_over_and_set_back, replaced_by_one_as_old):
        path = large(tmp_path / "a.txt")
        memory = Digests(tmp_path)
        first, times = memory.of(path), path.stat()
        memory.keep()
        assert Digests(tmp_path).unread([path]) == 0
        change()
        assert path.stat().st_size == times.st_size
        assert Digests(tmp_path).unread([path]) == times.st_size
        assert first != Digests(tmp_path).of(path) == digest(path)


def test_another_text_of_the_same_size_gets_another_store(tmp_path: Path, later: None):
    path = large(tmp_path / "a.txt")
    config = corpora.checked(settings([path], tmp_path))
    first = prepare(config).store.folder
    times = path.stat()
    path.write_bytes(path.read_bytes().replace(b"some", b"SOME"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    second = prepare(config)
    assert (second.reused, second.store.folder != first) == (False, True)
    path.write_bytes(path.read_bytes().replace(b"SOME", b"some"))
    assert prepare(config).store.folder == first


def test_a_file_that_is_touched_is_digested_again(tmp_path: Path, later: None, read: Callable[[], int]):
    path = large(tmp_path / "a.txt")
    memory = Digests(tmp_path)
    first = memory.of(path)
    memory.keep()
    read()
    assert (Digests(tmp_path).of(path), read()) == (first, 0)
    path.touch()
    assert (Digests(tmp_path).of(path), read()) == (first, path.stat().st_size)


def test_a_file_that_was_just_written_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Written again within a tick of the clock it looks the same; the second half shows what would come of that."""
    states = module._states
    second = 10**9
    monkeypatch.setattr(
        module,
        "_states",
        lambda files: [
            (size, inode, a // second * second, b // second * second) for size, inode, a, b in states(files)
        ],
    )
    for clearly_older, noticed in ((CLEARLY_OLDER, True), (-CLEARLY_OLDER, False)):
        monkeypatch.setattr(module, "CLEARLY_OLDER", clearly_older)
        while True:
            path = large(tmp_path / "a.txt")
            before = module._states([path])
            memory = Digests(tmp_path)
            memory.of(path)
            memory.keep()
            path.write_bytes(path.read_bytes().replace(b"some", b"SOME"))
            if module._states([path]) == before:  # within a second, as nearly always
                break
        assert (Digests(tmp_path).of(path) == digest(path)) == noticed


def test_a_file_from_the_future_is_not_remembered(tmp_path: Path, later: None):
    path = large(tmp_path / "a.txt")
    os.utime(path, (time.time() + 10**6, time.time() + 10**6))
    memory = Digests(tmp_path)
    memory.of(path)
    memory.keep()
    assert not (tmp_path / NAME).exists()


# --- what is kept, and where


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b"0", b"1", 1),
        lambda data: b"\xff\n" + data,
        lambda data: b"[]",
        lambda data: data + data,
        lambda data: data.partition(b"\n")[2],
    ],
)
def test_a_damaged_memory_is_no_memory(tmp_path: Path, later: None, damage: Callable[[bytes], bytes]):
    path = large(tmp_path / "a.txt")
    memory = Digests(tmp_path)
    first = memory.of(path)
    memory.keep()
    whole = (tmp_path / NAME).read_bytes()
    assert damage(whole) != whole
    (tmp_path / NAME).write_bytes(damage(whole))
    memory = Digests(tmp_path)
    assert memory.unread([path]) == path.stat().st_size
    assert memory.of(path) == first
    memory.keep()
    assert Digests(tmp_path).unread([path]) == 0


def test_what_several_processes_remember_is_joined_and_what_is_gone_is_forgotten(tmp_path: Path, later: None):
    paths = [large(tmp_path / f"{name}.txt") for name in "abc"]
    memories = [Digests(tmp_path) for _ in paths]
    for memory, path in zip(memories, paths, strict=True):
        memory.of(path)
    for memory in memories:
        memory.keep()
    assert set(kept(tmp_path)) == set(map(str, paths))
    paths[0].unlink()
    memory = Digests(tmp_path)
    memory.of(large(tmp_path / "d.txt"))
    leftover = tmp_path / f"{NAME}.0123abcd"
    leftover.write_bytes(b"x")
    os.utime(leftover, (1, 1))
    memory.keep()
    assert set(kept(tmp_path)) == {str(tmp_path / f"{name}.txt") for name in "bcd"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.txt", "c.txt", "d.txt", NAME]


def test_a_folder_that_cannot_be_written_is_left_as_it_is(tmp_path: Path, later: None):
    memory = Digests(tmp_path / "none")
    assert memory.of(large(tmp_path / "a.txt")) == digest(tmp_path / "a.txt")
    memory.keep()
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    (tmp_path / "taken" / NAME / "inside").mkdir(parents=True)
    memory = Digests(tmp_path / "taken")
    memory.of(tmp_path / "a.txt")
    memory.keep()
    assert [path.name for path in (tmp_path / "taken").iterdir()] == [NAME]


def test_small_files_and_files_elsewhere_are_not_remembered(tmp_path: Path, later: None):
    (tmp_path / "small.txt").write_text(LINE)
    fsspec.filesystem("memory").pipe("/d/a.txt", LINE.encode() * SMALL)
    memory = Digests(tmp_path)
    for file in (tmp_path / "small.txt", RemoteFile("memory://d/a.txt")):
        assert memory.of(file) == digest(file)
    memory.keep()
    assert not (tmp_path / NAME).exists()


def test_a_preparation_that_is_refused_leaves_nothing(tmp_path: Path, later: None):
    path = large(tmp_path / "a.txt")
    with path.open("ab") as file:
        file.write(b"\xff\n")
    with pytest.raises(UsageError, match="not UTF-8"):
        prepare(corpora.checked(settings([path], tmp_path)))
    assert list((tmp_path / "cache").iterdir()) == []


def test_long_reading_is_told(
    tmp_path: Path, later: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    config = corpora.checked(settings([large(tmp_path / "a.txt")], tmp_path))
    monkeypatch.setattr("xltrain.console.SECONDS_BETWEEN_LINES", 0.05)

    def slowly(file: Path) -> str:
        time.sleep(0.2)
        return digest(file)

    monkeypatch.setattr(module, "digest", slowly)
    for told in (True, False):
        prepare(config)
        assert ("digesting 0.0 GB of corpus, which names its token store: " in capsys.readouterr().err) == told


@pytest.mark.usefixtures("later")
def test_a_file_that_may_not_be_looked_at_is_remembered_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Several people may share one folder of stores, and not their texts."""
    theirs, mine, lstat = large(tmp_path / "theirs"), large(tmp_path / "mine"), Path.lstat
    first = Digests(tmp_path)
    first.of(theirs)
    first.keep()

    def refuse(path: Path) -> os.stat_result:
        if path == theirs:
            raise PermissionError
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", refuse)
    second = Digests(tmp_path)
    second.of(mine)
    second.keep()
    assert Digests(tmp_path).unread([theirs, mine]) == 0
