"""Plans of all objectives against naive definitions, and the streams that two-part and reversed rows read."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import CONTROL, STARTS, V, draw_of, segment_of, targets_of, text_of

from xltrain.data.passes import whole_text
from xltrain.data.store import Split
from xltrain.data.streams import Position, TrainingStream
from xltrain.model.transformer import LanguageModel
from xltrain.model.visibility import Visibility
from xltrain.objectives.causal import Causal
from xltrain.objectives.masked import MASKED, RANDOM, Masked
from xltrain.objectives.permutation import Permutation, sample_places
from xltrain.objectives.plan import IGNORE, PADDED, Objective, Plan
from xltrain.objectives.seq2seq import Seq2Seq
from xltrain.objectives.targets import TargetRule

NEVER = torch.arange(V) < CONTROL
RULE: dict[str, Any] = {"starts_word": STARTS, "never_target": NEVER}


def objectives(seq_len: int, reuse_len: int = 0) -> dict[str, Objective]:
    count = max(1, seq_len // 5)
    return {
        "causal": Causal(),
        "permutation": Permutation(num_predict=count, max_span=3, **RULE),
        "two parts": Permutation(num_predict=max(2, count), max_span=3, reuse_len=reuse_len or seq_len // 2, **RULE),
        "masked": Masked(num_predict=count, mask=6, max_span=1, **RULE),
        "seq2seq": Seq2Seq(),
    }


def seen_of(plan: Plan) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, T, T) what every position's content sees, and what a query there would see."""
    rows, seq_len = plan.tokens.shape
    slots = torch.arange(seq_len).expand(rows, -1)
    rule = Visibility.of_segment(order=plan.order, memory_valid=torch.zeros(rows, 0).bool(), slots=slots)
    return rule.dense()[:, :seq_len], rule.dense()[:, seq_len:]


@settings(max_examples=40, deadline=None)
@given(st.integers(4, 24), st.integers(0, 3), st.integers(0, 2**31), st.data())
def test_visibility_of_every_objective_against_its_definition(seq_len: int, cut: int, seed: int, data: Any) -> None:
    reuse_len = data.draw(st.integers(2, seq_len - 2))
    segment = segment_of(text_of(2, seq_len, controls=0.1, seed=seed), length=seq_len - cut)
    length = seq_len - cut
    for name, objective in objectives(seq_len, reuse_len).items():
        plan = objective.plan(segment, draw_of(2, seed=seed))
        content, query = seen_of(plan)
        for row in range(2):
            targets = (
                set(plan.predict[row][plan.targets[row] != IGNORE].tolist()) if plan.predict is not None else set()
            )
            order = plan.order[row].tolist()
            begin = min((i for i in range(length) if order[i] > 0), default=length)  # of the seq2seq target
            for i in range(length):
                for j in range(seq_len):
                    if j >= length:
                        expected = False
                    elif name == "causal":
                        expected = j <= i
                    elif name == "masked":
                        expected = True
                    elif name == "seq2seq":
                        expected = j < begin or j <= i
                    else:
                        parts = (i >= reuse_len, j >= reuse_len) if name == "two parts" else (False, False)
                        if parts[0] != parts[1]:
                            expected = parts[0]  # the second part sees the first, never the other way round
                        elif j not in targets:
                            expected = True
                        else:
                            expected = i == j or (i in targets and order[j] < order[i])
                    assert bool(content[row, i, j]) == expected, (name, i, j)
                    if name in ("permutation", "two parts") and i in targets:
                        assert bool(query[row, i, j]) == (expected and i != j), (name, i, j)


def test_no_query_sees_itself_whatever_the_objective() -> None:
    segment = segment_of(text_of(4, 20))
    for objective in objectives(20).values():
        _, query = seen_of(objective.plan(segment, draw_of(4)))
        assert not query.diagonal(dim1=1, dim2=2).any()


# --- two parts, blocks


def test_two_parts_have_their_own_targets() -> None:
    objective = Permutation(num_predict=9, max_span=5, reuse_len=24, **RULE)
    marked = targets_of(objective.plan(segment_of(text_of(300, 64)), draw_of(300)))
    assert marked[:, :24].sum(1).tolist() == [5] * 300
    assert marked[:, 24:].sum(1).tolist() == [4] * 300


@pytest.mark.parametrize(
    ("reuse_len", "num_predict", "expected"),
    [(4, 20, (4, 16)), (28, 20, (16, 4)), (16, 32, (16, 16)), (1, 1, (1, 0)), (31, 2, (1, 1)), (4, 32, (4, 28))],
)
def test_a_part_that_is_too_short_leaves_its_targets_to_the_other(
    reuse_len: int, num_predict: int, expected: tuple[int, int]
) -> None:
    objective = Permutation(num_predict=num_predict, max_span=5, reuse_len=reuse_len, **RULE)
    marked = targets_of(objective.plan(segment_of(text_of(50, 32)), draw_of(50)))
    assert marked[:, :reuse_len].sum(1).tolist() == [expected[0]] * 50
    assert marked[:, reuse_len:].sum(1).tolist() == [expected[1]] * 50


def test_only_the_reused_part_is_remembered() -> None:
    plan = Permutation(num_predict=4, max_span=2, reuse_len=6, **RULE).plan(segment_of(text_of(2, 16)), draw_of(2))
    model = LanguageModel(
        vocab_size=V, num_layers=1, d_model=8, num_heads=2, head_dim=4, d_inner=8, query_stream=True, two_sided=True
    )
    _, memory = model(**plan.model_inputs(), memory=model.empty_memory(rows=2, mem_len=9))
    assert memory.length.tolist() == [6, 6]
    torch.testing.assert_close(memory.states[0, :, -6:], model.embedding(plan.tokens[:, :6]).detach())


def test_blocks_keep_their_natural_order_and_share_the_inner_one() -> None:
    place = sample_places(draw_of(50), 16, perm_size=8, purpose=3)
    assert torch.equal(place[:, 8:], place[:, :8] + 8)
    assert place[:, :8].sort(1).values.tolist() == [list(range(8))] * 50
    assert len({tuple(row) for row in place.tolist()}) > 40


def test_functional_symbols_are_ordered_and_never_predicted() -> None:
    functional = torch.arange(V) == 4
    tokens = text_of(20, 16)
    tokens[:, [5, 15]] = 4
    plan = Permutation(num_predict=3, max_span=2, functional=functional, **RULE).plan(segment_of(tokens), draw_of(20))
    assert (plan.order[:, [5, 15]] > 0).all()
    assert not targets_of(plan)[:, [5, 15]].any()


# --- span units


@pytest.mark.parametrize("unit", ["word", "token", "reference"])
def test_span_units(unit: str) -> None:
    """Words of two tokens: spans of words are whole words; spans of tokens begin anywhere, or at a word's start."""
    starts = torch.zeros(V, dtype=torch.bool)
    starts[::2] = True
    tokens = torch.arange(400).expand(60, -1) % 2 + 10  # start, inside, start, inside, ...
    rule = TargetRule(starts, NEVER, max_span=3, unit=unit)  # type: ignore[arg-type]
    # Few targets asked for than spans would give, so that nothing is filled up; the last span may be cut.
    predict, used = rule.choose(tokens, torch.ones_like(tokens).bool(), draw_of(60), count=40)
    assert used.all()
    begins, lengths = [], []
    for row in predict.tolist():
        run = [row[0]]
        for place in [*row[1:], 10**6]:
            if place == run[-1] + 1:
                run.append(place)
            else:
                begins.append(run[0] % 2)
                lengths.append(len(run))
                run = [place]
    at_start = 1 - np.mean(begins)
    if unit == "token":
        assert 0.4 < at_start < 0.6
    else:
        assert at_start > 0.9
    even = np.mean([length % 2 == 0 for length in lengths])
    assert even > 0.9 if unit == "word" else even < 0.6


def test_spans_do_not_overlap_and_hold_as_many_tokens_as_are_asked_for() -> None:
    """On average exactly, since windows of spans follow one another without a gap; a row's ends cut or add a span."""
    tokens = torch.full((1000, 512), CONTROL + 1)
    rule = TargetRule(torch.ones(V, dtype=torch.bool), NEVER, max_span=5, unit="token")
    _, in_span = rule._spans(tokens, draw_of(1000), 85, 0)
    held = in_span.sum(dim=1).double()
    assert held.mean().item() == pytest.approx(85, abs=0.3)
    assert (held - 85).abs().max() <= 2 * 5


def test_a_word_of_reversed_text_starts_at_its_other_end() -> None:
    starts = torch.zeros(V, dtype=torch.bool)
    starts[10] = True
    text = torch.tensor([10, 11, 11] * 40)
    rule = TargetRule(starts, NEVER, max_span=1)
    tokens = torch.stack([text, text.flip(0)])
    predict, used = rule.choose(tokens, tokens > 0, draw_of(2), count=15, backward=torch.tensor([0, 1]))
    assert used.all()
    for row in (0, 1):
        words = {place // 3 for place in predict[row].tolist()}
        whole = sum(all(3 * word + i in predict[row] for i in range(3)) for word in words)
        assert whole >= len(words) - 1  # the last chosen word may be cut


# --- masked


def test_masked_input_is_eighty_ten_ten() -> None:
    tokens = text_of(400, 64, controls=0.05)
    plan = Masked(num_predict=10, mask=6, max_span=1, **RULE).plan(segment_of(tokens), draw_of(400))
    marked = targets_of(plan)
    assert torch.equal(plan.tokens[~marked], tokens[~marked])
    shown, true = plan.tokens[marked], tokens[marked]
    assert (shown == 6).float().mean().item() == pytest.approx(MASKED, abs=0.02)
    assert (shown == true).float().mean().item() == pytest.approx(1 - MASKED - RANDOM, abs=0.02)
    other = shown[(shown != 6) & (shown != true)]
    assert (other >= CONTROL).all()
    assert len(other.unique()) > 40
    assert torch.equal(plan.targets[plan.targets != IGNORE], true)


# --- seq2seq


def test_seq2seq_predicts_the_target_and_only_it() -> None:
    tokens = text_of(200, 12)
    plan = Seq2Seq().plan(segment_of(tokens), draw_of(200))
    begins = []
    for row in range(200):
        begin = int((plan.order[row] == 0).sum())
        begins.append(begin)
        assert plan.order[row].tolist() == [0] * begin + list(range(1, 13 - begin))
        expected = [IGNORE] * (begin - 1) + tokens[row, begin:].tolist() + [IGNORE]
        assert plan.targets[row].tolist() == expected
    assert set(begins) == set(range(1, 12))


def test_seq2seq_of_a_short_row() -> None:
    plan = Seq2Seq().plan(segment_of(text_of(30, 12), length=5), draw_of(30))
    assert (plan.order[:, 5:] == PADDED).all()
    assert (plan.targets[:, 5:] == IGNORE).all()


# --- streams of two-part and reversed rows


def split_of(tokens: int, documents: int = 7) -> Split:
    ends = np.linspace(0, tokens, documents + 1).astype(np.int64)[1:]
    return Split("train", np.arange(tokens, dtype=np.uint16), ends, {})


def test_a_reused_part_is_followed_by_text_that_is_read_again() -> None:
    stream = TrainingStream(split_of(400), total_rows=2, seq_len=16, advance=6, shuffle=False, seed=0)
    first, position = stream.read(Position())
    second, _ = stream.read(position)
    assert first.tokens[0].tolist() == list(range(16))
    assert second.tokens[0].tolist() == list(range(6, 22))
    assert second.tokens[1].tolist() == list(range(206, 222))
    last, following = stream.read(Position(0, stream.segments_per_epoch - 1))
    assert following == Position(1, 0)
    assert int(last.next_token[1]) <= 399
    assert stream.unused_per_epoch == 400 - 2 * (int(last.tokens[0, -1]) + 1)


@pytest.mark.parametrize("shuffle", [False, True])
def test_backward_rows_read_the_same_text_in_reverse(shuffle: bool) -> None:
    stream = TrainingStream(split_of(420), total_rows=4, seq_len=10, bidirectional=True, shuffle=shuffle, seed=3)
    forward, backward = {0: [], 1: []}, {0: [], 1: []}
    documents = {0: [], 1: []}
    position = Position()
    while position.epoch == 0:
        segment, position = stream.read(position)
        assert segment.backward is not None
        assert segment.backward.tolist() == [0, 0, 1, 1]
        for run in (0, 1):
            forward[run] += segment.tokens[run].tolist()
            backward[run] += segment.tokens[2 + run].tolist()
            documents[run] += segment.document[2 + run].tolist()
    for run in (0, 1):
        assert len(forward[run]) == 200
        assert documents[run] == sorted(documents[run], reverse=True)
        common = set(forward[run]) & set(backward[run])
        assert len(common) >= 190  # each leaves a few at its own end
        kept = [token for token in reversed(backward[run]) if token in common]
        assert kept == [token for token in forward[run] if token in common]


def test_evaluation_windows_of_a_reused_part_reach_the_end_of_the_text() -> None:
    places = [
        segment.tokens[row, : segment.length[row]].tolist()
        for segment, _, scored in whole_text(split_of(103), seq_len=16, rows=3, warm_up=2, advance=6)
        for row in range(3)
        if scored[row]
    ]
    assert sorted({token for place in places for token in place}) == list(range(103))
    assert len(places) == 16  # windows begin at 0, 6, ..., 90


@pytest.mark.parametrize("name", ["causal", "permutation", "masked", "seq2seq"])
def test_permuting_the_input_instead_of_the_mask(name: str) -> None:
    """With rows sorted by order, keys after a row in the new order are those of larger order: the mask is lower
    triangular (by blocks of equal order), and the losses are the same."""
    import naive
    from models import two_streams

    seq_len = 7
    model = two_streams(vocab_size=V)
    segment = segment_of(text_of(1, seq_len, seed=9))
    plan = objectives(seq_len)[name].plan(segment, draw_of(1, seed=11))
    memory = model.empty_memory(rows=1, mem_len=0)
    hidden, _ = model.hidden(plan.tokens, plan.order, memory, stream=plan.stream, predict=plan.predict)
    places = plan.order[0].argsort(stable=True).tolist()
    order = plan.order[0].tolist()
    wanted = list(range(seq_len)) if plan.predict is None else plan.predict[0].tolist()
    content = [model.embedding.weight[plan.tokens[0, i]] for i in places]
    query = dict.fromkeys(wanted, model.mask_embedding)
    for index in range(model.num_layers):

        def keys(i: int, count: int) -> list[tuple[torch.Tensor, int, int]]:
            return [(content[slot], i - places[slot], 0) for slot in range(count)]  # noqa: B023

        up_to = {i: sum(order[j] <= order[i] for j in places) for i in places}
        before = {i: sum(order[j] < order[i] for j in places) for i in places}
        query = {i: naive.layer_row(model, index, row, keys(i, before[i]), None) for i, row in query.items()}
        content = [
            naive.layer_row(model, index, content[slot], keys(i, up_to[i]), None) for slot, i in enumerate(places)
        ]
    rows = [query[i] if plan.stream == "query" else content[places.index(i)] for i in wanted]
    torch.testing.assert_close(hidden[0], torch.stack(rows), rtol=0, atol=1e-10)
