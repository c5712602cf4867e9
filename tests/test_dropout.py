"""Dropout drops what it should, keeps the expectation, and its backward is that of its forward."""

import pytest
import torch

from xltrain.model.backends import attend_math
from xltrain.model.dropout import dropout, kept_or_zero


@pytest.mark.parametrize("p", [0.1, 0.5, 0.999])
def test_share_and_expectation(p: float) -> None:
    """Right on average over calls, of which each rounds the probability to 1/256."""
    torch.manual_seed(0)
    shares, means, values = [], [], set()
    for _ in range(400):
        dropped = dropout(torch.ones(10_007), p)
        shares.append((dropped == 0).double().mean().item())
        means.append(dropped.double().mean().item())
        values |= set(dropped.unique().tolist())
    assert sum(shares) / 400 == pytest.approx(p, abs=0.003)
    assert sum(means) / 400 == pytest.approx(1.0, abs=0.01)
    assert len(values) <= 3  # zero, and the factors of the two roundings


def test_neighbours_are_independent() -> None:
    """Eight elements share a random integer; none of their bits."""
    torch.manual_seed(0)
    zero = (dropout(torch.ones(800_000), 0.5) == 0).double().view(-1, 8)
    correlation = torch.corrcoef(zero.T) - torch.eye(8)
    assert correlation.abs().max() < 0.02


def test_the_same_seed_gives_the_same_mask_and_zero_probability_none() -> None:
    x = torch.randn(7, 5)
    torch.manual_seed(3)
    one = dropout(x, 0.3)
    torch.manual_seed(3)
    assert torch.equal(one, dropout(x, 0.3))
    assert dropout(x, 0.0) is x


def test_attention_with_dropped_weights_equals_the_same_weights_by_hand() -> None:
    draw = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(2, 3, n, 4, generator=draw).double().requires_grad_() for n in (5, 7, 7))
    bias = torch.randn(2, 3, 5, 7, generator=draw).double()
    bias[:, :, 2, 3:] = float("-inf")
    bias.requires_grad_()
    torch.manual_seed(9)
    output = attend_math(query, key, value, bias, 0.4)
    torch.manual_seed(9)
    kept, scale = kept_or_zero(torch.ones(6, 5, 7).double(), 0.4)
    assert 0 < kept.mean() < 1
    weights = (query @ key.transpose(-1, -2) + bias).softmax(-1)
    by_hand = (weights * kept.view(2, 3, 5, 7) * scale) @ value
    torch.testing.assert_close(output, by_hand)
    inputs = (query, key, value, bias)
    loss = torch.randn(output.shape, generator=draw).double()
    mine = torch.autograd.grad((output * loss).sum(), inputs)
    theirs = torch.autograd.grad((by_hand * loss).sum(), inputs)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)
