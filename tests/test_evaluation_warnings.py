"""What is said of figures that would mislead whoever reads them alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import pytest
import yaml
from tiny_runs import mark_anew

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def words(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a vocabulary of words whose text spells <unk>, as published corpora do."""
    folder = tmp_path_factory.mktemp("words")
    (folder / "train.txt").write_text("a b c <unk>\nb c d a\n" * 100)
    config = corpora.config_file(
        folder,
        folder / "train.txt",
        tokenizer={"kind": "word", "vocab_size": None},
        objective={"name": "causal"},
        training={"max_steps": 1},
    )
    outcome = cli("pretrain", config)
    assert outcome.status == 0, outcome.err
    return folder / "run"


@pytest.mark.parametrize(
    ("text", "unknown", "spelled", "said"),
    [
        (
            "a <unk> b <unk>\n",
            80,
            80,
            "note: 80 of the 200 tokens (40.0%) are spelled <unk> in the text, and count as words; {} comparable "
            "with those of the same text and vocabulary",
        ),
        (
            "a x b <unk>\n",
            80,
            40,
            "WARNING: 20.0% of the tokens are <unk>: {} not comparable (40 of 200 that the vocabulary lacks; beside 40 "
            "that the text itself spells <unk>)",
        ),
        (
            "a x b y\n",
            80,
            0,
            "WARNING: 40.0% of the tokens are <unk>: {} not comparable (80 of 200 that the vocabulary lacks)",
        ),
    ],
)
def test_words_that_the_text_itself_calls_unknown_are_told_from_those_that_a_vocabulary_lacks(
    words: Path, cli: Cli, tmp_path: Path, text: str, unknown: int, spelled: int, said: str
):
    (tmp_path / "t.txt").write_text(text * 40)
    outcome = cli("eval-ppl", words, "--data", tmp_path / "t.txt", "--json")
    found = json.loads(outcome.out)
    assert (found["unknown"], found["unknown_spelled"]) == (unknown, spelled)
    expected = said.format("this perplexity is")
    assert expected in outcome.err.splitlines()
    outcome = cli("score", words, tmp_path / "t.txt")  # lines without their ends
    assert outcome.err.count("<unk>") == expected.count("<unk>")
    assert ("WARNING" in outcome.err) == ("WARNING" in said)
    assert "these log-probabilities are" in outcome.err


def distances_said(cli: Cli, run: Path, *options: object) -> list[str]:
    outcome = cli("eval-ppl", run, *options, "--json")
    assert outcome.status == 0, outcome.err
    return [line for line in outcome.err.splitlines() if "never seen" in line]


@pytest.mark.parametrize(
    ("options", "farthest"),
    [
        ([], None),  # 32 tokens of a segment, 16 of memory
        (["--mem-len", 64], 95),
        (["--mem-len", 64, "--clamp-len", 47], None),
        (["--mem-len", 64, "--clamp-len", 80], 80),
        (["--mem-len", 64, "--clamp-len", 900], 95),  # it clamps nothing
        (["--mem-len", 48, "--same-length"], None),
        (["--mem-len", 49, "--same-length"], 48),
        (["--mode", "sliding", "--seq-len", 49, "--stride", 40], 48),
    ],
)
def test_distances_that_were_never_seen_are_warned_of_whatever_else_is_clamped(
    finished: tuple[Path, Any], cli: Cli, options: list[object], farthest: int | None
):
    said = distances_said(cli, finished[0] / "run", *options)
    if farthest is None:
        assert said == []
    else:
        assert said == [
            f"WARNING: distances count up to {farthest}, in training up to 47: longer ones were never seen and may "
            "raise the loss; --clamp-len 47 keeps within them"
        ]


def test_a_clamp_of_training_is_where_its_distances_end(run: Path, cli: Cli):
    for trained, options, farthest, known in (
        (20, ["--mem-len", 64], None, 20),
        (20, ["--clamp-len", 0], 47, 20),
        (60, ["--mem-len", 64], 60, 47),
    ):
        folder = run / "checkpoints" / "step-6"
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        config["model"]["clamp_len"] = trained
        (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        mark_anew(folder)
        said = distances_said(cli, run, *options)
        assert len(said) == (farthest is not None)
        assert all(f"count up to {farthest}, in training up to {known}:" in line for line in said)


def test_distances_to_what_comes_later_end_with_the_segments_of_training(permutation: Path, cli: Cli):
    assert distances_said(cli, permutation, "--seq-len", 16, "--mem-len", 16) == []
    [said] = distances_said(cli, permutation, "--seq-len", 24, "--mem-len", 0)
    assert "rows see up to 23 positions ahead, in training up to 15:" in said
    assert distances_said(cli, permutation, "--seq-len", 24, "--mem-len", 0, "--clamp-len", 15) == []
    assert distances_said(cli, permutation, "--seq-len", 24, "--mem-len", 0, "--left-to-right") == []


@pytest.fixture(scope="module")
def permutation(train: Callable[..., Path], corpus: corpora.Corpus) -> Path:
    return train(corpus={"validation": [str(corpus.valid)]}, objective={"name": "permutation"})


def test_places_that_were_never_seen_are_warned_of_and_have_no_memory(
    train: Callable[..., Path], corpus: corpora.Corpus, cli: Cli
):
    run = train(
        corpus={"validation": [str(corpus.valid)]},
        objective={"name": "causal"},
        segments={"mem_len": 0},
        model={"positions": "sinusoid"},
    )
    assert distances_said(cli, run) == []
    assert distances_said(cli, run, "--seq-len", 20) == [
        "WARNING: segments have 20 places, in training 16: those beyond were never seen and may raise the loss; "
        "--seq-len 16 keeps within them"
    ]
    said = cli("eval-ppl", run, "--mem-len", 8).sentence()
    assert said == "--mem-len: sinusoid positions allow no memory; leave it out"
