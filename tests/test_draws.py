"""Random numbers that are a function of (seed, step, row, purpose) and of nothing else."""

import pytest
import torch
from torch import Tensor

from xltrain.objectives.draws import Draw

FROZEN = [  # of the three draws in the first test
    [
        [0.0887724693786518, 0.08366259794836817, 0.9600901518655319, 0.7015841140744937],
        [0.5951034382167667, 0.05065623365813832, 0.18240413122464227, 0.8762436622514476],
    ],
    [
        [0.6738870653841321, 0.20987584574181184, 0.48829103187032497, 0.135196419390885],
        [0.36642405887514073, 0.558065907008107, 0.14242832833245211, 0.04833647573489541],
    ],
    [
        [0.2101432127839673, 0.8449546392001664, 0.09343681620988309, 0.6077915034513988],
        [0.24019473743594055, 0.9687523216422351, 0.33160532327729664, 0.21551176518742443],
    ],
]


def draw(
    count: int = 1000, *, seed: int = 7, step: int = 3, rows: tuple[int, ...] = (0, 1, 2), purpose: int = 0
) -> Tensor:
    return Draw(seed=seed, step=step, rows=torch.tensor(rows)).uniform(count, purpose=purpose)


def correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1])


def test_the_first_numbers_are_what_they_were_when_runs_were_recorded():
    # A change here changes every permutation of every run: old checkpoints would go on differently.
    expected = torch.tensor(FROZEN, dtype=torch.float64)
    assert torch.equal(draw(4, seed=1234, step=1, rows=(0, 1), purpose=0), expected[0])
    assert torch.equal(draw(4, seed=1234, step=2**40, rows=(5, 1), purpose=4), expected[1])
    assert torch.equal(draw(4, seed=2**32 - 1, step=100_000, rows=(0, 4095), purpose=5), expected[2])


def test_numbers_are_uniform():
    found = draw(100_000, rows=(0,)).flatten()
    assert found.dtype == torch.float64
    assert 0.0 <= float(found.min()) < 1e-4
    assert 1.0 - 1e-4 < float(found.max()) < 1.0
    counts = torch.histc(found.float(), bins=50, min=0.0, max=1.0)
    assert float(((counts - 2000) ** 2 / 2000).sum()) < 100  # chi-squared with 49 degrees of freedom: 1 in 30,000
    for distance in (1, 2, 7):
        assert abs(correlation(found[:-distance], found[distance:])) < 0.02


@pytest.mark.parametrize(
    "change",
    [{"seed": 8}, {"seed": 6}, {"step": 4}, {"step": 2}, {"purpose": 1}, {"purpose": 5}, {"rows": (3, 4, 5)}],
)
def test_another_seed_step_row_or_purpose_gives_unrelated_numbers(change: dict[str, int]):
    one, other = draw(20_000), draw(20_000, **change)  # type: ignore[arg-type]
    assert not bool((one == other).any())
    assert abs(correlation(one, other)) < 0.02


def test_rows_of_one_step_are_unrelated():
    found = draw(20_000, rows=(0, 1))
    assert abs(correlation(found[0], found[1])) < 0.03


def test_step_and_row_do_not_stand_in_for_each_other():
    assert not torch.equal(draw(step=3, rows=(4,)), draw(step=4, rows=(3,)))
    assert not torch.equal(draw(seed=3, step=4), draw(seed=4, step=3))
    assert not torch.equal(draw(step=3, rows=(1,)), draw(step=4, rows=(0,)))


def test_a_row_gets_the_same_numbers_in_every_batch():
    whole = draw(rows=(0, 1, 2, 3))
    assert torch.equal(torch.cat([draw(rows=(0, 1)), draw(rows=(2,)), draw(rows=(3,))]), whole)
    assert torch.equal(draw(rows=(3, 1)), whole[[3, 1]])


def test_more_numbers_begin_with_the_same_ones():
    assert torch.equal(draw(10), draw(500)[:, :10])


def test_no_generator_is_touched_and_none_matters():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = draw()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(draw(), one)
