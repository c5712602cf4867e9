"""Norms, positions, initialisation and parametrisation do what their names say."""

import math

import pytest
import torch

from xltrain.model import softmax
from xltrain.model.init import initialise, std_of
from xltrain.model.linear import Linear
from xltrain.model.norm import make_norm
from xltrain.model.softmax import Room
from xltrain.model.transformer import LanguageModel


def model_of(**settings: object) -> LanguageModel:
    arguments: dict[str, object] = {
        "vocab_size": 17, "num_layers": 2, "d_model": 32, "num_heads": 4, "head_dim": 8, "d_inner": 64,
        "query_stream": True, "two_sided": True,
    }  # fmt: skip
    return LanguageModel(**(arguments | settings))  # type: ignore[arg-type]


def draw() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.mark.parametrize("distribution", ["normal", "truncated_normal", "uniform", "orthogonal"])
@pytest.mark.parametrize("variance", ["fixed", "lecun", "xavier", "he"])
@pytest.mark.parametrize("parametrization", ["standard", "ntk"])
def test_every_matrix_has_the_variance_of_its_rule(distribution: str, variance: str, parametrization: str) -> None:
    model = model_of(d_model=128, num_heads=4, head_dim=32, d_inner=256)
    initialise(
        model, std=0.05, distribution=distribution, variance=variance, parametrization=parametrization, generator=draw()
    )
    for name, module in model.named_modules():
        if isinstance(module, Linear):
            fan_in, fan_out = module.in_features, module.fan_out
            wanted = {"fixed": 0.05**2, "lecun": 1 / fan_in, "xavier": 2 / (fan_in + fan_out), "he": 2 / fan_in}[
                variance
            ]
            measured = (module.weight * module.multiplier).var().item()
            assert measured == pytest.approx(wanted, rel=0.06), name
            if parametrization == "ntk":
                assert module.weight.var().item() == pytest.approx(1.0, rel=0.06)


def test_truncation_cuts_at_two_standard_deviations() -> None:
    layer = Linear(200, 200, bias=False)
    initialise(layer, std=1.0, distribution="truncated_normal", generator=draw())
    assert layer.weight.abs().max() <= 2 / 0.8796 + 1e-4
    assert layer.weight.var().item() == pytest.approx(1.0, rel=0.03)


def test_orthogonal_keeps_the_norm() -> None:
    layer = Linear(64, 64, bias=False)
    initialise(layer, distribution="orthogonal", variance="lecun", generator=draw())
    x = torch.randn(10, 64, generator=draw())
    torch.testing.assert_close(layer(x).norm(dim=1), x.norm(dim=1), rtol=1e-4, atol=0)


def test_parametrizations_start_as_the_same_function_and_move_differently() -> None:
    tokens = torch.randint(0, 17, (2, 6), generator=draw())
    outputs, steps = [], []
    for kind in ("standard", "ntk"):
        model = model_of()
        initialise(model, variance="lecun", parametrization=kind, generator=draw())
        nll, _ = model(tokens, torch.zeros_like(tokens), tokens, model.empty_memory(rows=2, mem_len=0))
        nll.mean().backward()
        outputs.append(nll.detach())
        inner = model.layers[0].feed_forward.inner
        steps.append(inner.weight.grad.norm() * inner.multiplier)
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-4, atol=1e-5)
    assert steps[1] < steps[0] / 10  # 1/fan_in of it: the factor acts on the way back, and on the update


def test_t5_scaling_starts_as_the_scaled_model() -> None:
    tokens = torch.randint(0, 17, (2, 6), generator=draw())
    outputs = []
    for kind in ("sqrt", "init"):
        # Without relative positions: u and v are drawn the same in both, and only one of them is scaled.
        model = model_of(attention_scale=kind, positions="none")
        initialise(model, variance="lecun", attention_scale=kind, generator=draw())
        outputs.append(model(tokens, torch.zeros_like(tokens), tokens, model.empty_memory(rows=2, mem_len=0))[0])
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-5, atol=1e-5)


def test_std_of_unknown_rule() -> None:
    with pytest.raises(KeyError, match="glorot"):
        std_of("glorot", fan_in=2, fan_out=2, std=1.0)


def test_norms() -> None:
    x = torch.randn(2, 5, 8, generator=draw()) * 3 + 1
    centred = make_norm("layer_norm", 8, eps=1e-12, bias=True)(x)
    torch.testing.assert_close(centred.mean(-1), torch.zeros(2, 5), atol=1e-5, rtol=0)
    root = (x**2).mean(-1, keepdim=True).sqrt()
    for kind in ("layer_norm_uncentred", "rms_norm"):
        torch.testing.assert_close(make_norm(kind, 8, eps=1e-12, bias=True)(x), x / root, rtol=1e-5, atol=1e-6)
    names = [name for name, _ in make_norm("layer_norm_uncentred", 8, eps=1e-6, bias=True).named_parameters()]
    assert names == ["weight", "bias"]
    batch = make_norm("batch_norm", 8, eps=1e-12, bias=True)(x)
    torch.testing.assert_close(batch.mean((0, 1)), torch.zeros(8), atol=1e-5, rtol=0)


@pytest.mark.parametrize("positions", ["sinusoid", "learned", "none", "relative"])
def test_whether_order_of_tokens_counts(positions: str) -> None:
    """In a bidirectional content stream, swapping two context tokens changes a prediction only if positions count."""
    model = model_of(positions=positions, max_positions=6).eval()
    initialise(model, std=0.5, generator=draw())
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6]])
    swapped = torch.tensor([[1, 3, 2, 4, 5, 6]])
    predict = torch.tensor([[4]])
    order = torch.zeros_like(tokens)
    memory = model.empty_memory(rows=1, mem_len=0)
    one, other = (model.hidden(ids, order, memory, predict=predict)[0] for ids in (tokens, swapped))
    assert torch.allclose(one, other, atol=1e-5) == (positions == "none")


@pytest.mark.parametrize(
    ("settings", "fewer"),
    [
        ({"bias": False}, 2 * (64 + 32 + 2 * 32)),
        ({"attention_bias": True}, -2 * 4 * 32),
        ({"positions": "none"}, 2 * 32 * 32 + 2 * 2 * 32),
        ({"final_norm": True}, -64),
        ({"tie_embeddings": False}, -17 * 32),
        ({"segment_embeddings": True}, -2 * 3 * 32),
        ({"norm": "rms_norm"}, 4 * 32),
    ],
)
def test_parameters_of_each_choice(settings: dict[str, object], fewer: int) -> None:
    count = sum(parameter.numel() for parameter in model_of().parameters())
    assert sum(parameter.numel() for parameter in model_of(**settings).parameters()) == count - fewer


def test_adaptive_log_probabilities_are_a_distribution_in_the_order_of_ids() -> None:
    model = model_of(vocab_size=30, cutoffs=[8, 20], div_val=2, tie_projections=[False, True, True])
    initialise(model, std=0.3, generator=draw())
    hidden = torch.randn(3, 4, 32, generator=draw())
    table = model.softmax.log_probs(hidden)
    torch.testing.assert_close(table.exp().sum(-1), torch.ones(3, 4), rtol=1e-5, atol=1e-5)
    targets = torch.randint(0, 30, (3, 4), generator=draw())
    targets[0, 0] = -1
    expected = -table.gather(-1, targets.clamp(min=0)[..., None]).squeeze(-1)
    expected[0, 0] = 0.0
    torch.testing.assert_close(model.softmax(hidden, targets), expected)


@pytest.mark.parametrize("div_val", [1, 2])
@pytest.mark.parametrize("counts", [(5, 5), (12, 9), (0, 5), (0, 0)])
def test_an_adaptive_softmax_with_room_gives_the_same_losses_and_gradients(
    monkeypatch: pytest.MonkeyPatch, div_val: int, counts: tuple[int, int]
) -> None:
    """``counts``: targets in the two further bins; the room is exact, and then more than that."""
    monkeypatch.setattr(softmax, "ROUNDED", 1)
    model = model_of(vocab_size=30, cutoffs=[8, 20], div_val=div_val, tie_projections=[False, True, True])
    initialise(model, std=0.3, generator=draw())
    hidden = torch.randn(3, 8, 32, generator=draw()).double().requires_grad_()
    model.double()
    targets = torch.cat(
        [
            torch.randint(8, 20, counts[:1], generator=draw()),
            torch.randint(20, 30, counts[1:], generator=draw()),
            torch.randint(-1, 8, (24 - sum(counts),), generator=draw()),
        ]
    )
    targets = targets[torch.randperm(24, generator=draw())].view(3, 8)
    exact = model.softmax.room(targets)
    assert exact is not None
    assert exact.counts == counts
    found = []
    for room in (None, exact, Room([count + 3 for count in counts]), Room([100, 100])):
        model.zero_grad(set_to_none=True)
        nll = model.softmax(hidden, targets, room)
        weight = torch.randn(3, 8, generator=draw()).double()
        gradients = torch.autograd.grad((nll * weight).sum(), [hidden, *model.softmax.parameters()])
        found.append((nll, *gradients))
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_too_little_room_in_a_bin_is_an_error_and_not_a_wrong_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "ROUNDED", 1)
    model = model_of(vocab_size=30, cutoffs=[8, 20], div_val=2, tie_projections=[False, True, True])
    with pytest.raises(RuntimeError, match="more targets in a bin"):
        model.softmax(torch.randn(1, 4, 32), torch.tensor([[9, 10, 25, 0]]), Room([1, 1]))


def test_uniform_model_has_the_entropy_of_its_vocabulary() -> None:
    model = model_of()
    initialise(model, std=1e-9, generator=draw())
    tokens = torch.randint(0, 17, (2, 6), generator=draw())
    nll, _ = model(tokens, torch.zeros_like(tokens), tokens, model.empty_memory(rows=2, mem_len=3))
    torch.testing.assert_close(nll, torch.full((2, 6), math.log(17)))
