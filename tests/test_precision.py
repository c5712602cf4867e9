"""bf16 and fp16 train as fp32 does, keep their state in fp32, and exact positions."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from corpora import split_of
from logged import losses
from tiny_runs import config_of, interrupt_after

from xltrain.evaluation.perplexity import Protocol, evaluate
from xltrain.model.positions import sinusoid
from xltrain.model.transformer import LanguageModel
from xltrain.objectives.causal import Causal
from xltrain.training.build import autocast
from xltrain.training.checkpoint import newest_checkpoint
from xltrain.training.live import Run
from xltrain.training.loop import pretrain
from xltrain.training.tensors import shapes


@pytest.mark.parametrize(
    ("precision", "objective"), [("bf16", "permutation"), ("bf16", "causal"), ("fp16", "permutation")]
)
def test_half_precision_follows_fp32(text: Path, tmp_path: Path, precision: str, objective: str) -> None:
    found = {}
    for name in ("fp32", precision):
        pretrain(config_of(text, tmp_path / name, steps=50, training__precision=name, objective__name=objective))
        found[name] = losses(tmp_path / name)
    assert found[precision][1] != found["fp32"][1]  # it is computed in another precision
    for step in (1, 50):
        assert found[precision][step][0] == pytest.approx(found["fp32"][step][0], rel=0.01)
    counted = [pair for pair in found[precision].values() if pair[0] is not None]  # fp16 may leave a step or two out
    assert len(counted) >= 48
    assert torch.tensor(counted).isfinite().all()
    checkpoint = newest_checkpoint(tmp_path / precision)
    assert checkpoint is not None
    assert {dtype for _, dtype in shapes(checkpoint.folder, "optimizer").values()} == {torch.float32}
    assert {tensor.dtype for tensor in checkpoint.weights(torch.device("cpu")).values()} == {torch.float32}


def test_fp16_finds_its_scale_and_keeps_it_over_an_interruption(
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From a scale so high that the first steps overflow, growing every few steps so that the count matters too."""
    original = torch.amp.GradScaler
    monkeypatch.setattr(
        torch.amp,
        "GradScaler",
        lambda device, **options: original(device, **options, init_scale=2.0**24, growth_interval=7),
    )
    scales: dict[str, dict[int, float]] = {"straight": {}, "twice": {}}

    def watched(name: str) -> None:
        stepping = Run.step

        def step(self: Run) -> Any:
            stats = stepping(self)
            scales[name][self.progress.step] = self.updater.scaler.get_scale()
            return stats

        patch.setattr(Run, "step", step)

    with pytest.MonkeyPatch.context() as patch:
        watched("straight")
        pretrain(config_of(text, tmp_path / "straight", steps=40, training__precision="fp16"))
    with pytest.MonkeyPatch.context() as patch:
        watched("twice")
        config = config_of(text, tmp_path / "twice", steps=40, training__precision="fp16")
        interrupt_after(config, 5)
        interrupt_after(config, 20, resume=True)
        pretrain(config, resume=True)
    assert scales["straight"] == scales["twice"]
    assert scales["straight"][1] < 2.0**24  # the first step overflowed
    assert len(set(scales["straight"].values())) > 3
    assert losses(tmp_path / "straight") == losses(tmp_path / "twice")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("norm", ["layer_norm", "layer_norm_uncentred", "rms_norm"])
@pytest.mark.parametrize("backend", ["math", "sdpa"])
def test_nothing_overflows_where_rows_see_nothing(precision: str, norm: str, backend: str) -> None:
    """The first target of the order has no memory and nothing before it; masks are infinite, never large numbers."""
    model = LanguageModel(
        vocab_size=30,
        num_layers=2,
        d_model=32,
        num_heads=2,
        head_dim=16,
        d_inner=64,
        norm=norm,
        query_stream=True,
        two_sided=True,
        backend=backend,
    )
    draw = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1, generator=draw)
    tokens = torch.randint(0, 30, (3, 12), generator=draw)
    order = torch.stack([torch.randperm(12, generator=draw) for _ in range(3)])
    inputs: dict[str, Any] = {"tokens": tokens, "order": order, "targets": tokens, "stream": "query"}
    exact, _ = model(**inputs, memory=model.empty_memory(rows=3, mem_len=5))
    with autocast(precision, torch.device("cpu")):
        nll, memory = model(**inputs, memory=model.empty_memory(rows=3, mem_len=5))
        again, _ = model(**inputs, memory=memory)
    assert nll.dtype == torch.float32
    assert nll.mean().item() == pytest.approx(exact.mean().item(), rel=0.01)
    (nll.sum() + again.sum()).backward()
    assert all(value.grad is not None and value.grad.isfinite().all() for value in model.parameters())


def test_sums_of_a_long_evaluation_do_not_stop_growing() -> None:
    """Hundreds of segments, of whose losses bf16 could add up 256: they are added up in float64."""
    split = split_of([1500], vocab_size=30)
    model = LanguageModel(vocab_size=30, num_layers=1, d_model=8, num_heads=1, head_dim=8, d_inner=8, backend="math")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(2))
    found = {}
    for precision in ("fp32", "bf16"):
        losses: list[float] = []
        found[precision] = evaluate(
            model,
            Causal(keep_apart=False),
            split,
            Protocol("stream", seq_len=2, mem_len=2, batch_size=1),
            new_memory=lambda rows: model.empty_cache(rows=rows, mem_len=2),
            device=torch.device("cpu"),
            context=lambda precision=precision: autocast(precision, torch.device("cpu")),
            record=lambda places, given, losses=losses: losses.extend(given.tolist()),
        )
        assert found[precision].targets == len(losses) == 1499
        assert found[precision].nll == pytest.approx(math.fsum(losses), rel=1e-12)
    assert found["bf16"].loss == pytest.approx(found["fp32"].loss, rel=0.01)
    assert found["bf16"].loss != found["fp32"].loss


def test_tf32_is_for_products_on_cuda_only_where_asked_for(text: Path, tmp_path: Path) -> None:
    for wanted in (True, False):
        config = config_of(text, tmp_path / str(wanted), steps=1, training__tf32=wanted)
        pretrain(config)
        assert torch.backends.cuda.matmul.allow_tf32 is wanted
    assert losses(tmp_path / "True") == losses(tmp_path / "False")  # on a CPU it changes nothing


def test_positions_stay_apart_beyond_what_bf16_can_count() -> None:
    table = sinusoid(torch.arange(4000), d_model=64, dtype=torch.float32)
    assert table.dtype == torch.float32
    assert (table[1:] - table[:-1]).abs().amax(dim=1).min() > 0.1
