"""A step asks the device for nothing: the host waits only where a line is logged or a checkpoint made."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import config_of
from torch.utils._python_dispatch import TorchDispatchMode

from xltrain.data.prepare import prepare
from xltrain.distributed import Place
from xltrain.training.live import Run

WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "unique", "_unique2", "is_nonzero"}
"""Operations whose result, or its shape, the host has to know: on CUDA it waits for them."""


class Waits(TorchDispatchMode):
    """Names of the operations that would make the host wait, forward, backward and in the optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in WAITS:
            self.found.append(func.overloadpacket.__name__)
        if func.overloadpacket.__name__ == "index" and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in args[1]
        ):
            self.found.append("index by bool")
        return func(*args, **(kwargs or {}))


def run_of(text: Path, folder: Path, device: str, **changes: Any) -> Run:
    configured = "cpu" if device == "meta" else device
    config = config_of(text, folder, steps=9, training__device=configured, **changes)
    run = Run.build(config, Place(device=torch.device(device)), prepare(config).store, None)
    run.model.train()
    return run


ADAPTIVE = {"cutoffs": [6, 12], "div_val": 2}
NO_DROPOUT = {"model__dropout": 0.0, "model__attention_dropout": 0.0}  # on a CPU its masks are drawn another way


@pytest.mark.parametrize("objective", ["permutation", "causal", "masked", "seq2seq"])
@pytest.mark.parametrize(
    "change", [{}, {"training__precision": "fp16"}, {"optimizer__name": "muon"}], ids=["fp32", "fp16", "muon"]
)
def test_nothing_of_a_step_is_read_by_the_host(
    text: Path, tmp_path: Path, objective: str, change: dict[str, Any]
) -> None:
    run = run_of(text, tmp_path, "cpu", objective__name=objective, **change, **NO_DROPOUT)
    run.step()
    segment = run.stream.read(run.progress.position)
    run.stream.read = lambda position: segment  # type: ignore[method-assign]  # a segment is made on the host
    with Waits() as seen:
        run.step()
    assert seen.found == ["_local_scalar_dense"]  # the count of the segment's tokens, before they go to the device


@pytest.mark.parametrize("objective", ["permutation", "causal", "masked", "seq2seq"])
def test_an_adaptive_softmax_is_told_how_many_targets_its_bins_have(text: Path, tmp_path: Path, objective: str) -> None:
    run = run_of(text, tmp_path, "cpu", objective__name=objective, model__adaptive=ADAPTIVE, **NO_DROPOUT)
    run.step()
    segment = run.stream.read(run.progress.position)
    rooms: list[Any] = []
    count = run.model.softmax.room
    run.model.softmax.room = lambda targets: rooms.append(count(targets)) or rooms[-1]  # type: ignore
    before = run.progress
    run.step()
    run.progress = before
    run.stream.read = lambda position: segment  # type: ignore[method-assign]  # a segment is made on the host,
    run.model.softmax.room = lambda targets: rooms[0]  # type: ignore  # and its targets are counted there
    with Waits() as seen:
        run.step()
    assert seen.found == ["_local_scalar_dense"]


def test_a_plan_moves_whole(text: Path, tmp_path: Path) -> None:
    run = run_of(text, tmp_path, "cpu", objective__name="permutation", model__adaptive=ADAPTIVE)
    segment, _ = run.stream.read(run.progress.position)
    plan = run._plan(segment, torch.arange(run.deal.rows), 1, 0, run.deal.rows)
    moved = plan.to(torch.device("meta"))
    for name, value in vars(plan).items():
        if isinstance(value, torch.Tensor):
            assert vars(moved)[name].device.type == "meta"
        else:
            assert vars(moved)[name] == value


@pytest.mark.parametrize("objective", ["permutation", "causal", "masked", "seq2seq"])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"training__activation_checkpointing": True, "training__accumulate": 2},
        {"model__adaptive": ADAPTIVE},
        {"model__attention_backend": "sdpa", "segments__cross_documents": False},
    ],
    ids=["as it comes", "recomputed, in parts", "adaptive", "sdpa, documents apart"],
)
def test_forward_and_backward_mix_nothing_with_the_host(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objective: str, change: dict[str, Any]
) -> None:
    """Tensors without values stand for those of another device: to read one, or to mix it with the host's, fails.

    Of choices between a CPU and other devices it takes the others', which no test here would run otherwise.
    """
    run = run_of(text, tmp_path, "meta", objective__name=objective, **change)
    if objective == "masked":  # counted once in a run, which may wait
        for each in run.objectives.values():
            vars(each)["_ordinary"] = torch.empty(5, dtype=torch.int64, device=run.planned_on)
    gradients: list[set[str]] = []

    def update(parameters: Any, *, loss: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gradients.append({each.grad.device.type for each in parameters if each.grad is not None})
        return loss, loss.isnan()

    monkeypatch.setattr(run.updater, "step", update)
    for _ in range(2):
        assert run.step().loss.device.type == "meta"
    assert gradients == [{"meta"}] * 2
    assert run.memory.states.device.type == "meta"


@pytest.mark.gpu
def test_a_step_never_waits_for_the_device(text: Path, tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [{"training__precision": precision} for precision in ("fp32", "bf16", "fp16")]
    changes += [{"objective__name": "causal", "model__adaptive": ADAPTIVE}, {"optimizer__name": "muon"}]
    for number, change in enumerate(changes):
        run = run_of(text, tmp_path / str(number), "cuda", **change)
        for _ in range(3):
            run.step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(3):
                run.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
