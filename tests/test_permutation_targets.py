"""Which tokens the permutation objective predicts, and in which order."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import CONTROL, STARTS, P, T, V, draw_of, segment_of, targets_of, text_of
from torch import Tensor

from xltrain.model.visibility import Visibility
from xltrain.objectives.draws import Draw
from xltrain.objectives.permutation import Permutation, factorization_order
from xltrain.objectives.plan import IGNORE, PADDED, Plan

SIZES: dict[str, Any] = {
    "seq_len": st.integers(1, 40),
    "share": st.floats(0.05, 1.0),
    "max_span": st.integers(1, 6),
    "seed": st.integers(0, 2**32 - 1),
}


def objective(num_predict: int = P, max_span: int = 5) -> Permutation:
    never = torch.arange(V) < CONTROL
    return Permutation(num_predict=num_predict, max_span=max_span, starts_word=STARTS, never_target=never)


# --- how many, and which


def test_a_full_segment_has_exactly_as_many_targets_as_asked():
    for num_predict in (1, P, T):
        plan = objective(num_predict).plan(segment_of(text_of(200)), draw_of(200))
        assert targets_of(plan).sum(dim=1).tolist() == [num_predict] * 200
        assert plan.targets.shape == (200, num_predict)
        assert int(plan.num_targets) == 200 * num_predict


def test_predicted_places_ascend_and_targets_are_what_stands_there():
    plan = objective().plan(segment_of(text_of(50)), draw_of(50))
    assert plan.predict is not None
    assert bool((plan.predict.diff(dim=1) > 0).all())
    assert torch.equal(plan.targets, plan.tokens.gather(1, plan.predict))
    assert plan.stream == "query"


def test_control_symbols_are_never_targets_and_do_not_lower_the_number():
    tokens = text_of(400, controls=0.25, seed=3)
    plan = objective().plan(segment_of(tokens), draw_of(400))
    assert bool((plan.targets >= CONTROL).all())
    assert int(plan.num_targets) == 400 * P


def test_where_nearly_everything_is_a_control_symbol_the_rest_is_predicted():
    tokens = text_of(300, controls=0.95, seed=4)
    plan = objective().plan(segment_of(tokens), draw_of(300))
    eligible = (tokens >= CONTROL).sum(dim=1)
    assert torch.equal(targets_of(plan).sum(dim=1), eligible.clamp(max=P))
    assert bool((tokens[targets_of(plan)] >= CONTROL).all())


@given(**SIZES, length=st.integers(0, 40))
def test_padding_is_never_a_target_and_shortens_the_list_in_proportion(
    seq_len: int, share: float, max_span: int, seed: int, length: int
):
    length, slots = min(length, seq_len), max(1, round(share * seq_len))
    tokens = text_of(3, seq_len, seed=seed % 1000)
    plan = objective(slots, max_span).plan(segment_of(tokens, length), draw_of(3, seed=seed))
    chosen = targets_of(plan)
    assert not bool(chosen[:, length:].any())
    assert chosen.sum(dim=1).tolist() == [-(-slots * length // seq_len)] * 3
    assert (plan.targets != IGNORE).sum(dim=1).tolist() == chosen.sum(dim=1).tolist()


def runs_of(row: Tensor) -> list[tuple[int, int]]:
    """(start, stop) of consecutive true places."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], row.int().numpy(), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def test_targets_come_in_spans_that_start_and_end_with_words():
    tokens = text_of(1000)
    chosen = targets_of(objective().plan(segment_of(tokens), draw_of(1000)))
    runs = [(row, *run) for row in range(1000) for run in runs_of(chosen[row])]
    starts = STARTS[tokens]
    starts[:, 0] = True
    at_start = sum(bool(starts[row, start]) for row, start, _ in runs) / len(runs)
    at_end = sum(stop == T or bool(starts[row, stop]) for row, _, stop in runs) / len(runs)
    single = sum(stop - start == 1 for _, start, stop in runs) / len(runs)
    assert at_start > 0.9  # by chance it would be two in three
    assert at_end > 0.8
    assert 0.2 < single < 0.7
    assert len(runs) < 0.6 * chosen.sum(), "targets stand alone"


def test_longer_spans_are_rarer():
    tokens = torch.full((3000, T), CONTROL + 1)  # ids 9: every token is a word of its own
    assert bool(STARTS[CONTROL + 1])
    chosen = targets_of(objective(num_predict=6, max_span=3).plan(segment_of(tokens), draw_of(3000)))
    lengths = np.array([stop - start for row in range(3000) for start, stop in runs_of(chosen[row])])
    share = np.array([(lengths == length).mean() for length in (1, 2, 3)])
    # Drawn as 1 : 1/2 : 1/3, which is 0.55, 0.27, 0.18; the segment's end and the last target cut some short.
    # Equally frequent lengths would give 0.47, 0.29, 0.24.
    assert share == pytest.approx([0.60, 0.25, 0.15], abs=0.05)
    one_span = targets_of(objective(num_predict=6, max_span=1).plan(segment_of(tokens), draw_of(3000)))
    assert sum(stop - start > 1 for row in range(3000) for start, stop in runs_of(one_span[row])) < 0.1 * 6 * 3000


def share_of_places() -> Tensor:
    """(T,) how often each place is a target; 1 everywhere, were it perfectly uniform."""
    chosen = torch.zeros(T)
    for step in range(8):
        plan = objective().plan(segment_of(text_of(1000, seed=step)), draw_of(1000, step=step))
        chosen += targets_of(plan).sum(dim=0)
    return chosen / 8000 / (P / T)


def test_every_place_is_a_target_about_equally_often():
    share = share_of_places()[8:]
    assert float(share.min()) > 0.85
    assert float(share.max()) < 1.2
    thirds = share[:54].view(3, -1).mean(dim=1)
    assert float(thirds.max() - thirds.min()) < 0.08


def test_the_first_places_are_targets_too():
    assert float(share_of_places()[:8].min()) > 0.6


# --- the order


@given(**SIZES)
def test_targets_are_ordered_after_everything_else_and_among_themselves(
    seq_len: int, share: float, max_span: int, seed: int
):
    slots = max(1, round(share * seq_len))
    tokens = text_of(3, seq_len, controls=0.2, seed=seed % 1000)
    length = max(1, seq_len - seed % 3)
    plan = objective(slots, max_span).plan(segment_of(tokens, length), draw_of(3, seed=seed))
    chosen = targets_of(plan)
    for row in range(3):
        order, is_target = plan.order[row], chosen[row]
        assert order[~is_target][: length - int(is_target.sum())].tolist() == [0] * (length - int(is_target.sum()))
        assert order[length:].tolist() == [PADDED] * (seq_len - length)
        places = order[is_target].tolist()
        assert min(places, default=1) >= 1
        assert len(set(places)) == len(places)


def naive_sees(order: list[int], target: list[bool], row: int, key: int, *, query: bool) -> bool:
    """XLNet in words: ordinary tokens see each other; a target sees them and the targets before it in the order.

    In the content stream it also sees itself; in the query stream it never does.
    """
    if not target[key]:
        return True
    if not target[row]:
        return False
    return order[key] < order[row] or (row == key and not query)


@settings(max_examples=60)
@given(**SIZES)
def test_who_sees_whom_is_what_xlnet_says(seq_len: int, share: float, max_span: int, seed: int):
    slots = max(1, round(share * seq_len))
    plan = objective(slots, max_span).plan(segment_of(text_of(2, seq_len, seed=seed % 100)), draw_of(2, seed=seed))
    assert plan.predict is not None
    rule = Visibility.of_segment(order=plan.order, memory_valid=torch.zeros(2, 0, dtype=torch.bool), slots=plan.predict)
    seen = rule.dense()
    for row in range(2):
        order, target = plan.order[row].tolist(), targets_of(plan)[row].tolist()
        content = [[naive_sees(order, target, q, k, query=False) for k in range(seq_len)] for q in range(seq_len)]
        query = [[naive_sees(order, target, int(q), k, query=True) for k in range(seq_len)] for q in plan.predict[row]]
        assert seen[row].tolist() == content + query


def test_every_order_of_the_targets_is_about_equally_frequent():
    place = Draw(seed=1, step=1, rows=torch.arange(6000)).uniform(3, purpose=4).argsort(dim=1).argsort(dim=1)
    order = factorization_order(place, torch.ones(6000, 3, dtype=torch.bool))
    assert sorted(set(order.flatten().tolist())) == [1, 2, 3]
    found, counts = order.unique(dim=0, return_counts=True)
    assert len(found) == 6
    assert 850 < int(counts.min()) <= int(counts.max()) < 1150


# --- when they change, and when not


def test_every_step_and_every_row_has_its_own_targets_and_order():
    tokens = text_of(1).expand(40, -1)
    one, two = (objective().plan(segment_of(tokens), draw_of(40, step=step)) for step in (1, 2))
    distinct = {tuple(row) for plan in (one, two) for row in plan.order.tolist()}
    assert len(distinct) == 80
    assert len({tuple(row) for row in torch.cat([targets_of(one), targets_of(two)]).tolist()}) > 70


def same(one: Plan, other: Plan) -> bool:
    assert one.predict is not None
    assert other.predict is not None
    return (
        torch.equal(one.order, other.order)
        and torch.equal(one.predict, other.predict)
        and torch.equal(one.targets, other.targets)
    )


@pytest.mark.parametrize("cut", [1, 3, 5])
def test_a_row_has_the_same_plan_in_every_batch(cut: int):
    segment = segment_of(text_of(6, controls=0.1))
    whole = objective().plan(segment, draw_of(6))
    assert same(whole, objective().plan(segment, draw_of(6)))
    low = objective().plan(segment.rows(0, cut), draw_of(cut))
    high = objective().plan(segment.rows(cut, 6), draw_of(6 - cut, first=cut))
    assert torch.equal(torch.cat([low.order, high.order]), whole.order)
    assert torch.equal(torch.cat([low.targets, high.targets]), whole.targets)


def test_documents_are_handed_on_only_where_they_are_kept_apart():
    segment = segment_of(text_of(2))
    apart = Permutation(
        num_predict=P, max_span=5, starts_word=STARTS, never_target=torch.arange(V) < CONTROL, keep_apart=True
    )
    assert objective().plan(segment, draw_of(2)).document is None
    assert apart.plan(segment, draw_of(2)).document is segment.document
