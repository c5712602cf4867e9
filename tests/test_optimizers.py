"""Optimizers of torch: who decays, who learns more slowly, and that it really acts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from logged import losses
from tiny_runs import config_of, interrupt_after

from xltrain.config.training import OptimizerConfig
from xltrain.errors import UsageError
from xltrain.model.transformer import LanguageModel
from xltrain.training.live import Run
from xltrain.training.loop import pretrain
from xltrain.training.optimizer import Both, build_optimizer, decayed, set_lr

NAMES = ["adamw", "adam", "adafactor", "muon"]


def model_of(num_layers: int = 3) -> LanguageModel:
    model = LanguageModel(
        vocab_size=11,
        num_layers=num_layers,
        d_model=8,
        num_heads=2,
        head_dim=4,
        d_inner=16,
        query_stream=True,
        norm_position="pre",
        final_norm=True,
        tie_embeddings=False,
    )
    draw = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=draw)
    return model


def moved(model: LanguageModel, *, grad: float = 1.0, lr: float = 1e-2, **settings: Any) -> dict[str, float]:
    """How far each parameter goes in one step, all gradients being alike."""
    optimizer = build_optimizer(model, OptimizerConfig(**settings))
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, grad)
    set_lr(optimizer, lr)
    optimizer.step()
    return {name: (before[name] - value.detach()).norm().item() for name, value in model.named_parameters()}


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_moved_by_exactly_one_group(name: str) -> None:
    model = model_of()
    optimizer = build_optimizer(model, OptimizerConfig(name=name, layer_decay=0.8))  # type: ignore[arg-type]
    listed = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(listed) == sorted(id(parameter) for parameter in model.parameters())
    assert all(distance > 0 for distance in moved(model, name=name).values())


@pytest.mark.parametrize("name", NAMES)
def test_norms_and_biases_do_not_decay(name: str) -> None:
    """Without a gradient only decay moves a weight."""
    for parameter, distance in moved(model_of(), grad=0.0, name=name, weight_decay=0.1).items():
        if name == "adafactor" or name == "adam":
            continue  # their decay enters elsewhere; the groups are asked below
        assert (distance > 0) == decayed(parameter), parameter
    optimizer = build_optimizer(model_of(), OptimizerConfig(name=name, weight_decay=0.1))  # type: ignore[arg-type]
    decays = {group["weight_decay"] for group in optimizer.param_groups}
    assert decays == {0.0, 0.1}


@pytest.mark.parametrize("name", ["adamw", "adam", "muon"])
def test_layer_decay_acts_although_adam_is_blind_to_the_scale_of_gradients(name: str) -> None:
    alike = moved(model_of(), name=name, weight_decay=0.0)
    apart = moved(model_of(), name=name, weight_decay=0.0, layer_decay=0.5)
    share = {parameter: apart[parameter] / alike[parameter] for parameter in alike}
    for parameter, found in share.items():
        layer = parameter.split(".")[1] if parameter.startswith("layers.") else ""
        wanted = {"0": 0.25, "1": 0.5, "2": 1.0}.get(layer, 1.0)
        if parameter.startswith(("embedding", "mask_embedding")):
            wanted = 0.125
        assert found == pytest.approx(wanted, rel=1e-4), parameter


def test_adam_and_adamw_differ_in_how_they_decay() -> None:
    one, other = (moved(model_of(), name=name, weight_decay=0.5) for name in ("adam", "adamw"))
    assert one["layers.0.feed_forward.inner.weight"] != pytest.approx(
        other["layers.0.feed_forward.inner.weight"], rel=1e-3
    )
    assert one["layers.0.feed_forward.inner.bias"] == pytest.approx(other["layers.0.feed_forward.inner.bias"])


def test_adam_is_fused_and_muon_has_the_matrices() -> None:
    optimizer = build_optimizer(model_of(), OptimizerConfig(name="muon"))
    assert isinstance(optimizer, Both)
    assert {parameter.dim() for group in optimizer.parts[0].param_groups for parameter in group["params"]} == {2}
    assert all(group["fused"] for group in optimizer.parts[1].param_groups)


@pytest.mark.parametrize("key", ["betas", "eps"])
def test_what_adafactor_would_ignore_is_refused(key: str) -> None:
    config = OptimizerConfig(name="adafactor", **{key: {"betas": (0.9, 0.98), "eps": 1e-8}[key]})
    assert config.problems() == [(key, "adafactor has none; leave it out, or choose adamw")]
    assert not OptimizerConfig(name="adafactor").problems()


@pytest.mark.parametrize("name", ["adam", "adafactor"])
def test_they_resume_to_the_last_digit(text: Path, tmp_path: Path, name: str) -> None:
    changes: dict[str, Any] = {"optimizer__name": name, "optimizer__layer_decay": 0.9}
    pretrain(config_of(text, tmp_path / "straight", steps=24, **changes))
    stopped = config_of(text, tmp_path / "twice", steps=24, **changes)
    interrupt_after(stopped, 11)
    pretrain(stopped, resume=True)
    assert losses(tmp_path / "straight") == losses(tmp_path / "twice")


def test_settings_that_change_on_resume_act(text: Path, tmp_path: Path) -> None:
    pretrain(config_of(text, tmp_path, steps=3))
    seen: list[tuple[float, tuple[float, float]]] = []
    original = Run.step

    def stepping(self: Run) -> Any:
        group = self.updater.optimizer.param_groups[0]
        seen.append((group["weight_decay"], group["betas"]))
        return original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "step", stepping)
        changes: dict[str, Any] = {"optimizer__weight_decay": 0.2, "optimizer__betas": (0.8, 0.95)}
        pretrain(config_of(text, tmp_path, steps=4, **changes), resume=True)
    assert seen == [(0.2, (0.8, 0.95))]


@pytest.mark.parametrize(("key", "value"), [("name", "adam"), ("layer_decay", 0.9)])
def test_what_the_moments_depend_on_may_not_change(text: Path, tmp_path: Path, key: str, value: Any) -> None:
    pretrain(config_of(text, tmp_path, steps=2))
    with pytest.raises(UsageError, match=rf"optimizer\.{key} was"):
        pretrain(config_of(text, tmp_path, steps=4, **{f"optimizer__{key}": value}), resume=True)
