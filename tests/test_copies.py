"""Lines of validation and test text that are in the training text are counted while that is tokenised."""

import json
import random
from pathlib import Path
from typing import Any

import corpora
import pytest
from corpora import write
from hypothesis import given, settings
from hypothesis import strategies as st

from xltrain.data import copies, corpus, workers
from xltrain.data.copies import LONGEST, SHORTEST, lines_to_find
from xltrain.data.prepare import corpus_sources, prepare

BYTES = {"kind": "byte", "vocab_size": None}


def sentence(number: int) -> str:
    return f"sentence {number} of a text that is long enough"


def counts(folder: Path, train: str, validation: str, **options: Any) -> dict[str, dict[str, Any]]:
    """What the manifest says of a store of these texts."""
    paths = [write(folder / name, text) for name, text in (("t.txt", train), ("v.txt", validation))]
    entries = {"validation": [str(paths[1])], "num_workers": 1} | options
    store = prepare(corpora.config_for(paths[0], folder, corpus=entries, tokenizer=BYTES)).store
    found: dict[str, dict[str, Any]] = store.manifest["copied"]
    return found


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), separator=st.sampled_from(["blank_line", "line", "file"]), data=st.data())
def test_they_are_those_that_a_comparison_of_all_lines_finds(
    tmp_path_factory: pytest.TempPathFactory, seed: int, separator: str, data: st.DataObject
):
    """However the text is cut into pieces and batches, and with the last line ended or not."""
    draw = random.Random(seed)
    train = [sentence(draw.randrange(40)) if draw.random() < 0.8 else "" for _ in range(draw.randint(1, 60))]
    valid = [sentence(draw.randrange(60)) if draw.random() < 0.8 else "short" for _ in range(draw.randint(1, 30))]
    train.append(sentence(99))
    valid.append(sentence(draw.choice([98, 99])))
    wanted = {line for line in valid if line != "short"}
    ends = [data.draw(st.sampled_from(["", "\n"])) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "PIECE_BYTES", data.draw(st.sampled_from([100, 1 << 20])))
        patch.setattr("xltrain.data.encoding.BATCH_CHARACTERS", data.draw(st.sampled_from([80, 1 << 20])))
        texts = ["\n".join(lines) + end for lines, end in zip((train, valid), ends, strict=True)]
        found = counts(tmp_path_factory.mktemp("copies"), *texts, document_separator=separator)
    assert (found["validation"]["lines"], found["validation"]["copied"]) == (len(wanted), len(wanted & set(train)))


def test_lines_of_records_are_compared_with_lines_of_files(tmp_path: Path):
    texts = [f"{sentence(1)}\n{sentence(2)}", f"{sentence(3)}\r\n"]
    valid = write(tmp_path / "v.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts))
    found = counts(tmp_path, "\n".join(map(sentence, (2, 3, 4))), sentence(5), test=[str(valid)])
    assert found["test"] == {"lines": 3, "copied": 2, "example": sentence(2)[:SHORTEST]}
    assert found["validation"] == {"lines": 1, "copied": 0, "example": ""}


def test_lines_that_say_little_or_are_cut_are_not_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines = ["x" * (SHORTEST - 1), "y" * SHORTEST, "é" * (SHORTEST // 2), "z" * LONGEST, "z" * (LONGEST + 1)]
    lines += [sentence(number) for number in range(9)]
    paths = [write(tmp_path / name, "\n".join(lines)) for name in ("a.txt", "b.txt")]
    config = corpora.config_for(
        paths[0], tmp_path, corpus={"validation": list(map(str, paths)), "test": [str(paths[0])]}
    )
    assert lines_to_find(corpus_sources(config)) == dict.fromkeys(("validation", "test"), (*lines[1:4], *lines[5:]))
    monkeypatch.setattr(copies, "LOOKED_FOR", 8)
    found = lines_to_find(corpus_sources(config))
    assert found == {"validation": (*lines[1:4], lines[5]), "test": (*lines[1:4], *lines[5:10])}
    monkeypatch.setattr(copies, "CHARACTERS", SHORTEST * 2)
    assert lines_to_find(corpus_sources(config)) == {"validation": (lines[1],), "test": (lines[1], lines[2])}


@pytest.mark.parametrize(("copied", "told"), [(0, False), (1, False), (2, True), (150, True)])
def test_a_share_that_matters_is_told_at_every_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], copied: int, told: bool
):
    train = [sentence(number) for number in range(500)]
    valid = [sentence(number) for number in range(500 - copied, 650 - copied)]
    for _ in range(2):
        found = counts(tmp_path, "\n".join(train), "\n".join(valid))
        assert found["validation"]["copied"] == copied
        said = capsys.readouterr().err
        wanted = (
            f"WARNING: corpus.validation: of 150 lines that were looked for, {copied:,} ({copied / 150:.1%}) are in "
            f"corpus.train too, as the one that begins {valid[0][:SHORTEST]!r}; its loss will be lower"
        )
        assert (wanted in said) == told == ("looked for" in said)


def test_a_text_that_is_trained_on_as_a_whole_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = "\n".join(map(sentence, range(20)))
    assert counts(tmp_path, text, text)["validation"]["copied"] == 20
    said = capsys.readouterr().err
    assert ("is part of corpus.train" in said, "looked for" in said) == (True, False)


def test_columns_are_not_compared(tmp_path: Path):
    """Different pairs may have a column in common."""
    path = write(tmp_path / "p.tsv", f"{sentence(1)}\t{sentence(2)}\n" * 9)
    entries = {"document_separator": "two_columns", "validation": [str(path)]}
    sections: Any = {
        "objective": {"name": "seq2seq"},
        "segments": {"mem_len": 0, "cross_documents": False},
        "tokenizer": BYTES,
    }
    assert prepare(corpora.config_for(path, tmp_path, corpus=entries, **sections)).store.manifest["copied"] == {}


def test_what_was_found_before_an_interruption_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(corpus, "PIECE_BYTES", 2_000)
    train = "\n\n".join(map(sentence, range(300)))
    valid = "\n".join(map(sentence, range(0, 600, 2)))
    (tmp_path / "whole").mkdir()
    whole = counts(tmp_path / "whole", train, valid)
    assert whole["validation"]["copied"] == 150
    original, written = workers.write_shard, 0

    def stopped(*arguments: Any) -> Any:
        nonlocal written
        written += 1
        if written == 4:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(workers, "write_shard", stopped)
    with pytest.raises(KeyboardInterrupt):
        counts(tmp_path, train, valid)
    assert len(list((tmp_path / "cache").glob("building-*/*.json"))) == 3
    assert counts(tmp_path, train, valid) == whole
