"""Which token is chosen: with its probability, within the limits, and none that may not be."""

from typing import Any

import numpy as np
import pytest
import torch
from loaded import V, loaded

from xltrain.data.tokenizer import CONTROLS, SPECIALS
from xltrain.evaluation.generate import Ends
from xltrain.evaluation.sampling import Sampling

ALL = torch.ones(V, dtype=torch.bool)


def some_log_probs(rows: int = 4, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, V)) * 2).log_softmax(dim=-1)


def test_tokens_are_drawn_with_their_probabilities():
    [log_probs] = some_log_probs(1)
    count = 20_000
    samples = torch.arange(count)
    tokens = Sampling(seed=3).choose(log_probs.expand(count, -1), ALL, samples=samples, step=0)
    share = torch.bincount(tokens, minlength=V) / count
    assert torch.allclose(share, log_probs.exp().float(), atol=0.012)


def test_a_draw_depends_on_the_seed_the_sample_and_the_step_only():
    log_probs = some_log_probs(1).expand(300, -1)
    samples = torch.arange(300)
    all_together = Sampling(seed=1).choose(log_probs, ALL, samples=samples, step=5)
    backwards = Sampling(seed=1).choose(log_probs, ALL, samples=samples.flip(0), step=5)
    assert torch.equal(all_together, backwards.flip(0))
    for other in (
        Sampling(seed=2).choose(log_probs, ALL, samples=samples, step=5),
        Sampling(seed=1).choose(log_probs, ALL, samples=samples, step=6),
    ):
        assert not torch.equal(all_together, other)


def test_temperature_and_limits_let_in_what_they_say():
    scores = torch.tensor([[0.5, 0.2, 0.2, 0.06, 0.04]]).double().log()

    def of(**settings: Any) -> list[float]:
        return Sampling(**settings).distribution(scores)[0].tolist()

    assert of() == pytest.approx([0.5, 0.2, 0.2, 0.06, 0.04])
    assert of(temperature=0.5) == pytest.approx([x * x / 0.3352 for x in (0.5, 0.2, 0.2, 0.06, 0.04)])
    assert of(top_k=1) == [1.0, 0, 0, 0, 0]
    assert of(top_k=3) == pytest.approx([5 / 9, 2 / 9, 2 / 9, 0, 0])
    assert of(top_p=0.49) == [1.0, 0, 0, 0, 0]
    assert of(top_p=0.51) == pytest.approx([5 / 7, 2 / 7, 0, 0, 0])  # of two alike the first
    assert of(top_p=0.0001) == [1.0, 0, 0, 0, 0]
    assert of(top_k=3, top_p=0.8) == pytest.approx([5 / 9, 2 / 9, 2 / 9, 0, 0])  # shares of what top_k lets in


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e308])
def test_a_temperature_at_the_edge_of_what_a_float_holds(temperature: float):
    scores = torch.tensor([[-5.0, -0.4, -torch.inf, -1.4]]).double()
    likely = [0, 1, 0, 0] if temperature < 1 else [1 / 3, 1 / 3, 0, 1 / 3]
    assert Sampling(temperature=temperature).distribution(scores)[0].tolist() == pytest.approx(likely)
    allowed = torch.tensor([True, True, False, True])
    tokens = Sampling(temperature=temperature).choose(scores.expand(50, -1), allowed, samples=torch.arange(50), step=0)
    assert set(tokens.tolist()) == ({1} if temperature < 1 else {0, 1, 3})


@pytest.mark.parametrize("settings", [{}, {"top_k": 3}, {"top_p": 0.3}, {"temperature": 0.0}, {"temperature": 100.0}])
def test_what_is_not_allowed_is_never_chosen(settings: dict[str, Any]):
    allowed = torch.zeros(V, dtype=torch.bool)
    allowed[[2, 9, 10]] = True
    rows = some_log_probs(2000, seed=1)
    tokens = Sampling(**settings).choose(rows, allowed, samples=torch.arange(2000), step=0)
    assert set(tokens.tolist()) <= {2, 9, 10}


def test_control_pieces_are_never_allowed_but_for_the_end_of_a_document():
    for until in ("document", "never"):
        ends = Ends.of(loaded(), until=until)
        banned = {SPECIALS[token] for token in np.flatnonzero(~ends.allowed)}
        assert banned == {"<unk>", "<eop>", *CONTROLS} - {"<eod>"}
        assert ends.stops == (frozenset({SPECIALS.index("<eod>")}) if until == "document" else frozenset())
    apart = Ends.of(loaded(segments={"cross_documents": False}), until="never")
    assert not apart.allowed[SPECIALS.index("<eod>")]  # nothing was learned of what follows it
    assert not Ends.of(loaded("permutation"), until="document").allowed[SPECIALS.index("<eod>")]  # nor of it, here
