"""Equal to the original Transformer-XL code: losses and memories of its weights, and its training curve.

``tests/golden`` holds weights, inputs and outputs of the original PyTorch code in float64.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from foreign import GOLDEN, read_golden, segment_of, weights_of
from torch import Tensor

from xltrain.config.training import OptimizerConfig
from xltrain.interop.transformer_xl import Layout, find_ties, from_original
from xltrain.model.transformer import LanguageModel
from xltrain.objectives.causal import Causal
from xltrain.objectives.draws import Draw
from xltrain.training.checkpoint import load_weights
from xltrain.training.optimizer import build_optimizer
from xltrain.training.step import train_step
from xltrain.training.update import Updater


def build(config: dict[str, Any], tensors: dict[str, Tensor]) -> LanguageModel:
    tied = config.get("tie_projs", [False])
    model = LanguageModel(
        vocab_size=config["vocab_size"],
        num_layers=config["num_layers"],
        d_model=config["d_model"],
        num_heads=config["num_heads"],
        head_dim=config["head_dim"],
        d_inner=config["d_inner"],
        activation=config["activation"],
        tie_position_bias=True,
        clamp_len=max(0, config.get("clamp_len", 0)),
        same_length=config.get("same_length", False),
        norm_position="pre" if config.get("pre_norm") else "post",
        norm_eps=config["layer_norm_eps"],
        scale_embeddings=True,
        cutoffs=config.get("cutoffs", []),
        div_val=config.get("div_val", 1),
        tie_projections=tied,
    ).double()
    weights = weights_of(tensors)
    cutoffs, div_val = tuple(config.get("cutoffs", [])), config.get("div_val", 1)
    bins = len(cutoffs) + 1 if div_val > 1 else 1
    ties = find_ties(weights, num_bins=bins, tie_embeddings=False, tie_projections=[False] * bins)
    assert ties == (True, tuple(tied) if div_val > 1 else (False,))
    layout = Layout(config["num_layers"], cutoffs, div_val, *ties)
    load_weights(model, from_original(weights, layout), source=Path("golden"))
    return model


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("txl_[!t]*.safetensors")), ids=lambda path: path.stem)
def test_losses_and_memories(path: Path) -> None:
    config, tensors = read_golden(path.stem)
    model = build(config, tensors).eval()
    tokens, length = tensors["input.tokens"], config["seq_len"]
    memory = model.empty_memory(rows=tokens.shape[0], mem_len=config["mem_len"])
    for number in range(4):
        plan = Causal().plan(segment_of(tokens, number, length), Draw(0, 0, torch.arange(tokens.shape[0])))
        with torch.no_grad():
            nll, memory = model(**plan.model_inputs(), memory=memory)
        torch.testing.assert_close(nll, tensors[f"expected.nll.{number}"], rtol=0, atol=1e-9)
    for layer in range(config["num_layers"]):
        torch.testing.assert_close(memory.states[layer], tensors[f"expected.memory.{layer}"], rtol=0, atol=1e-9)


def test_all_golden_files_are_there() -> None:
    assert len(list(GOLDEN.glob("txl_[!t]*.safetensors"))) == 6


def test_training_curve() -> None:
    """200 steps of Adam on real text: every loss and gradient norm."""
    config, tensors = read_golden("txl_training_curve")
    model = build(config, tensors)
    settings = OptimizerConfig(
        name="adam", lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, clip_norm=config["clip_norm"]
    )
    updater = Updater(build_optimizer(model, settings), settings, precision="fp32", device=torch.device("cpu"))
    tokens, length = tensors["input.tokens"], config["seq_len"]
    memory = model.empty_memory(rows=config["streams"], mem_len=config["mem_len"])
    losses, norms = [], []
    for number in range(config["steps"]):
        plan = Causal().plan(segment_of(tokens, number, length), Draw(0, 0, torch.arange(config["streams"])))
        stats, (memory,) = train_step(model, updater, [plan], [memory], seeds=[number], rooms=[None])
        losses.append(stats.loss)
        norms.append(stats.grad_norm)
    torch.testing.assert_close(torch.stack(losses).double(), tensors["expected.loss"], rtol=1e-6, atol=0)
    torch.testing.assert_close(torch.stack(norms).double(), tensors["expected.grad_norm"], rtol=1e-6, atol=0)
