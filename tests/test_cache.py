"""Cached keys and values give what recomputing them from memory gives, and a cache is a value."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from models import model_of
from variants import VARIANTS, B, documents, segments

from xltrain.model.cache import Cache
from xltrain.model.memory import Memory
from xltrain.model.transformer import LanguageModel


@torch.inference_mode()
def both(model: LanguageModel, inputs: list[dict[str, Any]], *, mem_len: int) -> list[tuple[torch.Tensor, ...]]:
    """Losses of every segment with memory and with a cache."""
    memory: Memory = model.empty_memory(rows=B, mem_len=mem_len)
    cache: Cache = model.empty_cache(rows=B, mem_len=mem_len)
    found = []
    for segment in inputs:
        one, memory = model(**segment, memory=memory)
        other, cache = model(**segment, memory=cache)
        found.append((one, other))
        assert torch.equal(memory.length, cache.length)
        for row in range(B):
            count = int(memory.length[row])
            assert torch.equal(memory.document[row, mem_len - count :], cache.document[row, mem_len - count :])
    return found


def equal(model: LanguageModel, inputs: list[dict[str, Any]], *, mem_len: int, tolerance: float = 1e-10) -> None:
    for one, other in both(model, inputs, mem_len=mem_len):
        torch.testing.assert_close(other, one, rtol=0, atol=tolerance)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("mem_len", [0, 3, 6, 30])
def test_a_causal_model_with_a_cache_equals_one_with_memory(variant: str, mem_len: int):
    equal(model_of(**VARIANTS[variant]), segments(two_sided=False), mem_len=mem_len)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "same length"])
def test_any_order_and_the_query_stream_equal_them_too(variant: str):
    model = model_of(two_sided=True, query_stream=True, **VARIANTS[variant])
    for stream in ("content", "query"):
        equal(model, segments(two_sided=True, stream=stream), mem_len=6)


@pytest.mark.parametrize("backend", ["math", "sdpa", "flex"])
def test_every_backend_equals_itself_with_a_cache(backend: str):
    equal(model_of(backend=backend), segments(two_sided=False), mem_len=6)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "batch norm"])
def test_single_precision_stays_within_1e_5(variant: str):
    """Batch norm with these statistics makes losses of hundreds of nats, so only its relative error would be small."""
    equal(model_of(dtype=torch.float32, **VARIANTS[variant]), segments(two_sided=False), mem_len=6, tolerance=1e-5)


def test_half_precision_caches_what_the_projections_give():
    model = model_of(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.empty_cache(rows=1, mem_len=2).buffer.keys_values.dtype == torch.bfloat16
        equal(model, segments(two_sided=False), mem_len=6, tolerance=1e-6)


def test_heads_apart_give_what_all_heads_at_once_give(monkeypatch: pytest.MonkeyPatch):
    """Many scores are computed head by head where no gradient is wanted; here all are many."""
    model = model_of(two_sided=True, query_stream=True, segment_embeddings=True, attention_bias=True)
    inputs = segments(
        two_sided=True,
        stream="query",
        segment_ids=lambda length, draw: torch.randint(0, 2, (B, length), generator=draw),
        backward=torch.tensor([0, 1, 0]),
    )
    at_once = both(model, inputs, mem_len=6)
    monkeypatch.setattr("xltrain.model.attention.SCORES_AT_ONCE", 0)
    for pair, other in zip(at_once, both(model, inputs, mem_len=6), strict=True):
        for one, two in zip(pair, other, strict=True):
            torch.testing.assert_close(two, one, rtol=0, atol=1e-12)
    for variant in ("no positions", "shared biases, clamped"):
        equal(model_of(**VARIANTS[variant]), segments(two_sided=False), mem_len=6)


def test_documents_apart_parts_reversed_rows_and_a_reused_part_equal_them():
    def parts(length: int, draw: torch.Generator) -> torch.Tensor:
        return torch.randint(0, 2, (B, length), generator=draw)

    model = model_of(two_sided=True, query_stream=True, segment_embeddings=True, clamp_len=5)
    for more in (
        {"document": documents},
        {"segment_ids": parts},
        {"backward": torch.tensor([0, 1, 0])},
        {"remember": 1},
        {"remember": 0},
        {"predict": lambda length, draw: torch.arange(length).expand(B, -1)},
    ):
        for stream in ("content", "query"):
            equal(model, segments(two_sided=True, stream=stream, **more), mem_len=6)


@torch.inference_mode()
def test_continuing_a_cache_leaves_it_as_it_was():
    model = model_of()
    first, one, other = segments(two_sided=False, lengths=(4, 2, 2), fresh=None)
    empty = model.empty_cache(rows=B, mem_len=6)
    _, start = model(**first, memory=empty)
    expected = [model(**segment, memory=start.selected(torch.arange(B))) for segment in (one, other)]
    branches = [model(**segment, memory=start) for segment in (one, other)]
    for (loss, _), (branch, _) in zip(expected, branches, strict=True):
        assert torch.equal(loss, branch)
    # Each branch goes on from what it read itself, and the empty cache is still empty.
    for (_, before), (_, after) in zip(expected, branches, strict=True):
        assert torch.equal(model(**first, memory=before)[0], model(**first, memory=after)[0])
    assert torch.equal(model(**first, memory=empty)[0], model(**first, memory=model.empty_cache(rows=B, mem_len=6))[0])


@torch.inference_mode()
def test_rows_can_be_chosen_and_repeated():
    model = model_of()
    first, second = segments(two_sided=False, lengths=(4, 3), fresh=None)
    _, cache = model(**first, memory=model.empty_cache(rows=B, mem_len=6))
    whole, _ = model(**second, memory=cache)
    index = torch.tensor([2, 0, 0])
    chosen, _ = model(
        **{name: value[index] for name, value in second.items() if value is not None}, memory=cache.selected(index)
    )
    torch.testing.assert_close(chosen, whole[index], rtol=0, atol=1e-12)


@torch.inference_mode()
def test_a_token_is_written_in_place_and_moved_seldom():
    model, mem_len = model_of(), 100
    cache = model.empty_cache(rows=B, mem_len=mem_len)
    buffers = []
    for segment in segments(two_sided=False, lengths=(1,) * 60):
        _, cache = model(**segment | {"fresh": None}, memory=cache)
        buffers.append(cache.buffer)
    assert len({id(buffer) for buffer in buffers}) == 1
    _, later = model(**segments(two_sided=False, lengths=(50,))[0] | {"fresh": None}, memory=cache)
    assert later.buffer is not cache.buffer  # 110 tokens, and room for 100


@torch.inference_mode()
def test_storage_is_used_again_but_never_while_a_cache_holds_it():
    model, mem_len = model_of(), 6
    inputs = [segment | {"fresh": None} for segment in segments(two_sided=False, lengths=(3,) * 40)]
    alone: list[torch.Tensor] = []
    cache, places = model.empty_cache(rows=B, mem_len=mem_len), set()
    for segment in inputs:
        loss, cache = model(**segment, memory=cache)
        alone.append(loss)
        places.add(cache.buffer.keys_values.data_ptr())
    assert len(places) == 2  # what is left and what is written to, in turn
    cache, kept = model.empty_cache(rows=B, mem_len=mem_len), []
    for segment in inputs:
        kept.append(cache)
        _, cache = model(**segment, memory=cache)
    for segment, cache, loss in zip(inputs, kept, alone, strict=True):
        assert torch.equal(model(**segment, memory=cache)[0], loss)


def test_storage_of_inference_mode_is_not_written_to_outside_of_it():
    """Which torch refuses."""
    model, (segment,) = model_of(), segments(two_sided=False, lengths=(5,))
    within, outside = [], []
    with torch.inference_mode():
        cache = model.empty_cache(rows=B, mem_len=4)
        for _ in range(4):
            _, cache = model(**segment, memory=cache)
        again = cache
        for _ in range(4):
            loss, again = model(**segment, memory=again)
            within.append(loss)
    with torch.no_grad():
        cache = cache.selected(torch.arange(B))
        for _ in range(4):
            loss, cache = model(**segment, memory=cache)
            outside.append(loss)
    assert torch.equal(torch.stack(outside), torch.stack(within))


def test_a_cache_refuses_to_be_part_of_a_gradient():
    model = model_of()
    (segment,) = segments(two_sided=False, lengths=(4,))
    with pytest.raises(ValueError, match="inference_mode"):
        model(**segment, memory=model.empty_cache(rows=B, mem_len=4))


def test_zeros_return_only_where_a_row_starts_anew_and_nothing_is_copied_elsewhere(monkeypatch: pytest.MonkeyPatch):
    counted = []
    cleared = Cache.cleared
    monkeypatch.setattr(Cache, "cleared", lambda cache: counted.append(1) or cleared(cache))
    inputs = segments(two_sided=False)
    equal(model_of(initial_memory="zeros"), inputs, mem_len=6)
    assert len(counted) == sum(bool(segment["fresh"].any()) for segment in inputs) < len(inputs)


def test_a_compiler_takes_a_model_with_a_cache():
    model, inputs = model_of(), segments(two_sided=False, lengths=(3, 3, 3), fresh=None)
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        one, other = (model.empty_cache(rows=B, mem_len=4) for _ in range(2))
        for segment in inputs:
            loss, one = model(**segment, memory=one)
            found, other = compiled(**segment, memory=other)
            torch.testing.assert_close(found, loss)
    torch._dynamo.reset()


def test_rows_taken_from_a_cache_may_go_on_elsewhere_at_the_same_time():
    model = model_of()
    first, *later = segments(two_sided=False, lengths=(4,) * 30, fresh=None)
    with torch.inference_mode():
        _, start = model(**first, memory=model.empty_cache(rows=B, mem_len=6))

    def go_on(_: int) -> torch.Tensor:
        found, cache = [], start.selected(torch.arange(B))
        with torch.inference_mode():
            for segment in later:
                loss, cache = model(**segment, memory=cache)
                found.append(loss)
        return torch.stack(found)

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(go_on, range(4)))
    assert all(torch.equal(result, go_on(0)) for result in results)
