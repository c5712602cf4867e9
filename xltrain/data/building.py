"""A token store that is being built, by one process or by several machines, and gone on with after an interruption."""

import contextlib
import errno
import json
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from xltrain import console
from xltrain.data.copies import shares
from xltrain.data.kinds import load_tokenizer
from xltrain.data.locks import locked, locked_if_free
from xltrain.data.shards import Form, Shard, assemble, is_finished
from xltrain.data.store import FORMAT, boundaries, split_counts, storage_type
from xltrain.data.tokenizer import Tokenizer, describe
from xltrain.data.workers import WorkerDied, write_shards
from xltrain.errors import XltrainError

TRAINING = "training.json"
"""File beside a new tokenizer with what it was trained on."""
TOGETHER = "parts"
"""File in the folder of a store that several machines prepare: it is not cleaned away between their starts."""

DAYS_KEPT = 7
"""Finished shards of a preparation that was killed are kept as long as this."""


@dataclass(frozen=True)
class Building:
    """The folder that holds what is finished of a store. It is named like the store, so the next start finds it.

    folder: ``building-FINGERPRINT``.
    shards: of all splits, in their order.
    make_tokenizer: called if there is none yet.
    form: what else the configuration says of the store.
    num_workers: processes that encode.
    """

    folder: Path
    shards: Sequence[Shard]
    make_tokenizer: Callable[[], Tokenizer]
    form: Form
    num_workers: int

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep others out. What fails leaves nothing, unless other machines have a part in it.

        A signal, or the end of a worker, leaves finished shards.
        """
        with (
            full_disk_told(self.folder.parent),
            self._left_clean(),
            locked(self.folder / "lock", waiting=_say_waiting),
        ):
            try:
                yield
            except BaseException as error:
                failed = isinstance(error, Exception) and not isinstance(error, WorkerDied)
                if failed and not (self.folder / TOGETHER).exists():
                    self._remove()
                else:
                    self._say_kept()
                raise

    @contextmanager
    def together(self, part: int, parts: int) -> Iterator[None]:
        """Work beside the other parts. What fails, or is stopped, leaves finished shards."""
        with (
            full_disk_told(self.folder.parent),
            self._left_clean(),
            locked(self.folder / "lock", shared=True, waiting=_say_waiting),
            locked(self.folder / f"lock-{part}-of-{parts}", waiting=_say_waiting),
        ):
            (self.folder / TOGETHER).touch()
            try:
                yield
            except BaseException:
                self._say_kept()
                raise

    def _say_kept(self) -> None:
        finished = len(self.shards) - len(self.missing(self.shards))
        if finished:
            console.say(
                f"kept {finished:,} of {len(self.shards):,} shards in {self.folder}; the same command goes on from "
                "there"
            )

    @contextmanager
    def _left_clean(self) -> Iterator[None]:
        """Afterwards, the folder is there only if it holds a finished shard or somebody works in it."""
        try:
            yield
        finally:
            with locked_if_free(self.folder / "lock") as free:
                if free and not any(self.folder.glob("*.json")):
                    self._remove()
            _remove_if_empty(self.folder)

    def missing(self, shards: Sequence[Shard]) -> list[Shard]:
        return [shard for shard in shards if not is_finished(shard, self.folder)]

    def write(self, shards: Sequence[Shard]) -> None:
        """Make those of ``shards`` that are missing, and the tokenizer before them."""
        missing = self.missing(shards)
        if len(missing) < len(shards):
            console.say(f"going on with {len(shards) - len(missing):,} of {len(shards):,} shards, which are finished")
        self._write_tokenizer()
        for split in dict.fromkeys(shard.split for shard in missing):
            todo = [shard for shard in missing if shard.split == split]
            self._write(todo, total=sum(shard.size for shard in shards if shard.split == split))

    def _write(self, shards: Sequence[Shard], *, total: int) -> None:
        done = total - sum(shard.size for shard in shards)

        def encoded() -> Iterator[None]:
            nonlocal done
            tokenizer = self.folder / "tokenizer"
            for size in write_shards(shards, self.folder, tokenizer, self.form, num_workers=self.num_workers):
                done += size
                yield

        for _ in console.progress(
            encoded(), done=lambda: done, total=total, description=f"tokenising {shards[0].split}"
        ):
            pass

    def _write_tokenizer(self) -> None:
        """Make the tokenizer, unless it is there: every process takes the first that is finished."""
        folder = self.folder / "tokenizer"
        with locked(self.folder / "lock-tokenizer", waiting=_say_waiting):
            if folder.is_dir():
                return
            for leftover in self.folder.glob("tokenizer-*"):
                shutil.rmtree(leftover)
            tokenizer = self.make_tokenizer()
            new = self.folder / f"tokenizer-{secrets.token_hex(4)}"
            new.mkdir()
            for name, data in tokenizer.files().items():
                (new / name).write_bytes(data)
            (new / TRAINING).write_text(json.dumps(tokenizer.training), encoding="utf-8")
            new.rename(folder)

    def finish(self, target: Path, marks: dict[str, str]) -> None:
        """Join the shards and move the store to ``target``; ``marks`` go into its manifest."""
        new = self.folder / "store"
        new.mkdir(exist_ok=True)
        tokenizer = load_tokenizer(self.folder / "tokenizer")
        between = self.form.between(tokenizer)
        splits, line_ends, dropped, copied = {}, {}, {}, {}
        for name in dict.fromkeys(shard.split for shard in self.shards):
            shards = [shard for shard in self.shards if shard.split == name]
            found = assemble(shards, self.folder, new, tokenizer, self.form)
            splits[name] = split_counts(found.counts, ids=found.unigram, tokenizer=tokenizer, between=between)
            line_ends[name] = found.line_ends
            dropped[name] = found.counts.dropped()
            if name == "train":
                copied = shares(self.form.wanted, found.copied)
                (new / "unigram").write_bytes(found.unigram.tobytes())
        for name, data in tokenizer.files().items():
            (new / name).write_bytes(data)
        manifest = {
            **marks,
            "format": FORMAT,
            "dtype": storage_type(tokenizer.vocab_size).name,
            "tokenizer": describe(tokenizer),
            "boundaries": boundaries(tokenizer, between),
            "line_ends": line_ends if self.form.keep_lines else None,
            "splits": splits,
            "dropped": dropped,
            "copied": copied,
            "training": json.loads((self.folder / "tokenizer" / TRAINING).read_text(encoding="utf-8")),
        }
        (new / "manifest.json").write_text(json.dumps(manifest, indent=2), encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)  # somebody deleted a part of it
        new.rename(target)
        self._remove()

    def remove_others(self) -> None:
        """Remove what killed preparations of other stores left beside this one, if it is of no use or old."""
        for folder in self.folder.parent.glob("building-*"):
            if folder == self.folder or not folder.is_dir():
                continue
            days = (time.time() - folder.stat().st_mtime) / 86_400
            with locked_if_free(folder / "lock") as free:
                if not free or (folder / TOGETHER).exists():
                    continue
                if days > DAYS_KEPT or not any(folder.glob("*.json")):
                    shutil.rmtree(folder, ignore_errors=True)
                else:
                    console.say(
                        f"{folder} holds finished shards of another store, kept for {DAYS_KEPT} days so that its "
                        "preparation can go on; delete it if that is not wanted"
                    )
            _remove_if_empty(folder)

    def _remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def full_disk_told(cache: Path) -> Iterator[None]:
    """Raise, where the disk under corpus.cache_dir is full, an :class:`XltrainError` that says so."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise XltrainError(
            f"corpus.cache_dir: the token store could not be written to {cache}: {error.strerror}; make room there, or "
            "choose another folder"
        ) from error


def _say_waiting() -> None:
    console.say("waiting for another process that prepares the same store")


def _remove_if_empty(folder: Path) -> None:
    """On a network file system a folder can outlive the deletion of a file that is still open in it."""
    with contextlib.suppress(OSError):
        folder.rmdir()
