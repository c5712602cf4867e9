"""Cross-entropy in chunks is the plain one, and never holds the logits of all rows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from xltrain.model import cross_entropy
from xltrain.model.cross_entropy import IGNORE, linear_cross_entropy
from xltrain.model.transformer import LanguageModel

ROWS, WIDTH, WORDS = 23, 6, 40


def inputs(dtype: torch.dtype) -> tuple[list[Tensor], Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    shapes = [(ROWS, WIDTH), (WORDS, WIDTH), (WORDS,)]
    tensors = [torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]
    targets = torch.randint(0, WORDS, (ROWS,), generator=draw)
    targets[[0, 5, 22]] = IGNORE
    return tensors, targets, torch.randn(ROWS, generator=draw, dtype=torch.float64).to(dtype)


def by_torch(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    logits = functional.linear(hidden, weight, bias).to(torch.promote_types(hidden.dtype, torch.float32))
    return functional.cross_entropy(logits, targets, reduction="none", ignore_index=IGNORE)


def run(dtype: torch.dtype, loss: Callable[..., Tensor] = linear_cross_entropy, *, twice: bool = False) -> list[Tensor]:
    tensors, targets, weights = inputs(dtype)
    nll = loss(*tensors, targets)
    if twice:
        torch.autograd.grad(nll.sum(), tensors, retain_graph=True)
    (nll * weights).sum().backward()
    return [nll.detach(), *(tensor.grad for tensor in tensors if tensor.grad is not None)]


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("chunk", [1, 7, 23, 100, None])
def test_losses_and_gradients_are_those_of_torch(
    monkeypatch: pytest.MonkeyPatch, chunk: int | None, twice: bool
) -> None:
    if chunk is not None:
        monkeypatch.setattr(cross_entropy, "AT_ONCE", chunk * WORDS)
        monkeypatch.setattr(cross_entropy, "WHOLE", 0)
    found = run(torch.float64, twice=twice)
    assert (found[0] == 0).nonzero().squeeze(1).tolist() == [0, 5, 22]
    for one, other in zip(run(torch.float64, by_torch), found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_of_no_rows_there_are_no_losses_and_the_gradient_is_zero() -> None:
    tensors, _, _ = inputs(torch.float32)
    nll = linear_cross_entropy(tensors[0][:0], *tensors[1:], torch.zeros(0, dtype=torch.long))
    assert nll.shape == (0,)
    nll.sum().backward()
    assert not any(tensor.grad.any() for tensor in tensors if tensor.grad is not None)


@pytest.mark.parametrize("whole", [0, cross_entropy.WHOLE])
def test_the_derivative_is_right(monkeypatch: pytest.MonkeyPatch, whole: int) -> None:
    monkeypatch.setattr(cross_entropy, "WHOLE", whole)
    monkeypatch.setattr(cross_entropy, "AT_ONCE", 5 * WORDS)
    tensors, targets, _ = inputs(torch.float64)
    assert torch.autograd.gradcheck(lambda *given: linear_cross_entropy(*given, targets), tensors)


def test_a_second_derivative_is_refused() -> None:
    tensors, targets, _ = inputs(torch.float64)
    loss = linear_cross_entropy(*tensors, targets).square().sum()
    (once,) = torch.autograd.grad(loss, tensors[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        once.sum().backward()


@pytest.mark.parametrize("whole", [0, cross_entropy.WHOLE])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_losses_are_fp32_and_gradients_are_no_worse_than_the_plain_ones(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, whole: int
) -> None:
    exact = run(torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        plain = run(torch.float32, by_torch)
        monkeypatch.setattr(cross_entropy, "WHOLE", whole)
        monkeypatch.setattr(cross_entropy, "AT_ONCE", 4 * WORDS)
        chunked = run(torch.float32)
    assert {tensor.dtype for tensor in chunked} == {torch.float32}
    for truth, one, other in zip(exact, plain, chunked, strict=True):
        assert (other - truth).norm() <= 1.2 * (one - truth).norm() + 1e-6


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, tuple | list) else [found]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return found


def largest(rows: int, words: int) -> int:
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, 4, generator=draw, requires_grad=True)
    weight, bias = torch.randn(words, 4, generator=draw, requires_grad=True), torch.zeros(words, requires_grad=True)
    with Largest() as seen:
        linear_cross_entropy(hidden, weight, bias, torch.randint(0, words, (rows,), generator=draw)).sum().backward()
    return seen.elements


def test_no_tensor_grows_with_rows_times_words(monkeypatch: pytest.MonkeyPatch) -> None:
    assert largest(600, 1000) == 600_000  # so that the measurement can fail
    monkeypatch.setattr(cross_entropy, "WHOLE", 2**18)
    monkeypatch.setattr(cross_entropy, "AT_ONCE", 2**16)
    assert largest(600, 1000) <= 2**16


def test_many_rows_of_a_large_vocabulary_are_chunked_by_themselves() -> None:
    assert largest(2200, 32_000) <= cross_entropy.AT_ONCE  # 70 million logits


@pytest.mark.parametrize("cutoffs", [(), (12, 30)])
def test_a_model_gives_the_same_loss_and_gradients(monkeypatch: pytest.MonkeyPatch, cutoffs: tuple[int, ...]) -> None:
    found = []
    for whole in (cross_entropy.WHOLE, 0):
        monkeypatch.setattr(cross_entropy, "WHOLE", whole)
        monkeypatch.setattr(cross_entropy, "AT_ONCE", 50)
        model = LanguageModel(
            vocab_size=50,
            num_layers=1,
            d_model=8,
            num_heads=2,
            head_dim=4,
            d_inner=16,
            cutoffs=cutoffs,
            div_val=2,
            tie_projections=[False, True, False],
        ).double()
        draw = torch.Generator().manual_seed(5)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3, generator=draw)
        tokens = torch.randint(0, 50, (2, 9), generator=draw)
        order = torch.arange(9).expand(2, -1)
        nll, _ = model(tokens, order, tokens.roll(-1, 1), model.empty_memory(rows=2, mem_len=4))
        nll.sum().backward()
        found.append([nll.detach(), *(parameter.grad for parameter in model.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
