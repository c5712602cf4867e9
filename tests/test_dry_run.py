"""A dry run and ``inspect`` count with the vocabulary that a run would have, where that can be known in a moment."""

import gzip
import json
import re
import time
from pathlib import Path
from typing import Any

import corpora
import pytest

from xltrain.data import digests, vocabulary
from xltrain.data.prepare import prepare
from xltrain.data.vocabulary import vocabulary_at_hand


def vocabulary_line(cli: Any, config: Path, *options: str) -> str:
    """What a dry run says of the vocabulary, which writes nothing."""
    before = sorted(config.parent.rglob("*"))
    outcome = cli("pretrain", config, "--dry-run", *options)
    assert outcome.status == 0, outcome.err
    assert sorted(config.parent.rglob("*")) == before
    [line] = re.findall("^vocabulary .*$", outcome.out, flags=re.MULTILINE)
    return line


@pytest.mark.parametrize(
    "tokenizer",
    [
        {"kind": "char", "vocab_size": None},
        {"kind": "word", "vocab_size": None},
        {"kind": "word", "vocab_size": None, "min_count": 40, "eos": False},
        {"kind": "word", "vocab_size": 50},
        {"kind": "byte", "vocab_size": None},
        {"vocab_size": 500},
    ],
)
def test_the_vocabulary_of_a_dry_run_is_that_of_the_run(
    corpus: corpora.Corpus, cli: Any, tmp_path: Path, tokenizer: dict[str, Any]
):
    config = corpora.config_file(tmp_path, corpus.train, tokenizer=tokenizer)
    line = vocabulary_line(cli, config)
    parameters = json.loads(cli("inspect", config, "--json").out)["parameters"]
    store = prepare(corpora.config_for(corpus.train, tmp_path, tokenizer=tokenizer)).store
    assert line == f"vocabulary          {store.vocab_size:,} ids"
    assert f"parameters          {parameters:,}" in cli("pretrain", config, "--dry-run").out


@pytest.mark.parametrize("separator", ["blank_line", "line", "file"])
def test_line_ends_count_where_they_are_text(corpus: corpora.Corpus, tmp_path: Path, separator: str):
    options: Any = {
        "tokenizer": {"kind": "char", "vocab_size": None},
        "corpus": {"document_separator": separator},
    }
    config = corpora.config_for(corpus.train, tmp_path, **options)
    assert vocabulary_at_hand(config) == prepare(config).store.vocab_size


def test_an_existing_vocabulary_is_looked_into(corpus: corpora.Corpus, spiece: Path, cli: Any, tmp_path: Path):
    options = {"path": str(spiece), "vocab_size": None}
    config = corpora.config_file(tmp_path, tmp_path / "elsewhere.txt", tokenizer=options)
    assert vocabulary_line(cli, config) == "vocabulary          500 ids"
    words = tmp_path / "words.txt"
    words.write_text("a\nb\nc\n")
    options = {"kind": "word", "path": str(words), "vocab_size": None}
    config = corpora.config_file(tmp_path, tmp_path / "elsewhere.txt", tokenizer=options)
    assert vocabulary_line(cli, config) == "vocabulary          4 ids"


def test_what_is_not_known_is_assumed_and_how_much_that_matters_is_said(
    corpus: corpora.Corpus, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A text that is not here, that is no text, that is elsewhere, or too large to be counted in a moment."""
    said = "vocabulary          {} ids, assumed: only prepare will know; 1,000 more or fewer are {} parameters"
    dense = gzip.compress(b"a b\n" * 1000)
    assert len(dense) < 999
    texts = {
        "none": None,
        "wide.txt": "abc".encode("utf-16"),
        "far": None,
        "large.txt": b"a" * 1000,
        "dense.txt.gz": dense,
    }
    for name, content in texts.items():
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        train = f"s3://bucket/{name}" if name == "far" else str(path)
        monkeypatch.setattr(vocabulary, "MOMENT", 999)
        config = corpora.config_file(
            tmp_path, [], corpus={"train": [train]}, tokenizer={"kind": "char", "vocab_size": None}
        )
        assert vocabulary_line(cli, config) == said.format("8,000", "33,000")  # of a width of 32, and a bias
    adaptive = ("--set", "model.adaptive.cutoffs=[5000, 9000]")
    assert vocabulary_line(cli, config, *adaptive).startswith("vocabulary          18,000 ids, assumed")


def test_the_vocabulary_of_a_large_text_that_was_prepared_is_known(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    now = time.time_ns
    monkeypatch.setattr(digests.time, "time_ns", lambda: now() + 3600 * 10**9)
    monkeypatch.setattr(vocabulary, "MOMENT", 999)
    path = tmp_path / "a.txt"
    path.write_text("some words\n" * (digests.SMALL // 10))
    config = corpora.config_file(tmp_path, path, tokenizer={"kind": "char", "vocab_size": None})
    assert "assumed" in vocabulary_line(cli, config)
    assert cli("prepare", config).status == 0
    assert vocabulary_line(cli, config) == "vocabulary          18 ids"
