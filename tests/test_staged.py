"""Short segments first: the text is read on without a gap, memory stays, and an interruption changes nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from corpora import split_of
from hypothesis import given, settings
from hypothesis import strategies as st
from logged import losses
from tiny_runs import config_of, interrupt_after

from xltrain.config.load import validate
from xltrain.data.staged import StagedStream
from xltrain.data.streams import Position, TrainingStream
from xltrain.errors import UsageError
from xltrain.training.loop import Run, pretrain

STAGES = [[0, 4], [7, 6], [15, 16]]


def stream_of(lengths: list[tuple[int, int]], *, unit: int, documents: list[int], rows: int) -> StagedStream:
    split = split_of(documents)
    return StagedStream(
        [
            (first, TrainingStream(split, total_rows=rows, seq_len=length, unit=unit, shuffle=True, seed=3))
            for first, length in lengths
        ]
    )


@settings(max_examples=25)
@given(
    documents=st.lists(st.integers(3, 12), min_size=2, max_size=9),
    rows=st.integers(1, 3),
    changes=st.tuples(st.integers(1, 6), st.integers(7, 12)),
)
def test_every_row_reads_on_at_the_token_where_it_stopped(
    documents: list[int], rows: int, changes: tuple[int, int]
) -> None:
    documents = [40, *documents]
    stream = stream_of([(0, 4), (changes[0], 6), (changes[1], 8)], unit=2, documents=documents, rows=rows)
    position, expected = Position(), None
    for number in range(25):
        length = 4 if number < changes[0] else 6 if number < changes[1] else 8
        segment, following = stream.read(position)
        assert segment.tokens.shape == (rows, length)
        assert following.read == number + 1
        if expected is not None and not segment.fresh.any():
            assert segment.tokens[:, 0].tolist() == expected
        assert segment.fresh.all() == (expected is None or segment.fresh.any())
        assert stream.read(position)[0].tokens.equal(segment.tokens)  # whatever was read in between
        expected, position = segment.next_token.tolist(), following
    assert position.epoch > 0


def test_training_uses_the_lengths_and_keeps_memory(text: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int, list[int]]] = []
    original = Run.step

    def stepping(self: Run) -> Any:
        before = self.progress.tokens_seen + self.new_tokens
        stats = original(self)
        seen.append(
            (self.progress.step, self.progress.tokens_seen + self.new_tokens - before, self.memory.length.tolist())
        )
        return stats

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "step", stepping)
        pretrain(config_of(text, tmp_path, steps=20, schedule__seq_len_stages=STAGES))
    assert [tokens // 4 for _, tokens, _ in seen] == [4] * 7 + [6] * 8 + [16] * 5
    assert [memory[0] for _, _, memory in seen[:9]] == [4, 8, 12, 16, 20, 24, 24, 24, 24]


@pytest.mark.parametrize("stop", [7, 9])
def test_interrupted_anywhere_it_goes_on_to_the_last_digit(text: Path, tmp_path: Path, stop: int) -> None:
    config = config_of(text, tmp_path / "twice", steps=24, schedule__seq_len_stages=STAGES)
    pretrain(config_of(text, tmp_path / "straight", steps=24, schedule__seq_len_stages=STAGES))
    interrupt_after(config, stop)
    pretrain(config, resume=True)
    assert losses(tmp_path / "straight") == losses(tmp_path / "twice")
    with pytest.raises(UsageError, match="seq_len_stages was"):
        pretrain(config_of(text, tmp_path / "twice", steps=30), resume=True)


@pytest.mark.parametrize("objective", ["causal", "masked", "seq2seq"])
def test_it_is_for_every_objective(text: Path, tmp_path: Path, objective: str) -> None:
    pretrain(config_of(text, tmp_path, steps=17, schedule__seq_len_stages=STAGES, objective__name=objective))
    found = losses(tmp_path)
    assert list(found) == list(range(1, 18))
    assert torch.tensor(list(found.values())).isfinite().all()


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([[5, 8], [9, 16]], "must begin at 0 and ascend"),
        ([[0, 8], [0, 16]], "must begin at 0 and ascend"),
        ([[0, 8], [9, 12]], "the last stage has 12 tokens; it must have segments.seq_len, 16"),
        ([[0, 32], [9, 16]], "32 exceeds segments.seq_len 16"),
        ([[0, 8]], "the last stage has 8 tokens"),
        ([[0, 0], [3, 16]], "greater than or equal to 1"),
    ],
)
def test_wrong_stages_are_refused(stages: list[list[int]], said: str) -> None:
    data = {"corpus": {"train": ["a"]}, "segments": {"seq_len": 16}, "schedule": {"seq_len_stages": stages}}
    _, problems = validate(data)
    assert any(key.startswith("schedule.seq_len_stages") and said in sentence for key, sentence in problems), problems
