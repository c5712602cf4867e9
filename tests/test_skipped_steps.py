"""A step whose gradient is not finite, or a spike, moves no weight; many in a row end the run."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from logged import losses, series
from tiny_runs import config_of, interrupt_after

from xltrain.config.training import OptimizerConfig
from xltrain.errors import XltrainError
from xltrain.model.transformer import LanguageModel
from xltrain.training import loop
from xltrain.training.checkpoint import list_checkpoints, newest_checkpoint
from xltrain.training.guard import PATIENCE, WINDOW, Guard
from xltrain.training.live import Run
from xltrain.training.loop import pretrain
from xltrain.training.optimizer import build_optimizer
from xltrain.training.update import Updater

CPU = torch.device("cpu")


def judge(guard: Guard, norm: float, loss: float = 1.0) -> bool:
    return bool(guard.refuses(loss=torch.tensor(loss), norm=torch.tensor(norm)))


def test_what_is_not_finite_is_refused_from_the_first_step_on() -> None:
    guard = Guard(ratio=0.0, device=CPU)
    assert not judge(guard, 1.0)
    assert judge(guard, math.nan)
    assert judge(guard, math.inf)
    assert judge(guard, 1.0, loss=math.nan)
    assert not judge(guard, 1e30)
    assert (guard.skips().not_finite, guard.skips().spikes, guard.skips().in_a_row) == (3, 0, 0)


def test_a_spike_is_measured_against_the_median_of_the_window() -> None:
    guard = Guard(ratio=10.0, device=CPU)
    for number in range(WINDOW):
        assert not judge(guard, 1e6 if number == 0 else 1.0 + number % 3)  # no window yet: nothing is a spike
    assert not judge(guard, 20.0)  # the median is 2
    assert judge(guard, 21.0)
    assert str(guard.skips()) == "gradient far above the median: 1"
    assert judge(guard, math.nan)
    assert (guard.skips().total, guard.skips().not_finite, guard.skips().spikes) == (2, 1, 1)


def test_a_level_that_stays_high_becomes_the_normal_one() -> None:
    guard = Guard(ratio=10.0, device=CPU)
    for _ in range(WINDOW):
        judge(guard, 1.0)
    refused = [judge(guard, 50.0) for _ in range(WINDOW)]
    assert refused == [True] * (WINDOW // 2 + 1) + [False] * (WINDOW // 2)


def test_the_window_survives_a_save() -> None:
    one, other = Guard(ratio=10.0, device=CPU), Guard(ratio=10.0, device=CPU)
    for number in range(70):
        judge(one, 1.0 + number / 7)
    judge(one, math.nan)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    torch.testing.assert_close(one.norms, other.norms, rtol=0, atol=0, equal_nan=True)
    assert one.skips() == other.skips()


@pytest.mark.parametrize("given", [(0.5, math.nan, 0.25), (math.nan, 0.5, math.nan)])
@pytest.mark.parametrize("name", ["adamw", "adam", "adafactor", "muon"])
def test_a_refused_step_leaves_weights_and_moments_as_they_are(name: str, given: tuple[float, ...]) -> None:
    model = LanguageModel(vocab_size=11, num_layers=2, d_model=8, num_heads=2, head_dim=4, d_inner=16)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    config = OptimizerConfig(name=name, weight_decay=0.1)  # type: ignore[arg-type]
    updater = Updater(build_optimizer(model, config), config, precision="fp32", device=CPU)
    states = [snapshot(updater, model)]
    for value in given:
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, value)
        _, skipped = updater.step(model.parameters(), loss=torch.tensor(1.0))
        assert bool(skipped) == math.isnan(value)
        states.append(snapshot(updater, model))
        before, after = states[-2:]
        for key in before:
            assert torch.equal(before[key], after[key]) == math.isnan(value) or key not in dict(
                model.named_parameters()
            )
        if math.isnan(value) and len(states) > 2:
            assert before.keys() == after.keys()
            assert all(torch.equal(before[key], after[key]) for key in before)
        elif math.isnan(value):  # what the optimizer remembers begins as zeros
            assert not any(after[key].any() for key in after.keys() - before.keys())


def snapshot(updater: Updater, model: LanguageModel) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {name: value.detach().clone() for name, value in model.named_parameters()}

    def walk(prefix: str, data: Any) -> None:
        if isinstance(data, torch.Tensor):
            found[prefix] = data.clone()
        elif isinstance(data, dict | list):
            for key, value in data.items() if isinstance(data, dict) else enumerate(data):
                walk(f"{prefix}.{key}", value)

    walk("optimizer", updater.optimizer.state_dict())
    return found


def poison(patch: pytest.MonkeyPatch, *bad: int) -> None:
    """Let the gradient of these steps be NaN."""
    original, backward = Run.step, Updater.backward
    now = [0]

    def stepping(self: Run) -> Any:
        now[0] = self.progress.step + 1
        return original(self)

    def spoiling(self: Updater, share: torch.Tensor) -> None:
        backward(self, share * math.nan if now[0] in bad else share)

    patch.setattr(Run, "step", stepping)
    patch.setattr(Updater, "backward", spoiling)


def test_skips_are_counted_logged_and_the_same_after_an_interruption(
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    poison(monkeypatch, 3, 4, 9)
    pretrain(config_of(text, tmp_path / "straight", steps=12, logging__every=2))
    said = capsys.readouterr().err
    assert "step 4: 2 step(s) since the last line were left out (gradient not finite: 2 in all)" in said
    assert said.count("WARNING: step") == 2
    assert list(series(tmp_path / "straight", "skipped").values()) == [0, 2, 2, 2, 3, 3]
    twice = config_of(text, tmp_path / "twice", steps=12, logging__every=2)
    interrupt_after(twice, 3)
    pretrain(twice, resume=True)
    assert losses(tmp_path / "straight") == losses(tmp_path / "twice")


def test_a_checkpoint_that_falls_on_a_bad_step_is_made_after_the_next_good_one(
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    poison(monkeypatch, 4, 5)
    pretrain(config_of(text, tmp_path, steps=9, checkpoint__every=4))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-6", "step-8", "step-9"]


@pytest.mark.parametrize("keep_best", [True, False])
def test_the_best_validation_is_saved_even_where_it_falls_on_a_bad_step(
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    keep_best: bool,
) -> None:
    measured = {3: 3.0, 6: 2.0, 7: 4.0}
    original = loop._together
    monkeypatch.setattr(
        loop, "_together", lambda mine, run: replace(original(mine, run), nll=measured[run.progress.step], targets=1)
    )
    poison(monkeypatch, 6)
    changes = {"evaluation__every": 3, "checkpoint__every": 0, "checkpoint__keep_best": keep_best}
    pretrain(config_of(text, tmp_path, steps=7, **changes))
    assert {folder.name for folder in list_checkpoints(tmp_path)} == (
        {"step-3", "step-6", "step-7"} if keep_best else {"step-7"}
    )
    assert not keep_best or (tmp_path / "best").read_text() == "checkpoints/step-6\n"


def test_a_run_that_diverges_ends_with_its_last_good_checkpoint_named(
    text: Path,
    tmp_path: Path,
) -> None:
    pretrain(config_of(text, tmp_path, steps=2))
    broken = {"optimizer__lr": 1e12, "checkpoint__every": 5}
    expected = (
        rf"the last {PATIENCE} steps were left out \(gradient not finite: \d+\).* go on from .*step-\d+ with --resume"
    )
    with pytest.raises(XltrainError, match=expected):
        pretrain(config_of(text, tmp_path, steps=60, **broken), resume=True)
    checkpoint = newest_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.step <= 5
    with pytest.raises(XltrainError, match="start anew with --overwrite"):
        pretrain(config_of(text, tmp_path / "new", steps=60, **broken | {"checkpoint__every": 0}))


def test_a_row_whose_loss_is_not_finite_forgets_and_the_others_remember(
    text: Path,
    tmp_path: Path,
) -> None:
    lengths: list[list[int]] = []
    original = Run.step

    def stepping(self: Run) -> Any:
        if self.progress.step == 2:
            self.memory.states[:, 1] = math.inf
        stats = original(self)
        lengths.append(self.memory.length.tolist())
        return stats

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "step", stepping)
        pretrain(config_of(text, tmp_path, steps=5))
    assert lengths == [[16] * 4, [24] * 4, [24, 0, 24, 24], [24, 16, 24, 24], [24] * 4]
    found = losses(tmp_path)
    assert found[3][0] is None
    assert all(math.isfinite(found[step][0]) for step in (1, 2, 4, 5))
