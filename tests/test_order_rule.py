"""The visibility tables of the papers come out of one rule on one integer per position."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from xltrain.model.visibility import HIDDEN, Visibility
from xltrain.objectives.permutation import factorization_order
from xltrain.objectives.plan import PADDED


def content_and_query(order: Tensor, mem_len: int = 0, valid: int = 0) -> tuple[Tensor, Tensor]:
    """(T, K) what every position sees in the content stream and in the query stream."""
    seq_len = order.shape[0]
    memory_valid = torch.arange(mem_len)[None] >= mem_len - valid
    slots = torch.arange(seq_len)[None]
    seen = Visibility.of_segment(order=order[None], memory_valid=memory_valid, slots=slots).dense()[0]
    return seen[:seq_len], seen[seq_len:]


def test_padding_has_the_same_number_in_both_rooms() -> None:
    assert HIDDEN == PADDED


def test_golden_mask_of_xlnet() -> None:
    """The permutation mask that the original code makes for this sampled order (T targets, F functional symbols)."""
    index = torch.tensor([2, 4, 3, 6, 5, 0, 1, 7, 10, 12, 11, 14, 13, 8, 9, 15])
    kinds = ["n", "T", "T", "n", "n", "n", "n", "n", "n", "T", "n", "n", "F", "n", "F", "F"]
    ordered = torch.tensor([kind != "n" for kind in kinds])
    content, query = content_and_query(factorization_order(index, ordered))
    ordinary = "0110000001001011"
    expected = {
        1: "0100000001001011", 2: "0110000001001011", 9: "0000000001001001",
        12: "0000000000000001", 14: "0000000001001001", 15: "0000000000000000",
    }  # fmt: skip
    for position, kind in enumerate(kinds):
        row = expected.get(position, ordinary)
        # The original has one mask: a target's row is what its query sees; others' rows are what their content sees.
        seen = query[position] if kind == "T" else content[position]
        assert "".join(str(int(not one)) for one in seen.tolist()) == row, f"row {position} ({kind})"
        if kind == "T":  # its content sees the same, and itself
            itself = torch.arange(16) == position
            assert torch.equal(content[position], seen | itself)


@pytest.mark.parametrize("seed", range(20))
def test_table_of_ordinary_target_functional(seed: int) -> None:
    """N sees all N and nothing ordered; T and F see all N, and what is ordered before them; F (content) sees itself."""
    draw = torch.Generator().manual_seed(seed)
    kinds = torch.randint(0, 3, (12,), generator=draw)  # 0 ordinary, 1 target, 2 functional
    rank = torch.randperm(12, generator=draw)
    content, query = content_and_query(factorization_order(rank, kinds > 0))
    for i in range(12):
        for j in range(12):
            if kinds[j] == 0:
                assert content[i, j]
                assert query[i, j] == (kinds[i] > 0)  # queries exist for ordered positions only
            elif kinds[i] == 0:
                assert not content[i, j]
            else:
                assert bool(query[i, j]) == bool(rank[j] < rank[i])
                assert bool(content[i, j]) == bool(rank[j] < rank[i] or i == j)


def test_causal_order_gives_the_triangle() -> None:
    content, query = content_and_query(torch.arange(6))
    assert torch.equal(content, torch.ones(6, 6).tril().bool())
    assert torch.equal(query, torch.ones(6, 6).tril(-1).bool())


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=9),
    st.integers(0, 6),
    st.integers(0, 6),
    st.integers(0, 8),
    st.lists(st.integers(0, 2), min_size=15, max_size=15),
    st.integers(0, 3),
)
def test_rule_with_memory_documents_window_and_padding(
    orders: list[int], mem_len: int, filled: int, window: int, documents: list[int], padded: int
) -> None:
    """Against the definition, position by position."""
    seq_len = len(orders)
    valid = min(filled, mem_len)
    order = [PADDED if place >= seq_len - padded else one for place, one in enumerate(orders)]
    of_segment, of_memory = documents[:seq_len], documents[seq_len : seq_len + mem_len]
    seen = Visibility.of_segment(
        order=torch.tensor([order]),
        memory_valid=torch.arange(mem_len)[None] >= mem_len - valid,
        document=torch.tensor([of_segment]),
        memory_document=torch.tensor([of_memory], dtype=torch.int64).view(1, -1),
        slots=torch.arange(seq_len)[None],
        window=window,
    ).dense()[0]
    for row in range(2 * seq_len):
        i, is_query = row % seq_len, row >= seq_len
        if order[i] == PADDED:
            continue
        for key in range(mem_len + seq_len):
            j = key - mem_len
            if j < 0:
                expected = key >= mem_len - valid and of_memory[key] == of_segment[i]
            else:
                before = order[j] < order[i] if is_query else order[j] <= order[i]
                expected = before and order[j] != PADDED and of_segment[j] == of_segment[i]
            if window and i - j >= window:
                expected = False
            assert bool(seen[row, key]) == expected, (row, key)
