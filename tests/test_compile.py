"""``training.compile``: one compilation for a whole run, the losses of eager mode, names without prefixes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from logged import losses
from tiny_runs import config_of
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from xltrain.config.schema import Config
from xltrain.training.checkpoint import newest_checkpoint
from xltrain.training.loop import pretrain


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled_by(backend: str, patch: pytest.MonkeyPatch) -> CompileCounterWithBackend:
    """Let models be compiled by a backend that counts."""
    counter, original = CompileCounterWithBackend(backend), nn.Module.compile
    patch.setattr(nn.Module, "compile", lambda self, **options: original(self, backend=counter, **options))
    return counter


def run_of(text: Path, folder: Path, *, steps: int, compiled: bool, **changes: object) -> Config:
    """Memory of 50 positions, full after four segments; no dropout, whose masks a compiler draws otherwise."""
    given: dict[str, object] = {
        "segments__mem_len": 50,
        "model__dropout": 0.0,
        "model__attention_dropout": 0.0,
        "evaluation__every": 25,
        "training__compile": compiled,
    }
    return config_of(text, folder, steps=steps, **given | changes)


@pytest.mark.parametrize(
    ("objective", "accumulate", "backend"),
    [("permutation", 1, "eager"), pytest.param("causal", 2, "aot_eager", marks=pytest.mark.slow)],
)
def test_one_compilation_and_the_losses_of_eager_mode(
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    objective: str,
    accumulate: int,
    backend: str,
) -> None:
    changes = {"objective__name": objective, "training__accumulate": accumulate}
    pretrain(run_of(text, tmp_path / "eager", steps=100, compiled=False, **changes))
    counter = compiled_by(backend, monkeypatch)
    pretrain(run_of(text, tmp_path / "compiled", steps=100, compiled=True, **changes))
    assert counter.frame_count == 1
    one, other = losses(tmp_path / "eager"), losses(tmp_path / "compiled")
    assert one.keys() == other.keys()
    assert max(abs(one[step][0] - other[step][0]) for step in one) < 1e-4


def test_a_resumed_run_and_plain_loading_meet_the_same_names(
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled_by("eager", monkeypatch)
    pretrain(run_of(text, tmp_path / "straight", steps=8, compiled=False))
    for order in ((True, False), (False, True)):
        folder = tmp_path / str(order)
        for steps, compiled in zip((4, 8), order, strict=True):
            pretrain(run_of(text, folder, steps=steps, compiled=compiled, schedule__name="constant"), resume=steps == 8)
        checkpoint = newest_checkpoint(folder)
        assert checkpoint is not None
        expected = newest_checkpoint(tmp_path / "straight")
        assert expected is not None
        assert checkpoint.weights(torch.device("cpu")).keys() == expected.weights(torch.device("cpu")).keys()
        assert sorted(losses(folder)) == list(range(1, 9))


def test_an_adaptive_softmax_is_left_out_of_the_graph_and_nothing_is_compiled_twice(
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counter = compiled_by("eager", monkeypatch)
    adaptive = {"cutoffs": [6, 12], "div_val": 2}
    changes = {"objective__name": "causal", "model__adaptive": adaptive}
    pretrain(run_of(text, tmp_path, steps=30, compiled=True, evaluation__every=10, **changes))
    assert counter.frame_count == 1


def test_recomputed_layers_compile_too(
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretrain(run_of(text, tmp_path / "eager", steps=10, compiled=False))
    counter = compiled_by("aot_eager", monkeypatch)
    pretrain(run_of(text, tmp_path / "compiled", steps=10, compiled=True, training__activation_checkpointing=True))
    assert counter.frame_count == 1
    one, other = losses(tmp_path / "eager"), losses(tmp_path / "compiled")
    assert max(abs(one[step][0] - other[step][0]) for step in one) < 1e-4


@pytest.mark.slow
def test_200_steps_with_inductor(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"evaluation__every": 50, "objective__name": "permutation"}
    pretrain(run_of(text, tmp_path / "eager", steps=200, compiled=False, **changes))
    counter = compiled_by("inductor", monkeypatch)
    pretrain(run_of(text, tmp_path / "compiled", steps=200, compiled=True, **changes))
    assert counter.frame_count == 1
    one, other = losses(tmp_path / "eager"), losses(tmp_path / "compiled")
    assert max(abs(one[step][0] - other[step][0]) for step in one) < 1e-4
