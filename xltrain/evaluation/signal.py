"""The signal report: how large activations, attention scores and gradients are at initialisation, layer by layer."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from xltrain.model.backends import Attend, attend_math
from xltrain.model.block import Layer
from xltrain.model.transformer import LanguageModel
from xltrain.objectives.plan import Plan
from xltrain.pictures import new_figure


@dataclass
class LayerSignal:
    """One layer. Second moments are means of squares over all rows and units.

    residual: of the layer's output, the residual stream.
    inner, activated: of the feed-forward layer before and after its activation.
    logits: of attention scores at visible keys, after scaling.
    entropy: of the attention distribution over visible keys, in nats.
    uniform_entropy: what it would be if all visible keys had the same weight.
    gradient_norm: of the loss with respect to all parameters of the layer.
    """

    residual: float = 0.0
    inner: float = 0.0
    activated: float = 0.0
    logits: float = 0.0
    entropy: float = 0.0
    uniform_entropy: float = 0.0
    gradient_norm: float = 0.0


def signal_report(model: LanguageModel, plan: Plan, *, mem_len: int) -> list[LayerSignal]:
    """Forward and backward of one segment, dropout off and memory empty."""
    model.eval()
    model.zero_grad(set_to_none=True)
    found = [LayerSignal() for _ in model.layers]
    with _watched(model, found):
        memory = model.empty_memory(rows=plan.tokens.shape[0], mem_len=mem_len)
        nll, _ = model(**plan.model_inputs(), memory=memory)
        (nll.sum() / plan.num_targets).backward()
    for layer, signal in zip(model.layers, found, strict=True):
        squares = [parameter.grad.square().sum() for parameter in layer.parameters() if parameter.grad is not None]
        signal.gradient_norm = math.sqrt(sum(square.item() for square in squares))
    model.zero_grad(set_to_none=True)
    return found


@contextmanager
def _watched(model: LanguageModel, found: list[LayerSignal]) -> Iterator[None]:
    """While open, what passes through every layer is measured."""
    handles, before = [], []
    for layer, signal in zip(_layers(model), found, strict=True):
        handles += [
            layer.register_forward_hook(_record(signal, "residual")),
            layer.feed_forward.inner.register_forward_hook(_record(signal, "inner")),
            layer.feed_forward.outer.register_forward_pre_hook(_record_input(signal, "activated")),
        ]
        before.append((layer.attention, layer.attention.attend))
        layer.attention.attend = _attend_watched(signal)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for attention, attend in before:
            attention.attend = attend


def _layers(model: LanguageModel) -> list[Layer]:
    return [layer for layer in model.layers if isinstance(layer, Layer)]


def _record(signal: LayerSignal, name: str) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
        setattr(signal, name, output.detach().square().mean().item())

    return hook


def _record_input(signal: LayerSignal, name: str) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        setattr(signal, name, inputs[0].detach().square().mean().item())

    return hook


def _attend_watched(signal: LayerSignal) -> Attend:
    def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, dropout: float) -> Tensor:
        with torch.no_grad():
            scores = query @ key.transpose(-1, -2) + bias  # (B, N, R, K)
            visible = torch.isfinite(scores)
            weights = scores.softmax(-1)
            signal.logits = scores[visible].square().mean().item()
            signal.entropy = torch.special.entr(weights).sum(-1).mean().item()
            signal.uniform_entropy = visible.sum(-1).clamp(min=1).double().log().mean().item()
        return attend_math(query, key, value, bias, dropout)

    return attend


def as_rows(report: list[LayerSignal]) -> list[dict[str, float]]:
    return [{"layer": index} | asdict(signal) for index, signal in enumerate(report)]


def draw_report(report: list[LayerSignal], path: Path) -> None:
    """A PNG of the report: one panel per quantity, layers to the right."""
    names = ["residual", "inner", "activated", "logits", "entropy", "gradient_norm"]
    figure = new_figure(10, 5.5)
    for name, panel in zip(names, figure.subplots(2, 3).flat, strict=True):
        panel.plot([getattr(signal, name) for signal in report], marker="o", label=name)
        if name == "entropy":
            panel.plot([signal.uniform_entropy for signal in report], linestyle=":", label="all keys alike")
            panel.legend()
        panel.set_title(
            {"gradient_norm": "gradient norm", "entropy": "entropy of attention"}.get(name, f"{name}, squared")
        )
        panel.set_xlabel("layer")
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.set_ylim(0, 1.15 * max(value for line in panel.lines for value in line.get_ydata()) or 1)
    figure.savefig(path, dpi=120)
