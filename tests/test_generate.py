"""Generation: the same as recomputing everything for every token, whatever is generated beside it, however long."""

import time

import numpy as np
import pytest
import torch
from loaded import T, V, loaded, next_log_probs

from xltrain.evaluation.loading import Loaded
from xltrain.evaluation.reading import Reader
from xltrain.model.memory import Memory


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [draw.integers(9, V, length).tolist() for length in lengths]


def greedy(reader: Reader, rows: list[list[int]], count: int) -> tuple[list[list[int]], list[torch.Tensor]]:
    """Texts with ``count`` tokens more, and the distributions that these came from."""
    log_probs, state = reader.read(rows)
    found, seen = [list(row) for row in rows], [log_probs]
    for _ in range(count):
        tokens = log_probs.argmax(dim=-1)
        for row, token in zip(found, tokens.tolist(), strict=True):
            row.append(token)
        log_probs, state = reader.step(tokens, state)
        seen.append(log_probs)
    return found, seen


# --- equal to full recomputation


@pytest.mark.parametrize("objective", ["causal", "permutation", "seq2seq"])
def test_every_token_is_what_a_forward_over_all_before_it_says(objective: str):
    model = loaded(objective)
    rows = prompts(1, 5, 12)  # a source of a seq2seq model is one segment
    found, seen = greedy(Reader.of(model, mem_len=100), rows, 40)
    for row, prompt in enumerate(rows):
        text = list(prompt)
        for step in range(41):
            source = len(prompt) if objective == "seq2seq" else 0
            expected = next_log_probs(model, text, source=source)
            np.testing.assert_allclose(seen[step][row], expected, atol=1e-4)
            text.append(int(np.argmax(expected)))
        assert found[row] == text[:-1]


def test_a_prompt_of_several_segments_is_read_as_a_whole():
    model = loaded()
    for prompt in prompts(T, T + 1, 3 * T, 50):
        log_probs, _ = Reader.of(model, mem_len=60).read([prompt])
        np.testing.assert_allclose(log_probs[0], next_log_probs(model, prompt), atol=1e-4)


@pytest.mark.parametrize("objective", ["causal", "permutation", "seq2seq"])
def test_zeros_that_a_memory_begins_with_are_as_many_for_every_row(objective: str):
    model = loaded(objective, segments={"initial_memory": "zeros", "mem_len": 12})
    reader, rows = Reader.of(model), prompts(1, 5, T + 3, 3 * T, 5)
    assert reader.mem_len == 12  # with one zero more than in training, a first token would see what it never saw
    together, seen = greedy(reader, rows, 20)
    for row, prompt in enumerate(rows):
        [text], alone = greedy(reader, [prompt], 20)
        assert together[row] == text
        for one, other in zip(seen, alone, strict=True):
            np.testing.assert_allclose(one[row], other[0], atol=1e-5)


def test_with_zeros_a_prompt_of_one_segment_is_read_as_in_training():
    model = loaded(segments={"initial_memory": "zeros", "mem_len": 12})
    for prompt in prompts(1, 5, T):
        tokens = torch.tensor([prompt])
        with torch.no_grad():
            memory = model.model.empty_memory(rows=1, mem_len=12)
            hidden, _ = model.model.hidden(tokens, torch.arange(len(prompt))[None], memory)
            expected = model.model.softmax.log_probs(hidden)[0, -1]
        log_probs, _ = Reader.of(model).read([prompt])
        np.testing.assert_allclose(log_probs[0], expected, atol=1e-5)


@pytest.mark.parametrize("objective", ["causal", "permutation"])
def test_with_full_memory_a_token_sees_as_much_as_a_window_of_that_length(objective: str):
    memory, model = 20, loaded(objective)
    [prompt] = prompts(6)
    [text], seen = greedy(Reader.of(model, mem_len=memory), [prompt], 60)
    for step in (0, 10, 30, 59):
        expected = windowed_log_probs(model, text[: 6 + step], window=memory + 1)
        np.testing.assert_allclose(seen[step][0], expected, atol=1e-4)
    whole = next_log_probs(model, text[: 6 + 59])
    assert not np.allclose(seen[59][0], whole, atol=1e-3)


def windowed_log_probs(model: Loaded, before: list[int], *, window: int) -> list[float]:
    """From one forward over all but the last token, in which every row of every layer sees its last ``window`` keys."""
    core, tokens = model.model, torch.tensor([before])
    query = model.config.objective.name == "permutation"
    with torch.no_grad():
        core.same_length = True  # with which the length of (here: empty) memory is how many keys a row sees
        memory = core.empty_memory(rows=1, mem_len=window)
        hidden, memory = core.hidden(tokens[:, :-1], torch.arange(len(before) - 1)[None], memory)
        core.same_length = False
        kept = Memory(memory.states[:, :, 1:], memory.length.clamp(max=window - 1), memory.document[:, 1:])
        last = torch.cat([tokens[:, -1:], torch.zeros(1, 1, dtype=torch.int64)], dim=1) if query else tokens[:, -1:]
        stream = "query" if query else "content"
        place = torch.tensor([[last.shape[1] - 1]])
        hidden, _ = core.hidden(last, torch.arange(last.shape[1])[None], kept, stream=stream, predict=place)
        return core.softmax.log_probs(hidden)[0, 0].tolist()


@pytest.mark.parametrize("objective", ["causal", "permutation", "seq2seq"])
@pytest.mark.parametrize("positions", ["learned", "sinusoid"])
def test_with_absolute_positions_the_last_segment_is_read_again(objective: str, positions: str):
    model = loaded(objective, segments={"mem_len": 0}, model={"positions": positions})
    reader, rows = Reader.of(model), prompts(2, 5)
    found, seen = greedy(reader, rows, 30)
    room = T - 1 if objective == "permutation" else T
    for row, prompt in enumerate(rows):
        for step in (0, 5, T, 29):
            before = found[row][: len(prompt) + step]
            lost = max(0, len(before) - room)
            source = max(0, len(prompt) - lost) if objective == "seq2seq" else 0
            expected = next_log_probs(model, before[lost:], source=source)
            np.testing.assert_allclose(seen[step][row], expected, atol=1e-4)


def test_parts_of_a_pair_are_told_apart_while_generating():
    sections = {"segments": {"mem_len": 0, "cross_documents": False}, "corpus": {"document_separator": "two_columns"}}
    model = loaded("seq2seq", model={"segment_embeddings": True}, **sections)
    torch.nn.init.normal_(model.model.segment)
    [prompt] = prompts(5)
    [text], seen = greedy(Reader.of(model), [prompt], 6)
    for step in range(7):
        before = torch.tensor([text[: 5 + step]])
        places = torch.arange(before.shape[1])[None]
        with torch.no_grad():
            hidden, _ = model.model.hidden(
                before,
                (places - 4).clamp(min=0),
                model.model.empty_memory(rows=1, mem_len=0),
                segment_ids=(places >= 5).long(),
                predict=places[:, -1:],
            )
            expected = model.model.softmax.log_probs(hidden)[0, 0]
        np.testing.assert_allclose(seen[step][0], expected, atol=1e-4)


def test_rows_that_are_read_together_do_not_change_one_another():
    for objective in ("causal", "permutation", "seq2seq"):
        reader = Reader.of(loaded(objective), mem_len=24)
        rows = prompts(3, 50, T, T + 1, 1)
        together, _ = greedy(reader, rows, 30)
        assert together == [greedy(reader, [row], 30)[0][0] for row in rows]


# --- time and space


def test_the_time_of_a_token_does_not_grow_with_what_was_generated():
    reader = Reader.of(loaded(), mem_len=64)
    log_probs, state = reader.read(prompts(64))
    seconds: list[float] = []
    for _ in range(1200):
        begin = time.perf_counter()
        log_probs, state = reader.step(log_probs.argmax(dim=-1), state)
        seconds.append(time.perf_counter() - begin)
    early, late = (float(np.median(part)) for part in (seconds[100:400], seconds[900:]))
    assert late < 1.5 * early


def test_the_space_of_a_memory_does_not_grow_with_what_was_generated():
    reader = Reader.of(loaded(), mem_len=20)
    log_probs, state = reader.read(prompts(6))
    sizes = set()
    for _ in range(200):
        log_probs, state = reader.step(log_probs.argmax(dim=-1), state)
        sizes.add(state.buffer.size)
    assert max(sizes) <= 2 * 20


def test_by_default_a_token_sees_as_far_as_training_did():
    assert Reader.of(loaded(segments={"seq_len": 16, "mem_len": 8})).mem_len == 16 + 8 - 1
    assert Reader.of(loaded(model={"same_length": True}, segments={"seq_len": 16, "mem_len": 8})).mem_len == 8
    assert Reader.of(loaded(segments={"mem_len": 0}, model={"positions": "learned"})).mem_len is None
