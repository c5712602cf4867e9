"""The standard corpora come out as the literature has them, or not at all."""

import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import corpora
import pytest
import recipes
import yaml
from commands import files_of
from recipes import RECIPES, Recipe

from xltrain.data.prepare import prepare as build_store
from xltrain.errors import UsageError

ROOT = Path(__file__).parent.parent


def zipped(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def tarred(path: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        target = path.parent / "tar" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    with tarfile.open(path, "w:gz") as archive:
        archive.add(path.parent / "tar", arcname="top")
    return path


def unpacked(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def store_of(folder: Path, files: list[str], tmp_path: Path, **tokenizer: Any) -> dict[str, Any]:
    """What ``prepare`` makes of the first of the files as training text, and the others."""
    sections = {"validation": [str(folder / files[1])], "test": [str(folder / files[2])]}
    config = corpora.config_for(
        folder / files[0], tmp_path, corpus=sections | {"document_separator": "file"}, tokenizer=tokenizer
    )
    return build_store(config).store.manifest


# --- enwik8 and text8


RAW = "<a>\nß語</a>\n".encode() * 10


def small(name: str, data: bytes, **expected: int) -> Recipe:
    sizes = (len(data) - 40, 20, 20)
    counts = {f"{split} bytes": size for split, size in zip(recipes.SPLITS, sizes, strict=True)}
    return replace(RECIPES[name], sizes=sizes, expected=counts | expected)


def test_enwik8_as_transformer_xl_has_it_loses_its_newlines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = zipped(tmp_path / "enwik8.zip", {"enwik8": RAW})
    vocabulary = len(set(RAW)) - 1
    found = recipes.prepare(small("enwik8", RAW, vocabulary=vocabulary), source, tmp_path / "out")
    assert found["vocabulary"] == vocabulary
    # The original: ' '.join([str(c) if c != ord('\n') else '\n' for c in part])
    begin = 0
    for split, size in (("train", len(RAW) - 40), ("valid", 20), ("test", 20)):
        part = RAW[begin : begin + size]
        begin += size
        expected = " ".join([str(c) if c != ord("\n") else "\n" for c in part])
        assert (tmp_path / "out" / f"{split}.txt").read_text() == expected
    config = yaml.safe_load((ROOT / "configs/txl-enwik8-base.yaml").read_text(encoding="utf-8"))
    names = [Path(config["corpus"][key][0]).name for key in ("train", "validation", "test")]
    wanted = config["tokenizer"] | {"vocab_size": vocabulary}
    manifest = store_of(tmp_path / "out", names, tmp_path, **wanted)
    assert manifest["tokenizer"]["vocab_size"] == vocabulary
    for split, part in (("train", RAW[:-40]), ("validation", RAW[-40:-20]), ("test", RAW[-20:])):
        assert manifest["splits"][split]["tokens"] == len(part) - part.count(b"\n")
    monkeypatch.setattr(recipes, "BLOCK", 7)
    recipes.prepare(small("enwik8", RAW, vocabulary=vocabulary), source, tmp_path / "again")
    assert [text.split() for text in files_of(tmp_path / "again").values()] == [
        text.split() for text in files_of(tmp_path / "out").values()
    ]


def test_enwik8_as_bytes_keeps_everything_and_cuts_no_character(tmp_path: Path):
    for shift in range(6):  # the cuts go through every kind of place
        data = b"x" * shift + RAW
        source = tmp_path / f"enwik8-{shift}"
        source.write_bytes(data)
        recipes.prepare(small("enwik8-bytes", data, vocabulary=len(set(data))), source, tmp_path / f"out{shift}")
        parts = [(tmp_path / f"out{shift}" / f"{split}.txt").read_bytes() for split in recipes.SPLITS]
        assert b"".join(parts) == data
        for part in parts:
            part.decode("utf-8")
        assert len(data) - 44 < len(parts[0]) <= len(data) - 40


def test_text8_is_characters_between_spaces(tmp_path: Path):
    data = b" anarchism originated as a term of abuse first used against early working class radicals" + b" zz" * 20
    found = recipes.prepare(
        small("text8", data, vocabulary=len(set(data))), zipped(tmp_path / "t.zip", {"text8": data}), tmp_path / "out"
    )
    assert found["vocabulary"] == len(set(data))
    assert (tmp_path / "out" / "train.txt").read_text().startswith("a n a r c h i s m _ o r i g i n a t e d _ a s")
    manifest = store_of(
        tmp_path / "out", ["train.txt", "valid.txt", "test.txt"], tmp_path, kind="word", vocab_size=None, eos=False
    )
    assert manifest["splits"]["train"]["tokens"] == len(data[:-40].strip())


def test_a_file_of_another_size_is_refused(tmp_path: Path):
    source = zipped(tmp_path / "enwik8.zip", {"enwik8": RAW + b"!"})
    with pytest.raises(UsageError, match="enwik8 has 141 bytes, and the published file 140"):
        recipes.prepare(small("enwik8", RAW, vocabulary=1), source, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["enwik8.zip"]


# --- words


WIKI = {
    "wiki.train.tokens": " \n = Title = \n \n the <unk> of the 語 , \n".encode(),
    "wiki.valid.tokens": b" \n the of \n",
    "wiki.test.tokens": b" = Title = \n",
}
WIKI_COUNTS = {"train tokens": 9 + 4, "valid tokens": 4, "test tokens": 4, "vocabulary": 8}


@pytest.mark.parametrize("packed", [zipped, tarred, unpacked])
def test_wikitext_is_counted_as_transformer_xl_counts_it(tmp_path: Path, packed: Callable[..., Path]):
    source = packed(tmp_path / "source", {f"wikitext-2/{name}": data for name, data in WIKI.items()})
    recipe = replace(RECIPES["wikitext-2"], expected=WIKI_COUNTS)
    assert recipes.prepare(recipe, source, tmp_path / "out") == WIKI_COUNTS
    assert files_of(tmp_path / "out") == dict(sorted(WIKI.items()))
    manifest = store_of(tmp_path / "out", list(WIKI), tmp_path, kind="word", vocab_size=None)
    tokens = {name: counts["tokens"] for name, counts in manifest["splits"].items()}
    assert tokens == {"train": 13, "validation": 4, "test": 4}
    assert manifest["tokenizer"]["vocab_size"] == 8


def test_every_difference_is_named_and_nothing_is_written(tmp_path: Path):
    source = unpacked(tmp_path / "source", WIKI)
    recipe = replace(RECIPES["wikitext-2"], expected=WIKI_COUNTS | {"train tokens": 14, "vocabulary": 9})
    with pytest.raises(UsageError) as caught:
        recipes.prepare(recipe, source, tmp_path / "out")
    assert str(caught.value) == (
        f"{source}: not the version that results are published on: train tokens 13 instead of 14, vocabulary 8 instead "
        "of 9; nothing was written. It is made from wikitext-2-v1.zip, unchanged"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_one_billion_word_counts_its_frequent_words(tmp_path: Path):
    train, held = "training-monolingual.tokenized.shuffled", "heldout-monolingual.tokenized.shuffled"
    files = {
        f"{train}/news.en-00001-of-00100": b"a b a\nc\n",
        f"{train}/news.en-00002-of-00100": b"a b b c d\n",
        f"{train}/other": b"no\n",
        f"{held}/news.en.heldout-00000-of-00050": b"held out\n",
        f"{held}/news.en.heldout-00001-of-00050": b"not this\n",
    }
    recipe = replace(RECIPES["one-billion-word"], expected={"train files": 2, "vocabulary": 4})
    recipes.prepare(recipe, tarred(tmp_path / "b.tar.gz", files), tmp_path / "out")
    assert files_of(tmp_path / "out") == {
        "test.txt": b"held out\n",
        "train/news.en-00001-of-00100": b"a b a\nc\n",
        "train/news.en-00002-of-00100": b"a b b c d\n",
        "valid.txt": b"held out\n",
    }
    sections = {"train": [str(tmp_path / "out/train/*")], "document_separator": "file"}
    config = corpora.config_for([], tmp_path, corpus=sections, tokenizer={"kind": "word", "vocab_size": 4})
    words = json.loads((build_store(config).store.folder / "words.json").read_text())["words"]
    assert words == ["<eos>", "a", "b", "<unk>"]


def test_the_penn_treebank(tmp_path: Path):
    files = {f"data/ptb.{split}.txt": f" no it was n't {split} \n".encode() for split in recipes.SPLITS}
    recipe = replace(RECIPES["ptb"], expected={"train tokens": 6, "valid tokens": 6, "test tokens": 6, "vocabulary": 8})
    recipes.prepare(recipe, tarred(tmp_path / "simple-examples.tgz", files), tmp_path / "out")
    assert sorted(files_of(tmp_path / "out")) == ["ptb.test.txt", "ptb.train.txt", "ptb.valid.txt"]


# --- sources and outputs


def test_what_is_not_the_source_is_refused(tmp_path: Path):
    recipe = RECIPES["wikitext-2"]
    out = tmp_path / "out"
    for source, said in (
        (tmp_path / "none.zip", "does not exist; SOURCE is wikitext-2-v1.zip, or the folder that it unpacks to"),
        (
            zipped(tmp_path / "a.zip", {"wiki.train.tokens": b""}),
            "holds no wiki.valid.tokens, wiki.test.tokens",
        ),
        (unpacked(tmp_path, {"text": b"text\n"}) / "text", "neither a folder nor a zip or tar archive"),
        (
            unpacked(tmp_path / "twice", {f"{n}/{name}": b"" for n in "ab" for name in WIKI}),
            "holds wiki.train.tokens more than once; name the folder of one of them",
        ),
    ):
        with pytest.raises(UsageError, match=said):
            recipes.prepare(recipe, source, out)
        assert not out.exists()
    full = unpacked(tmp_path / "full", {"a": b""})
    with pytest.raises(UsageError, match="already exists; choose another OUTPUT"):
        recipes.prepare(recipe, tmp_path / "a.zip", full)


def test_the_command_refuses_with_one_sentence(tmp_path: Path):
    source = unpacked(tmp_path / "source", WIKI)
    command = [sys.executable, str(ROOT / "scripts/recipes.py"), "wikitext-103", str(source), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "train tokens 13 instead of 103,227,021" in done.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("txl-*.yaml")), ids=lambda path: path.stem)
def test_configurations_name_the_command_and_read_what_it_writes(path: Path):
    text = path.read_text(encoding="utf-8")
    config = yaml.safe_load(text)
    folder = Path(config["corpus"]["train"][0]).parts[1]
    if folder == "tinyshakespeare.txt" or "shakespeare" in path.stem:
        return
    (line,) = [line for line in text.splitlines() if "scripts/recipes.py" in line]
    _, _, name, source, output = line.removeprefix("# Make:").split()
    assert source.endswith(RECIPES[name].archive)
    assert Path(output) == Path(*Path(config["corpus"]["train"][0]).parts[:2])
    if "vocab_size" in config["tokenizer"]:
        assert config["tokenizer"]["vocab_size"] == RECIPES[name].expected["vocabulary"]
