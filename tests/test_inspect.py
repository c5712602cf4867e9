"""Sizes, and the signal report: what theory says about initialisation can be read off it."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import corpora
import pytest
import torch
import yaml

from xltrain.config.load import load_config
from xltrain.config.schema import Config
from xltrain.errors import UsageError
from xltrain.evaluation.inspect import activation_bytes, inspect, random_plan, report_of
from xltrain.evaluation.signal import LayerSignal, signal_report
from xltrain.model.backends import BACKENDS
from xltrain.training.build import build_model
from xltrain.training.optimizer import build_optimizer

VOCABULARY = 200


def config_of(**model: Any) -> Config:
    """A wide pre-norm model without positions, whose layers see inputs of unit variance."""
    settings: dict[str, Any] = {
        "num_layers": 3, "d_model": 256, "num_heads": 4, "d_inner": 512, "activation": "relu", "positions": "none",
        "norm_position": "pre", "init": {"variance": "lecun", "std": 1.0},
    }  # fmt: skip
    return corpora.checked(
        {
            "corpus": {"train": ["unread.txt"]},
            "tokenizer": {"vocab_size": VOCABULARY},
            "segments": {"mem_len": 0},
            "objective": {"name": "causal"},
            "model": settings | model,
        }
    )


def report(**model: Any) -> list[LayerSignal]:
    found = report_of(config_of(**model), VOCABULARY)
    assert len(found) == 3
    return found


def test_relu_halves_the_second_moment() -> None:
    for layer in report():
        assert layer.inner == pytest.approx(1.0, rel=0.1)
        assert layer.activated == pytest.approx(0.5 * layer.inner, rel=0.1)


def test_he_makes_up_for_relu() -> None:
    for layer in report(init={"variance": "he", "std": 1.0}):
        assert layer.inner == pytest.approx(2.0, rel=0.1)
        assert layer.activated == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("init", [{"variance": "xavier"}, {"variance": "lecun", "distribution": "orthogonal"}])
def test_square_matrices_keep_the_norm(init: dict[str, Any]) -> None:
    for layer in report(d_inner=256, init=init | {"std": 1.0}):
        assert layer.inner == pytest.approx(1.0, rel=0.1)


def test_scores_have_unit_variance_when_scaled_and_the_head_width_when_not() -> None:
    scaled = report()
    as_t5 = report(attention_scale="init")
    for layer in (*scaled, *as_t5):
        assert layer.logits == pytest.approx(1.0, rel=0.35)
    model = config_of()
    unscaled = _without_scaling(model)
    for layer in unscaled:
        assert layer.logits == pytest.approx(64.0, rel=0.35)
    # Large scores make attention sharp: far from the entropy of equal weights.
    for sharp, soft in zip(unscaled, scaled, strict=True):
        assert sharp.entropy < 0.5 * soft.entropy < soft.uniform_entropy


def _without_scaling(config: Config) -> list[LayerSignal]:
    """Scores neither divided by sqrt(head_dim) nor drawn smaller."""
    from xltrain.model import attention

    original = attention.RelativeAttention.__init__

    def unscaled(self: Any, **arguments: Any) -> None:
        original(self, **(arguments | {"scaled": False}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention.RelativeAttention, "__init__", unscaled)
        return report_of(config, VOCABULARY)


def test_the_residual_stream_grows_with_pre_norm_and_not_with_post_norm() -> None:
    growing = [layer.residual for layer in report()]
    assert growing == sorted(growing)
    assert growing[-1] > growing[0] * 1.5
    for layer in report(norm_position="post"):
        assert layer.residual == pytest.approx(1.0, rel=0.05)


def test_zero_scores_have_the_entropy_of_equal_weights() -> None:
    for layer in report(init={"variance": "fixed", "std": 1e-6}):
        assert layer.entropy == pytest.approx(layer.uniform_entropy, rel=1e-4)
        assert layer.logits < 1e-6


def test_gradients_are_there_for_every_layer() -> None:
    assert all(layer.gradient_norm > 0 for layer in report())


def test_a_window_of_same_length_is_that_of_training() -> None:
    config = config_of()
    model = config.model.model_copy(update={"same_length": True})
    config = config.model_copy(update={"model": model, "segments": config.segments.model_copy(update={"mem_len": 8})})
    for layer in report_of(config, VOCABULARY):
        # Of 128 rows, those from the eighth on see 8 keys.
        assert layer.uniform_entropy == pytest.approx((121 * math.log(8) + math.log(math.factorial(7))) / 128)
        assert 0 < layer.entropy < layer.uniform_entropy


@pytest.mark.parametrize("backend", BACKENDS)
def test_watching_leaves_the_model_as_it_was(backend: str) -> None:
    config = config_of(d_model=16, d_inner=16, attention_backend=backend, attention_dropout=0.0)
    model = build_model(config, vocab_size=VOCABULARY, device=torch.device("cpu"))
    plan = random_plan(config, VOCABULARY, rows=2, seq_len=8)
    before = dict(BACKENDS)
    assert all(layer.entropy for layer in signal_report(model, plan, mem_len=0))
    assert before == BACKENDS
    assert all(layer.attention.attend is BACKENDS[backend] for layer in model.layers)


# --- sizes


def file_of(folder: Path, config: Config) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config.as_dict()))
    return path


def test_parts_add_up_and_bytes_follow(tmp_path: Path) -> None:
    found = inspect(file_of(tmp_path, config_of()), overrides=["segments.mem_len=32"], signal=False, picture=None)
    assert sum(found["parts"].values()) == found["parameters"]
    assert found["parts"]["embedding"] == VOCABULARY * 256
    assert found["weight_bytes"] == 4 * found["parameters"]
    assert found["optimizer_bytes"] == 8 * found["parameters"]
    assert found["memory_bytes"] == 3 * 16 * 32 * 256 * 4
    assert (found["effective_context"], found["documents_apart"]) == (96, False)
    assert found["tokens_per_step"] == 16 * 128


@pytest.mark.parametrize("name", ["adam", "adamw", "muon"])
def test_optimizer_bytes_are_those_of_its_tensors(tmp_path: Path, name: str) -> None:
    path = file_of(tmp_path, config_of(d_model=32, d_inner=48))
    found = inspect(path, overrides=[f"optimizer.name={name}"], signal=False, picture=None)
    config = load_config(path, [f"optimizer.name={name}"])
    model = build_model(config, vocab_size=VOCABULARY, device=torch.device("cpu"))
    optimizer = build_optimizer(model, config.optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    states = [part["state"] for part in optimizer.state_dict().get("parts", [optimizer.state_dict()])]
    tensors = [value for state in states for moments in state.values() for value in moments.values()]
    assert found["optimizer_bytes"] == sum(tensor.nbytes for tensor in tensors if tensor.dim())


def test_what_adafactor_keeps_is_not_guessed(tmp_path: Path) -> None:
    found = inspect(file_of(tmp_path, config_of()), overrides=["optimizer.name=adafactor"], signal=False, picture=None)
    assert found["optimizer_bytes"] is None


def test_activation_bytes_are_what_a_forward_keeps(tmp_path: Path) -> None:
    """Half of the rows, half of the bytes; and the logits of the targets are among them."""
    path = file_of(tmp_path, config_of())
    whole = inspect(path, overrides=[], signal=False, picture=None)["activation_bytes"]
    half = inspect(path, overrides=["training.accumulate=2", "training.batch_size=8"], signal=False, picture=None)[
        "activation_bytes"
    ]
    assert half == pytest.approx(whole / 2, rel=0.05)
    assert whole > 16 * 128 * VOCABULARY * 4


def test_of_the_logits_one_tensor_is_kept() -> None:
    config, found = config_of(), []
    for vocab_size in (1000, 9000):
        model = build_model(config, vocab_size=vocab_size, device=torch.device("meta"))
        found.append(activation_bytes(config, model, vocab_size) or 0)
    targets = config.training.batch_size * config.segments.seq_len
    assert found[1] - found[0] == targets * 8000 * 4


def test_the_command_prints_one_json_object_and_draws(tmp_path: Path) -> None:
    path = file_of(tmp_path, config_of())
    arguments = ["inspect", str(path), "--json", "--picture", str(tmp_path / "signal.png")]
    done = subprocess.run([sys.executable, "-m", "xltrain", *arguments], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert len(found["signal"]) == 3
    assert (tmp_path / "signal.png").read_bytes().startswith(b"\x89PNG")
    assert torch.tensor([layer["residual"] for layer in found["signal"]]).isfinite().all()


def test_what_cannot_be_done_is_refused_first(tmp_path: Path) -> None:
    path = file_of(tmp_path, config_of())
    with pytest.raises(UsageError, match=r"--picture: .*signal\.txt must be a \.png file"):
        inspect(path, overrides=[], signal=False, picture=tmp_path / "signal.txt")
    with pytest.raises(UsageError, match="--set changes a configuration file"):
        inspect(tmp_path, overrides=["model.num_layers=2"], signal=False, picture=None)
