"""Perplexity: the same numbers whatever the batch, and every target once."""

import itertools
import math
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from evaluated import T, Trained, V, Watched, by_position, text_of, trained

from xltrain.data.store import Split
from xltrain.data.streams import NO_TOKEN
from xltrain.evaluation.perplexity import Interrupted, Protocol
from xltrain.objectives.left_to_right import LeftToRight
from xltrain.objectives.plan import IGNORE


def recorded(found: Trained, split: Split, **more: Any) -> dict[int, list[float]]:
    recorder = Watched(found.model)
    found.score(split, model=recorder, **more)
    return recorder.losses


# --- the batch size does not matter


@pytest.mark.parametrize("mem_len", [0, 5, 16, 40])
@pytest.mark.parametrize("apart", [False, True])
def test_stream_loss_does_not_depend_on_the_number_of_rows(mem_len: int, apart: bool):
    found = trained(segments={"cross_documents": not apart})
    split = text_of(100, 7, 220, 1, 93, 200)
    alone = found.score(split, mem_len=mem_len, batch_size=1)
    assert alone.targets == (621 - 6 if apart else 620)
    for rows in (3, 8, 100):
        together = found.score(split, mem_len=mem_len, batch_size=rows)
        assert together.targets == alone.targets
        assert together.nll == pytest.approx(alone.nll, rel=1e-6)


def test_memory_matters_in_these_tests():
    split, found = text_of(600), trained()
    losses = [found.score(split, mem_len=mem_len).loss for mem_len in (0, 5, 16, 40)]
    assert min(abs(one - other) for one, other in itertools.pairwise(losses)) > 1e-3


def test_the_window_of_same_length_is_the_same_in_every_batch():
    found = trained(model={"same_length": True})
    split = text_of(400)
    results = [found.score(split, mem_len=20, batch_size=rows).nll for rows in (1, 5)]
    assert results[1] == pytest.approx(results[0], rel=1e-6)


@pytest.mark.parametrize("mode", ["stream", "document"])
@pytest.mark.parametrize(("objective", "mem_len"), [("permutation", 0), ("permutation", 40), ("masked", 16)])
def test_sampled_targets_and_their_loss_do_not_depend_on_the_number_of_rows(mode: str, objective: str, mem_len: int):
    found = trained(objective)
    split = text_of(100, 7, 220, 1, 93, 200)
    alone = found.score(split, mode, mem_len=mem_len, batch_size=1)
    assert 90 < alone.targets < 125
    for rows in (3, 8):
        together = found.score(split, mode, mem_len=mem_len, batch_size=rows)
        assert together.targets == alone.targets
        assert together.nll == pytest.approx(alone.nll, rel=1e-6)


@pytest.mark.parametrize("mode", ["stream", "document"])
def test_segments_that_overlap_do_not_depend_on_the_number_of_rows_either(mode: str):
    found = trained("permutation", segments={"reuse_len": 6})
    split = text_of(100, 7, 220, 1, 93, 200)
    alone = found.score(split, mode, mem_len=20, advance=6, batch_size=1)
    assert alone.targets > found.score(split, mode, mem_len=20).targets
    for rows in (3, 8):
        together = found.score(split, mode, mem_len=20, advance=6, batch_size=rows)
        assert together.targets == alone.targets
        assert together.nll == pytest.approx(alone.nll, rel=1e-6)


def test_a_smaller_last_batch_is_complete():
    found = trained()
    split = text_of(53 * T)
    for mem_len in (0, T):
        alone = found.score(split, mem_len=mem_len, batch_size=1)
        four = found.score(split, mem_len=mem_len, batch_size=4)
        assert (four.targets, alone.targets) == (53 * T - 1, 53 * T - 1)
        assert four.nll == pytest.approx(alone.nll, rel=1e-6)
    windows = found.score(split, "sliding", mem_len=0, stride=T, batch_size=4)
    assert windows.nll == pytest.approx(found.score(split, mem_len=0).nll, rel=1e-6)


# --- every target once


@pytest.mark.parametrize("seq_len", [64, 50, 16, 999, 1000, 1500])
def test_a_thousand_tokens_have_999_targets_for_every_segment_length(seq_len: int):
    result = trained().score(text_of(1000), seq_len=seq_len, mem_len=8)
    assert result.targets == 999
    assert result.loss == result.nll / 999


def test_the_total_is_the_sum_over_all_tokens_of_one_that_is_read_by_hand():
    found, seq_len, mem_len = trained(), 8, 12
    split = text_of(10 * (seq_len + mem_len))
    tokens = torch.from_numpy(split.tokens)[None]
    following = torch.cat([tokens[:, 1:], torch.tensor([[IGNORE]])], dim=1)
    memory, by_hand = found.model.empty_memory(rows=1, mem_len=mem_len), []
    found.model.eval()
    with torch.no_grad():
        for start in range(0, split.num_tokens, seq_len):
            part = slice(start, start + seq_len)
            order = torch.arange(tokens[:, part].shape[1])[None]
            losses, memory = found.model(tokens[:, part], order, following[:, part], memory)
            by_hand += losses[0].tolist()
    result = found.score(split, seq_len=seq_len, mem_len=mem_len, batch_size=3)
    assert result.targets == split.num_tokens - 1
    assert result.nll == pytest.approx(sum(by_hand[:-1]), rel=1e-6)


def test_the_end_of_a_text_is_no_target():
    assert NO_TOKEN == IGNORE
    found, split = trained(), text_of(3 * T)
    recorder = Watched(found.model)
    found.score(split, model=recorder, batch_size=1)
    assert recorder.targets == split.tokens[1:].tolist()


def test_documents_on_their_own_score_all_but_their_first_token():
    split = text_of(40, 1, 17, 64)
    assert trained().score(split, "document").targets == 122 - 4
    assert trained().score(split, "stream").targets == 122 - 1


def test_a_sliding_window_of_one_gives_every_target_the_whole_window():
    found, window = trained(), 10
    split = text_of(40)
    tokens = torch.from_numpy(split.tokens)
    expected = []
    found.model.eval()
    with torch.no_grad():
        for target in range(1, 40):
            begin = max(0, target - window)
            part = tokens[begin:target][None]
            targets = torch.full_like(part, IGNORE)
            targets[0, -1] = tokens[target]
            memory = found.model.empty_memory(rows=1, mem_len=0)
            expected.append(float(found.model(part, torch.arange(part.shape[1])[None], targets, memory)[0].sum()))
    result = found.score(split, "sliding", seq_len=window, mem_len=0, stride=1, batch_size=7)
    assert (result.targets, result.nll) == (39, pytest.approx(sum(expected), rel=1e-6))


@pytest.mark.parametrize("mode", ["stream", "document", "sliding"])
def test_losses_are_recorded_at_their_places_and_add_up(mode: str):
    found, split = trained(), text_of(40, 1, 17, 64)
    mem_len = 0 if mode == "sliding" else T
    for rows in (1, 3):
        losses = by_position(found, split, mode=mode, mem_len=mem_len, batch_size=rows)
        starts = {0} if mode != "document" else {0, 40, 41, 58}
        assert set(losses) == set(range(122)) - starts
        total = found.score(split, mode, mem_len=mem_len, batch_size=rows).nll
        assert math.fsum(losses.values()) == pytest.approx(total, rel=1e-12)


def test_a_segment_scores_what_reading_token_by_token_scores():
    """Where memory holds the whole text, how it is cut into segments is not seen."""
    split = text_of(60)
    for found, objective in ((trained(), None), (trained("permutation"), LeftToRight())):
        losses = by_position(found, split, objective, mem_len=64)
        token_by_token = by_position(found, split, objective, mem_len=64, seq_len=1, batch_size=1)
        assert losses.keys() == token_by_token.keys()
        for place, loss in losses.items():
            assert loss == pytest.approx(token_by_token[place], abs=2e-5)


def test_left_to_right_does_not_see_what_comes_after():
    found, split = trained("permutation"), text_of(100)
    other = replace(split, tokens=np.concatenate([split.tokens[:50], (split.tokens[50:] + 1) % V]))
    before, after = (by_position(found, text, LeftToRight(), mem_len=T, batch_size=1) for text in (split, other))
    assert list(before) == list(range(100))
    for place in range(50):
        assert before[place] == pytest.approx(after[place], abs=1e-6)
    assert abs(before[60] - after[60]) > 1e-4


def test_a_first_segment_has_the_same_losses_with_an_empty_memory_as_with_none():
    for settings in ({}, {"same_length": True}):
        found, split = trained(model=settings), text_of(T, seed=5)
        without = by_position(trained(), split, mem_len=0)
        assert by_position(found, split, mem_len=64) == pytest.approx(without, abs=1e-6)


@pytest.mark.parametrize("objective", ["permutation", "masked", "seq2seq"])
def test_runs_of_several_seeds_are_asked_for_the_same_targets(objective: str):
    asked = []
    for seed in (1, 2):
        places: list[int] = []
        trained(objective, run={"seed": seed}).score(text_of(90), record=lambda where, _: places.extend(where))  # noqa: B023
        asked.append(places)
    assert asked[0] == asked[1] != []


def test_rows_are_as_many_as_it_pays_to_warm():
    protocol = Protocol("stream", seq_len=10, mem_len=40, batch_size=8)
    assert protocol.warm_up(num_layers=3) == 12
    assert [protocol.rows(tokens, num_layers=3) for tokens in (5, 100, 240, 360, 10_000)] == [1, 1, 2, 3, 8]
    assert replace(protocol, mem_len=0).rows(45, num_layers=3) == 5


# --- documents


def test_kept_apart_a_document_does_not_see_another():
    one, other = text_of(45, 70, seed=1), text_of(45, 70, seed=2)
    changed = replace(one, tokens=np.concatenate([other.tokens[:45], one.tokens[45:]]))
    for apart in (True, False):
        found = trained(segments={"cross_documents": not apart})
        before, after = (recorded(found, split, batch_size=2) for split in (one, changed))
        if apart:
            assert len(before[1]) == 69
            assert before[1] == pytest.approx(after[1], abs=1e-7)
            assert before[0] != pytest.approx(after[0], abs=1e-2)
        else:
            tail = [losses[0][-60:] for losses in (before, after)]
            assert max(abs(first - second) for first, second in zip(*tail, strict=True)) > 1e-3


def test_kept_apart_the_stream_gives_each_document_what_it_gets_on_its_own_where_segments_align():
    found = trained(segments={"cross_documents": False})
    split = text_of(2 * T, 3 * T, T)
    assert found.score(split).nll == pytest.approx(found.score(split, "document").nll, rel=1e-6)


def test_a_document_on_its_own_has_the_same_loss_wherever_it_stands():
    found = trained()
    last = text_of(37, seed=9)
    rest = text_of(*[5 + number % 40 for number in range(200)], seed=8)
    file = Split(
        "validation",
        np.concatenate([rest.tokens, last.tokens]),
        np.concatenate([rest.ends, rest.ends[-1] + last.ends]),
        rest.counts,
    )
    alone = recorded(found, last, mode="document")[0]
    within = recorded(trained(segments={"cross_documents": False}), file, mode="document", batch_size=3)[200]
    assert within == pytest.approx(alone, abs=1e-6)
    parts = found.score(last, "document").nll + found.score(rest, "document").nll
    assert found.score(file, "document").nll == pytest.approx(parts, rel=1e-6)
    assert found.score(file, "stream").nll != pytest.approx(parts, rel=1e-4)


@pytest.mark.parametrize("objective", ["masked", "permutation"])
def test_every_document_is_asked_for_places_of_its_own(objective: str):
    found, split = trained(objective), text_of(*[40] * 60)
    asked: list[dict[int, set[int]]] = []
    for rows in (1, 7):
        places: dict[int, set[int]] = defaultdict(set)

        def record(at: np.ndarray, losses: np.ndarray, places: dict[int, set[int]] = places) -> None:
            for place in at.tolist():
                places[place // 40].add(place % 40)

        found.score(split, "document", batch_size=rows, record=record)
        asked.append(places)
    assert asked[0] == asked[1]  # whatever is read beside them
    assert len({tuple(sorted(each)) for each in asked[0].values()}) > 50
    often = Counter(place for each in asked[0].values() for place in each)
    assert max(often.values()) < 30


# --- the model is as it was


def test_dropout_is_off_and_comes_back_and_two_evaluations_are_the_same_to_the_last_digit():
    found, split = trained(), text_of(300)
    recorder = Watched(found.model)
    found.model.train()
    recorder.train()
    state = torch.get_rng_state()
    first = found.score(split, model=recorder)
    assert recorder.was_training == {False}
    assert recorder.training
    assert found.model.training
    assert torch.equal(torch.get_rng_state(), state)
    found.model.eval()
    assert found.score(split).nll == first.nll
    assert not found.model.training
    assert all(parameter.grad is None for parameter in found.model.parameters())


def test_an_evaluation_that_is_stopped_leaves_the_model_training():
    found = trained()
    found.model.train()
    answers = iter([False, False, True])
    with pytest.raises(Interrupted):
        found.score(text_of(300), should_stop=lambda: next(answers))
    assert found.model.training
