"""Relative effective context length is what the formula of the paper's appendix C says, on tables worked by hand."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xltrain.evaluation.recl import find_lengths, hardest, perplexity_gain, relative_gain

SHORT = np.array([[2.0, 4.0, 1.0, 3.0], [3.0, 2.0, 2.0, 3.5]])  # baseline 2, 2, 1, 3
LONG = np.array([[1.0, 3.0, 0.5, 1.0], [2.5, 1.0, 3.0, 3.2]])


def test_the_baseline_is_the_best_of_all_models_and_a_worse_loss_does_not_count():
    # model 0: min(2, 1), min(2, 3), min(1, 0.5), min(3, 1) = 1, 2, 0.5, 1 against 2, 2, 1, 3
    assert relative_gain(SHORT, LONG, model=0, share=1.0) == pytest.approx(1 - math.exp(4.5 / 4 - 8 / 4))
    # model 1: 2, 1, 1, 3
    assert relative_gain(SHORT, LONG, model=1, share=1.0) == pytest.approx(1 - math.exp(7 / 4 - 8 / 4))


def test_the_hardest_share_is_chosen_by_the_baseline_of_the_short_context():
    assert hardest(SHORT.min(axis=0), 0.5).tolist() == [3, 0]  # of the two 2s the earlier
    assert relative_gain(SHORT, LONG, model=0, share=0.5) == pytest.approx(1 - math.exp(1.0 - 2.5))
    assert relative_gain(SHORT, LONG, model=1, share=0.5) == 0.0
    assert relative_gain(SHORT, LONG, model=1, share=0.25) == 0.0
    assert perplexity_gain(SHORT, LONG, model=0, share=0.5) == pytest.approx(math.exp(2.5) - math.exp(1.0))


def test_a_model_that_was_worse_from_the_start_gains_nothing_by_catching_up():
    short, long = np.array([[1.0], [5.0]]), np.array([[1.0], [1.0]])
    assert relative_gain(short, long, model=1, share=1.0) == 0.0
    assert relative_gain(short[1:], long[1:], model=0, share=1.0) > 0.9  # alone, it would have


@given(st.integers(1, 4), st.integers(1, 30), st.sampled_from([0.1, 0.5, 1.0]), st.integers(0, 2**32 - 1))
def test_the_formula_written_out_token_by_token(models: int, targets: int, share: float, seed: int):
    draw = np.random.default_rng(seed)
    short, long = draw.exponential(2.0, (2, models, targets))
    b = [min(short[i][t] for i in range(models)) for t in range(targets)]
    chosen = sorted(range(targets), key=lambda t: (-b[t], t))[: max(1, round(share * targets))]
    for i in range(models):
        f_short = sum(min(b[t], short[i][t]) for t in chosen) / len(chosen)
        f_long = sum(min(b[t], long[i][t]) for t in chosen) / len(chosen)
        gain = (math.exp(f_short) - math.exp(f_long)) / math.exp(f_short)
        assert relative_gain(short, long, model=i, share=share) == pytest.approx(gain, abs=1e-12)


def losses_of(reaches: list[int], targets: int = 10) -> Callable[[int], np.ndarray]:
    """Losses of models that improve by 0.1 nats with every 10 tokens of context, as far as they reach."""

    def losses_at(context: int) -> np.ndarray:
        return np.array([[5.0 - 0.01 * min(context, reach)] * targets for reach in reaches])

    return losses_at


def test_a_length_is_the_first_context_from_which_a_step_gains_less_than_a_hundredth():
    found = find_lengths(losses_of([30, 70, 1000]), step=10, limit=100, reach=[None] * 3)
    assert {key: found.lengths.get(key) for key in [(0, 1.0), (1, 1.0), (2, 1.0)]} == {
        (0, 1.0): 30,
        (1, 1.0): 70,
        (2, 1.0): None,  # still gaining at the longest context
    }
    assert found.longest == 100
    assert found.losses[40].tolist() == pytest.approx([4.7, 4.6, 4.6])


def test_the_search_stops_when_every_length_is_known():
    asked: list[int] = []
    table = losses_of([20])
    found = find_lengths(lambda c: (asked.append(c), table(c))[1], step=10, limit=1000, reach=[None])
    assert set(found.lengths.values()) == {20}
    assert asked == [10, 20, 30]


@pytest.mark.parametrize(("gain", "length"), [(0.0099, 10), (0.0101, None)])
def test_the_threshold_is_a_relative_perplexity_reduction_of_one_hundredth(gain: float, length: int | None):
    drop = -math.log(1 - gain)  # nats that every step of 10 tokens saves
    found = find_lengths(lambda c: np.array([[5.0 - drop * c / 10]]), step=10, limit=60, reach=[None])
    assert found.lengths.get((0, 1.0)) == length


def test_losses_that_only_fluctuate_gain_relatively_but_not_on_their_own():
    draw = np.random.default_rng(0)
    noise = {context: draw.normal(3.0, 0.5, (1, 400)) for context in range(10, 70, 10)}
    found = find_lengths(noise.__getitem__, step=10, limit=60, reach=[None])
    assert found.lengths == {}
    assert found.effective[0] <= 30


def test_the_effective_length_is_a_models_own_whatever_the_group():
    found = find_lengths(losses_of([30, 70, 1000]), step=10, limit=100, reach=[None, 55, None])
    assert found.effective == {0: 30, 1: 55}
    worse = find_lengths(lambda c: np.add(losses_of([30, 70])(c), [[0.0], [9.0]]), step=10, limit=100, reach=[None] * 2)
    assert worse.effective == {0: 30, 1: 70}
    assert worse.lengths[1, 1.0] == 10  # never better than the other


def test_a_model_is_not_credited_with_more_than_it_can_read():
    found = find_lengths(losses_of([128]), step=100, limit=1000, reach=[128])
    assert found.lengths[0, 1.0] == 128
