"""One pass over a text: every token's successor is scored once, however the text is cut."""

from collections import Counter
from collections.abc import Iterable

import corpora
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from xltrain.data.passes import each_document, sliding_windows, whole_text
from xltrain.data.streams import NO_TOKEN, Segment

LENGTHS = st.lists(st.integers(1, 15), min_size=1, max_size=8)
SIZES = {"lengths": LENGTHS, "seq_len": st.integers(1, 9), "rows": st.integers(1, 6)}


def scored_pairs(found: Iterable[tuple[Segment, Tensor, Tensor]]) -> Counter[tuple[int, int]]:
    """(token, its successor) of everything that a left-to-right model is scored on."""
    pairs: Counter[tuple[int, int]] = Counter()
    for segment, number, scored in found:
        rows, seq_len = segment.tokens.shape
        assert number.shape == (rows,)
        scored = scored if scored.dim() == 2 else scored[:, None].expand(rows, seq_len)
        for row in range(rows):
            length = int(segment.length[row])
            tokens = [*segment.tokens[row, :length].tolist(), int(segment.next_token[row])]
            for place in range(length):
                if scored[row, place] and tokens[place + 1] != NO_TOKEN:
                    pairs[tokens[place], tokens[place + 1]] += 1
    return pairs


def pairs_within(spans: Iterable[tuple[int, int]]) -> Counter[tuple[int, int]]:
    return Counter((token, token + 1) for start, stop in spans for token in range(start, stop - 1))


@given(**SIZES, warm_up=st.integers(0, 4))
def test_a_stream_scores_every_successor_once(lengths: list[int], seq_len: int, rows: int, warm_up: int):
    split = corpora.split_of(lengths)
    found = scored_pairs(whole_text(split, seq_len=seq_len, rows=rows, warm_up=warm_up))
    assert found == pairs_within([(0, split.num_tokens)])


@given(**SIZES)
def test_documents_score_every_successor_within_them_once(lengths: list[int], seq_len: int, rows: int):
    split = corpora.split_of(lengths)
    begins = (split.ends - split.lengths()).tolist()
    found = scored_pairs(each_document(split, seq_len=seq_len, rows=rows))
    assert found == pairs_within(zip(begins, split.ends.tolist(), strict=True))


@given(**SIZES, data=st.data())
def test_sliding_windows_score_every_successor_once(lengths: list[int], seq_len: int, rows: int, data: st.DataObject):
    split = corpora.split_of(lengths)
    stride = data.draw(st.integers(1, seq_len))
    batches = list(sliding_windows(split, seq_len=seq_len, rows=rows, stride=stride))
    assert scored_pairs(batches) == pairs_within([(0, split.num_tokens)])
    windows = 1 + max(0, -(-(split.num_tokens - seq_len) // stride))
    assert sum(len(segment.tokens) for segment, _, _ in batches) == windows, "none without a new target"


def test_sliding_windows_give_every_target_but_the_first_the_longest_past_that_the_stride_allows():
    split = corpora.split_of([50])
    for segment, _, scored in sliding_windows(split, seq_len=10, rows=3, stride=2):
        for row in range(segment.tokens.shape[0]):
            places = scored[row].nonzero().flatten().tolist()
            assert places == (list(range(10)) if segment.tokens[row, 0] == 0 else [8, 9])


@given(**SIZES, warm_up=st.integers(0, 4))
def test_each_row_first_reads_the_segments_before_its_part(lengths: list[int], seq_len: int, rows: int, warm_up: int):
    split = corpora.split_of(lengths)
    count = -(-split.num_tokens // seq_len)
    turns = list(whole_text(split, seq_len=seq_len, rows=rows, warm_up=warm_up))
    assert turns[-1][2].any(), "nothing is read after the last segment that counts"
    for row in range(turns[0][0].tokens.shape[0]):
        numbers = [int(number[row]) for _, number, _ in turns]
        scored = [int(number[row]) for _, number, wanted in turns if wanted[row]]
        assert numbers == list(range(numbers[0], numbers[0] + len(turns))), "a row reads on without a gap"
        assert scored == list(range(scored[0], scored[-1] + 1))
        assert numbers[0] == max(0, scored[0] - warm_up)
        assert [bool(segment.fresh[row]) for segment, _, _ in turns] == [True] + [False] * (len(turns) - 1)
        for (segment, number, _), place in zip(turns, numbers, strict=True):
            assert int(number[row]) == place
            length = max(0, min(seq_len, split.num_tokens - place * seq_len)) if place < count else 0
            assert int(segment.length[row]) == length
            start = place * seq_len
            assert segment.tokens[row, :length].tolist() == list(range(start, start + length))


@given(**SIZES)
def test_a_document_starts_fresh_and_its_draws_depend_on_nothing_outside_it(
    lengths: list[int], seq_len: int, rows: int
):
    split = corpora.split_of(lengths)
    begins = (split.ends - split.lengths()).tolist()
    for segment, inside, active in each_document(split, seq_len=seq_len, rows=rows):
        for row in active.nonzero().flatten().tolist():
            document = int(segment.document[row, 0])
            offset = int(segment.tokens[row, 0]) - begins[document]
            assert int(inside[row]) == offset
            assert bool(segment.fresh[row]) == (offset == 0)
            length = int(segment.length[row])
            assert segment.document[row, :length].tolist() == [document] * length


def test_the_documents_of_a_stream_are_numbered_and_the_padding_is_marked():
    ((segment, _, _),) = list(whole_text(corpora.split_of([2, 3]), seq_len=8, rows=1, warm_up=0))
    assert segment.tokens.tolist() == [[0, 1, 2, 3, 4, 0, 0, 0]]
    assert segment.document.tolist() == [[0, 0, 1, 1, 1, 0, 0, 0]]
    assert (int(segment.length), int(segment.next_token), int(segment.next_document)) == (5, NO_TOKEN, NO_TOKEN)
    first, second = (
        segment
        for segment, _, _ in whole_text(corpora.split_of([2, 3]), seq_len=2, rows=1, warm_up=0)
        if int(segment.length) == 2
    )
    assert (int(first.next_token), int(first.next_document)) == (2, 1)
    assert (int(second.next_token), int(second.next_document)) == (4, 1)


@pytest.mark.parametrize("rows", [1, 2, 5, 50])
def test_no_more_rows_are_used_than_there_is_text_for(rows: int):
    split = corpora.split_of([10, 10])
    assert next(whole_text(split, seq_len=4, rows=rows, warm_up=1))[0].tokens.shape == (min(rows, 5), 4)
    assert next(each_document(split, seq_len=4, rows=rows))[0].tokens.shape == (min(rows, 2), 4)
    assert all(torch.any(wanted) for _, _, wanted in each_document(split, seq_len=4, rows=rows))


@given(**SIZES, warm_up=st.integers(0, 4), data=st.data())
def test_overlapping_segments_of_a_stream_are_those_of_one_row(
    lengths: list[int], seq_len: int, rows: int, warm_up: int, data: st.DataObject
):
    split = corpora.split_of(lengths)
    advance = data.draw(st.integers(1, seq_len))
    scored: Counter[int] = Counter()
    covered: set[int] = set()
    for segment, number, wanted in whole_text(split, seq_len=seq_len, rows=rows, warm_up=warm_up, advance=advance):
        for row in wanted.nonzero().flatten().tolist():
            start, length = int(number[row]) * advance, int(segment.length[row])
            assert length == min(seq_len, split.num_tokens - start)
            assert segment.tokens[row, :length].tolist() == list(range(start, start + length))
            scored[start] += 1
            covered |= set(range(start, start + length))
    assert scored == Counter(range(0, max(scored) + 1, advance)), "every segment once"
    assert covered == set(range(split.num_tokens))
    assert max(scored) == 0 or max(scored) - advance + seq_len < split.num_tokens, "the last segment has new text"


@given(**SIZES, data=st.data())
def test_overlapping_segments_stay_within_their_documents(
    lengths: list[int], seq_len: int, rows: int, data: st.DataObject
):
    split = corpora.split_of(lengths)
    advance = data.draw(st.integers(1, seq_len))
    found: dict[int, list[tuple[int, int]]] = {}
    for segment, inside, active in each_document(split, seq_len=seq_len, rows=rows, advance=advance):
        for row in active.nonzero().flatten().tolist():
            number = int(segment.document[row, 0])
            assert bool(segment.fresh[row]) == (number not in found)
            found.setdefault(number, []).append((int(inside[row]), int(segment.length[row])))
    for number, length in enumerate(lengths):
        starts = range(0, max(1, length - seq_len + advance), advance)
        assert found[number] == [(start, min(seq_len, length - start)) for start in starts]
