"""The standard corpora of language modelling, from their official archives to the files that configs/ name.

    python scripts/recipes.py wikitext-103 wikitext-103-v1.zip data/wikitext-103

SOURCE is the archive as it is downloaded, the folder that it unpacks to, or, for enwik8 and text8, the file in it. The
numbers of tokens and the vocabulary that the literature reports for each set are known here (:data:`RECIPES`). What
comes out is counted, and a set that has others is refused: results on it could not be compared.

enwik8 comes in two preparations, whose results must not be mixed: ``enwik8`` as Transformer-XL has it, every byte but
the newline a word (204 of them); ``enwik8-bytes``, the bytes as they are, newlines included (tokenizer.kind byte).
"""

import argparse
import shutil
import sys
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from xltrain.errors import UsageError, XltrainError

SPLITS = ("train", "valid", "test")
BLOCK = 1 << 22

Found = dict[str, int]
"""What came out: for example ``train tokens`` and ``vocabulary``."""


@dataclass(frozen=True)
class Recipe:
    """How to make a set.

    archive: what is downloaded.
    files: names in it, by split; one file for all splits where there is only ``all``.
    make: writes the files of all splits into a folder, and counts.
    sizes: how many bytes each split has, where one file is cut.
    expected: what must come out.
    configs: configurations that read what is written.
    """

    archive: str
    files: dict[str, str]
    make: Callable[["Recipe", Mapping[str, list[Path]], Path], Found]
    expected: Found
    configs: str
    sizes: tuple[int, ...] = ()


# --- one file, cut into bytes


def cut(recipe: Recipe, files: Mapping[str, list[Path]]) -> dict[str, bytes]:
    """The bytes of every split, by the recipe's sizes."""
    (path,) = files["all"]
    data = path.read_bytes()
    if len(data) != sum(recipe.sizes):
        raise UsageError(f"{path.name} has {len(data):,} bytes, and the published file {sum(recipe.sizes):,}")
    found, begin = {}, 0
    for split, size in zip(SPLITS, recipe.sizes, strict=True):
        found[split] = data[begin : begin + size]
        begin += size
    return found


def numbered_bytes(recipe: Recipe, files: Mapping[str, list[Path]], folder: Path) -> Found:
    """Every byte its number, with spaces between; a newline ends a line and is no word (prep_enwik8.py of awd-lstm)."""
    names = [str(byte) if byte != ord("\n") else "\n" for byte in range(256)]
    found: Found = {}
    for split, data in cut(recipe, files).items():
        with (folder / f"{split}.txt").open("w", encoding="ascii", newline="\n") as file:
            for begin in range(0, len(data), BLOCK):
                file.write(" " if begin else "")
                file.write(" ".join([names[byte] for byte in data[begin : begin + BLOCK]]))
        found[f"{split} bytes"] = len(data)
        if split == "train":
            found["vocabulary"] = len(set(data) - {ord("\n")})
    return found


def plain_bytes(recipe: Recipe, files: Mapping[str, list[Path]], folder: Path) -> Found:
    """The bytes as they are. A character that a cut goes through is moved whole to the split after it."""
    found: Found = {}
    carried = b""
    parts = cut(recipe, files)
    for split, data in parts.items():
        whole, carried = _whole_characters(carried + data) if split != SPLITS[-1] else (carried + data, b"")
        (folder / f"{split}.txt").write_bytes(whole)
        found[f"{split} bytes"] = len(data)
    found["vocabulary"] = len(set(parts["train"]))
    return found


def _whole_characters(data: bytes) -> tuple[bytes, bytes]:
    """``data`` without the beginning of a UTF-8 character at its end, and that beginning."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return (data[:-back], data[-back:]) if back < length else (data, b"")
    return data, b""


def spaced_characters(recipe: Recipe, files: Mapping[str, list[Path]], folder: Path) -> Found:
    """Every character a word, a space written as ``_`` (prep_text8.py of Transformer-XL)."""
    found: Found = {}
    words: set[str] = set()
    for split, data in cut(recipe, files).items():
        text = data.decode("ascii").strip().replace(" ", "_")
        (folder / f"{split}.txt").write_text(" ".join(text), encoding="ascii", newline="\n")
        found[f"{split} bytes"] = len(data)
        words |= set(text)
    found["vocabulary"] = len(words)
    return found


# --- words, one line a sentence


def words_of_lines(recipe: Recipe, files: Mapping[str, list[Path]], folder: Path) -> Found:
    """The files as they are; tokens are words and one ``<eos>`` per line, blank ones too."""
    found: Found = {}
    seen = Counter({"<eos>": 1})
    for split in SPLITS:
        (path,) = files[split]
        target = folder / recipe.files[split].rpartition("/")[2]
        found[f"{split} tokens"] = sum(_copied([path], target, seen))
    found["vocabulary"] = len(seen)
    return found


def one_billion_words(recipe: Recipe, files: Mapping[str, list[Path]], folder: Path) -> Found:
    """All training files; valid.txt and test.txt are the same file, as Transformer-XL and others have it."""
    (folder / "train").mkdir()
    seen: Counter[str] = Counter()
    for path in files["train"]:
        sum(_copied([path], folder / "train" / path.name, seen))
    (held_out,) = files["test"]
    for split in ("valid", "test"):
        shutil.copyfile(held_out, folder / f"{split}.txt")
    frequent = sum(1 for count in seen.values() if count >= 3)
    return {"train files": len(files["train"]), "vocabulary": frequent + 2}  # and <eos> and <unk>


def _copied(paths: Iterable[Path], target: Path, seen: "Counter[str]") -> Iterable[int]:
    """Copy lines, count their words in ``seen``, and yield how many tokens each has, its end included."""
    with target.open("w", encoding="utf-8", newline="") as copy:
        for path in paths:
            with path.open(encoding="utf-8", newline="\n") as file:
                for line in file:
                    copy.write(line)
                    words = line.split()
                    seen.update(words)
                    yield len(words) + 1


MILLION = 1_000_000
CUT = (90 * MILLION, 5 * MILLION, 5 * MILLION)
CUT_BYTES = {f"{split} bytes": size for split, size in zip(SPLITS, CUT, strict=True)}

RECIPES = {
    "enwik8": Recipe(
        archive="enwik8.zip",
        files={"all": "enwik8"},
        make=numbered_bytes,
        expected=CUT_BYTES | {"vocabulary": 204},
        configs="configs/txl-enwik8-base.yaml and configs/txl-enwik8-large.yaml",
        sizes=CUT,
    ),
    "enwik8-bytes": Recipe(
        archive="enwik8.zip",
        files={"all": "enwik8"},
        make=plain_bytes,
        expected=CUT_BYTES | {"vocabulary": 205},
        configs="one of yours with tokenizer.kind byte and corpus.document_separator file",
        sizes=CUT,
    ),
    "text8": Recipe(
        archive="text8.zip",
        files={"all": "text8"},
        make=spaced_characters,
        expected=CUT_BYTES | {"vocabulary": 27},
        configs="configs/txl-text8-base.yaml and configs/txl-text8-large.yaml",
        sizes=CUT,
    ),
    "wikitext-103": Recipe(
        archive="wikitext-103-v1.zip",
        files={split: f"wiki.{split}.tokens" for split in SPLITS},
        make=words_of_lines,
        expected={
            "train tokens": 103_227_021,
            "valid tokens": 217_646,
            "test tokens": 245_569,
            "vocabulary": 267_735,
        },
        configs="configs/txl-wt103-base.yaml and configs/txl-wt103-large.yaml",
    ),
    "wikitext-2": Recipe(
        archive="wikitext-2-v1.zip",
        files={split: f"wiki.{split}.tokens" for split in SPLITS},
        make=words_of_lines,
        expected={"train tokens": 2_088_628, "valid tokens": 217_646, "test tokens": 245_569, "vocabulary": 33_278},
        configs="configs/txl-wikitext2.yaml and configs/xlnet-wikitext2.yaml",
    ),
    "one-billion-word": Recipe(
        archive="1-billion-word-language-modeling-benchmark-r13output.tar.gz",
        files={
            "train": "training-monolingual.tokenized.shuffled/news.en-*-of-00100",
            "test": "heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050",
        },
        make=one_billion_words,
        expected={"train files": 99, "vocabulary": 793_470},
        configs="configs/txl-lm1b-base.yaml and configs/txl-lm1b-large.yaml",
    ),
    "ptb": Recipe(
        archive="simple-examples.tgz",
        files={split: f"ptb.{split}.txt" for split in SPLITS},
        make=words_of_lines,
        expected={"train tokens": 929_589, "valid tokens": 73_760, "test tokens": 82_430, "vocabulary": 10_000},
        configs="one of yours with tokenizer.kind word and corpus.document_separator file",
    ),
}


# --- what all have in common


def prepare(recipe: Recipe, source: Path, output: Path) -> Found:
    """Write the files of a set into ``output``, a new folder; all of them, or nothing.

    Raises:
        UsageError: if the source lacks a file, or what comes out is not what is published.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"{output} already exists; choose another OUTPUT, or remove it")
    building = output.with_name(f".{output.name}.preparing")
    shutil.rmtree(building, ignore_errors=True)
    try:
        (building / "unpacked").mkdir(parents=True)
        files = find(recipe, source, building / "unpacked")
        new = building / "new"
        new.mkdir()
        found = recipe.make(recipe, files, new)
        check(recipe, found, source)
        if output.exists():
            output.rmdir()
        new.rename(output)
    except UnicodeDecodeError as error:
        raise UsageError(f"{source}: not the text that is published (byte {error.start} of a file)") from None
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return found


def check(recipe: Recipe, found: Found, source: Path) -> None:
    """Compare what came out with what is published; every difference is named."""
    differing = [
        f"{name} {found[name]:,} instead of {expected:,}"
        for name, expected in recipe.expected.items()
        if found[name] != expected
    ]
    if differing:
        raise UsageError(
            f"{source}: not the version that results are published on: {', '.join(differing)}; nothing was written. "
            f"It is made from {recipe.archive}, unchanged"
        )


def find(recipe: Recipe, source: Path, scratch: Path) -> dict[str, list[Path]]:
    """The files of every split, unpacked into ``scratch`` where the source is an archive."""
    if source.is_dir():
        folder = source
    elif not source.is_file():
        raise UsageError(f"{source} does not exist; SOURCE is {recipe.archive}, or the folder that it unpacks to")
    elif zipfile.is_zipfile(source):
        folder = scratch
        with zipfile.ZipFile(source) as archive:
            archive.extractall(scratch, [name for name in archive.namelist() if _wanted(name, recipe)])
    elif tarfile.is_tarfile(source):
        folder = scratch
        with tarfile.open(source) as packed:
            wanted = [member for member in packed if member.isfile() and _wanted(member.name, recipe)]
            packed.extractall(scratch, wanted, filter="data")
    elif list(recipe.files) == ["all"]:
        return {"all": [source]}
    else:
        raise UsageError(f"{source}: neither a folder nor a zip or tar archive; SOURCE is {recipe.archive}")
    found = {
        split: sorted(path for path in folder.rglob("*") if path.is_file() and path.match(pattern))
        for split, pattern in recipe.files.items()
    }
    missing = [pattern for split, pattern in recipe.files.items() if not found[split]]
    if missing:
        raise UsageError(f"{source}: holds no {', '.join(missing)}; SOURCE is {recipe.archive}, or what it unpacks to")
    several = [split for split, paths in found.items() if len(paths) > 1 and "*" not in recipe.files[split]]
    if several:
        raise UsageError(f"{source}: holds {recipe.files[several[0]]} more than once; name the folder of one of them")
    return found


def _wanted(name: str, recipe: Recipe) -> bool:
    return any(PurePosixPath(name).match(pattern) for pattern in recipe.files.values())


def main() -> None:
    parser: Any = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=RECIPES)
    parser.add_argument("source", type=Path, help="the official archive, unpacked or not")
    parser.add_argument("output", type=Path, help="a new folder")
    given = parser.parse_args()
    recipe = RECIPES[given.name]
    try:
        found = prepare(recipe, given.source, given.output)
    except XltrainError as error:
        print(f"recipes.py: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    for name, number in found.items():
        print(f"{name:<14} {number:>13,}")
    print(f"wrote {given.output}; for {recipe.configs}")


if __name__ == "__main__":
    main()
