"""What holds for every objective with every way of cutting text: documents apart, padding, batches, accumulation."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import NEVER, Case, T, V, cases, text_for, text_of
from logged import series
from models import two_streams
from plans import same
from torch import Tensor

from xltrain.data.ahead import ReadAhead
from xltrain.data.store import Split
from xltrain.data.streams import Position
from xltrain.model.memory import Memory
from xltrain.model.transformer import LanguageModel
from xltrain.objectives.draws import Draw
from xltrain.objectives.plan import IGNORE, PADDED, Plan


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return two_streams(vocab_size=V, num_layers=2, segment_embeddings=True)


def losses_of(model: LanguageModel, plan: Plan, memory: Memory) -> tuple[Tensor, Memory]:
    with torch.no_grad():
        return model(**plan.model_inputs(), memory=memory)


# --- documents


def losses_within(
    case: Case, model: LanguageModel, split: Split, document: int, *, keep_apart: bool
) -> tuple[list[float], int]:
    """Losses of all targets of one document in an epoch, read with memory, and how many places were padding."""
    rows = 2 if case.bidirectional else 1
    stream, position, found, padded = case.stream(split, rows), Position(), [], 0
    memory = model.empty_memory(rows=rows, mem_len=case.mem_len)
    while position.epoch == 0:
        segment, position = stream.read(position)
        padded += int((T - segment.length).sum())
        plan = case.plan(segment, step=position.segment, keep_apart=keep_apart)
        nll, memory = losses_of(model, plan, memory)
        at = segment.document if plan.predict is None else segment.document.gather(1, plan.predict)
        found += nll[(at == document) & (plan.targets != IGNORE)].tolist()
    return found, padded


@cases(layouts=["stream", "reused", "pair"])
def test_kept_apart_a_document_is_as_if_there_were_no_other(case: Case, model: LanguageModel) -> None:
    """Only the document before it changes; kept apart, nothing of that is noticed, and nothing is padded for it."""
    split = text_of([31, 33, 30, 34])
    changed = split.tokens.copy()
    inside = changed[31:63]  # of the second document, but for its <eod>
    changed[31:63] = np.where(inside + 2 < V, inside + 2, inside - 2)  # words still begin where they did
    other = Split(split.name, changed, split.ends, split.counts, split.line_ends)
    for number in (2, 3) if not case.bidirectional else (0, 2, 3):
        for keep_apart in (True, False):
            before, padded = losses_within(case, model, split, number, keep_apart=keep_apart)
            after, _ = losses_within(case, model, other, number, keep_apart=keep_apart)
            assert len(before) == len(after) > 8
            assert padded == 0
            if keep_apart:
                assert after == pytest.approx(before, abs=1e-10)
    assert max(abs(np.array(before) - np.array(after))) > 1e-4, "text that follows on another document sees it"


# --- padding


def padded(plan: Plan, extra: int) -> Plan:
    """The same plan with so many more places, full of other tokens."""

    def wider(values: Tensor | None, fill: int) -> Tensor | None:
        if values is None:
            return None
        return torch.cat([values, torch.full((values.shape[0], extra), fill)], dim=1)

    content = plan.predict is None
    return Plan(
        tokens=wider(plan.tokens, 11),  # type: ignore[arg-type]
        order=wider(plan.order, PADDED),  # type: ignore[arg-type]
        targets=wider(plan.targets, IGNORE) if content else plan.targets,  # type: ignore[arg-type]
        stream=plan.stream,
        fresh=plan.fresh,
        predict=plan.predict,
        document=wider(plan.document, 0),
        segment_ids=wider(plan.segment_ids, 0),
        place=wider(plan.place, 0),
        backward=plan.backward,
        remember=plan.remember,
    )


@cases()
def test_padding_changes_nothing(case: Case, model: LanguageModel) -> None:
    split = text_for(case, [9, 12, 7, 10, 60])
    segment, _ = case.stream(split).read(Position())
    plan = case.plan(segment, step=1, keep_apart=True)
    alone, _ = losses_of(model, plan, model.empty_memory(rows=2, mem_len=case.mem_len))
    together, _ = losses_of(model, padded(plan, 7), model.empty_memory(rows=2, mem_len=case.mem_len))
    torch.testing.assert_close(together[:, : alone.shape[1]], alone, rtol=0, atol=1e-10)


# --- targets


@cases(objectives=["permutation", "masked"])
def test_no_control_symbol_and_no_padding_is_asked_for_where_targets_are_chosen(case: Case) -> None:
    """Short documents: every tenth token is <eod>; with pairs, <sep> and <cls> besides."""
    draw = np.random.default_rng(1)
    split = text_of(draw.integers(5, 20, size=400).tolist())
    objective, stream, position = case.build(False, num_predict=12, seq_len=64), case.stream(split, 4, 64), Position()
    asked = found = 0
    while position.epoch == 0:
        segment, position = stream.read(position)
        plan = objective.plan(segment, Draw(seed=1, step=position.segment, rows=torch.arange(4)))
        assert plan.predict is not None
        used = plan.targets != IGNORE
        assert not NEVER[plan.targets[used]].any()
        assert torch.equal(plan.targets[used], segment.tokens.gather(1, plan.predict)[used])
        asked, found = asked + 4 * 12, found + int(used.sum())
    assert asked >= found >= 0.98 * asked


# --- batches


@cases()
@settings(max_examples=10)
@given(pieces=st.sampled_from([[1, 1, 1, 1], [2, 2], [1, 3]]), step=st.integers(1, 9))
def test_micro_batches_have_the_plans_and_losses_of_the_whole(
    case: Case, model: LanguageModel, pieces: list[int], step: int
) -> None:
    split = text_for(case, [9, 12, 7, 10, 60, 5, 13])
    stream, position = case.stream(split, rows=4), Position()
    memory = model.empty_memory(rows=4, mem_len=case.mem_len)
    for _ in range(3):
        segment, position = stream.read(position)
        whole = case.plan(segment, step=step, keep_apart=True)
        nll, after = losses_of(model, whole, memory)
        start = 0
        for rows in pieces:
            part = case.plan(segment.rows(start, start + rows), step=step, keep_apart=True, first_row=start)
            assert torch.equal(part.order, whole.order[start : start + rows])
            assert torch.equal(part.targets, whole.targets[start : start + rows])
            found, kept = losses_of(model, part, memory.rows(start, start + rows))
            torch.testing.assert_close(found, nll[start : start + rows], rtol=0, atol=1e-10)
            torch.testing.assert_close(kept.states, after.states[:, start : start + rows], rtol=0, atol=1e-10)
            start += rows
        memory = after


@cases()
@pytest.mark.parametrize("depth", [1, 4])
def test_reading_ahead_changes_nothing(case: Case, depth: int) -> None:
    split = text_for(case, [9, 12, 7, 10, 60, 5, 13])
    plain, ahead, position = case.stream(split), ReadAhead(case.stream(split), depth=depth), Position()
    while position.epoch < 2:
        expected, following = plain.read(position)
        found, same_following = ahead.read(position)
        assert same_following == following
        assert same(expected, found)
        position = following


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same invented sentences as a text and as pairs."""
    folder = tmp_path_factory.mktemp("texts")
    train = corpora.write_text(folder / "train.txt", lines=60, seed=1)
    lines = [line[:40] for line in train.read_text().splitlines() if line]
    pairs = [f"{source}\t{target}\n" for source, target in zip(lines[::2], lines[1::2], strict=True)]
    (folder / "train.tsv").write_text("".join(pairs))
    (folder / "short.txt").write_text("".join(line + "\n" for line in lines[:5]))
    (folder / "short.tsv").write_text("".join(pairs[:5]))
    return folder


def config_of(case: Case, texts: Path, folder: Path, *, train: str = "train", **training: int) -> dict[str, Any]:
    columns = case.layout == "columns"
    ending = "tsv" if columns else "txt"
    return corpora.settings(
        texts / f"{train}.{ending}",
        folder,
        corpus={
            "validation": [str(texts / f"short.{ending}")],
            "document_separator": "two_columns" if columns else "blank_line",
            "cache_dir": str(texts / "cache"),
        },
        tokenizer={"kind": "char", "vocab_size": None},
        segments={"seq_len": 64, "mem_len": 0 if columns else 32, "cross_documents": not columns}
        | {"reuse_len": case.reuse_len(64), "layout": "pair" if case.layout == "pair" else "stream"}
        | {"bidirectional": case.bidirectional},
        objective={"name": case.objective},
        model={"num_layers": 1, "segment_embeddings": True},
        training={"max_steps": 2, **training},
        evaluation={"batch_size": 3},
    )


@cases()
def test_every_number_of_rows_trains_and_evaluates(
    case: Case, texts: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    for rows in (1, 3):
        folder = tmp_path / str(rows)
        folder.mkdir()
        config = corpora.write_config(folder / "c.yaml", config_of(case, texts, folder, batch_size=rows))
        outcome = cli("pretrain", config)
        if case.bidirectional:
            assert f"training.batch_size x accumulate, {rows}, must be even" in outcome.sentence()
            continue
        assert outcome.status == 0, outcome.err
    if not case.bidirectional:
        found = [json.loads(cli("eval-ppl", folder / "run", "--json", "--batch-size", rows).out) for rows in (1, 4)]
        assert found[0]["targets"] == found[1]["targets"] > 0
        assert found[1]["nll"] == pytest.approx(found[0]["nll"], rel=1e-6)


@cases()
def test_too_little_text_is_refused_or_is_enough(
    case: Case, texts: Path, cli: Callable[..., Any], tmp_path: Path
) -> None:
    (texts / "tiny.txt").write_text("so little text that it fills no row")
    (texts / "tiny.tsv").write_text("so little\ttext\n")
    rows = 4
    data = config_of(case, texts, tmp_path, train="tiny", batch_size=rows)
    outcome = cli("pretrain", corpora.write_config(tmp_path / "c.yaml", data))
    if case.layout == "columns":
        assert outcome.status == 0, outcome.err
        assert "pairs               1, as many whole ones to a row as fit" in outcome.err
        return
    runs = rows // 2 if case.bidirectional else rows
    needed = runs * (61 if case.layout == "pair" else 65)
    assert f"corpus.train: needs at least {needed} tokens ({runs} rows x " in outcome.sentence()
    assert "this text has 36; add text, or lower" in outcome.sentence()
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_micro_batches_of_empty_rows_count_for_nothing(texts: Path, cli: Callable[..., Any], tmp_path: Path) -> None:
    """One pair and four rows in four micro-batches: three of them hold nothing."""
    (texts / "tiny.tsv").write_text("so little\ttext\n")
    losses = []
    for accumulate in (1, 4):
        folder = tmp_path / str(accumulate)
        folder.mkdir()
        data = config_of(
            Case("seq2seq", "columns"), texts, folder, train="tiny", batch_size=4 // accumulate, accumulate=accumulate
        )
        data["model"] |= {"dropout": 0.0, "attention_dropout": 0.0}
        data["logging"] = {"every": 1}
        assert cli("pretrain", corpora.write_config(folder / "c.yaml", data)).status == 0
        losses.append(series(folder / "run", "loss"))
        assert series(folder / "run", "tokens_seen") == {1: 15, 2: 30}
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
