"""A run that stays where knowing only frequencies would leave it is warned about, and no other."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from logged import series
from tiny_runs import config_of

from xltrain.evaluation.perplexity import Result, unigram_entropy
from xltrain.training.checkpoint import Progress, find_checkpoint
from xltrain.training.loop import _look_for_plateau, pretrain

COUNTS = np.array([4, 2, 1, 1, 0])
ENTROPY = 1.75 * math.log(2)  # 1/2, 1/4, 1/8, 1/8


def test_the_entropy_of_counts() -> None:
    assert unigram_entropy(COUNTS) == pytest.approx(ENTROPY)


@pytest.mark.parametrize(
    ("objective", "step", "validation", "unigram", "training", "warned"),
    [
        ("causal", 20, 1.25, 1.21, 1.20, True),
        ("causal", 20, 1.25, 1.21, None, True),  # nothing was logged yet
        ("causal", 19, 1.25, 1.21, 1.20, False),  # still within twice the warm-up
        ("causal", 20, 1.05, 1.21, 1.20, False),  # better than frequencies
        ("causal", 20, 7.58, 7.50, 0.90, False),  # another kind of text, while training goes on
        ("masked", 20, 1.05, 1.21, 1.05, True),  # a tenth of the targets is there to be copied
        ("masked", 20, 0.95, 1.21, 1.05, False),
        ("masked", 20, 1.05, 1.21, 0.95, False),
    ],
)
def test_who_is_warned(
    objective: str,
    step: int,
    validation: float,
    unigram: float,
    training: float | None,
    warned: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = SimpleNamespace(
        progress=Progress(step=step, last_loss=training),
        config=SimpleNamespace(schedule=SimpleNamespace(warmup_steps=10), objective=SimpleNamespace(name=objective)),
    )
    result = Result(nll=validation, targets=1, seconds=1.0, tokens=1, unigram_nll=unigram)
    _look_for_plateau(run, result, training_entropy=unigram_entropy(COUNTS))  # type: ignore[arg-type]
    assert capsys.readouterr().err == ""  # once may be chance
    _look_for_plateau(run, result, training_entropy=unigram_entropy(COUNTS))  # type: ignore[arg-type]
    assert ("the model ignores its context" in capsys.readouterr().err) == warned


def test_a_loss_that_falls_is_no_plateau(capsys: pytest.CaptureFixture[str]) -> None:
    """A masked model may pass slowly through the losses that copying alone would give."""
    settings = SimpleNamespace(schedule=SimpleNamespace(warmup_steps=10), objective=SimpleNamespace(name="masked"))
    run = SimpleNamespace(progress=Progress(step=20), config=settings)
    for loss in (1.29, 1.23, 1.17, 1.11):
        result = Result(nll=loss, targets=1, seconds=1.0, tokens=1, unigram_nll=1.21)
        _look_for_plateau(run, result, training_entropy=ENTROPY)  # type: ignore[arg-type]
        run.progress = replace(run.progress, best_loss=loss)
    assert capsys.readouterr().err == ""
    for _ in range(2):
        _look_for_plateau(run, result, training_entropy=ENTROPY)  # type: ignore[arg-type]
    assert "the model ignores its context" in capsys.readouterr().err


def test_a_resumed_run_knows_the_last_loss(text: Path, tmp_path: Path) -> None:
    """So that it is warned, or not, as the run without a stop would be."""
    pretrain(config_of(text, tmp_path, steps=5, logging__every=2, checkpoint__every=3))
    loss = series(tmp_path, "loss")
    for step, logged in ((3, 2), (5, 5)):
        found = find_checkpoint(tmp_path / "checkpoints" / f"step-{step}").progress().last_loss
        assert found == pytest.approx(loss[logged], rel=1e-6)
