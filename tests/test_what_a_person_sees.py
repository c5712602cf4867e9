"""Lines in a file, curves, TensorBoard, the share of the hardware's peak, and sentences instead of traces."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Outcome
from corpora import Corpus, config_file, config_for
from logged import series
from tiny_runs import config_of
from torch.utils.flop_counter import FlopCounterMode

from xltrain.errors import UsageError, XltrainError
from xltrain.evaluation.inspect import random_plan
from xltrain.model import relative
from xltrain.training.build import build_model
from xltrain.training.curves import plot
from xltrain.training.flops import Work, flops_per_token, peak_flops
from xltrain.training.loop import Run, pretrain

CPU = torch.device("cpu")


def test_a_log_file_has_a_line_per_interval_and_no_control_characters(
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pretrain(config_of(text, tmp_path, steps=40, logging__every=4))
    said = capsys.readouterr().err
    assert "\r" not in said
    assert "\x1b" not in said
    lines = [line for line in said.splitlines() if re.match(r"step \d+/40 ", line)]
    assert len(lines) == 10
    assert all(re.search(r"loss \d.* lr \d.* tokens/s", line) for line in lines)
    assert len(said.splitlines()) < 30


def test_a_run_that_ends_within_its_warm_up_is_told(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretrain(config_of(text, tmp_path, steps=4, schedule__warmup_steps=10, optimizer__lr=1e-3))
    said = "the warm-up of 10 steps is not over at the last step, 4: it ends at 0.0004, not at optimizer.lr 0.001"
    assert said in capsys.readouterr().err


def test_products_of_ten_bits_are_told_of_where_they_are(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A CPU has none."""
    pretrain(config_of(text, tmp_path, steps=1, training__tf32=True))
    assert "cpu, precision fp32 without tf32 products, attention" in capsys.readouterr().err


def test_a_run_that_ends_before_its_schedule_is_told(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stages: Any = [[0, 8], [2, 12], [4, 16]]
    changes: dict[str, Any] = {"schedule__name": "wsd", "schedule__decay_steps": 9, "schedule__warmup_steps": 1}
    pretrain(config_of(text, tmp_path, steps=4, schedule__seq_len_stages=stages, **changes))
    said = capsys.readouterr().err
    assert (
        "the decay of 9 steps has no room between the warm-up and the last step, 4: it takes the 3 that there" in said
    )
    assert "the last step, 4, comes before 16 from step 5" in said
    pretrain(config_of(text, tmp_path / "long", steps=10, schedule__seq_len_stages=stages, **changes))
    said = capsys.readouterr().err
    assert "has no room" not in said
    assert "comes before" not in said


@pytest.mark.pictures
def test_the_end_of_a_run_leaves_curves_and_plot_draws_several(
    text: Path,
    tmp_path: Path,
    cli: Callable[..., Outcome],
) -> None:
    for name in ("one", "other"):
        pretrain(config_of(text, tmp_path / name, steps=100, evaluation__every=30))
        assert (tmp_path / name / "curves.png").read_bytes().startswith(b"\x89PNG")
    output = tmp_path / "both.png"
    outcome = cli("plot", tmp_path / "one", tmp_path / "other", "--output", output)
    assert outcome.status == 0, outcome.err
    assert outcome.out.strip() == str(output)
    alone, both = (tmp_path / "one" / "curves.png").read_bytes(), output.read_bytes()
    assert both != alone
    from PIL import Image

    shown = Image.open(output).convert("RGB")
    colours = {colour for count, colour in shown.getcolors(2**20) if count > 50}
    assert (0x00, 0x72, 0xB2) in colours  # the first run's line
    assert (0xD5, 0x5E, 0x00) in colours  # the other's


def test_runs_that_cannot_be_drawn_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no run with a metrics\.jsonl is here"):
        plot([tmp_path], tmp_path / "a.png")
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(UsageError, match="nothing is logged yet"):
        plot([tmp_path], tmp_path / "a.png")
    with pytest.raises(UsageError, match=r"must be a \.png file in a folder that exists"):
        plot([tmp_path], tmp_path / "none" / "a.png")


def test_losses_that_are_missing_or_cut_short_leave_gaps(tmp_path: Path) -> None:
    line = {"lr": 1e-3, "grad_norm": 1.0, "tokens_per_second": 10.0}
    lines = [{"step": 1, "loss": None, **line}, {"step": 2, "loss": 2.0, **line | {"grad_norm": None}}]
    written = "\n".join(json.dumps(line) for line in lines)
    (tmp_path / "metrics.jsonl").write_text(written + '\n{"step": 3, "lo')
    plot([tmp_path], tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_tensorboard_has_every_logged_number_once_also_after_resuming(text: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for steps in (5, 9):
        pretrain(config_of(text, tmp_path, steps=steps, logging__tensorboard=True), resume=steps == 9)
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    for name in ("loss", "lr", "grad_norm", "validation_loss", "tokens_per_second"):
        expected = series(tmp_path, name)
        events = [(event.step, event.value) for event in found.Scalars(name)]
        assert [step for step, _ in events] == sorted(expected)
        assert [value for _, value in events] == pytest.approx([expected[step] for step, _ in events])
    pretrain(config_of(text, tmp_path, steps=1), overwrite=True)
    assert not (tmp_path / "tensorboard").exists()


@pytest.mark.parametrize(
    "sections",
    [
        {"objective": {"name": "permutation"}},
        {"objective": {"name": "causal"}, "training": {"accumulate": 2}},
        {"objective": {"name": "masked"}, "model": {"positions": "none", "num_layers": 3}},
    ],
)
def test_operations_are_counted_as_torch_counts_them(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sections: dict[str, Any]
) -> None:
    monkeypatch.setattr(relative, "BLOCKS", 1)
    config = config_for(corpus.train, tmp_path, **sections)
    rows, tokens = config.training.batch_size, config.segments.seq_len
    model = build_model(config, vocab_size=500, device=CPU).train()
    plan = random_plan(config, 500, rows=rows, seq_len=tokens, device=CPU)
    with FlopCounterMode(display=False) as counted:
        nll, _ = model(**plan.model_inputs(), memory=model.empty_memory(rows=rows, mem_len=config.segments.mem_len))
        nll.sum().backward()
    assert flops_per_token(config, vocab_size=500) * rows * tokens == pytest.approx(counted.get_total_flops(), rel=1e-9)


def test_the_peak_is_known_by_the_device_or_left_out() -> None:
    assert peak_flops("NVIDIA A100-SXM4-80GB", precision="bf16", tf32=False) == 312e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", precision="fp32", tf32=True) == 156e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", precision="fp32", tf32=False) is None
    assert peak_flops("NVIDIA H100 80GB HBM3", precision="fp16", tf32=False) == 989e12
    assert peak_flops("NVIDIA L40S", precision="bf16", tf32=False) == 362e12
    assert peak_flops("NVIDIA RTX A1000", precision="bf16", tf32=False) is None
    assert peak_flops("", precision="bf16", tf32=False) is None
    assert Work(1e9, 4e12).utilisation(1000.0) == 0.25
    assert Work(1e9, None).utilisation(1000.0) is None


def fail_with(patch: pytest.MonkeyPatch, error: Exception, *, method: str = "step") -> None:
    def failing(*arguments: Any, **more: Any) -> None:
        raise error

    patch.setattr(Run, method, failing)


def test_out_of_memory_says_what_to_lower(
    corpus: Corpus,
    tmp_path: Path,
    cli: Callable[..., Outcome],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1 MiB is free."
    )
    fail_with(monkeypatch, torch.OutOfMemoryError(said))
    config = config_file(tmp_path, corpus.train, evaluation={"batch_size": 64})
    sentence = cli("pretrain", config).sentence(status=1)
    assert sentence.startswith(
        "CUDA out of memory. Tried to allocate 2.00 GiB. To need less: lower training.batch_size"
    )
    for key in ("training.activation_checkpointing", "evaluation.batch_size (now 64)", "training.precision to bf16"):
        assert key in sentence


def test_on_a_cpu_and_in_the_compiler_too(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: 12"
    fail_with(monkeypatch, RuntimeError(allocator))
    with pytest.raises(XltrainError, match=r"can't allocate memory: 12\. To need less: lower training\.batch_size"):
        pretrain(config_of(text, tmp_path / "a", steps=2))
    with monkeypatch.context() as patch:  # a memory may be too large to begin with
        fail_with(patch, RuntimeError(allocator), method="build")
        with pytest.raises(XltrainError, match=r"segments\.mem_len \(now 24\)"):
            pretrain(config_of(text, tmp_path / "d", steps=2))
    fail_with(monkeypatch, torch._dynamo.exc.InternalTorchDynamoError("no compiler here"))
    with pytest.raises(XltrainError, match=r"training\.compile: torch's compiler failed \(no compiler here\)"):
        pretrain(config_of(text, tmp_path / "b", steps=2))
    fail_with(monkeypatch, RuntimeError("another matter"))
    with pytest.raises(RuntimeError, match="another matter"):
        pretrain(config_of(text, tmp_path / "c", steps=2))
