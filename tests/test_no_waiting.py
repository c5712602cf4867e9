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
    config = config_of(text, folder, steps=9, training__device=device, **changes)
    run = Run.build(config, Place(device=torch.device(device)), prepare(config).store, None)
    run.model.train()
    return run


NO_DROPOUT = {"model__dropout": 0.0, "model__attention_dropout": 0.0}  # on a CPU its masks are drawn another way


@pytest.mark.parametrize("objective", ["permutation", "causal", "masked", "seq2seq"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_nothing_of_a_step_is_read_by_the_host(text: Path, tmp_path: Path, objective: str, precision: str) -> None:
    run = run_of(text, tmp_path, "cpu", objective__name=objective, training__precision=precision, **NO_DROPOUT)
    run.step()
    segment = run.stream.read(run.progress.position)
    run.stream.read = lambda position: segment  # type: ignore[method-assign]  # a segment is made on the host
    with Waits() as seen:
        run.step()
    assert seen.found == ["_local_scalar_dense"]  # the count of the segment's tokens, before they go to the device


def test_an_adaptive_softmax_has_to_ask_once_per_further_bin(text: Path, tmp_path: Path) -> None:
    adaptive = {"cutoffs": [6, 12], "div_val": 2}
    run = run_of(text, tmp_path, "cpu", objective__name="causal", model__adaptive=adaptive, **NO_DROPOUT)
    with Waits() as seen:
        run.step()
    assert seen.found.count("nonzero") == 2


@pytest.mark.gpu
def test_a_step_never_waits_for_the_device(text: Path, tmp_path: Path) -> None:
    for precision in ("fp32", "bf16", "fp16"):
        run = run_of(text, tmp_path, "cuda", training__precision=precision)
        for _ in range(3):
            run.step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(3):
                run.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
