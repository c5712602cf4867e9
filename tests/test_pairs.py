"""XLNet's windows [reused | A SEP B SEP CLS]: their text, their parts, what is remembered and what is predicted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logged import series
from models import two_streams
from plans import same
from windows import CLS, FIRST, READINGS, SEED, SEP, Reading, objective_of

from xltrain.config.load import validate
from xltrain.data.prepare import prepare
from xltrain.data.streams import Position
from xltrain.errors import UsageError
from xltrain.model.visibility import Visibility
from xltrain.objectives.draws import Draw
from xltrain.objectives.plan import IGNORE
from xltrain.training.build import build_objective, build_stream


def window_by_hand(
    row: tuple[list[int], list[int], list[int]],
    start: int,
    reuse_len: int,
    size: int,
    mem_len: int,
    draws: np.ndarray,
) -> tuple[list[int], list[int], list[int], bool]:
    """Tokens, documents and parts, token by token as the original walks, and whether B was from elsewhere."""
    text, document, line = row
    begin, total = start + reuse_len, len(text)
    cuts, end = [], begin + 1
    while end < total and not (line[end] != line[end - 1] and end - begin >= size):
        if line[end] != line[end - 1]:
            cuts.append(end)
        end += 1
    a_end = cuts[int(draws[1] * len(cuts))] if cuts else end
    own = range(max(0, start - mem_len), begin + size)
    needed = max(1, size - (a_end - begin))
    free = [place for place in range(total - needed + 1) if not set(own) & set(range(place, place + needed))]
    elsewhere = (not cuts or draws[0] < 0.5) and bool(free)
    if elsewhere:
        place = free[int(draws[2] * len(free))]
        b_begin, b_end = place, place + needed
        while b_begin > 0 and line[b_begin - 1] == line[b_begin] and b_begin - 1 not in own:
            b_begin -= 1
        if place - b_begin > size:
            b_begin = place
        while b_end < total and line[b_end] == line[b_end - 1] and b_end not in own:
            b_end += 1
    else:
        a_end = a_end if cuts else begin + (size + 1) // 2
        b_begin, b_end = a_end, end
    while a_end - begin + b_end - b_begin > size:
        if a_end - begin > b_end - b_begin:
            a_end -= 1
        else:
            b_end -= 1
    first, second = list(range(start, a_end)), list(range(b_begin, b_end))
    tokens = [text[i] for i in first] + [SEP] + [text[i] for i in second] + [SEP, CLS]
    documents = [document[i] for i in [*first, first[-1], *second, second[-1], second[-1]]]
    return tokens, documents, [0] * (len(first) + 1) + [1] * (len(second) + 1) + [2], elsewhere


@settings(max_examples=120)
@given(READINGS)
def test_windows_against_a_plain_reimplementation(reading: Reading):
    stream, seq_len, reuse_len = reading.stream(), reading.seq_len, reading.reuse_len
    num_tokens = reading.split.num_tokens
    position, run_size = Position(), num_tokens // reading.runs
    for epoch in (0, 1):
        by_hand = reading.by_hand(epoch)
        for number in range(stream.segments_per_epoch):
            assert position == Position(epoch, number)
            segment, position = stream.read(position)
            assert segment.segment_ids is not None
            assert segment.fresh.tolist() == [number == 0] * len(by_hand)
            assert segment.length.tolist() == [seq_len] * len(by_hand)
            for row, text in enumerate(by_hand):
                draws = np.random.default_rng((SEED, epoch, row, number)).random(3)
                expected = window_by_hand(text, number * reuse_len, reuse_len, reading.rest - 3, reading.mem_len, draws)
                assert segment.tokens[row].tolist() == expected[0]
                assert segment.document[row].tolist() == expected[1]
                assert segment.segment_ids[row].tolist() == expected[2]
    last = (stream.segments_per_epoch - 1) * reuse_len + seq_len - 3
    assert last <= run_size < last + reuse_len, "one more window would not fit"
    assert stream.unused_per_epoch == num_tokens - reading.runs * last


@settings(max_examples=60)
@given(READINGS)
def test_what_every_window_keeps(reading: Reading):
    """Rows go on through the reused part, A follows it, B begins a sentence if one is near, and nothing overlaps."""
    stream, reuse_len, rest = reading.stream(), reading.reuse_len, reading.rest
    for row, (text, _, line) in enumerate(reading.by_hand(0)):
        position, reused = Position(), []
        while position.epoch == 0:
            start = position.segment * reuse_len
            segment, position = stream.read(position)
            tokens = segment.tokens[row].tolist()
            reused += tokens[:reuse_len]
            seps = [place for place, token in enumerate(tokens) if token == SEP]
            assert len(seps) == 2
            assert (seps[1], tokens.index(CLS)) == (len(tokens) - 2, len(tokens) - 1)
            a, b = tokens[reuse_len : seps[0]], tokens[seps[0] + 1 : seps[1]]
            assert a == text[start + reuse_len : start + seps[0]]
            place = text.index(b[0])
            assert b == text[place : place + len(b)]
            assert min(len(a), len(b)) >= 1
            assert not set(b) & set(tokens[: seps[0]]), "B is none of what the window holds already"
            starts_line = place == 0 or line[place] != line[place - 1]
            after_own = place == start + reuse_len + rest - 3
            follows = place > start + reuse_len and place < start + reuse_len + rest - 3
            far = place - line.index(line[place]) > rest - 3
            assert starts_line or after_own or follows or far
        assert reused == text[: len(reused)]
        assert len(text) - len(reused) < reuse_len + rest


def test_b_is_from_elsewhere_half_of_the_time_and_from_everywhere():
    stream, position, follows, places = Reading([[5] * 400], 1, 20, 33).stream(), Position(), [], []
    while position.epoch < 4:
        segment, position = stream.read(position)
        tokens = segment.tokens[0].tolist()
        first = tokens.index(SEP)
        follows.append(tokens[first + 1] == tokens[first - 1] + 1)
        if not follows[-1]:
            places.append(tokens[first + 1] - FIRST)
    assert np.mean(follows) == pytest.approx(0.5, abs=0.06)
    assert np.histogram(places, bins=4, range=(0, 2000))[0].min() > len(places) / 6


def test_a_text_without_line_ends_still_has_b_from_everywhere():
    stream, position, places = Reading([[3000]], 1, 20, 23).stream(), Position(), set()
    while position.epoch == 0:
        segment, position = stream.read(position)
        places.add(int(segment.tokens[0, segment.tokens[0].tolist().index(SEP) + 1]))
    assert len(places) > 100


@settings(max_examples=60)
@given(reading=READINGS, cut=st.integers(0, 6), skip=st.integers(0, 9))
def test_a_position_and_a_range_of_rows_say_all(reading: Reading, cut: int, skip: int):
    total = reading.rows
    cut = min(cut, total)
    whole, position = reading.stream(), Position()
    for _ in range(skip):
        _, position = whole.read(position)
    low = reading.stream(first_row=0, rows=cut)
    high = reading.stream(first_row=cut, rows=total - cut)
    for _ in range(4):
        segment, after = whole.read(position)
        for part, (start, stop) in ((low, (0, cut)), (high, (cut, total))):
            found, same_after = part.read(position)
            assert same_after == after
            assert same(found, segment.rows(start, stop))
        assert segment.backward is None or segment.backward.tolist() == [0] * reading.runs + [1] * reading.runs
        position = after


def test_text_shorter_than_a_window_per_row_is_refused_with_both_numbers():
    with pytest.raises(UsageError, match=r"needs at least 68 tokens \(4 rows x \(seq_len 20 - 3\)\), this text has 67"):
        Reading([[67]], 4, 8, 12).stream()
    assert Reading([[68]], 4, 8, 12).stream().segments_per_epoch == 1


@settings(max_examples=40)
@given(reading=READINGS, apart=st.booleans(), seed=st.integers(0, 2**31))
def test_targets_and_visibility_against_their_definition(reading: Reading, apart: bool, seed: int):
    reuse_len, rest, seq_len, total = reading.reuse_len, reading.rest, reading.seq_len, reading.rows
    split = reading.split
    segment, _ = reading.stream().read(Position())
    count = min(4, reuse_len * 2, rest - 3)
    objective = objective_of(split.num_tokens + FIRST, reuse_len, num_predict=count, keep_apart=apart)
    plan = objective.plan(segment, Draw(seed=seed, step=1, rows=torch.arange(total)))
    assert plan.predict is not None
    assert plan.remember == reuse_len
    assert plan.segment_ids is segment.segment_ids
    seen = Visibility.of_segment(
        order=plan.order,
        memory_valid=torch.zeros(total, 0).bool(),
        document=plan.document,
        memory_document=None if plan.document is None else torch.zeros(total, 0).long(),
        slots=torch.arange(seq_len).expand(total, -1),
    ).dense()
    for row in range(total):
        tokens, order = segment.tokens[row].tolist(), plan.order[row].tolist()
        targets = plan.predict[row][plan.targets[row] != IGNORE].tolist()
        assert [tokens[i] for i in targets] == plan.targets[row][plan.targets[row] != IGNORE].tolist()
        assert not {SEP, CLS} & {tokens[i] for i in targets}
        assert sum(i < reuse_len for i in targets) == min(reuse_len, count - count // 2)
        assert sum(i >= reuse_len for i in targets) == count // 2
        ordered = set(targets) | {i for i, token in enumerate(tokens) if token in (SEP, CLS)}
        for i in range(seq_len):
            for j in range(seq_len):
                halves = i >= reuse_len, j >= reuse_len
                if halves[0] != halves[1]:
                    expected = halves[0]
                else:
                    expected = j not in ordered or i == j or (i in ordered and order[j] < order[i])
                same_document = int(segment.document[row, i]) == int(segment.document[row, j])
                expected = expected and (same_document or not apart)
                assert bool(seen[row, i, j]) == expected, (i, j)
                if i in targets:
                    assert bool(seen[row, seq_len + i, j]) == (expected and i != j), (i, j)


def test_only_the_reused_part_is_remembered_and_it_is_the_text_before_the_next_window():
    reading = Reading([[4, 6, 5] * 12], 1, reuse_len=5, rest=9, both=True)
    split, reuse_len, stream = reading.split, reading.reuse_len, reading.stream()
    model = two_streams(vocab_size=split.num_tokens + FIRST, num_layers=1, segment_embeddings=True)
    objective = objective_of(split.num_tokens + FIRST, reuse_len)
    memory, position = model.empty_memory(rows=2, mem_len=12), Position()
    for number in range(4):
        segment, position = stream.read(position)
        plan = objective.plan(segment, Draw(seed=1, step=number, rows=torch.arange(2)))
        _, memory = model(**plan.model_inputs(), memory=memory)
        stop = (number + 1) * reuse_len
        text = torch.from_numpy(split.tokens[max(0, stop - 12) : stop])
        reversed_text = torch.from_numpy(split.tokens[::-1][max(0, stop - 12) : stop].copy())
        for row, expected in enumerate((text, reversed_text)):
            kept = memory.states[0, row, -len(expected) :]
            assert memory.length[row] == len(expected)
            torch.testing.assert_close(kept, model.embedding(expected).detach(), rtol=0, atol=0)


# --- runs


def settings_of(folder: Path, train: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    data = corpora.settings(
        train,
        folder,
        segments={"seq_len": 32, "mem_len": 24, "reuse_len": 16, "layout": "pair", "bidirectional": True},
        model={"segment_embeddings": True, "dropout": 0.1},
        objective={"name": "permutation", "predict_fraction": 0.2},
    )
    return corpora.over(data, sections)


def test_the_store_knows_where_lines_end_only_if_that_is_asked_for(corpus: corpora.Corpus, tmp_path: Path):
    pair = prepare(corpora.checked(settings_of(tmp_path, corpus.train))).store
    plain = prepare(corpora.config_for(corpus.train, tmp_path)).store
    assert pair.fingerprint != plain.fingerprint
    assert plain.split("train").line_ends is None
    assert not (plain.folder / "train.lines").exists()
    split, tokenizer = pair.split("train"), pair.tokenizer()
    assert np.array_equal(split.tokens, plain.split("train").tokens)
    assert split.line_ends is not None
    expected, place = [], 0
    for block in corpus.train.read_text().strip().split("\n\n"):
        sizes = [len(ids) for ids in tokenizer.encode(block.split("\n"))]
        expected += (place + np.cumsum(sizes[:-1])).tolist()
        place += sum(sizes) + 1
    assert split.line_ends.tolist() == expected
    assert place == split.num_tokens


def test_a_run_on_pairs_goes_on_to_the_last_digit_and_is_evaluated_on_a_stream(
    corpus: corpora.Corpus, cli: Callable[..., Any], tmp_path: Path
):
    losses = {}
    for name, steps in (("whole", [6]), ("parts", [3, 6])):
        folder = tmp_path / name
        folder.mkdir()
        for number, stop in enumerate(steps):
            data = settings_of(
                folder,
                corpus.train,
                corpus={"validation": [str(corpus.valid)], "cache_dir": str(tmp_path / "cache")},
                training={"max_steps": stop},
                schedule={"name": "constant"},
                evaluation={"max_tokens": 300},
                logging={"every": 1},
            )
            config = corpora.write_config(folder / "c.yaml", data)
            outcome = cli("pretrain", config, *(["--resume"] if number else []))
            assert outcome.status == 0, outcome.err
            assert "pairs of texts with <sep> and <cls>; evaluation reads a stream" in outcome.err
        losses[name] = series(folder / "run", "loss")
    assert len(losses["whole"]) == 6
    assert losses["whole"] == losses["parts"]
    short = tmp_path / "short.txt"
    short.write_text("".join(corpus.valid.read_text().splitlines(keepends=True)[:20]))
    outcome = cli("eval-ppl", tmp_path / "whole" / "run", "--data", short, "--json")
    assert "evaluated on the text as it follows" in outcome.err
    assert json.loads(outcome.out)["mode"] == "stream"
    assert cli("inspect", tmp_path / "whole" / "c.yaml", "--signal").status == 0


def test_segment_embeddings_learn_from_pairs(corpus: corpora.Corpus, tmp_path: Path):
    from xltrain.training.build import build_model

    config = corpora.checked(settings_of(tmp_path, corpus.train))
    store, device = prepare(config).store, torch.device("cpu")
    tokenizer = store.tokenizer()
    model = build_model(config, vocab_size=tokenizer.vocab_size, device=device)
    objective = build_objective(config, tokenizer=tokenizer, seq_len=32, device=device)
    segment, _ = build_stream(config, store.split("train"), tokenizer).read(Position())
    plan = objective.plan(segment, Draw(seed=1, step=1, rows=torch.arange(4)))
    nll, _ = model(**plan.model_inputs(), memory=model.empty_memory(rows=4, mem_len=24))
    nll.sum().backward()
    assert model.segment.grad is not None
    assert (model.segment.grad.abs().amax(dim=(1, 2, 3)) > 0).all()
    assert [tokenizer.piece(int(segment.tokens[0, place])) for place in (-2, -1)] == ["<sep>", "<cls>"]


@pytest.mark.parametrize(
    ("sections", "key", "words"),
    [
        ({"objective": {"name": "causal"}}, "segments.layout", "needs objective.name permutation"),
        ({"segments": {"reuse_len": 0}}, "segments.reuse_len", "1 to segments.seq_len - 5"),
        ({"segments": {"reuse_len": 28}}, "segments.reuse_len", "1 to segments.seq_len - 5"),
        ({"tokenizer": {"kind": "word"}}, "segments.layout", "words lack"),
    ],
)
def test_settings_that_pairs_exclude(tmp_path: Path, sections: dict[str, Any], key: str, words: str):
    _, problems = validate(settings_of(tmp_path, tmp_path / "a.txt", **sections))
    assert any(found == key and words in text for found, text in problems), problems
