"""Every objective with every layout, over segments with memory: the rule and the model against naive definitions.

Who sees whom is spelled out from what a segment is (its parts, documents, sources and targets, what is predicted) and
from a list of what was remembered, not from orders.
"""

from dataclasses import dataclass

import naive
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import CLS, SEP, Case, T, V, cases, text_for
from models import two_streams

from xltrain.data.streams import Position, Segment
from xltrain.model.transformer import LanguageModel
from xltrain.model.visibility import Visibility
from xltrain.objectives.plan import IGNORE, Plan

LENGTHS = st.lists(st.integers(3, 30), min_size=6, max_size=9).filter(lambda lengths: sum(lengths) >= 4 * (T + 1))


@dataclass(frozen=True)
class Row:
    """One row of a plan, and what it says by the papers' words."""

    case: Case
    segment: Segment
    plan: Plan
    number: int

    def sees(self, i: int, j: int, *, query: bool) -> bool:
        """Whether position i's content (or a query at i) sees position j of the segment."""
        segment, row, name = self.segment, self.number, self.case.objective
        length = int(segment.length[row])
        if j >= length or (query and i == j):
            return False
        if self.plan.document is not None and segment.document[row, i] != segment.document[row, j]:
            return False
        if name == "causal":
            return j <= i
        if name == "masked":
            return True
        if name == "seq2seq":
            return not self._in_target(j) or (self._in_target(i) and j <= i)
        reuse_len = self.case.reuse_len()
        if reuse_len and (i >= reuse_len) != (j >= reuse_len):
            return i >= reuse_len
        if j not in self._ordered:
            return True
        return i == j or (i in self._ordered and self._place(j) < self._place(i))

    def _in_target(self, place: int) -> bool:
        if self.segment.segment_ids is not None:
            return bool(self.segment.segment_ids[self.number, place] == 1)
        scored = (self.plan.targets[self.number] != IGNORE).nonzero().flatten().tolist()
        return place > min(scored, default=T)  # the first scored place is the source's last

    @property
    def _ordered(self) -> set[int]:
        assert self.plan.predict is not None
        used = self.plan.targets[self.number] != IGNORE
        tokens = self.segment.tokens[self.number].tolist()
        symbols = {place for place, token in enumerate(tokens) if token in (SEP, CLS)}
        return set(self.plan.predict[self.number][used].tolist()) | symbols

    def _place(self, place: int) -> int:
        return int(self.plan.order[self.number, place])


@cases()
@settings(max_examples=8)
@given(lengths=LENGTHS, keep_apart=st.booleans(), mem_len=st.sampled_from([0, 5, 9, 30]), seed=st.integers(0, 2**20))
def test_the_rule_with_memory(case: Case, lengths: list[int], keep_apart: bool, mem_len: int, seed: int) -> None:
    keep_apart = keep_apart or case.layout == "columns"
    stream, position = case.stream(text_for(case, lengths, seed=seed)), Position()
    model = two_streams(vocab_size=V, num_layers=1, d_model=4, num_heads=1)
    memory = model.empty_memory(rows=2, mem_len=0 if case.layout == "columns" else mem_len)
    remembered: list[list[int]] = [[], []]  # documents of what each row remembers, oldest first
    for step in range(3):
        segment, position = stream.read(position)
        plan = case.plan(segment, step=step + seed, keep_apart=keep_apart)
        memory = memory.restarted(segment.fresh)
        seen = Visibility.of_segment(
            order=plan.order,
            memory_valid=memory.valid(),
            document=plan.document,
            memory_document=memory.document if plan.document is not None else None,
            slots=torch.arange(T).expand(2, -1),
        ).dense()
        for number in range(2):
            row = Row(case, segment, plan, number)
            past = [] if segment.fresh[number] else remembered[number]
            for i in range(int(segment.length[number])):
                of_memory = [not keep_apart or document == segment.document[number, i] for document in past]
                expected = [False] * (memory.mem_len - len(past)) + of_memory
                asked = plan.predict is None or i in plan.predict[number].tolist()
                for query in (False, True) if plan.stream == "query" and asked else (False,):
                    found = seen[number, i + query * T]
                    assert found[: memory.mem_len].tolist() == expected
                    wanted = [row.sees(i, j, query=query) for j in range(T)]
                    assert found[memory.mem_len :].tolist() == wanted, (i, query)
            kept = segment.document[number].tolist()[: case.reuse_len() or T]
            remembered[number] = (past + kept)[-memory.mem_len :] if memory.mem_len else []
        with torch.no_grad():
            _, memory = model(**plan.model_inputs(), memory=memory)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return two_streams(vocab_size=V, num_layers=2, segment_embeddings=True)


@cases()
@pytest.mark.parametrize("keep_apart", [False, True])
def test_losses_and_memories_equal_the_naive_loop(case: Case, keep_apart: bool, model: LanguageModel) -> None:
    keep_apart = keep_apart or case.layout == "columns"
    stream, position = case.stream(text_for(case, [9, 14, 7, 22, 5, 31])), Position()
    memory = model.empty_memory(rows=2, mem_len=case.mem_len)
    remembered: naive.Remembered = [[[] for _ in range(2)] for _ in range(model.num_layers)]
    for step in range(3):
        segment, position = stream.read(position)
        plan = case.plan(segment, step=step, keep_apart=keep_apart)
        given = {**plan.model_inputs(), "fresh": segment.fresh.tolist()}
        targets = given.pop("targets")
        del given["place"]  # the naive model has relative positions only
        with torch.no_grad():
            found, memory = model(**plan.model_inputs(), memory=memory)
            hidden, remembered = naive.forward(
                model, given.pop("tokens"), given.pop("order"), remembered, mem_len=case.mem_len, **given
            )
            expected = naive.nll(model, hidden, targets)
        scored = targets != IGNORE
        assert scored.any()
        torch.testing.assert_close(found[scored], expected[scored], rtol=0, atol=1e-9)
        for layer in range(model.num_layers):
            for row in range(2):
                states = [state for state, _ in remembered[layer][row]]
                assert memory.length[row] == len(states)
                if states:
                    kept = memory.states[layer, row, -len(states) :]
                    torch.testing.assert_close(kept, torch.stack(states), rtol=0, atol=1e-9)
