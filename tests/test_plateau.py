"""A run that stays where knowing only frequencies would leave it is warned about, and no other."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from xltrain.evaluation.perplexity import Result, unigram_entropy
from xltrain.training.checkpoint import Progress
from xltrain.training.loop import _look_for_plateau

COUNTS = np.array([4, 2, 1, 1, 0])
ENTROPY = 1.75 * math.log(2)  # 1/2, 1/4, 1/8, 1/8


def test_the_entropy_of_counts() -> None:
    assert unigram_entropy(COUNTS) == pytest.approx(ENTROPY)


@pytest.mark.parametrize(
    ("step", "validation", "unigram", "training", "warned"),
    [
        (20, 1.25, 1.21, 1.20, True),
        (20, 1.25, 1.21, None, True),  # nothing was logged yet
        (19, 1.25, 1.21, 1.20, False),  # still within twice the warm-up
        (20, 1.05, 1.21, 1.20, False),  # better than frequencies
        (20, 7.58, 7.50, 0.90, False),  # another kind of text, while training goes on
    ],
)
def test_who_is_warned(
    step: int,
    validation: float,
    unigram: float,
    training: float | None,
    warned: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = SimpleNamespace(
        progress=Progress(step=step),
        config=SimpleNamespace(schedule=SimpleNamespace(warmup_steps=10)),
        store=SimpleNamespace(unigram=lambda: COUNTS),
        last_loss=training,
    )
    result = Result(nll=validation, targets=1, seconds=1.0, tokens=1, unigram_nll=unigram)
    _look_for_plateau(run, result)  # type: ignore[arg-type]
    assert capsys.readouterr().err == ""  # once may be chance
    _look_for_plateau(run, result)  # type: ignore[arg-type]
    assert ("the model ignores its context" in capsys.readouterr().err) == warned
