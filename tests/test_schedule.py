"""The learning rate is a function of the optimizer step, in every shape."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logged import series
from tiny_runs import config_of

from xltrain.training.loop import pretrain
from xltrain.training.schedule import lr_at


def rates(
    name: str, *, steps: int = 40, warmup: int = 10, decay: int = 0, floor: float = 0.1, beyond: int = 0
) -> list[float]:
    return [
        lr_at(
            step,
            name=name,
            lr=1e-3,
            warmup_steps=warmup,
            max_steps=steps,
            min_lr_ratio=floor,
            decay_steps=decay,
        )
        for step in range(1, steps + beyond + 1)
    ]


NAMES = ["constant", "linear", "cosine", "inverse_sqrt", "wsd"]


@pytest.mark.parametrize("name", NAMES)
def test_warm_up_is_linear_and_reaches_the_peak(name: str) -> None:
    assert rates(name)[:10] == pytest.approx([1e-4 * step for step in range(1, 11)])


def test_shapes_against_their_formulas() -> None:
    assert rates("constant")[10:] == [1e-3] * 30
    assert rates("linear")[24] == pytest.approx(0.55e-3)  # half way down to a tenth
    assert rates("cosine")[19] == pytest.approx(1e-4 + 9e-4 * 0.5 * (1 + math.cos(math.pi / 3)))
    assert rates("inverse_sqrt")[39] == pytest.approx(0.5e-3)
    assert rates("wsd", decay=8)[10:32] == [1e-3] * 22
    assert rates("wsd", decay=8)[32:] == pytest.approx([1e-3 - 9e-4 * k / 8 for k in range(1, 9)])
    assert rates("wsd")[35:] == pytest.approx([1e-3] + [1e-3 - 9e-4 * k / 4 for k in range(1, 5)])


@given(
    name=st.sampled_from(NAMES),
    steps=st.integers(1, 60),
    warmup=st.integers(0, 70),
    decay=st.integers(0, 80),
    floor=st.floats(0.0, 1.0),
)
def test_after_the_warm_up_it_never_rises_and_past_the_end_it_stays(
    name: str, steps: int, warmup: int, decay: int, floor: float
) -> None:
    found = rates(name, steps=steps, warmup=warmup, decay=decay, floor=floor, beyond=20)
    assert all(0.0 <= rate <= 1e-3 * (1 + 1e-12) for rate in found)
    after = found[max(0, warmup - 1) :]
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(after))
    if name in ("linear", "cosine", "wsd") and warmup < steps and decay <= steps - warmup:
        assert found[steps - 1 :] == pytest.approx([1e-3 * floor] * 21, abs=1e-15)


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_with_decay_steps_more_steps_do_not_bend_the_curve(name: str) -> None:
    assert rates(name, steps=80, decay=30)[:40] == rates(name, steps=40)
    assert rates(name, steps=80, decay=30)[40:] == pytest.approx([1e-4] * 40)


def test_with_wsd_a_longer_run_has_the_same_rates_until_the_shorter_one_decays() -> None:
    assert rates("wsd", steps=80, decay=8)[:32] == rates("wsd", steps=40, decay=8)[:32]


@pytest.mark.parametrize("accumulate", [1, 4])
def test_micro_batches_do_not_count_as_steps(text: Path, tmp_path: Path, accumulate: int) -> None:
    pretrain(config_of(text, tmp_path, steps=40, schedule__warmup_steps=10, training__accumulate=accumulate))
    assert list(series(tmp_path, "lr").values()) == rates("cosine", floor=0.01)
