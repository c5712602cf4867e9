"""What is said of figures that would mislead whoever reads them alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import pytest
import yaml
from logged import series
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
        clamp_in_training(run, trained)
        said = distances_said(cli, run, *options)
        assert len(said) == (farthest is not None)
        assert all(f"count up to {farthest}, in training up to {known}:" in line for line in said)


def test_distances_to_what_comes_later_end_with_the_segments_of_training(permutation: Path, cli: Cli):
    assert distances_said(cli, permutation, "--seq-len", 16, "--mem-len", 16) == []
    [said] = distances_said(cli, permutation, "--seq-len", 24, "--mem-len", 0)
    assert "rows see up to 23 positions ahead, in training up to 15:" in said
    assert distances_said(cli, permutation, "--seq-len", 24, "--mem-len", 0, "--clamp-len", 15) == []
    assert distances_said(cli, permutation, "--seq-len", 24, "--mem-len", 0, "--left-to-right") == []


@pytest.mark.parametrize("clamp", [0, 20])
def test_texts_that_are_scored_and_generated_with_more_memory_are_warned_of_where_they_fill_it(
    run: Path, cli: Cli, tmp_path: Path, clamp: int
):
    """Training saw 16 positions of memory and 32 of a segment, distances up to 47."""
    if clamp:
        clamp_in_training(run, clamp)
    lines = tmp_path / "lines.txt"
    for count, options, said in (
        (200, ["--mem-len", 64], "up to 95, in training up to 47:"),
        (200, ["--mem-len", 16], None),
        (200, [], None),
        (6, ["--mem-len", 64], None),
    ):
        corpora.write_lines(lines, [" ".join(corpora.vocabulary()[:count])])
        outcome = cli("score", run, lines, *options)
        assert outcome.status == 0, outcome.err
        warned = [line for line in outcome.err.splitlines() if "never seen" in line]
        assert len(warned) == (said is not None and not clamp)
        assert all(said in line and line.endswith("--mem-len 16 keeps within them") for line in warned)
    for tokens, options, said in (
        (100, ["--mem-len", 64], "up to 64, in training up to 47:"),
        (100, ["--mem-len", 47], None),
        (100, [], None),
        (5, ["--mem-len", 64], None),
    ):
        outcome = cli("generate", run, "Bada", "--max-tokens", tokens, "--until", "never", *options)
        assert outcome.status == 0, outcome.err
        warned = [line for line in outcome.err.splitlines() if "never seen" in line]
        assert len(warned) == (said is not None and not clamp)
        assert all(said in line and line.endswith("--mem-len 47 keeps within them") for line in warned)


def clamp_in_training(run: Path, clamp_len: int) -> None:
    folder = run / "checkpoints" / "step-6"
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    config["model"]["clamp_len"] = clamp_len
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    mark_anew(folder)


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


def test_text_without_spaces_is_told_even_where_no_number_holds_its_perplexity_per_word(
    finished: tuple[Path, Any], cli: Cli, tmp_path: Path
):
    for count, told in ((8, True), (3000, False)):
        text = corpora.write_lines(tmp_path / "joined.txt", ["".join(corpora.vocabulary()[:count])] * 6)
        outcome = cli("eval-ppl", finished[0] / "run", "--data", text, "--json")
        assert "WARNING: ppl_word means nothing here: between spaces, this text has" in outcome.err
        assert (json.loads(outcome.out)["ppl_word"] is not None) == told


def objectives_said(cli: Cli, command: str, run: Path, *options: object) -> list[str]:
    outcome = cli(command, run, *options)
    assert outcome.status == 0, outcome.err
    return [line for line in outcome.err.splitlines() if line.startswith(("note: ppl", "note: log_prob"))]


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        ("causal", None),
        ("permutation", "note: ppl is that of the sampled targets, given the rest of their segments: "),
        ("masked", "note: ppl is that of the sampled targets, each given what stands on both sides of it: "),
        ("seq2seq", "note: ppl is that of the second part of every segment, given the first, which is cut at random: "),
    ],
)
def test_what_figures_of_an_objective_are_about_is_said(
    train: Callable[..., Path], corpus: corpora.Corpus, cli: Cli, tmp_path: Path, objective: str, said: str | None
):
    run = train(
        corpus={"validation": [str(corpus.valid)]},
        objective={"name": objective} | ({"max_span": 3} if objective in ("permutation", "masked") else {}),
        training={"max_steps": 2},
        evaluation={"every": 2},
    )
    notes = objectives_said(cli, "eval-ppl", run)
    if said is None:
        assert notes == []
    else:
        [note] = notes
        assert note.startswith(said)
        assert "no perplexity of the text, so ppl_word and bits are left out" in note
    found = json.loads(cli("eval-ppl", run, "--json").out)
    assert (found["ppl_word"] is None) == (said is not None)
    # What was asked, so that two figures can be compared.
    drawn = {
        "causal": {},
        "seq2seq": {"seed": 1},
        "masked": {"seed": 1, "predict_fraction": 1 / 6, "num_predict": None, "max_span": 3, "span_unit": "word"},
    }
    drawn["permutation"] = drawn["masked"] | {"perm_size": 0}
    keys = {"seed", "predict_fraction", "num_predict", "max_span", "span_unit", "perm_size"}
    assert {key: value for key, value in found.items() if key in keys} == drawn[objective]
    assert (found["initial_memory"], found["tokenizer"], found["vocab_size"]) == ("absent", "sentencepiece", 500)
    assert found["unigram_loss"] == series(run, "unigram_loss")[2]  # the targets are those of the run's own validation
    # A score names its objective; one alone is no probability.
    line = corpora.write(tmp_path / "line.txt", "Bada kile mo.\n")
    outcome = cli("score", run, line)
    assert json.loads(outcome.out)["objective"] == objective
    assert ("note: log_prob is a pseudo-log-likelihood" in outcome.err) == (objective == "masked")


def test_from_left_to_right_nothing_is_drawn_and_the_figure_is_the_texts(permutation: Path, cli: Cli):
    assert objectives_said(cli, "eval-ppl", permutation, "--left-to-right") == []
    assert "seed" not in json.loads(cli("eval-ppl", permutation, "--left-to-right", "--json").out)


def test_a_perplexity_of_pairs_is_that_of_their_targets(cli: Cli, tmp_path: Path):
    config, _ = corpora.config_of_pairs(tmp_path)
    assert cli("pretrain", config, "--set", "training.max_steps=1").status == 0
    pairs = tmp_path / "pairs.tsv"
    assert objectives_said(cli, "eval-ppl", tmp_path / "run", "--data", pairs) == [
        "note: ppl is that of the targets of the pairs, given their sources; ppl_word and bits are left out"
    ]
    assert "seed" not in json.loads(cli("eval-ppl", tmp_path / "run", "--data", pairs, "--json").out)


def test_tokenizers_are_told_apart_and_without_the_training_texts_counts_there_is_no_unigram_loss(
    finished: tuple[Path, Any], words: Path, cli: Cli, corpus: corpora.Corpus, monkeypatch: pytest.MonkeyPatch
):
    run = finished[0] / "run"
    first, last = (json.loads(cli("eval-ppl", run / "checkpoints" / f"step-{step}", "--json").out) for step in (4, 6))
    assert first["tokenizer_digest"] == last["tokenizer_digest"]
    other = json.loads(cli("eval-ppl", words, "--data", words.parent / "train.txt", "--json").out)
    assert other["tokenizer_digest"] != last["tokenizer_digest"]
    assert other["unigram_loss"] > 0
    assert (other["line_ends_predicted"], last["line_ends_predicted"]) == (True, False)
    monkeypatch.setattr("xltrain.evaluation.protocol.stores_of", lambda *_: iter([]))
    without = json.loads(cli("eval-ppl", run, "--json").out)
    assert without["unigram_loss"] is None
    assert without["loss"] == last["loss"]
