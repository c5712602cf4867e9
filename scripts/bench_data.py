"""Paired timings of preparing text and of waiting for it in training.

    python scripts/bench_data.py              # everything, some minutes on two quiet cores
    python scripts/bench_data.py --megabytes 20 --rounds 3 encode waiting

Each comparison is made in turns within one run, so that a busy machine slows both sides; medians of the rounds count.
"""

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from xltrain.data.corpus import cut_file
from xltrain.data.shards import Form, group_pieces
from xltrain.data.store import Split
from xltrain.data.streams import Position, TrainingStream
from xltrain.data.subwords import SentencePieceTokenizer, train_sentencepiece
from xltrain.data.workers import write_shards


def write_corpus(path: Path, *, lines: int, words: int = 10, seed: int = 0) -> Path:
    """Sentences of invented words, frequent and rare, with a blank line after every fiftieth."""
    draw = random.Random(seed)
    syllables = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou"]
    vocabulary = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(3000)]
    weights = [1 / (rank + 2) for rank in range(len(vocabulary))]
    chosen = draw.choices(vocabulary, weights, k=200_000)
    with path.open("w", encoding="utf-8") as file:
        for number in range(lines):
            start = draw.randrange(len(chosen) - words)
            file.write(" ".join(chosen[start : start + words]) + "\n")
            if number % 50 == 49:
                file.write("\n")
    return path


def tokenizer_of(corpus: Path, folder: Path, vocab_size: int) -> SentencePieceTokenizer:
    with corpus.open(encoding="utf-8") as file:
        lines = [line for _, line in zip(range(50_000), file, strict=False)]
    tokenizer = train_sentencepiece(
        lines,
        vocab_size=vocab_size,
        model_type="unigram",
        character_coverage=1.0,
        normalization="nmt_nfkc",
        user_defined_symbols=["<eop>"],
        max_sentences=50_000,
    )
    folder.mkdir(exist_ok=True)
    for name, data in tokenizer.files().items():
        (folder / name).write_bytes(data)
    return tokenizer


def encode(folder: Path, *, megabytes: int, rounds: int) -> None:
    """Preparation with one and two processes, start included, against sentencepiece's encode of the same lines."""
    corpus = write_corpus(folder / "encode.txt", lines=megabytes * 1_000_000 // 52)
    tokenizer = tokenizer_of(corpus, folder / "tokenizer", 2000)
    lines = corpus.read_text(encoding="utf-8").split("\n")
    size = corpus.stat().st_size / 1e6
    shards = group_pieces("train", cut_file(corpus, separator="blank_line", size=corpus.stat().st_size // 8))
    seconds: dict[str, list[float]] = {"sentencepiece": [], "1 process": [], "2 processes": []}
    for _ in range(rounds):
        begin = time.perf_counter()
        for start in range(0, len(lines), 20_000):
            tokenizer.processor.encode(lines[start : start + 20_000], num_threads=1)
        seconds["sentencepiece"].append(time.perf_counter() - begin)
        for count, name in ((1, "1 process"), (2, "2 processes")):
            target = folder / name
            target.mkdir(exist_ok=True)
            begin = time.perf_counter()
            for _ in write_shards(shards, target, folder / "tokenizer", Form(False, False), num_workers=count):
                pass
            seconds[name].append(time.perf_counter() - begin)
    print(f"\nencoding {size:.0f} MB, {len(lines):,} lines, unigram of {tokenizer.vocab_size:,} pieces")
    for name, found in seconds.items():
        ratios = [base / own for base, own in zip(seconds["sentencepiece"], found, strict=True)]
        print(
            f"{name:<16} {size / statistics.median(found):7.2f} MB/s   {statistics.median(ratios):5.2f} times "
            f"sentencepiece (rounds {', '.join(f'{ratio:.2f}' for ratio in ratios)})"
        )


def lines(folder: Path, *, rounds: int) -> None:
    """Seconds per line of the whole of `xltrain prepare` for corpora of different length."""
    print("\n`xltrain prepare` on short lines, with a given vocabulary")
    tokenizer_of(write_corpus(folder / "some.txt", lines=20_000, words=4), folder / "tokenizer", 1000)
    one_line = _one_line(folder / "one.txt")
    for count in (200_000, 2_000_000):  # fewer take less time than the start, which differs from time to time
        corpus = write_corpus(folder / f"{count}.txt", lines=count, words=4)
        found = []
        for _ in range(rounds if count < 2_000_000 else 1):
            start, _ = _prepare(folder, one_line)
            seconds, peak = _prepare(folder, corpus)
            found.append((seconds - start, start, peak))
        more, start, peak = sorted(found)[len(found) // 2]
        print(
            f"{count:>9,} lines {start + more:7.1f} s, of which {start:.1f} s to start; {more / count * 1e6:6.2f} us a "
            f"line; peak {peak:,.0f} MB"
        )


def long_line(folder: Path) -> None:
    """One line of 80 MB."""
    corpus = write_corpus(folder / "words.txt", lines=100_000)
    tokenizer_of(corpus, folder / "tokenizer", 2000)
    text = " ".join(corpus.read_text(encoding="utf-8").split()) + " "
    path = folder / "line.txt"
    path.write_text(text * (80_000_000 // len(text) + 1), encoding="utf-8")
    seconds, peak = _prepare(folder, path)
    print(f"\none line of {path.stat().st_size / 1e6:.0f} MB: {seconds:.1f} s, peak {peak:,.0f} MB")


def _one_line(path: Path) -> Path:
    path.write_text("one line\n", encoding="utf-8")
    return path


def _prepare(folder: Path, corpus: Path) -> tuple[float, float]:
    """Seconds of `xltrain prepare` with one process, and its peak resident memory in MB.

    Linux starts a process' own ru_maxrss with that of the process that it comes from, so VmHWM is read.
    """
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        settings = {
            "corpus": {"train": [str(corpus)], "cache_dir": cache, "num_workers": 1},
            "tokenizer": {"path": str(folder / "tokenizer" / "spiece.model")},
        }
        config = Path(cache) / "config.yaml"
        config.write_text(json.dumps(settings))
        program = (
            "import sys\nfrom xltrain.cli import main\ntry: main()\nfinally: "
            "print(next(line.split()[1] for line in open('/proc/self/status') if 'VmHWM' in line), file=sys.stderr)"
        )
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", program, "prepare", str(config)], capture_output=True, text=True, check=True
        )
        return time.perf_counter() - begin, int(done.stderr.split()[-1]) / 1e3


def waiting(folder: Path, *, rounds: int) -> None:
    """Milliseconds that a step of 32 rows of 512 tokens spends on reading its segment from a store on disk."""
    documents, total = 400_000, 200_000_000
    path = folder / "ids"
    tokens = np.memmap(path, dtype=np.uint16, mode="w+", shape=total)
    tokens[:] = np.arange(total, dtype=np.int64) % 50_000
    ends = np.sort(np.random.default_rng(0).choice(np.arange(1, total), documents - 1, replace=False))
    split = Split("train", np.asarray(tokens), np.append(ends, total), {})
    print(f"\nreading 32 rows x 512 tokens of {total:,} ids in {documents:,} documents")
    for shuffle in (False, True):
        stream = TrainingStream(split, total_rows=32, seq_len=512, shuffle=shuffle, seed=0)
        _, position = stream.read(Position())  # an epoch's order is drawn here
        seconds = []
        for _ in range(100 * rounds):
            begin = time.perf_counter()
            _, position = stream.read(position)
            seconds.append(time.perf_counter() - begin)
        what = "shuffled documents" if shuffle else "in file order"
        print(
            f"{what:<20} {statistics.median(seconds) * 1e3:.2f} ms, which is 1 % of a step of "
            f"{statistics.median(seconds) * 100:.2f} s; nothing if it is read ahead (training.num_workers)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("encode", "lines", "long-line", "waiting")
    parser.add_argument("parts", nargs="*", default=parts, choices=parts, help="all by default")
    parser.add_argument("--megabytes", type=int, default=40, help="text of the part encode")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "encode" in given.parts:
            encode(folder, megabytes=given.megabytes, rounds=given.rounds)
        if "lines" in given.parts:
            lines(folder, rounds=min(given.rounds, 3))
        if "long-line" in given.parts:
            long_line(folder)
        if "waiting" in given.parts:
            waiting(folder, rounds=given.rounds)
    print(f"\npeak of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:,.0f} MB")


if __name__ == "__main__":
    main()
