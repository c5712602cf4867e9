"""Two-column text: every pair whole, once, and seen by nobody else; loss inside of targets only."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import model_of
from logged import lines_of, series

from xltrain.config.load import validate
from xltrain.data.columns import ColumnStream, Pairs, cut, every_pair
from xltrain.data.corpus import cut_file
from xltrain.data.kinds import column_separator
from xltrain.data.prepare import prepare
from xltrain.data.store import Split
from xltrain.data.streams import Position, Segment
from xltrain.data.words import WordTokenizer
from xltrain.errors import UsageError
from xltrain.model.visibility import Visibility
from xltrain.objectives.draws import Draw
from xltrain.objectives.plan import IGNORE, PADDED, Plan
from xltrain.objectives.seq2seq import Seq2Seq

LENGTHS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=14)
SIZES: dict[str, Any] = {
    "lengths": LENGTHS,
    "seq_len": st.integers(2, 24),
    "rows": st.integers(1, 4),
    "shuffle": st.booleans(),
}
DRAW = Draw(seed=1, step=1, rows=torch.arange(4))


def pairs_of(lengths: list[tuple[int, int]]) -> Split:
    """Pairs of (source, target) lengths; ids tell places apart."""
    whole = corpora.split_of([source + target for source, target in lengths])
    middles = whole.ends - np.array([target for _, target in lengths])
    return Split(whole.name, whole.tokens, whole.ends, whole.counts, middles)


def kept(source: int, target: int, seq_len: int) -> tuple[int, int]:
    """The rule of cutting, one token after the other."""
    while source + target > seq_len:
        if target > source:
            target -= 1
        else:
            source -= 1
    return source, target


def pieces(split: Split, seq_len: int) -> list[tuple[list[int], list[int]]]:
    """Ids of source and target of every pair, cut to a row."""
    assert split.line_ends is not None
    found, begin = [], 0
    for middle, end in zip(split.line_ends.tolist(), split.ends.tolist(), strict=True):
        source, target = kept(middle - begin, end - middle, seq_len)
        ids = split.tokens.tolist()
        found.append(([*ids[begin : begin + source - 1], ids[middle - 1]], ids[middle : middle + target]))
        begin = end
    return found


def pairs_in(segment: Segment) -> list[tuple[list[int], list[int]]]:
    """The pairs of a segment, read off its rows."""
    assert segment.segment_ids is not None
    found = []
    for row in range(segment.tokens.shape[0]):
        for number in segment.document[row, : segment.length[row]].unique_consecutive().tolist():
            inside = segment.document[row] == number
            inside[int(segment.length[row]) :] = False
            source, target = inside & (segment.segment_ids[row] == 0), inside & (segment.segment_ids[row] == 1)
            found.append((segment.tokens[row, source].tolist(), segment.tokens[row, target].tolist()))
    return found


# --- rows


@given(st.integers(1, 40), st.integers(1, 40), st.integers(2, 40))
def test_the_longer_part_is_cut_at_its_end(source: int, target: int, seq_len: int):
    found = cut(np.array([source]), np.array([target]), seq_len=seq_len)
    assert (int(found[0][0]), int(found[1][0])) == kept(source, target, seq_len)
    assert min(kept(source, target, seq_len)) >= 1


def stream_of(split: Split, total_rows: int, seq_len: int, shuffle: bool, **more: Any) -> ColumnStream:
    return ColumnStream(split, total_rows=total_rows, seq_len=seq_len, shuffle=shuffle, seed=5, **more)


def epoch_of(stream: ColumnStream, epoch: int) -> list[Segment]:
    position, found = Position(epoch, 0), []
    while position.epoch == epoch:
        segment, position = stream.read(position)
        found.append(segment)
    assert position == Position(epoch + 1, 0)
    return found


@given(**SIZES)
def test_every_pair_is_read_whole_once_per_epoch(
    lengths: list[tuple[int, int]], seq_len: int, rows: int, shuffle: bool
):
    split = pairs_of(lengths)
    stream = stream_of(split, rows, seq_len, shuffle)
    wanted = pieces(split, seq_len)
    for epoch in (0, 1):
        segments = epoch_of(stream, epoch)
        assert sorted(pair for segment in segments for pair in pairs_in(segment)) == sorted(wanted)
        for segment in segments:
            assert segment.fresh.all()
            assert (segment.next_token == -1).all()
    long, lost = stream.pairs.count_cut()
    assert long == sum(source + target > seq_len for source, target in lengths)
    assert lost == sum(target for _, target in lengths) - sum(len(target) for _, target in wanted)
    assert bool(stream.notes()[1:]) == bool(long)


@given(**SIZES)
def test_a_batch_takes_as_many_pairs_as_first_fit_allows(
    lengths: list[tuple[int, int]], seq_len: int, rows: int, shuffle: bool
):
    split = pairs_of(lengths)
    sizes = [sum(kept(*pair, seq_len)) for pair in lengths]
    stream = stream_of(split, rows, seq_len, False)
    position = Position()
    while position.epoch == 0:
        room, used = [seq_len] * rows, position.segment
        while used < len(sizes):
            fitting = [row for row in range(rows) if room[row] >= sizes[used]]
            if not fitting:
                break
            room[fitting[0]] -= sizes[used]
            used += 1
        segment, position = stream.read(position)
        assert segment.length.tolist() == [seq_len - left for left in room]
        assert position == (Position(0, used) if used < len(sizes) else Position(1, 0))


@given(**SIZES, cut_at=st.integers(0, 4), skip=st.integers(0, 5))
def test_a_position_and_a_range_of_rows_say_all(
    lengths: list[tuple[int, int]], seq_len: int, rows: int, shuffle: bool, cut_at: int, skip: int
):
    split, cut_at = pairs_of(lengths), min(cut_at, rows)
    whole, position = stream_of(split, rows, seq_len, shuffle), Position()
    for _ in range(skip):
        _, position = whole.read(position)
    low = stream_of(split, rows, seq_len, shuffle, first_row=0, rows=cut_at)
    high = stream_of(split, rows, seq_len, shuffle, first_row=cut_at, rows=rows - cut_at)
    for _ in range(4):
        segment, after = whole.read(position)
        for part, (start, stop) in ((low, (0, cut_at)), (high, (cut_at, rows))):
            found, same_after = part.read(position)
            assert same_after == after
            for name in ("tokens", "length", "document", "segment_ids"):
                assert torch.equal(getattr(found, name), getattr(segment.rows(start, stop), name))
        position = after


def test_many_short_pairs_fill_a_row_that_a_long_one_made_the_usual_size_of():
    split = pairs_of([(400, 400)] + [(1, 1)] * 300)
    assert split.num_tokens // split.num_documents < 8
    stream = stream_of(split, 2, 1000, False)
    segment, position = stream.read(Position())
    assert position == Position(1, 0)
    assert segment.length.tolist() == [1000, 400]
    split = pairs_of([(1, 1)] * 300 + [(400, 400)] * 40)
    segment, position = stream_of(split, 1, 500, False).read(Position())
    assert position == Position(0, 250)
    assert segment.length.tolist() == [500]


# --- the plan


def plan_of(segment: Segment) -> Plan:
    rows = torch.arange(segment.tokens.shape[0])
    return Seq2Seq(keep_apart=True).plan(segment, Draw(seed=1, step=1, rows=rows))


@settings(max_examples=60)
@given(lengths=LENGTHS, seq_len=st.integers(2, 20), rows=st.integers(1, 3))
def test_visibility_and_targets_against_their_definition(lengths: list[tuple[int, int]], seq_len: int, rows: int):
    split, predicted = pairs_of(lengths), []
    for segment, _, _ in every_pair(split, seq_len=seq_len, rows=rows):
        plan = plan_of(segment)
        assert plan.document is not None
        assert plan.segment_ids is not None
        seen = Visibility.of_segment(
            order=plan.order,
            memory_valid=torch.zeros(rows, 0).bool(),
            document=plan.document,
            memory_document=torch.zeros(rows, 0).long(),
        ).dense()
        for row in range(rows):
            length = int(segment.length[row])
            at = [
                (int(segment.document[row, i]), int(plan.segment_ids[row, i])) if i < length else None
                for i in range(seq_len)
            ]
            for i in range(length):
                for j in range(seq_len):
                    same = at[j] is not None and at[i][0] == at[j][0]  # type: ignore[index]
                    expected = same and (at[j][1] == 0 or (at[i][1] == 1 and j <= i))  # type: ignore[index]
                    assert bool(seen[row, i, j]) == expected, (i, j)
                after = at[i + 1] if i + 1 < seq_len else None
                wanted = after is not None and after[0] == at[i][0] and after[1] == 1  # type: ignore[index]
                expected_target = int(segment.tokens[row, i + 1]) if wanted else IGNORE
                assert int(plan.targets[row, i]) == expected_target
                predicted += [expected_target] * wanted
            assert (plan.order[row, length:] == PADDED).all()
            assert (plan.targets[row, length:] == IGNORE).all()
    assert sorted(predicted) == sorted(token for _, target in pieces(split, seq_len) for token in target)


def test_orders_of_a_packed_row():
    segment, _ = Pairs(pairs_of([(3, 2), (1, 3)]), seq_len=11).batch(np.arange(2), rows=1)
    plan = plan_of(segment)
    assert plan.order[0].tolist() == [0, 0, 0, 1, 2, 0, 1, 2, 3, PADDED, PADDED]
    assert plan.targets[0].tolist() == [-1, -1, 3, 4, -1, 6, 7, 8, -1, -1, -1]
    assert plan.place is not None
    assert plan.place[0, :9].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]


@pytest.mark.parametrize("positions", ["relative", "learned", "sinusoid"])
def test_a_pair_costs_the_same_in_whatever_company(positions: str):
    model = model_of(vocab_size=99, segment_embeddings=True, query_stream=False, positions=positions, max_positions=20)
    split = pairs_of([(3, 4), (1, 2), (9, 9), (2, 1), (5, 6), (4, 4), (8, 1), (1, 8)])
    pairs = Pairs(split, seq_len=20)
    batches = [pairs.batch(np.array([number]), rows=1)[0] for number in range(8)]
    losses: list[dict[int, float]] = []
    for segments in (batches, [segment for segment, _, _ in every_pair(split, seq_len=20, rows=2)]):
        losses.append({})
        for segment in segments:
            plan = plan_of(segment)
            with torch.no_grad():
                nll, _ = model(**plan.model_inputs(), memory=model.empty_memory(rows=len(segment.length), mem_len=0))
            counted = plan.targets != IGNORE
            losses[-1] |= dict(zip(plan.targets[counted].tolist(), nll[counted].tolist(), strict=True))
    assert losses[0].keys() == losses[1].keys()
    assert len(losses[0]) == sum(len(target) for _, target in pieces(split, 20))
    for token, loss in losses[0].items():
        assert loss == pytest.approx(losses[1][token], abs=1e-10)


# --- from files


def write_pairs(path: Path, pairs: list[tuple[str, str]]) -> Path:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    return path


def settings_of(folder: Path, train: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    found = corpora.settings(
        train,
        folder,
        corpus={"document_separator": "two_columns"},
        tokenizer={"kind": "char", "vocab_size": None},
        objective={"name": "seq2seq"},
        segments={"seq_len": 24, "mem_len": 0, "cross_documents": False},
    )
    for name, keys in sections.items():
        found.setdefault(name, {}).update(keys)
    return found


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
    expected = []
    for source, target in pairs:
        one, two = tokenizer.encode([source, target])
        expected += one + [between] * (between is not None) + two + [tokenizer.eod] * (tokenizer.eod is not None)
    assert split.tokens.tolist() == expected
    assert pieces(split, 10**6) == pieces(split, 10**7)
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
