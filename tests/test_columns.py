"""Two-column text: every pair whole, once, and seen by nobody else; loss inside of targets only."""

from typing import Any

import corpora
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import two_streams

from xltrain.data.columns import ColumnStream, Pairs, cut, every_pair
from xltrain.data.store import Split
from xltrain.data.streams import Position, Segment
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
    model = two_streams(
        vocab_size=99, segment_embeddings=True, query_stream=False, positions=positions, max_positions=20
    )
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
