"""Scores of texts: the same as token by token, whatever the batch."""

import numpy as np
import pytest
import torch
from loaded import T, loaded, next_log_probs

from xltrain.data.tokenizer import SPECIALS
from xltrain.errors import UsageError
from xltrain.evaluation.loading import Loaded
from xltrain.evaluation.score import Scorer
from xltrain.evaluation.texts import Given

EOD = SPECIALS.index("<eod>")
MASK = SPECIALS.index("<mask>")
OBJECTIVES = ("causal", "permutation", "seq2seq", "masked")


def texts(*lengths: tuple[int, int], seed: int = 0) -> list[Given]:
    draw = np.random.default_rng(seed)
    return [Given(draw.integers(9, 17, one).tolist(), draw.integers(9, 17, two).tolist()) for one, two in lengths]


def scores(model: Loaded, given: list[Given], *, batch_size: int = 3, mem_len: int = 40) -> list[np.ndarray]:
    return list(Scorer(model, seq_len=T, mem_len=mem_len, batch_size=batch_size).score(given))


VARIOUS = texts((1, 5), (3, 0), (20, 30), (1, T), (1, T + 1), (70, 3), (2, 100), (0, 4), (1, 1), (5, 12), (0, 0))


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("mem_len", [0, 10, 40])
def test_how_many_texts_are_read_at_once_changes_nothing(objective: str, mem_len: int):
    model = loaded(objective)
    alone = scores(model, VARIOUS, batch_size=1, mem_len=mem_len)
    assert [len(found) for found in alone] == [len(given.text) for given in VARIOUS]
    for batch_size in (3, 8):
        for one, many in zip(alone, scores(model, VARIOUS, batch_size=batch_size, mem_len=mem_len), strict=True):
            np.testing.assert_allclose(many, one, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_zeros_that_a_memory_begins_with_are_as_many_in_every_batch(objective: str):
    model = loaded(objective, segments={"initial_memory": "zeros"})
    alone, many = (scores(model, VARIOUS, batch_size=size) for size in (1, 8))
    for one, other in zip(alone, many, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-6)
    fewer = scores(model, VARIOUS, mem_len=10)
    assert not np.allclose(fewer[0], alone[0], atol=1e-3)  # zeros are seen, so a text's scores depend on their number


@pytest.mark.parametrize("same_length", [False, True])
def test_a_window_of_same_length_is_the_same_in_every_batch(same_length: bool):
    model = loaded(model={"same_length": same_length})
    alone, many = (scores(model, VARIOUS, batch_size=size, mem_len=12) for size in (1, 8))
    for one, other in zip(alone, many, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("objective", ["causal", "permutation"])
def test_a_score_is_what_the_model_says_token_by_token(objective: str):
    model = loaded(objective)
    for given in VARIOUS[:7]:
        row = given.context + given.text
        [found] = scores(model, [given], mem_len=200)
        for place in range(len(given.context), len(row)):
            expected = next_log_probs(model, row[:place])[row[place]]
            assert found[place - len(given.context)] == pytest.approx(expected, abs=1e-5)


def test_the_source_of_a_seq2seq_model_sees_itself_from_both_sides():
    model = loaded("seq2seq")
    [given] = texts((6, 8))
    [found] = scores(model, [given])
    row = given.context + given.text
    expected = [next_log_probs(model, row[:place], source=6)[row[place]] for place in range(6, 14)]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    causally = [next_log_probs(model, row[:place])[row[place]] for place in range(6, 14)]
    assert not np.allclose(found, causally, atol=1e-3)


def test_a_masked_models_score_hides_one_token_at_a_time():
    model = loaded("masked")
    [given] = texts((4, 9))
    [found] = scores(model, [given])
    row = given.context + given.text
    for place in range(4, 13):
        shown = torch.tensor([[*row[:place], MASK, *row[place + 1 :]]])
        with torch.no_grad():
            nll, _ = model.model(
                shown,
                torch.zeros_like(shown),
                torch.tensor([[row[place]]]),
                model.model.empty_memory(rows=1, mem_len=0),
                predict=torch.tensor([[place]]),
            )
        assert found[place - 4] == pytest.approx(-float(nll), abs=1e-5)


def test_what_a_text_is_given_adds_up():
    model = loaded()
    whole = texts((1, 60))[0]
    [all_of_it] = scores(model, [whole])
    [beginning] = scores(model, [Given(whole.context, whole.text[:25])])
    [rest] = scores(model, [Given(whole.context + whole.text[:25], whole.text[25:])])
    np.testing.assert_allclose(np.concatenate([beginning, rest]), all_of_it, atol=1e-6)


def test_without_anything_before_it_a_first_token_has_no_score():
    for objective in ("causal", "permutation", "seq2seq"):
        [found] = scores(loaded(objective), texts((0, 4)))
        assert np.isnan(found).tolist() == [True, False, False, False]
    assert not np.isnan(scores(loaded("masked"), texts((0, 4)))[0]).any()


def test_texts_longer_than_a_segment_are_scored_to_the_end_with_memory():
    model = loaded()
    [given] = texts((1, 10 * T))
    with_memory, without = (scores(model, [given], mem_len=mem_len)[0] for mem_len in (40, 0))
    assert not np.isnan(with_memory).any()
    np.testing.assert_allclose(with_memory[:T], without[:T], atol=1e-6)
    assert not np.allclose(with_memory[T:], without[T:], atol=1e-3)


def test_a_masked_model_remembers_the_segments_before():
    model = loaded("masked")
    [given] = texts((1, 3 * T + 4))
    row = torch.tensor([given.context + given.text])
    memory, expected = model.model.empty_memory(rows=1, mem_len=40), []
    with torch.no_grad():
        for start in range(0, row.shape[1], T):
            segment = row[:, start : start + T]
            for place in range(segment.shape[1]):
                shown = segment.clone()
                shown[0, place] = MASK
                at = torch.tensor([[place]])
                nll, _ = model.model(shown, torch.zeros_like(shown), segment[:, at[0]], memory, predict=at)
                expected.append(-float(nll))
            _, memory = model.model.hidden(segment, torch.zeros_like(segment), memory)
    [found] = scores(model, [given])
    np.testing.assert_allclose(found, expected[1:], atol=1e-5)
    [without] = scores(model, [given], mem_len=0)
    assert not np.allclose(found[T:], without[T:], atol=1e-3)


def test_a_window_of_same_length_needs_a_memory():
    model = loaded(model={"same_length": True})
    with pytest.raises(UsageError, match="--mem-len: this run's same_length needs a memory above 0; leave it out"):
        Scorer.of(model, mem_len=0)
    assert Scorer.of(model).mem_len == Scorer.of(model, mem_len=model.config.segments.mem_len).mem_len == 16


@pytest.mark.parametrize("objective", ["permutation", "masked"])
def test_control_symbols_have_no_score_where_training_never_asks_for_them(objective: str):
    given = Given([9, 10], [11, EOD, 12])
    assert np.isnan(scores(loaded(objective), [given])[0]).tolist() == [False, True, False]
    assert not np.isnan(scores(loaded("causal"), [given])[0]).any()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_documents_that_are_kept_apart_do_not_see_one_another(objective: str):
    def of_second(model: Loaded, before: list[int]) -> np.ndarray:
        return scores(model, [Given([], [*before, EOD, *second.text])])[0][21:]

    first, other, second = texts((0, 20), (0, 20), (0, 30))
    apart = loaded(objective, segments={"cross_documents": False})
    found = of_second(apart, first.text)
    np.testing.assert_allclose(found, of_second(apart, other.text), atol=1e-6)
    assert np.isnan(found).tolist() == [objective != "masked"] + [False] * 29  # a first token follows nothing
    joined = loaded(objective)
    assert not np.allclose(of_second(joined, first.text), of_second(joined, other.text), atol=1e-3)
