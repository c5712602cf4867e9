"""bf16 trains as fp32 does, keeps its state in fp32, and exact positions."""

from pathlib import Path

import pytest
import torch
from test_resume import config_of, losses, text  # noqa: F401 (a fixture)

from xltrain.model.positions import sinusoid
from xltrain.training.checkpoint import newest_checkpoint
from xltrain.training.loop import pretrain


@pytest.mark.parametrize("objective", ["permutation", "causal"])
def test_bf16_follows_fp32(text: Path, tmp_path: Path, objective: str) -> None:  # noqa: F811
    found = {}
    for precision in ("fp32", "bf16"):
        folder = tmp_path / precision
        pretrain(config_of(text, folder, steps=50, training__precision=precision, objective__name=objective))
        found[precision] = losses(folder)
    for step in (1, 50):
        assert found["bf16"][step][0] == pytest.approx(found["fp32"][step][0], rel=0.01)
    assert all(torch.tensor(pair).isfinite().all() for pair in found["bf16"].values())
    checkpoint = newest_checkpoint(tmp_path / "bf16")
    assert checkpoint is not None
    state = checkpoint.optimizer_state(torch.device("cpu"))["state"]
    assert {value.dtype for slot in state.values() for value in slot.values()} == {torch.float32}
    assert {tensor.dtype for tensor in checkpoint.weights(torch.device("cpu")).values()} == {torch.float32}


def test_positions_stay_apart_beyond_what_bf16_can_count() -> None:
    table = sinusoid(torch.arange(4000), d_model=64, dtype=torch.float32)
    assert table.dtype == torch.float32
    assert (table[1:] - table[:-1]).abs().amax(dim=1).min() > 0.1
