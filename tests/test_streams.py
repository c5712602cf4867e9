"""Rows that continue from segment to segment, epochs that use every document, positions that say where to go on."""

from collections.abc import Iterator
from typing import Any

import corpora
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from xltrain.data.store import Split
from xltrain.data.streams import Position, Segment, TrainingStream
from xltrain.errors import UsageError

LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=12)
STREAMS: dict[str, Any] = {
    "lengths": LENGTHS,
    "rows": st.integers(1, 4),
    "seq_len": st.integers(1, 7),
    "shuffle": st.booleans(),
}


def stream_of(split: Split, total_rows: int, seq_len: int, shuffle: bool, **more: Any) -> TrainingStream:
    return TrainingStream(split, total_rows=total_rows, seq_len=seq_len, shuffle=shuffle, seed=5, **more)


def walk(stream: TrainingStream, position: Position, count: int) -> Iterator[tuple[Segment, Position]]:
    for _ in range(count):
        segment, position = stream.read(position)
        yield segment, position


def epoch_text(split: Split, epoch: int, shuffle: bool) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of an epoch and the number of each one's document, laid end to end by hand."""
    order = np.random.default_rng((5, epoch)).permutation(split.num_documents)
    order = order if shuffle else np.arange(split.num_documents)
    begins = split.ends - split.lengths()
    parts = [split.tokens[begins[document] : split.ends[document]] for document in order]
    numbers = [np.full(len(part), number) for number, part in enumerate(parts)]
    return np.concatenate(parts), np.concatenate(numbers)


@settings(max_examples=60)
@given(**STREAMS)
def test_the_segments_of_a_row_joined_are_its_run_of_the_text(
    lengths: list[int], rows: int, seq_len: int, shuffle: bool
):
    split = corpora.split_of(lengths)
    assume(split.num_tokens >= rows * (seq_len + 1))
    stream = stream_of(split, rows, seq_len, shuffle)
    row_len, count = split.num_tokens // rows, stream.segments_per_epoch
    position = Position()
    for epoch in range(3):
        text, document = epoch_text(split, epoch, shuffle)
        segments = list(walk(stream, position, count))
        position = segments[-1][1]
        assert position == Position(epoch + 1, 0)
        for row in range(rows):
            run = slice(row * row_len, row * row_len + count * seq_len)
            after = run.start + seq_len * np.arange(1, count + 1)
            joined = {
                name: torch.cat([getattr(segment, name)[row].reshape(-1) for segment, _ in segments]).tolist()
                for name in ("tokens", "document", "next_token", "next_document", "length", "fresh")
            }
            assert joined["tokens"] == text[run].tolist()
            assert joined["document"] == document[run].tolist()
            assert joined["next_token"] == text[after].tolist()
            assert joined["next_document"] == document[after].tolist()
            assert joined["length"] == [seq_len] * count
            assert joined["fresh"] == [True] + [False] * (count - 1)
        assert stream.unused_per_epoch == split.num_tokens - rows * count * seq_len
        assert row_len - count * seq_len <= seq_len, "no further segment would fit"


@given(lengths=LENGTHS)
def test_every_document_comes_exactly_once_per_epoch(lengths: list[int]):
    split = corpora.split_of([*lengths, 1])
    stream = stream_of(split, 1, 1, True)
    for epoch in range(4):
        segments = [segment for segment, _ in walk(stream, Position(epoch, 0), stream.segments_per_epoch)]
        seen = [int(segment.tokens) for segment in segments] + [int(segments[-1].next_token)]
        assert sorted(seen) == list(range(split.num_tokens))
        begins = set((split.ends - split.lengths()).tolist())
        turns = [place for place in range(1, len(seen)) if seen[place] != seen[place - 1] + 1]
        assert all(seen[place] in begins for place in turns), "a document was cut apart"


def test_epochs_have_different_orders_that_depend_on_the_seed_alone():
    split = corpora.split_of([3] * 40)

    def first(epoch: int, seed: int) -> tuple[int, ...]:
        stream = TrainingStream(split, total_rows=1, seq_len=100, shuffle=True, seed=seed)
        return tuple(stream.read(Position(epoch, 0))[0].tokens[0].tolist())

    found = {(epoch, seed): first(epoch, seed) for epoch in (0, 1, 2) for seed in (1, 2)}
    assert len(set(found.values())) == 6
    assert found == {key: first(*key) for key in found}


def test_without_shuffling_every_epoch_is_the_same():
    stream = stream_of(corpora.split_of([9, 11, 5]), 2, 4, False)
    epochs = [[s.tokens.tolist() for s, _ in walk(stream, Position(e, 0), stream.segments_per_epoch)] for e in (0, 3)]
    assert epochs[0] == epochs[1]


def same(one: Segment, other: Segment) -> bool:
    pairs = [(getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__]
    return all(mine is theirs if mine is None else torch.equal(mine, theirs) for mine, theirs in pairs)


@settings(max_examples=60)
@given(**STREAMS, stop=st.integers(1, 30))
def test_a_stream_goes_on_from_a_saved_position_as_if_never_stopped(
    lengths: list[int], rows: int, seq_len: int, shuffle: bool, stop: int
):
    split = corpora.split_of(lengths)
    assume(split.num_tokens >= rows * (seq_len + 1))
    whole = list(walk(stream_of(split, rows, seq_len, shuffle), Position(), stop + 10))
    position = whole[stop - 1][1]
    again = list(walk(stream_of(split, rows, seq_len, shuffle), position, 10))
    assert all(same(one, other) for (one, _), (other, _) in zip(whole[stop:], again, strict=True))
    assert [place for _, place in whole[stop:]] == [place for _, place in again]


@settings(max_examples=60)
@given(**STREAMS, cut=st.integers(0, 4))
def test_a_process_that_owns_some_rows_reads_what_the_whole_reads_there(
    lengths: list[int], rows: int, seq_len: int, shuffle: bool, cut: int
):
    split = corpora.split_of(lengths)
    assume(split.num_tokens >= rows * (seq_len + 1))
    cut = min(cut, rows)
    whole = walk(stream_of(split, rows, seq_len, shuffle), Position(), 8)
    low = walk(stream_of(split, rows, seq_len, shuffle, first_row=0, rows=cut), Position(), 8)
    high = walk(stream_of(split, rows, seq_len, shuffle, first_row=cut, rows=rows - cut), Position(), 8)
    for (segment, place), (first, _), (second, same_place) in zip(whole, low, high, strict=True):
        assert same(segment.rows(0, cut), first)
        assert same(segment.rows(cut, rows), second)
        assert place == same_place


def test_text_shorter_than_a_segment_per_row_is_refused_with_both_numbers():
    with pytest.raises(UsageError) as caught:
        stream_of(corpora.split_of([40]), 4, 64, False)
    assert str(caught.value) == (
        "corpus.train: needs at least 260 tokens (4 rows x (seq_len 64 + 1)), this text has 40; "
        "add text, or lower training.batch_size or segments.seq_len"
    )


@pytest.mark.parametrize(("rows", "seq_len"), [(4, 64), (1, 1), (3, 10)])
def test_the_number_of_tokens_that_the_refusal_names_is_enough(rows: int, seq_len: int):
    needed = rows * (seq_len + 1)
    assert stream_of(corpora.split_of([needed]), rows, seq_len, False).segments_per_epoch == 1
    with pytest.raises(UsageError, match=f"needs at least {needed} tokens"):
        stream_of(corpora.split_of([needed - 1]), rows, seq_len, False)


def test_a_thousand_tokens_leave_a_tail_that_is_counted():
    stream = stream_of(corpora.split_of([1000]), 1, 64, False)
    assert (stream.segments_per_epoch, stream.unused_per_epoch) == (15, 40)


# --- segments that overlap, and rows that run backward


@settings(max_examples=60)
@given(**STREAMS, data=st.data())
def test_where_a_part_of_a_segment_is_reused_the_next_one_starts_after_that_part(
    lengths: list[int], rows: int, seq_len: int, shuffle: bool, data: st.DataObject
):
    split = corpora.split_of(lengths)
    assume(split.num_tokens >= rows * (seq_len + 1))
    advance = data.draw(st.integers(1, seq_len))
    stream = stream_of(split, rows, seq_len, shuffle, advance=advance)
    text, _ = epoch_text(split, 0, shuffle)
    row_len, count = split.num_tokens // rows, stream.segments_per_epoch
    for number, (segment, _) in enumerate(walk(stream, Position(), count)):
        for row in range(rows):
            start = row * row_len + number * advance
            assert segment.tokens[row].tolist() == text[start : start + seq_len].tolist()
            assert int(segment.next_token[row]) == text[start + seq_len]
    last = (count - 1) * advance + seq_len
    assert last < row_len <= last + advance, "one more segment would not fit"
    assert stream.unused_per_epoch == split.num_tokens - rows * last


@settings(max_examples=60)
@given(**STREAMS, data=st.data())
def test_the_second_half_of_the_rows_reads_the_same_text_from_its_other_end(
    lengths: list[int], rows: int, seq_len: int, shuffle: bool, data: st.DataObject
):
    split = corpora.split_of(lengths)
    assume(split.num_tokens >= rows * (seq_len + 1))
    advance = data.draw(st.integers(1, seq_len))
    stream = stream_of(split, 2 * rows, seq_len, shuffle, advance=advance, bidirectional=True)
    text, document = epoch_text(split, 0, shuffle)
    row_len = split.num_tokens // rows
    for number, (segment, _) in enumerate(walk(stream, Position(), stream.segments_per_epoch)):
        assert segment.backward is not None
        assert segment.backward.tolist() == [0] * rows + [1] * rows
        start = number * advance
        for row in range(2 * rows):
            run = slice(row % rows * row_len, (row % rows + 1) * row_len)
            tokens, numbers = text[run], document[run]
            if row >= rows:
                tokens, numbers = tokens[::-1], numbers[::-1]
            assert segment.tokens[row].tolist() == tokens[start : start + seq_len].tolist()
            assert segment.document[row].tolist() == numbers[start : start + seq_len].tolist()
            assert int(segment.next_token[row]) == tokens[start + seq_len]
    whole = stream.read(Position())[0]
    part = stream_of(split, 2 * rows, seq_len, shuffle, advance=advance, bidirectional=True, first_row=rows, rows=rows)
    assert same(whole.rows(rows, 2 * rows), part.read(Position())[0])
