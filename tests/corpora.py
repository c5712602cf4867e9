"""Texts, configurations and token streams that tests are made of."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from xltrain.config.load import validate
from xltrain.config.schema import Config
from xltrain.data.corpus import Counts, Document, cut_file
from xltrain.data.store import Split

TRAIN_SHA256 = "3f2edfda0d81c2b07ce1c1e74528980a86acec12e6c61ad06689b9b968dd3051"
VALID_SHA256 = "42825d7b790dc13129c65c8f78128d26abff7f4bf190651b5867d08b2a0d1ff8"


@dataclass(frozen=True)
class Corpus:
    """The invented language: 60 documents to train on, 6 others for validation."""

    train: Path
    valid: Path


def vocabulary(count: int = 400) -> list[str]:
    """Invented words of one to four syllables."""
    draw = random.Random(1)
    syllables = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou"]
    found = {"".join(draw.choice(syllables) for _ in range(draw.randint(1, 4))) for _ in range(count * 3)}
    words = sorted(found)[:count]
    draw.shuffle(words)
    return words


def write_text(path: Path, *, lines: int, seed: int, eol: str = "\n") -> Path:
    """Sentences of frequent and rare words, with a blank line after every fiftieth."""
    draw, words = random.Random(seed), vocabulary()
    with path.open("wb") as file:
        for number in range(1, lines + 1):
            length = draw.randint(6, 14)
            chosen = [words[min(int(draw.expovariate(1 / 60)), len(words) - 1)] for _ in range(length)]
            file.write((" ".join(chosen).capitalize() + "." + eol).encode())
            if number % 50 == 0:
                file.write(eol.encode())
    return path


def write(path: Path, content: bytes | str) -> Path:
    """A file of just this content, in UTF-8, and its path."""
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    return write(path, "".join(line + "\n" for line in lines))


def chinese_lines(lines: int, length: int, *, seed: int = 3, alphabet: int = 400) -> list[str]:
    """Lines of Han characters without spaces, the first characters of the alphabet far more frequent."""
    draw = random.Random(seed)
    return [
        "".join(chr(0x4E00 + min(int(draw.expovariate(5 / alphabet)), alphabet - 1)) for _ in range(length))
        for _ in range(lines)
    ]


def settings(train: Path | Sequence[Path], folder: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    """A configuration small enough for a test; ``sections`` are laid over it key by key."""
    paths = [train] if isinstance(train, Path) else train
    found: dict[str, dict[str, Any]] = {
        "run": {"output_dir": str(folder / "run"), "seed": 7},
        "corpus": {"train": [str(path) for path in paths], "cache_dir": str(folder / "cache")},
        "tokenizer": {"vocab_size": 500},
        "segments": {"seq_len": 16, "mem_len": 16},
        "model": {"num_layers": 2, "d_model": 32, "num_heads": 4, "d_inner": 64},
        "training": {"max_steps": 6, "batch_size": 4, "device": "cpu"},
        "evaluation": {"batch_size": 4},
        "logging": {"every": 2},
    }
    return over(found, sections)


def over(data: dict[str, Any], sections: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Sections laid over those of a configuration, key by key."""
    return data | {name: data.get(name, {}) | keys for name, keys in sections.items()}


def checked(data: dict[str, Any]) -> Config:
    """The configuration of :func:`settings`, which must be free of faults."""
    config, problems = validate(data)
    assert not problems, problems
    assert config is not None
    return config


def config_for(train: Path | Sequence[Path], folder: Path, **sections: dict[str, Any]) -> Config:
    return checked(settings(train, folder, **sections))


def write_config(path: Path, data: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(data, allow_unicode=True), encoding="utf-8")
    return path


def config_file(folder: Path, train: Path | Sequence[Path], **sections: dict[str, Any]) -> Path:
    return write_config(folder / "c.yaml", settings(train, folder, **sections))


def split_of(lengths: Iterable[int], *, name: str = "train", vocab_size: int | None = None, seed: int = 0) -> Split:
    """Documents of given lengths. Ids tell places apart (0, 1, 2, ...), or are random below ``vocab_size``."""
    ends = np.cumsum(np.array(list(lengths), dtype=np.int64))
    total = int(ends[-1])
    tokens = np.arange(total, dtype=np.int64)
    if vocab_size is not None:
        tokens = np.random.default_rng(seed).integers(0, vocab_size, size=total)
    documents = len(ends)
    counts = {"documents": documents, "lines": documents, "bytes": total, "characters": total, "words": documents}
    return Split(name, tokens, ends, counts | {"tokens": total - documents, "unknown": 0})


def read_documents(paths: Iterable[Path], *, separator: str, counts: Counts | None = None) -> Iterator[Document]:
    """Documents of plain text files, a long one in parts."""
    for path in paths:
        for piece in cut_file(path, separator=separator):
            yield from piece.documents(counts)


def documents(path: Path, separator: str = "blank_line", counts: Counts | None = None) -> list[list[str]]:
    """The lines of every document of a file."""
    return [found.lines for found in read_documents([path], separator=separator, counts=counts)]


def config_of_pairs(folder: Path) -> tuple[Path, list[str]]:
    """A configuration file for a seq2seq model of two-column text in ``folder``/pairs.tsv, and that text's lines."""
    words = vocabulary()[:80]
    lines = [f"{one} {other}\t{other} {one}\n" for one, other in zip(words[::2], words[1::2], strict=True)]
    (folder / "pairs.tsv").write_text("".join(lines), encoding="utf-8")
    config = config_file(
        folder,
        folder / "pairs.tsv",
        corpus={"document_separator": "two_columns"},
        tokenizer={"kind": "char", "vocab_size": None},
        objective={"name": "seq2seq"},
        segments={"seq_len": 64, "mem_len": 0, "cross_documents": False},
        model={"segment_embeddings": True, "init": {"std": 0.3}},
    )
    return config, lines
