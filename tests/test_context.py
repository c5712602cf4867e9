"""How much context a model uses: on a language whose context is known, and against forwards written out one by one."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import pytest
import torch
from loaded import TOKENIZER, T, V, loaded

from xltrain.data.store import Split
from xltrain.data.tokenizer import never_target
from xltrain.evaluation import context_picture
from xltrain.evaluation.context import (
    asked,
    block_error,
    choose_targets,
    curve,
    fitting_context,
    losses_after,
    losses_in_stream,
)
from xltrain.evaluation.context_picture import labels
from xltrain.evaluation.loading import Loaded
from xltrain.evaluation.recl import SHARES, find_lengths
from xltrain.model.positions import sinusoid
from xltrain.pictures import new_figure

Cli = Callable[..., Any]
NONE = np.zeros(V, dtype=bool)
BACK = 20
"""In the language of these tests a character is the one 20 before it, nine times in ten."""


def copying(text_len: int = 3000) -> tuple[Loaded, Split]:
    """A model that was made by hand to predict the token 20 back, and a text of such tokens.

    One head looks for the distance 19 from the place before; its values go where only the softmax reads.
    """
    width = 64
    sizes = {"num_layers": 1, "d_model": width, "num_heads": 1, "d_inner": 8, "norm_position": "pre"}
    found = loaded(model={**sizes, "tie_embeddings": False, "dropout": 0.0})
    model = found.model
    attention = model.layers[0].attention
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
        model.embedding.weight[:, :V] = torch.eye(V)
        attention.distance.weight.copy_(torch.eye(width))
        model.bias_v[0, 0] = 200 * sinusoid(torch.tensor([BACK - 1]), d_model=width, dtype=torch.float32)[0]
        attention.key_value.weight[width : width + V, :V] = torch.eye(V)  # the second matrix makes values
        attention.output.weight[V : 2 * V, :V] = torch.eye(V)
        model.softmax.weight[:, V : 2 * V] = 0.45 * torch.eye(V)
    draw = random.Random(1)
    tokens: list[int] = []
    for place in range(text_len):
        copied = place >= BACK and draw.random() < 0.9
        tokens.append(tokens[place - BACK] if copied else draw.randrange(V - 8, V))
    return found, Split("text", np.array(tokens), np.array([text_len]), {})


def test_on_a_language_of_known_context_the_length_found_is_that_context():
    model, text = copying()
    uniform = loaded()
    with torch.no_grad():
        for parameter in uniform.model.parameters():
            parameter.zero_()
    places = choose_targets(text, 200, longest=60, apart=False, left_out=NONE)
    group = [model, uniform]
    found = find_lengths(
        lambda length: np.stack([losses_after(one, text, places, length) for one in group]),
        step=10,
        limit=60,
        reach=[None, None],
    )
    assert [found.lengths[0, share] for share in (0.1, 0.5, 1.0)] == [BACK, BACK, BACK]
    assert found.lengths[1, 1.0] == 10  # never gains: the first context that is tried
    assert found.losses[10][1] == pytest.approx(math.log(V))
    assert found.losses[20][0] < 1.0 < found.losses[10][0]
    assert found.losses[20][0] == pytest.approx(found.losses[30][0], abs=1e-4)


def test_one_token_less_than_the_known_context_is_not_enough():
    model, text = copying()
    places = choose_targets(text, 100, longest=60, apart=False, left_out=NONE)
    short, enough = (losses_after(model, text, places, length).mean() for length in (BACK - 1, BACK))
    assert enough < 1.0 < short


def test_the_curve_of_that_language_falls_until_memory_reaches_the_context_for_every_token():
    model, text = copying()
    scored = np.arange(3000) >= 41
    points = {
        point["mem_len"]: point
        for point in curve(model, text, lengths=[0, 4, 10, 19, 20, 40], scored=scored, batch_size=4)
    }
    losses = {mem_len: point["loss"] for mem_len, point in points.items()}
    assert losses[0] > losses[4] > losses[10] > losses[19]
    assert losses[19] == pytest.approx(losses[20], abs=1e-5)  # even a segment's first place now reaches 19 back
    assert losses[19] == pytest.approx(losses[40], abs=1e-5)
    assert points[19]["gain"] == pytest.approx(losses[0] - losses[19])
    assert {point["targets"] for point in points.values()} == {3000 - 41}


def test_a_curve_compares_the_same_tokens_and_its_numbers_do_not_depend_on_the_number_of_rows():
    text = corpora.split_of([900], vocab_size=V)
    for objective in ("causal", "permutation"):
        model = loaded(objective)
        scored = asked(model, text) & (np.arange(900) >= 51)
        one, many = (curve(model, text, lengths=[0, 10, 50], scored=scored, batch_size=rows) for rows in (1, 8))
        count = 900 - 51
        if objective == "permutation":
            count -= int(never_target(TOKENIZER)[text.tokens[51:]].sum())
        assert [point["targets"] for point in one] == [count] * 3
        for alone, together in zip(one, many, strict=True):
            assert together["loss"] == pytest.approx(alone["loss"], rel=1e-6)
        assert abs(one[0]["loss"] - one[1]["loss"]) > 1e-4  # memory matters here


@pytest.mark.parametrize("objective", ["causal", "permutation", "seq2seq"])
@pytest.mark.parametrize("cross_documents", [True, False])
def test_a_model_is_asked_for_the_tokens_that_it_has_a_loss_for(objective: str, cross_documents: bool):
    model, text = loaded(objective, segments={"cross_documents": cross_documents}), corpora.split_of([40] * 5)
    text.tokens[:] = 9 + text.tokens % (V - 9)
    text.tokens[text.ends - 1] = TOKENIZER.eod
    losses = losses_in_stream(model, text, mem_len=16, batch_size=2)
    assert (asked(model, text) == ~np.isnan(losses)).all()
    count = (
        199 if cross_documents and objective != "permutation" else 195
    )  # without the five <eod>, or the first tokens
    assert asked(model, text).sum() == count


def test_models_of_different_objectives_are_compared_on_the_same_tokens(
    corpus: corpora.Corpus, finished: Any, cli: Cli, tmp_path: Path
):
    config = corpora.config_file(tmp_path, corpus.train, objective={"name": "permutation"}, training={"max_steps": 1})
    assert cli("pretrain", config).status == 0
    runs = (finished[0] / "run", tmp_path / "run")
    outcome = cli("context", *runs, "--data", corpus.valid, "--mem-lens", "0,8", "--targets", 0, "--json")
    models = json.loads(outcome.out)["models"]
    assert [model["objective"] for model in models] == ["causal", "permutation"]
    tokens = json.loads(outcome.out)["tokens"]
    assert {point["targets"] for model in models for point in model["curve"]} == {tokens - 9 - 6}  # six <eod>


@pytest.mark.parametrize("objective", ["causal", "permutation", "seq2seq"])
def test_a_loss_after_so_many_tokens_is_that_of_a_forward_over_just_these(objective: str):
    model, text = loaded(objective), corpora.split_of([300], vocab_size=V)
    places = np.array([60, 100, 250])
    for length in (1, 7, T, 50):
        found = losses_after(model, text, places, length)
        for place, loss in zip(places, found, strict=True):
            assert loss == pytest.approx(forward_once(model, text, place, length), abs=1e-5)


@pytest.mark.parametrize("objective", ["causal", "permutation", "seq2seq"])
def test_both_measurements_read_alike(objective: str):
    """While all of a text is remembered, its stream gives each token as many as stand before it."""
    model, text = loaded(objective), corpora.split_of([3 * T], vocab_size=V)
    in_stream = losses_in_stream(model, text, mem_len=3 * T, batch_size=1)
    for place in (1, T - 1, T, T + 3, 3 * T - 1):
        [after] = losses_after(model, text, np.array([place]), place)
        assert after == pytest.approx(in_stream[place], abs=1e-5)


@pytest.mark.parametrize("objective", ["causal", "permutation", "seq2seq"])
@pytest.mark.parametrize("mem_len", [12, 24])
def test_with_zeros_a_loss_after_so_many_tokens_is_that_of_a_text_that_begins_there(objective: str, mem_len: int):
    """As training reads it, as long as all of the text is remembered; and however long it is, all of it counts."""
    model = loaded(objective, segments={"initial_memory": "zeros", "mem_len": mem_len})
    text, places = corpora.split_of([300], vocab_size=V), np.array([110, 150, 250])
    for length in (1, 7, mem_len, mem_len + min(T, mem_len)):
        found = losses_after(model, text, places, length)
        for place, loss in zip(places, found, strict=True):
            tokens = torch.tensor(text.tokens[place - length : place + 1])[None]
            assert loss == pytest.approx(begun_anew(model, tokens, mem_len=mem_len), abs=1e-5)
    length = 4 * mem_len + 3
    before = losses_after(model, text, places, length)
    text.tokens[places - length] = (text.tokens[places - length] + 1) % V
    assert (np.abs(losses_after(model, text, places, length) - before) > 1e-7).all()


def begun_anew(model: Loaded, tokens: torch.Tensor, *, mem_len: int) -> float:
    """Loss of the last of (1, n + 1) tokens by the steps of training; segments are cut from the text's end."""
    given, target, size = tokens[:, :-1], tokens[:, -1:], min(T, mem_len)
    query = model.config.objective.name == "permutation"
    memory, nll = model.model.empty_memory(rows=1, mem_len=mem_len), torch.empty(0)
    first = (given.shape[1] - 1) % size + 1
    for part in (given[:, :first], *given[:, first:].split(size, dim=1)):
        if part.shape[1] == 0:
            continue
        place = part.shape[1] if query else part.shape[1] - 1
        part = torch.nn.functional.pad(part, (0, 1)) if query else part
        with torch.no_grad():
            nll, memory = model.model(
                part,
                torch.arange(part.shape[1])[None],
                target,
                memory,
                stream="query" if query else "content",
                predict=torch.tensor([[place]]),
                remember=part.shape[1] - query,
            )
    return float(nll)


def forward_once(model: Loaded, text: Split, place: int, length: int) -> float:
    """Loss of a token from one forward."""
    window = torch.tensor(text.tokens[place - length : place])[None]
    query = model.config.objective.name == "permutation"
    memory = model.model.empty_memory(rows=1, mem_len=length)
    tokens = torch.cat([window, torch.zeros(1, 1, dtype=torch.int64)], dim=1) if query else window
    with torch.no_grad():
        nll, _ = model.model(
            tokens,
            torch.arange(tokens.shape[1])[None],
            torch.tensor([[text.tokens[place]]]),
            memory,
            stream="query" if query else "content",
            predict=torch.tensor([[tokens.shape[1] - 1]]),
        )
    return float(nll)


@pytest.mark.parametrize("objective", ["causal", "permutation"])
def test_absolute_positions_end_the_context_at_a_segment(objective: str):
    model = loaded(objective, segments={"mem_len": 0}, model={"positions": "learned"})
    text = corpora.split_of([300], vocab_size=V)
    places = np.array([100, 250])
    losses = [losses_after(model, text, places, length) for length in (T - 2, T - 1, T, T + 1)]
    assert not np.allclose(losses[0], losses[1])
    assert np.allclose(losses[1], losses[2]) == (objective == "permutation")  # one place is the query row's
    assert np.allclose(losses[2], losses[3])


def test_where_documents_are_kept_apart_context_is_of_the_targets_own():
    text = corpora.split_of([30, 200, 50, 61], vocab_size=V)
    places = choose_targets(text, 1000, longest=60, apart=True, left_out=NONE)
    assert set(places) == {*range(90, 230), 340}
    assert len(choose_targets(text, 1000, longest=60, apart=False, left_out=NONE)) == 341 - 60
    assert fitting_context(text, apart=False, step=50) == 150
    assert fitting_context(text, apart=True, step=10) == 40  # 191 of 341 places have that many before them
    left_out = never_target(TOKENIZER)
    assert not left_out[text.tokens[choose_targets(text, 1000, longest=60, apart=False, left_out=left_out)]].any()


def test_every_token_of_a_stream_has_its_own_loss():
    text = corpora.split_of([100, 83], vocab_size=V)
    causal = losses_in_stream(loaded(), text, mem_len=30, batch_size=2)
    assert np.isnan(causal).nonzero()[0].tolist() == [0]
    query = losses_in_stream(loaded("permutation"), text, mem_len=30, batch_size=2)
    control = never_target(TOKENIZER)[text.tokens]  # never predicted in training
    assert 30 < control.sum() < 120
    assert np.array_equal(np.isnan(query), control)


def test_a_standard_error_counts_blocks_of_like_tokens_once():
    draw = np.random.default_rng(0)
    independent = draw.normal(size=10_000)
    assert block_error(independent) == pytest.approx(0.01, rel=0.3)
    assert block_error(np.repeat(draw.normal(size=100), 100)) == pytest.approx(0.1, rel=0.3)
    assert block_error(np.ones(1)) is None


# --- the command


def test_the_command_compares_runs_and_draws(
    finished: tuple[Path, Any], cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run, picture = finished[0] / "run", tmp_path / "context.png"
    figures: list[Any] = []
    monkeypatch.setattr(context_picture, "new_figure", lambda *size: figures.append(new_figure(*size)) or figures[-1])
    sizes = ["--step", 8, "--longest", 24, "--targets", 20, "--mem-lens", "0,32"]
    outcome = cli("context", run, run / "checkpoints" / "step-2", *sizes, "--picture", picture, "--json")
    assert outcome.status == 0, outcome.err
    found = json.loads(outcome.out)
    assert [point["mem_len"] for point in found["models"][0]["curve"]] == [0, 32]
    assert set(found["models"][0]["curve"][0]) >= {"loss", "standard_error", "ppl", "gain", "gain_standard_error"}
    assert [set(lengths) for lengths in found["recl"]["lengths"]] == [{"0.1", "0.5", "1.0"}] * 2
    assert picture.read_bytes().startswith(b"\x89PNG")
    memory, _, gains = figures[0].axes
    assert [text.get_text() for text in gains.get_legend().get_texts()] == ["r = 0.1", "r = 0.5", "r = 1.0"]
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == ["run step-6", "run step-2"]
    assert memory.get_xlim()[1] > 32  # the last error bar is within the frame
    table = cli("context", run, *sizes)
    [last] = [line.split() for line in table.out.splitlines() if line.split()[:1] == ["32"]]
    assert len(last[1].replace(".", "").lstrip("0")) == 5  # digits of the loss, zeros too
    assert "effective context length, in tokens (step 8, 20 targets)" in table.out
    assert "effective" not in cli("context", run, "--targets", 0, "--mem-lens", "0,8").out


def test_no_context_is_longer_than_a_model_with_absolute_positions_can_read(
    corpus: corpora.Corpus, finished: tuple[Path, Any], cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Whatever its losses say; here those of both fall for 40 tokens."""
    config = corpora.config_file(
        tmp_path,
        corpus.train,
        corpus={"validation": [str(corpus.valid)]},
        objective={"name": "causal"},
        model={"positions": "learned"},
        segments={"seq_len": 32, "mem_len": 0},
        training={"max_steps": 1},
    )
    assert cli("pretrain", config).status == 0
    monkeypatch.setattr(
        "xltrain.evaluation.context.losses_after",
        lambda loaded, text, places, length: np.full(len(places), 5 - 0.05 * min(length, 40)),
    )
    sizes = ["--step", 8, "--longest", 64, "--targets", 20, "--mem-lens", 0]
    outcome = cli("context", finished[0] / "run", tmp_path / "run", *sizes, "--json")
    assert outcome.status == 0, outcome.err
    found = json.loads(outcome.out)["recl"]
    assert found["effective"] == [40, 32]
    assert found["lengths"] == [dict.fromkeys(("0.1", "0.5", "1.0"), length) for length in (40, 32)]


@pytest.mark.parametrize("recl", [True, False])
@pytest.mark.parametrize("count", [1, 12])
def test_panels_are_as_high_for_many_models_and_every_model_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, recl: bool
):
    figures: list[Any] = []
    monkeypatch.setattr(context_picture, "new_figure", lambda *size: figures.append(new_figure(*size)) or figures[-1])
    points = [{"mem_len": length, "loss": 4.0, "gain_standard_error": 0.1} for length in (0, 64, 128)]
    names = [f"a-run-of-a-name-that-says-much-{number:02d}" for number in range(count)]
    models = [{"checkpoint": f"runs/{name}/checkpoints/step-9", "mem_len": 64, "curve": points} for name in names]
    steps = [{"model": index, "r": share, "longer": 8, "gain": 0.02} for index in range(count) for share in SHARES]
    losses = [{"context": 8, "losses": [4.0] * count}]
    found = {"step": 8, "targets": 20, "threshold": 0.01, "losses": losses, "gains": steps}
    context_picture.draw({"models": models} | ({"recl": found} if recl else {}), tmp_path / "context.png")
    (figure,) = figures
    renderer, (legend,) = figure.canvas.get_renderer(), figure.legends
    assert [text.get_text() for text in legend.get_texts()] == names
    extent = legend.get_window_extent(renderer)
    assert figure.bbox.x0 <= extent.x0 < extent.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= extent.y0 < extent.y1 <= figure.bbox.y1
    for axes in figure.axes:
        assert axes.get_window_extent(renderer).height / figure.dpi > 2.5
        assert not extent.overlaps(axes.get_tightbbox(renderer))


def test_by_default_memory_goes_from_none_to_eight_times_the_trained_one(finished: tuple[Path, Any], cli: Cli):
    found = json.loads(cli("context", finished[0] / "run", "--targets", 0, "--json").out)
    assert [point["mem_len"] for point in found["models"][0]["curve"]] == [0, 4, 8, 16, 32, 64, 128]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--mem-lens", "0,x"], "--mem-lens: '0,x' is not allowed; give numbers of positions"),
        (["--mem-lens", "5000", "--targets", 0], "--mem-lens: after 5,000 tokens the text, of 3,788, leaves too few"),
        (["--longest", 5000], "--longest: no token of validation (3,788 tokens) has 5,000 tokens before it"),
        (["--step", 1000], "--step: half of the tokens of validation have less than 2,000 tokens before them"),
        (["--longest", 150], "--longest: 150 must be at least twice --step 100"),
        (["--picture", "a.jpg"], "--picture: a.jpg must be a .png file"),
        (["--split", "train"], "--split: 'train' is not allowed"),
    ],
)
def test_an_option_of_context_that_cannot_be(finished: tuple[Path, Any], cli: Cli, options: list[Any], said: str):
    assert cli("context", finished[0] / "run", *options).sentence().startswith(said)


def test_models_that_cannot_be_measured_are_refused(corpus: corpora.Corpus, finished: Any, cli: Cli, tmp_path: Path):
    more = {"corpus": {"validation": [str(corpus.valid)]}, "training": {"max_steps": 1}}
    masked = corpora.config_file(tmp_path, corpus.train, objective={"name": "masked"}, **more)
    assert cli("pretrain", masked).status == 0
    assert "context needs a model that predicts from what comes before" in cli("context", tmp_path / "run").sentence()
    other = corpora.config_file(
        tmp_path, corpus.train, objective={"name": "causal"}, tokenizer={"kind": "char", "vocab_size": None}, **more
    )
    assert cli("pretrain", other, "--overwrite").status == 0
    said = cli("context", finished[0] / "run", tmp_path / "run").sentence()
    assert "its tokenizer is not that of" in said


def test_models_are_named_by_their_runs_and_by_their_steps_where_that_is_not_enough():
    assert labels(["runs/a/checkpoints/step-1", "runs/b/checkpoints/step-9"]) == ["a", "b"]
    assert labels(["runs/a/checkpoints/step-1", "runs/a/checkpoints/step-9"]) == ["a step-1", "a step-9"]
