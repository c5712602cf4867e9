"""Outputs, memories and gradients equal a naive per-position loop, in float64."""

from dataclasses import dataclass

import naive
import pytest
import torch
from models import two_streams

from xltrain.model.init import initialise
from xltrain.model.transformer import LanguageModel

B, T, P, V = 3, 5, 2, 11


@dataclass(frozen=True)
class Case:
    name: str
    mem_len: int
    stream: str = "query"
    settings: tuple[tuple[str, object], ...] = ()
    documents: bool = False
    parts: bool = False
    reversed_rows: bool = False
    remember: int | None = None


CASES = [
    Case("no memory", 0),
    Case("short memory", 3),
    Case("long memory", 9),
    Case("content stream, some positions", 3, stream="content"),
    Case("pre-norm", 4, settings=(("norm_position", "pre"),)),
    Case(
        "shared biases, clamped, scaled",
        6,
        settings=(("tie_position_bias", True), ("clamp_len", 3), ("scale_embeddings", True)),
    ),
    Case("documents apart", 6, documents=True),
    Case("rows of reversed text", 6, reversed_rows=True, settings=(("clamp_len", 4),)),
    Case("only the reused part is remembered", 6, remember=2),
    Case("parts", 4, parts=True, settings=(("segment_embeddings", True),)),
    Case("parts, shared biases", 4, parts=True, settings=(("segment_embeddings", True), ("tie_position_bias", True))),
    Case(
        "wide heads, untied softmax", 4, settings=(("head_dim", 5), ("tie_embeddings", False), ("activation", "relu"))
    ),
]


@pytest.fixture(autouse=True)
def _flex_gradient_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses flex gradients on a CPU, where it has no kernel; its reference implementation has them."""
    from torch.nn.attention import flex_attention

    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)


def compare(model: LanguageModel, case: Case, *, order_of: str = "random", segments: int = 3) -> None:
    draw = torch.Generator().manual_seed(7)
    memory = model.empty_memory(rows=B, mem_len=case.mem_len)
    remembered: naive.Remembered = [[[] for _ in range(B)] for _ in range(model.num_layers)]
    fresh_rows = [[True] * B, [False, True, False], [True, False, False]]
    loss, loss_naive = torch.zeros(()).double(), torch.zeros(()).double()
    for number in range(segments):
        tokens = torch.randint(0, V, (B, T), generator=draw)
        causal = order_of == "causal"
        order = torch.arange(T).expand(B, T) if causal else torch.randint(0, 4, (B, T), generator=draw)
        predict = torch.rand(B, T, generator=draw).argsort(1)[:, :P].sort(1).values
        targets = torch.randint(-1, V, (B, T if causal else P), generator=draw)
        document = torch.randint(0, 2, (B, T), generator=draw).sort(1).values + number if case.documents else None
        parts = torch.randint(0, 3, (B, T), generator=draw) if case.parts else None
        common = {
            "stream": case.stream,
            "predict": None if causal else predict,
            "document": document,
            "segment_ids": parts,
            "backward": torch.tensor([0, 1, 0]) if case.reversed_rows else None,
            "remember": case.remember,
        }
        hidden, memory = model.hidden(tokens, order, memory, fresh=torch.tensor(fresh_rows[number]), **common)
        expected, remembered = naive.forward(
            model, tokens, order, remembered, fresh=fresh_rows[number], mem_len=case.mem_len, **common
        )
        torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-10)
        for layer in range(model.num_layers):
            for row in range(B):
                kept = remembered[layer][row]
                assert memory.length[row] == len(kept)
                if kept:
                    states = torch.stack([state for state, _ in kept])
                    torch.testing.assert_close(memory.states[layer, row, -len(kept) :], states, rtol=0, atol=1e-10)
        loss = loss + model.softmax(hidden, targets).sum()
        loss_naive = loss_naive + naive.nll(model, expected, targets).sum()
    torch.testing.assert_close(loss, loss_naive, rtol=0, atol=1e-9)
    ours = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    theirs = torch.autograd.grad(loss_naive, list(model.parameters()), allow_unused=True)
    for (name, _), mine, plain in zip(model.named_parameters(), ours, theirs, strict=True):
        assert (mine is None) == (plain is None), name
        if mine is not None:
            torch.testing.assert_close(
                mine, plain, rtol=1e-10, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}"
            )


@pytest.mark.parametrize("backend", ["math", "sdpa", "flex"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_any_order_equals_the_naive_loop(case: Case, backend: str) -> None:
    compare(two_streams(backend=backend, **dict(case.settings)), case)


@pytest.mark.parametrize("backend", ["math", "sdpa", "flex"])
@pytest.mark.parametrize("mem_len", [0, 3, 5, 9])
@pytest.mark.parametrize("same_length", [False, True])
def test_one_sided_distances_equal_the_naive_loop(mem_len: int, same_length: bool, backend: str) -> None:
    """A causal model has only half of the distance table, and another backward."""
    model = two_streams(two_sided=False, query_stream=False, backend=backend, same_length=same_length)
    compare(model, Case("causal", mem_len, stream="content"), order_of="causal")


@pytest.mark.parametrize("backend", ["math", "sdpa", "flex"])
def test_a_query_that_sees_nothing_gives_zeros_and_finite_gradients(backend: str) -> None:
    """No memory, every position ordered: the first query in the order has no key at all."""
    model = two_streams(backend=backend)
    order = torch.tensor([[3, 1, 2, 5, 4]])
    captured = {}

    def capture(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        captured[len(captured)] = output

    for layer in model.layers:
        layer.attention.output.register_forward_hook(capture)
    tokens = torch.tensor([[1, 2, 3, 4, 5]])
    nll, _ = model(tokens, order, tokens, model.empty_memory(rows=1, mem_len=4), stream="query")
    nll.sum().backward()
    assert len(captured) == model.num_layers
    for index, output in captured.items():
        row = 1 + (0 if index == model.num_layers - 1 else T)  # the query slot of position 1
        assert torch.equal(output[0, row], torch.zeros(8).double())
    assert torch.isfinite(nll).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("backend", ["math", "sdpa", "flex"])
@pytest.mark.parametrize("garbage", [float("nan"), float("inf")])
def test_garbage_in_unused_memory_slots_changes_nothing(garbage: float, backend: str) -> None:
    model = two_streams(backend=backend)
    tokens = torch.randint(0, V, (B, T))
    order = torch.randint(0, 4, (B, T))
    results = []
    for fill in (0.0, garbage):
        memory = model.empty_memory(rows=B, mem_len=6)
        states = memory.states.clone().fill_(fill)
        states[:, :, 4:] = torch.linspace(-1, 1, 16).view(2, 8).double()
        memory = type(memory)(states, torch.tensor([2, 0, 1]), memory.document)
        nll, _ = model(tokens, order, tokens, memory, stream="query")
        results.append([nll, *torch.autograd.grad(nll.sum(), list(model.parameters()), allow_unused=True)])
    for zero, filled in zip(*results, strict=True):
        assert (zero is None and filled is None) or torch.equal(zero, filled)


@pytest.mark.parametrize("two_sided", [True, False])
def test_backends_agree_in_single_precision(two_sided: bool) -> None:
    """Outputs and gradients within 1e-5 of one another, with rows that see nothing among them."""
    tokens = torch.randint(0, V, (B, 24), generator=torch.Generator().manual_seed(1))
    order = torch.randint(1, 9, (B, 24), generator=torch.Generator().manual_seed(2))
    if not two_sided:
        order = torch.arange(24).expand(B, 24)
    found = []
    for backend in ("math", "sdpa", "flex"):
        model = two_streams(backend=backend, two_sided=two_sided, query_stream=two_sided).float()
        initialise(model, std=0.2, generator=torch.Generator().manual_seed(1))
        memory = model.empty_memory(rows=B, mem_len=16)
        memory = type(memory)(memory.states + 0.5, torch.tensor([0, 7, 16]), memory.document)
        nll, _ = model(tokens, order, tokens, memory, stream="query" if two_sided else "content")
        gradients = torch.autograd.grad(nll.mean(), list(model.parameters()), allow_unused=True)
        found.append([nll, *(gradient for gradient in gradients if gradient is not None)])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows_of_block", [1, 8, 128])
@pytest.mark.parametrize("each_row", [False, True])
@pytest.mark.parametrize("two_sided", [True, False])
@pytest.mark.parametrize(("seq_len", "slots", "content"), [(5, 3, True), (8, 0, True), (13, 2, True), (5, 3, False)])
def test_distances_of_every_row_are_those_looked_up_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
    seq_len: int,
    slots: int,
    content: bool,
    two_sided: bool,
    each_row: bool,
    rows_of_block: int,
) -> None:
    """In eager mode (block by block, with a backward of its own) and as a compiler sees it (views)."""
    from xltrain.model import relative
    from xltrain.model.positions import distances
    from xltrain.model.relative import relative_bias
    from xltrain.model.visibility import View, Visibility

    monkeypatch.setattr(relative, "ROWS_OF_BLOCK", rows_of_block)
    draw = torch.Generator().manual_seed(1)
    mem_len, heads, size = 3, 2, 4
    keys, num_content = mem_len + seq_len, seq_len if content else 0
    table = distances(
        seq_len=seq_len, mem_len=mem_len, two_sided=two_sided, clamp_len=0, device=torch.device("cpu")
    ).tolist()
    position = torch.cat(
        [torch.arange(num_content).expand(B, -1), torch.randint(0, seq_len, (B, slots), generator=draw)], dim=1
    )  # (B, R)
    query = torch.randn(B, num_content + slots, heads, size, generator=draw).double().requires_grad_()
    shape = (B, len(table), heads, size) if each_row else (len(table), heads, size)
    distance_keys = torch.randn(*shape, generator=draw).double().requires_grad_()
    hidden = torch.rand(B, 1, num_content + slots, keys, generator=draw) < 0.2
    if not two_sided:
        hidden |= (torch.arange(keys) > mem_len + position[..., None])[:, None]
    mask = torch.zeros(hidden.shape).double().masked_fill(hidden, float("-inf"))
    starts = seq_len - 1 - position[:, num_content:]  # (B, R - C)
    rule = Visibility(limit=position, key_order=torch.zeros(B, keys), row_position=position)  # the mask stands for it
    view = View(0, mask, None, num_content, starts, seq_len, in_order=False, rule=rule)

    one_by_one = torch.full((B, heads, num_content + slots, keys), float("-inf")).double()
    for b, row, key in (~hidden[:, 0]).nonzero().tolist():
        column = table.index(mem_len + position[b, row].item() - key)
        by_distance = distance_keys[b, column] if each_row else distance_keys[column]  # (N, H)
        one_by_one[b, :, row, key] = (query[b, row] * by_distance).sum(-1)
    eager = relative_bias(query, distance_keys, view)
    with torch.no_grad():
        torch.testing.assert_close(relative_bias(query, distance_keys, view), one_by_one)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    traced = relative_bias(query, distance_keys, view)
    for found in (eager, traced):
        torch.testing.assert_close(found, one_by_one)
        loss = torch.randn(found.shape, generator=draw).double().masked_fill(hidden, 0.0)
        mine = torch.autograd.grad((found.nan_to_num(neginf=0.0) * loss).sum(), (query, distance_keys))
        theirs = torch.autograd.grad(
            (one_by_one.nan_to_num(neginf=0.0) * loss).sum(), (query, distance_keys), retain_graph=True
        )
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other)
