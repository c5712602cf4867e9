"""Rows that continue from segment to segment, epochs that use every document, positions that say where to go on."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from plans import same

from xltrain.data.ahead import ReadAhead
from xltrain.data.epochs import EpochText
from xltrain.data.order import DocumentOrder, block_bounds, block_size, num_blocks
from xltrain.data.store import Split, Store
from xltrain.data.streams import Position, Segment, Stream, TrainingStream
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


def walk(stream: Stream, position: Position, count: int) -> Iterator[tuple[Segment, Position]]:
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
        "add text, or lower training.batch_size, training.accumulate or segments.seq_len"
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


# --- more documents than are permuted freely


@pytest.fixture
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xltrain.data.order.MAX_BLOCKS", 5)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=st.integers(1, 60), epoch=st.integers(0, 2), data=st.data())
def test_an_order_in_blocks_has_every_document_once_and_neighbours_together(
    few_blocks: None, documents: int, epoch: int, data: st.DataObject
):
    order = DocumentOrder(documents, seed=3, epoch=epoch)
    whole = order.numbers(0, documents).tolist()
    assert sorted(whole) == list(range(documents))
    blocks = [number // order.size for number in whole]
    assert len([1 for place in range(1, documents) if blocks[place] != blocks[place - 1]]) == len(set(blocks)) - 1
    assert len(set(blocks)) <= 5
    start = data.draw(st.integers(0, documents - 1))
    stop = data.draw(st.integers(start + 1, documents + 3))
    assert order.numbers(start, stop).tolist() == whole[start:stop]


def test_orders_in_blocks_differ_between_epochs_and_inside_of_blocks(few_blocks: None):
    orders = [DocumentOrder(100, seed=3, epoch=epoch).numbers(0, 100) for epoch in (0, 1)]
    assert orders[0].tolist() != orders[1].tolist()
    inside = [order[order // 20 == 2] for order in orders]
    assert inside[0].tolist() != inside[1].tolist()
    assert inside[0].tolist() != sorted(inside[0].tolist())


@pytest.mark.parametrize("stored", [False, True])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=40), epoch=st.integers(0, 2), data=st.data())
def test_any_place_of_an_epoch_in_blocks_is_found_at_once(
    few_blocks: None, stored: bool, lengths: list[int], epoch: int, data: st.DataObject
):
    split = corpora.split_of(lengths)
    line_ends = sorted(set(data.draw(st.lists(st.integers(1, split.num_tokens), max_size=20))) - set(split.ends))
    split = replace(split, line_ends=np.array(line_ends, dtype=np.int64))
    if stored:
        split = replace(split, blocks=block_bounds(split.ends))
    order = DocumentOrder(len(lengths), seed=3, epoch=epoch).numbers(0, len(lengths))
    begins = split.ends - split.lengths()
    places = np.concatenate([np.arange(begins[number], split.ends[number]) for number in order])
    turns = np.repeat(np.arange(len(lengths)), split.lengths()[order])
    text = EpochText(split, epoch=epoch, shuffle=True, seed=3)
    start = data.draw(st.integers(0, split.num_tokens - 1))
    count = data.draw(st.integers(1, split.num_tokens - start))
    tokens, document = text.window(start, count)
    assert tokens.tolist() == split.tokens[places[start : start + count]].tolist()
    assert document.tolist() == turns[start : start + count].tolist()
    begin, end = text.line(start)
    breaks = {0, *begins.tolist(), *split.ends.tolist(), *line_ends}
    expected = [place for place in range(begin, end) if begin < place and int(places[place]) in breaks]
    assert expected == []
    assert int(places[begin]) in breaks
    assert int(places[end - 1]) + 1 in breaks
    assert begin <= start < end


def test_the_end_of_a_huge_store_opens_at_once_and_is_read_right_in_a_shuffled_epoch(tmp_path: Path):
    """10^11 ids in a million documents, all holes but the last."""
    documents, length = 1_000_000, 100_000
    total, tail = documents * length, np.arange(1, 1_001, dtype=np.uint16)
    sparse = {"train.tokens": (total, np.uint16, tail), "train.ends": (documents, np.int64, np.array([total]))}
    blocks = np.arange(num_blocks(documents), dtype=np.int64) * block_size(documents) * length
    sparse["train.blocks"] = (len(blocks) + 1, np.int64, np.concatenate([blocks, [total]]))
    for name, (size, kind, last) in sparse.items():
        with (tmp_path / name).open("wb") as file:
            file.seek((size - len(last)) * np.dtype(kind).itemsize)
            last.astype(kind).tofile(file)
    size = block_size(documents)
    with (tmp_path / "train.ends").open("r+b") as file:
        file.seek((documents - size) * 8)
        file.write((np.arange(documents - size + 1, documents + 1, dtype=np.int64) * length).tobytes())
    manifest = {
        "tokenizer": {"eod": None},
        "dtype": "uint16",
        "boundaries": 0,
        "line_ends": None,
        "splits": {"train": {"tokens": total, "documents": documents}},
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    opened = []
    for _ in range(3):
        begin = time.perf_counter()
        split = Store.open(tmp_path).split("train")
        stream = TrainingStream(split, total_rows=8, seq_len=512, shuffle=True, seed=0)
        opened.append(time.perf_counter() - begin)
    assert min(opened) < 0.05
    assert "of 100,000,000,000 training tokens" in stream.notes()[0]
    order = DocumentOrder(documents, seed=0, epoch=7)
    turn = int(np.flatnonzero(order.blocks == len(order.blocks) - 1)[0])
    inside = int(np.flatnonzero(order.block(turn) == documents - 1)[0])
    sizes = np.diff(blocks, append=total)[order.blocks]
    place = int(sizes[:turn].sum()) + (inside + 1) * length - 1_000
    text = EpochText(split, epoch=7, shuffle=True, seed=0)
    tokens, _ = text.window(place, 1_000)
    assert tokens.tolist() == tail.tolist()


# --- reading ahead


@settings(max_examples=30)
@given(**STREAMS, depth=st.integers(1, 4), jumps=st.lists(st.integers(0, 20), max_size=6))
def test_reading_ahead_gives_what_reading_gives(
    lengths: list[int], rows: int, seq_len: int, shuffle: bool, depth: int, jumps: list[int]
):
    split = corpora.split_of(lengths)
    assume(split.num_tokens >= rows * (seq_len + 1))
    stream = stream_of(split, rows, seq_len, shuffle)
    ahead = ReadAhead(stream_of(split, rows, seq_len, shuffle), depth=depth)
    places = [place for _, place in walk(stream, Position(), 21)]
    for start in [0, *jumps]:
        for (one, place), (other, same_place) in zip(
            walk(stream, places[start], 4), walk(ahead, places[start], 4), strict=True
        ):
            assert same(one, other)
            assert place == same_place


def test_what_fails_while_reading_ahead_is_raised_when_it_is_asked_for():
    class Failing:
        split = corpora.split_of([5])

        def read(self, position: Position) -> tuple[Segment, Position]:
            if position.segment == 2:
                raise OSError("the disk is gone")
            return stream_of(self.split, 1, 1, False).read(Position())[0], Position(0, position.segment + 1)

        def notes(self) -> list[str]:
            return []

    ahead = ReadAhead(Failing(), depth=3)
    _, place = ahead.read(Position())
    _, place = ahead.read(place)
    with pytest.raises(OSError, match="disk is gone"):
        ahead.read(place)
