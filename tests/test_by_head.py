"""What is computed head by head, without gradients, equals what is computed with them."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from models import model_of
from torch import Tensor
from variants import VARIANTS, B, documents, segments

from xltrain.model import attention, by_head, relative
from xltrain.model.by_head import attend_by_head, goes_by_head
from xltrain.model.memory import Memory
from xltrain.model.scratch import Scratch
from xltrain.model.transformer import LanguageModel
from xltrain.model.visibility import HIDDEN, View, Visibility


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """However few the scores, they go by head if they may, two rows at a time; how many rows each call had."""
    found: list[int] = []

    def counted(for_content: Tensor, *more: Any) -> Tensor:
        found.append(for_content.shape[1])
        return attend_by_head(for_content, *more)

    monkeypatch.setattr(by_head, "WORTHWHILE", -1)
    monkeypatch.setattr(relative, "ROWS_OF_BLOCK", 2)
    monkeypatch.setattr(attention, "attend_by_head", counted)
    return found


def losses(model: LanguageModel, inputs: list[dict[str, Any]], *, mem_len: int, cached: bool = False) -> list[Tensor]:
    memory: Any = (model.empty_cache if cached else model.empty_memory)(rows=B, mem_len=mem_len)
    found = []
    for segment in inputs:
        nll, memory = model(**segment, memory=memory)
        found.append(nll.detach())
    return found


def equal_to_gradients(model: LanguageModel, inputs: list[dict[str, Any]], *, mem_len: int) -> None:
    expected = losses(model, inputs, mem_len=mem_len)
    for cached in (False, True):
        with torch.inference_mode():
            found = losses(model, inputs, mem_len=mem_len, cached=cached)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


@pytest.mark.parametrize("more", [{}, {"document": documents}], ids=["one text", "documents"])
@pytest.mark.parametrize("mem_len", [0, 3, 30])
@pytest.mark.parametrize("variant", VARIANTS)
def test_causal_models_of_every_kind_go_by_head_and_lose_as_much(
    calls: list[int], variant: str, mem_len: int, more: dict[str, Any]
):
    model = model_of(**VARIANTS[variant])
    equal_to_gradients(model, segments(two_sided=False, **more), mem_len=mem_len)
    assert len(calls) == 2 * 3 * len(segments(two_sided=False))  # with memory and with a cache, in three layers
    assert max(calls) > 4  # so that there are several blocks


@pytest.mark.parametrize("more", [{}, {"document": documents}], ids=["one text", "documents"])
@pytest.mark.parametrize("mem_len", [0, 3, 30])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_query_stream_that_reads_left_to_right_goes_by_head_too(
    calls: list[int], variant: str, mem_len: int, more: dict[str, Any]
):
    """The model could look ahead; read in this order it does not, and content and query rows are two passes."""
    model = model_of(two_sided=True, query_stream=True, **VARIANTS[variant])
    equal_to_gradients(model, segments(two_sided=False, stream="query", **more), mem_len=mem_len)
    assert len(calls) == 2 * 3 * len(segments(two_sided=False))
    assert max(calls) == 2 * max(segment["tokens"].shape[1] for segment in segments(two_sided=False))


def test_places_that_are_picked_do_not_go_by_head_in_the_last_layer(calls: list[int]):
    def places(length: int, draw: torch.Generator) -> Tensor:
        return torch.randint(0, length, (B, 3), generator=draw)

    inputs = segments(two_sided=False, predict=places)
    for segment in inputs:
        segment["targets"] = segment["targets"].gather(1, segment["predict"])
    for settings, stream, in_others in (({}, "content", 2), ({"two_sided": True, "query_stream": True}, "query", 0)):
        calls.clear()
        equal_to_gradients(model_of(**settings), [segment | {"stream": stream} for segment in inputs], mem_len=6)
        assert len(calls) == 2 * in_others * len(inputs)


@pytest.mark.parametrize("stream", ["content", "query"])
def test_rows_that_see_what_comes_after_them_do_not_go_by_head(calls: list[int], stream: str):
    model = model_of(two_sided=True, query_stream=True, segment_embeddings=True)
    equal_to_gradients(model, segments(two_sided=True, lengths=(5, 7, 9), stream=stream), mem_len=6)
    assert not calls


@pytest.mark.parametrize("variant", ["as it comes", "adaptive", "no positions"])
def test_padding_in_front_of_a_text_does_not_go_by_head(calls: list[int], variant: str):
    """A padded row may see what comes after it; its text's own rows must not meet what it would make of that."""
    inputs = segments(two_sided=False, lengths=(9,))
    inputs[0]["order"] = inputs[0]["order"].clone()
    for row, padding in enumerate((0, 3, 8)):
        inputs[0]["order"][row, :padding] = HIDDEN
        inputs[0]["targets"][row, :padding] = -1
    equal_to_gradients(model_of(**VARIANTS[variant]), inputs, mem_len=0)
    assert not calls


def test_weights_that_are_dropped_do_not_go_by_head(calls: list[int]):
    model = model_of(attention_dropout=0.5)
    with torch.no_grad():
        losses(model.train(), segments(two_sided=False), mem_len=6)
        assert not calls
        losses(model.eval(), segments(two_sided=False), mem_len=6)
    assert calls


def test_initial_zeros_are_seen(calls: list[int]):
    equal_to_gradients(model_of(initial_memory="zeros"), segments(two_sided=False), mem_len=6)
    assert calls


def view_of(visibility: Visibility, *, seq_len: int, **more: Any) -> View:
    settings = {
        "num_content": seq_len,
        "in_order": True,
        "dtype": torch.float64,
        "scratch": Scratch(),
    }
    return View.of(visibility, seq_len=seq_len, **settings | more)


def a_view(seq_len: int = 4, *, length: tuple[int, ...] = (3, 3), mem_len: int = 3, **more: Any) -> View:
    valid = torch.arange(mem_len) >= mem_len - torch.tensor(length)[:, None]  # (B, M)
    order = torch.arange(seq_len).expand(len(length), -1)  # (B, T)
    return view_of(Visibility.of_segment(order=order, memory_valid=valid), seq_len=seq_len, **more)


@torch.no_grad()
def test_what_lay_in_the_room_and_another_text_that_overflowed_change_nothing():
    seq_len, keys, heads, size = 4, 7, 2, 3
    draw = torch.Generator().manual_seed(1)
    of_rows = [torch.randn(2, seq_len, heads, size, generator=draw).double() for _ in range(2)]
    key, value = torch.randn(2, 2, heads, keys, size, generator=draw).double()
    distances = torch.randn(keys, heads, size, generator=draw).double()
    expected = attend_by_head(*of_rows, key, value, distances, a_view())
    for garbage in (float("nan"), float("inf")):
        view = a_view()
        view.scratch.of("scores", 100, like=key).fill_(garbage)
        assert torch.equal(attend_by_head(*of_rows, key, value, distances, view), expected)
        spoilt = torch.stack([torch.full_like(key[0], garbage), key[1]])
        found = attend_by_head(*of_rows, spoilt, value, distances, view)
        assert found[0].isnan().all()
        assert torch.equal(found[1], expected[1])


@torch.no_grad()
def test_keys_that_all_see_are_left_out_of_the_mask():
    whole = a_view(length=(3, 3))
    assert whole.clear == 4
    assert whole.alive is None
    assert whole.rest.shape == (2, 1, 4, 3)
    assert whole.mask.shape == (2, 1, 4, 7)
    assert a_view(length=(3, 2)).clear == 0
    with torch.enable_grad():
        recorded = a_view(length=(3, 3))
    assert recorded.clear == 0
    assert torch.equal(recorded.mask, whole.mask)


@torch.no_grad()
def test_documents_and_windows_have_a_mask_for_every_key():
    order = torch.arange(4)[None]
    valid = torch.ones(1, 3, dtype=torch.bool)
    for more in (
        {"document": torch.zeros(1, 4, dtype=torch.long), "memory_document": torch.ones(1, 3, dtype=torch.long)},
        {"window": 3},
    ):
        view = view_of(Visibility.of_segment(order=order, memory_valid=valid, **more), seq_len=4)
        assert view.clear == 0
        assert view.mask.isinf().sum() > 6


@torch.no_grad()
def test_only_plain_rows_in_full_precision_go_by_head(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(by_head, "WORTHWHILE", -1)
    query, value = torch.zeros(2, 4, 2, 3), torch.zeros(2, 2, 7, 3)
    assert goes_by_head(query, value, a_view())
    assert not goes_by_head(query.bfloat16(), value.bfloat16(), a_view())
    assert not goes_by_head(query, value, a_view(in_order=False))
    assert not goes_by_head(query, value, a_view(backward=torch.zeros(2, dtype=torch.long)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not goes_by_head(query, value, a_view())
    with torch.enable_grad():
        assert not goes_by_head(query, value, a_view())
    torch.set_num_threads(2)
    assert not goes_by_head(query, value, a_view())
    torch.set_num_threads(1)
    monkeypatch.setattr(by_head, "WORTHWHILE", 4 * 7)
    assert not goes_by_head(query, value, a_view())


def test_memory_of_a_model_in_half_precision_is_read_as_before(calls: list[int]):
    model = model_of(dtype=torch.float32).bfloat16()
    memory: Memory = model.empty_memory(rows=B, mem_len=6)
    with torch.inference_mode():
        for segment in segments(two_sided=False):
            nll, memory = model(**segment, memory=memory)
            assert nll.isfinite().all()
    assert not calls
