"""Two-column files become pairs of ids, models of them learn, and what cannot be is refused."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import pytest
from logged import lines_of, series

from xltrain.config.load import validate
from xltrain.data.corpus import cut_file
from xltrain.data.kinds import column_separator
from xltrain.data.prepare import prepare
from xltrain.data.words import WordTokenizer
from xltrain.errors import UsageError

# --- from files


def write_pairs(path: Path, pairs: list[tuple[str, str]]) -> Path:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    return path


def settings_of(folder: Path, train: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    data = corpora.settings(
        train,
        folder,
        corpus={"document_separator": "two_columns"},
        tokenizer={"kind": "char", "vocab_size": None},
        objective={"name": "seq2seq"},
        segments={"seq_len": 24, "mem_len": 0, "cross_documents": False},
    )
    return corpora.over(data, sections)


def test_a_pair_is_its_source_sep_target_and_eod(tmp_path: Path):
    train = write_pairs(tmp_path / "a.tsv", [("ab c", "d"), ("e", "a b")])
    with train.open("a") as file:
        file.write("\n  \nx\ty")
    store = prepare(corpora.checked(settings_of(tmp_path, train))).store
    split, tokenizer = store.split("train"), store.tokenizer()
    assert [tokenizer.piece(token) for token in split.tokens.tolist()] == [
        *"ab c", "<sep>", "d", "<eod>", "e", "<sep>", *"a b", "<eod>", "x", "<sep>", "y", "<eod>",
    ]  # fmt: skip
    assert split.line_ends is not None
    assert split.line_ends.tolist() == [5, 9, 15]
    assert split.ends.tolist() == [7, 13, 17]
    assert "\t" not in tokenizer.alphabet
    counts = store.manifest["splits"]["train"]
    assert (counts["documents"], counts["tokens"], counts["lines"]) == (3, 11, 4)
    assert split.first(13).line_ends.tolist() == [5, 9]  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["sentencepiece", "word", "byte"])
def test_columns_are_tokenised_one_by_one(tmp_path: Path, corpus: corpora.Corpus, kind: str):
    lines = [line for line in corpus.train.read_text().splitlines() if line][:600]
    pairs = list(zip(lines[::2], lines[1::2], strict=True))
    train = write_pairs(tmp_path / "a.tsv", pairs)
    size = 300 if kind == "sentencepiece" else None
    store = prepare(corpora.checked(settings_of(tmp_path, train, tokenizer={"kind": kind, "vocab_size": size}))).store
    split, tokenizer = store.split("train"), store.tokenizer()
    between = column_separator(tokenizer)
    assert (between is None) == (kind == "word")
    expected: list[int] = []
    middles = []
    for source, target in pairs:
        one, two = tokenizer.encode([source, target])
        expected += one + [between] * (between is not None)
        middles.append(len(expected))
        expected += two + [tokenizer.eod] * (tokenizer.eod is not None)
    assert split.tokens.tolist() == expected
    assert split.line_ends is not None
    assert split.line_ends.tolist() == middles
    assert store.manifest["splits"]["train"]["tokens"] == len(expected) - store.manifest["boundaries"] * len(pairs)


def test_words_without_a_mark_between_columns_are_refused():
    with pytest.raises(UsageError, match=r"tokenizer\.eos true"):
        column_separator(WordTokenizer(["a"], eos=False, lower=False))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("no tab", "has 0 tabs"),
        ("a\tb\tc", "has 2 tabs"),
        ("\tb", "has no source"),
        ("a\t ", "has no target"),
        ("\t", "has no source"),
    ],
)
def test_a_line_that_is_no_pair_is_refused_by_file_and_line(
    tmp_path: Path, cli: Callable[..., Any], line: str, problem: str
):
    train = tmp_path / "a.tsv"
    train.write_text(f"a\tb\n\nc\td\n{line}\ne\tf\n")
    config = corpora.write_config(tmp_path / "c.yaml", settings_of(tmp_path, train))
    assert cli("prepare", config).sentence() == (
        f"{train}, line 4: {problem}; with corpus.document_separator two_columns every line is a source, one tab and "
        "a target"
    )
    assert not list((tmp_path / "cache").glob("*"))


def test_the_line_is_right_in_a_later_piece_of_a_file(tmp_path: Path):
    train = tmp_path / "a.tsv"
    train.write_text("a\tb\n" * 50 + "wrong\n")
    found = cut_file(train, separator="two_columns", size=40)
    assert len(found) > 3
    with pytest.raises(UsageError, match=r"a\.tsv, line 51: has 0 tabs"):
        list(found[-1].documents())


def test_what_ties_pairs_together_is_refused(tmp_path: Path):
    _, problems = validate(
        settings_of(
            tmp_path,
            tmp_path / "a.tsv",
            objective={"name": "causal"},
            segments={"seq_len": 1, "mem_len": 8, "cross_documents": True, "bidirectional": True},
        )
    )
    assert [key for key, _ in problems] == [
        "objective.name", "segments.mem_len", "segments.cross_documents", "segments.bidirectional", "segments.seq_len",
    ]  # fmt: skip


# --- runs


def letters(draw: random.Random, count: int) -> str:
    return "".join(draw.choice("abcdefgh") for _ in range(count))


def trained(folder: Path, pairs: list[tuple[str, str]], cli: Callable[..., Any], **sections: Any) -> dict[str, Any]:
    """A small model of pairs, and what eval-ppl says of it on the last hundred of them."""
    train = write_pairs(folder / "train.tsv", pairs[:-100])
    valid = write_pairs(folder / "valid.tsv", pairs[-100:])
    config = corpora.write_config(
        folder / "c.yaml",
        settings_of(
            folder,
            train,
            corpus={"document_separator": "two_columns", "validation": [str(valid)]},
            segments={"seq_len": 32, "shuffle_documents": True},
            model={"num_layers": 2, "d_model": 32, "num_heads": 2, "d_inner": 64, "dropout": 0.0}
            | {"attention_dropout": 0.0, "init": {"std": 0.1}},
            optimizer={"lr": 5e-3},
            schedule={"warmup_steps": 20},
            training={"max_steps": 200, "batch_size": 16},
            evaluation={"every": 0, "batch_size": 16},
            logging={"every": 200},
            **sections,
        ),
    )
    outcome = cli("pretrain", config)
    assert outcome.status == 0, outcome.err
    assert "as many whole ones to a row as fit" in outcome.err
    last = lines_of(folder / "run")[-1]
    found = {size: json.loads(cli("eval-ppl", folder / "run", "--json", "--batch-size", size).out) for size in (1, 16)}
    assert found[16]["loss"] == last["validation_loss"]
    assert found[1]["loss"] == pytest.approx(found[16]["loss"], rel=1e-6)
    assert found[16]["mode"] == "pairs"
    assert found[1]["targets"] == found[16]["targets"] == sum(len(target) + 1 for _, target in pairs[-100:])
    return found[16]


def test_copying_is_learned(tmp_path: Path, cli: Callable[..., Any]):
    draw = random.Random(0)
    sources = [letters(draw, draw.randint(2, 6)) for _ in range(2000)]
    found = trained(tmp_path, [(source, source) for source in sources], cli)
    assert found["loss"] < 0.5


def test_random_targets_stay_at_their_entropy(tmp_path: Path, cli: Callable[..., Any]):
    draw = random.Random(0)
    found = trained(tmp_path, [(letters(draw, 4), letters(draw, 4)) for _ in range(2000)], cli)
    entropy = 4 / 5 * math.log(8)  # four letters, and an end that is certain
    assert entropy - 0.02 < found["loss"] < entropy + 0.08


def test_a_run_goes_on_in_the_middle_of_an_epoch_to_the_last_digit(tmp_path: Path, cli: Callable[..., Any]):
    draw = random.Random(0)
    train = write_pairs(tmp_path / "a.tsv", [(letters(draw, 5), letters(draw, 7)) for _ in range(40)])
    losses = []
    for stops in ([8], [3, 8]):
        folder = tmp_path / str(len(stops))
        folder.mkdir()
        for number, stop in enumerate(stops):
            data = settings_of(
                folder,
                train,
                segments={"shuffle_documents": True},
                schedule={"name": "constant"},
                training={"max_steps": stop, "batch_size": 5},
                logging={"every": 1},
            )
            config = corpora.write_config(folder / "c.yaml", data)
            assert cli("pretrain", config, *(["--resume"] if number else [])).status == 0
        losses.append(series(folder / "run", "loss"))
    assert len(losses[0]) == 8
    assert losses[0] == losses[1]


def test_eval_ppl_says_what_it_cuts_and_what_does_not_go_with_pairs(tmp_path: Path, cli: Callable[..., Any]):
    train = write_pairs(tmp_path / "a.tsv", [("abc", "d" * 40)] + [("a", "b")] * 20)
    data = settings_of(tmp_path, train, corpus={"validation": [str(train)]}, training={"max_steps": 1})
    outcome = cli("pretrain", corpora.write_config(tmp_path / "c.yaml", data))
    note = "1 of 21 are longer than seq_len 24: the longer part is cut at its end, in all 21 target tokens"
    assert note in outcome.err
    found = cli("eval-ppl", tmp_path / "run", "--json")
    assert note in found.err
    assert json.loads(found.out)["targets"] == 20 + 20 * 2
    found = cli("eval-ppl", tmp_path / "run", "--json", "--seq-len", 50)
    assert note not in found.err
    assert json.loads(found.out)["targets"] == 41 + 20 * 2
    for option in (["--mode", "document"], ["--mem-len", 8]):
        assert "reads pairs" in cli("eval-ppl", tmp_path / "run", *option).sentence()
    inspected = json.loads(cli("inspect", tmp_path / "c.yaml", "--signal", "--json").out)
    assert inspected["targets_per_step"] is None
    assert all(layer["entropy"] > 0 for layer in inspected["signal"])
