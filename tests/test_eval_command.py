"""The eval-ppl command: its JSON, its protocols, its warnings, and what it refuses."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import pytest
from logged import series, without_speed
from tiny_runs import mark_anew

Cli = Callable[..., Any]

EVALUATION_KEYS = {
    "mode", "seq_len", "mem_len", "tokens", "targets", "nll", "loss", "ppl", "ppl_word", "bits_per_char",
    "bits_per_byte", "words", "characters", "bytes", "unknown_rate", "tokens_per_second",
}  # fmt: skip


def test_eval_ppl_prints_one_json_object_the_same_every_time(finished: tuple[Path, Any], cli: Cli):
    one, two = (cli("eval-ppl", finished[0] / "run", "--json") for _ in range(2))
    assert (one.status, two.status) == (0, 0)
    assert one.out.count("\n") == 1
    found = json.loads(one.out)
    assert set(found) >= EVALUATION_KEYS
    assert without_speed(found) == without_speed(json.loads(two.out))
    assert (found["mode"], found["seq_len"], found["mem_len"]) == ("stream", 32, 16)
    assert (found["tokens"], found["targets"]) == (3_782, 3_782 + 6 - 1)
    assert (found["words"], found["characters"], found["bytes"]) == (3_029, 20_833, 20_833)
    assert found["nll"] == pytest.approx(found["loss"] * found["targets"], rel=1e-12)
    assert found["ppl"] == pytest.approx(math.exp(found["loss"]), rel=1e-12)
    assert found["bits_per_char"] == found["bits_per_byte"]
    assert found["ppl_word"] == pytest.approx(math.exp(found["nll"] / 3_029), rel=1e-12)


def test_validation_while_training_and_eval_ppl_afterwards_agree_to_the_last_digit(
    finished: tuple[Path, Any], cli: Cli
):
    run = finished[0] / "run"
    logged = series(run, "validation_loss")
    assert set(logged) == {4, 6}
    for step, loss in logged.items():
        found = json.loads(cli("eval-ppl", run / "checkpoints" / f"step-{step}", "--json").out)
        assert found["loss"] == loss


@pytest.mark.parametrize(
    ("options", "targets"),
    [
        (["--seq-len", 64], 3_787),
        (["--seq-len", 50, "--mem-len", 0], 3_787),
        (["--mode", "document"], 3_782),
        (["--mode", "sliding", "--stride", 16], 3_787),
        (["--split", "test"], 3_787),
        (["--same-length", "--clamp-len", 8], 3_787),
        (["--batch-size", 1], 3_787),
    ],
)
def test_every_protocol_scores_every_token(finished: tuple[Path, Any], cli: Cli, options: list[Any], targets: int):
    outcome = cli("eval-ppl", finished[0] / "run", "--json", *options)
    assert outcome.status == 0, outcome.err
    assert json.loads(outcome.out)["targets"] == targets


def test_an_untrained_model_guesses_among_the_vocabulary(corpus: corpora.Corpus, cli: Cli, tmp_path: Path):
    config = corpora.config_file(
        tmp_path,
        corpus.train,
        corpus={"validation": [str(corpus.valid)]},
        objective={"name": "causal"},
        training={"max_steps": 1},
        optimizer={"lr": 1e-9},
    )
    assert cli("pretrain", config).status == 0
    assert 350 < json.loads(cli("eval-ppl", tmp_path / "run", "--json").out)["ppl"] < 750


def test_a_tokenizer_that_does_not_fit_the_model_is_suspected(corpus: corpora.Corpus, cli: Cli, tmp_path: Path):
    config = corpora.config_file(
        tmp_path,
        corpus.train,
        corpus={"validation": [str(corpus.valid)]},
        objective={"name": "causal"},
        tokenizer={"kind": "char", "vocab_size": None},
        training={"max_steps": 40},
        optimizer={"lr": 0.01},
    )
    assert cli("pretrain", config).status == 0
    run = tmp_path / "run"
    assert "WARNING" not in cli("eval-ppl", run).err
    folder = run / "checkpoints" / "step-40"
    table = json.loads((folder / "characters.json").read_text(encoding="utf-8"))
    table["alphabet"] = table["alphabet"][::-1]
    (folder / "characters.json").write_text(json.dumps(table), encoding="utf-8")
    mark_anew(folder)
    outcome = cli("eval-ppl", run)
    assert outcome.status == 0
    assert "is worse than guessing among" in outcome.err
    assert "the tokenizer is not the one that it was trained with" in outcome.err


def test_many_unknown_tokens_make_a_perplexity_that_is_not_comparable(
    finished: tuple[Path, Any], cli: Cli, tmp_path: Path
):
    text = tmp_path / "zh.txt"
    text.write_text("".join(line + "\n" for line in corpora.chinese_lines(30, 20)), encoding="utf-8")
    outcome = cli("eval-ppl", finished[0] / "run", "--data", text, "--json")
    assert outcome.status == 0
    found = json.loads(outcome.out)
    assert found["unknown_rate"] > 0.3
    assert f"{found['unknown_rate']:.1%} of the tokens are <unk>: this perplexity is not comparable" in outcome.err
    assert "ppl_word means nothing here: between spaces, this text has 21 characters on average" in outcome.err
    assert cli("eval-ppl", finished[0] / "run", "--json").err == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--split", "train"], "--split: 'train' is not allowed; choose validation or test"),
        (["--mode", "fast"], "--mode: 'fast' is not allowed; choose stream, document, sliding"),
        (["--mode", "sliding", "--mem-len", 8], "--mem-len: sliding windows have no memory"),
        (["--stride", 33, "--mode", "sliding"], "--stride: 33 exceeds the window of 32 tokens"),
        (["--same-length", "--mem-len", 0], "--same-length needs memory"),
        (["--data", "no*.txt"], "--data: no file matches no*.txt (working directory "),
    ],
)
def test_an_option_of_eval_ppl_that_cannot_be(finished: tuple[Path, Any], cli: Cli, options: list[Any], said: str):
    assert cli("eval-ppl", finished[0] / "run", *options).sentence().startswith(said)


@pytest.mark.parametrize("command", ["eval-ppl", "context"])
def test_a_text_and_a_split_are_not_given_together(
    finished: tuple[Path, Any], cli: Cli, corpus: corpora.Corpus, command: str
):
    said = cli(command, finished[0] / "run", "--data", corpus.valid, "--split", "test").sentence()
    assert said == "--split test and --data exclude each other: --data is the text; leave one of them out"


@pytest.mark.parametrize("content", [b"", b"\n\n\n", b"   ", "語料".encode("utf-16-le"), b"\x1f\x8b\x08"])
def test_a_text_that_cannot_be_evaluated_is_named(finished: tuple[Path, Any], cli: Cli, tmp_path: Path, content: bytes):
    text = tmp_path / "t.txt"
    text.write_bytes(content)
    said = cli("eval-ppl", finished[0] / "run", "--data", text).sentence()
    assert str(text) in said
    assert re.search(r"contains no text|not UTF-8|a gzip file", said)


def test_a_run_that_is_not_there(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert (
        cli("eval-ppl", "gone").sentence() == f"gone: no such run or checkpoint folder (working directory {tmp_path})"
    )
    (tmp_path / "empty").mkdir()
    assert cli("eval-ppl", "empty").sentence().startswith("empty: holds no complete checkpoint")


@pytest.mark.parametrize("command", [["eval-ppl"], ["score"], ["generate"], ["context", "--targets", 0]])
def test_weights_that_are_no_numbers_are_refused_by_name(cli: Cli, run: Path, command: list[Any]):
    from safetensors.torch import load_file, save_file

    folder = run / "checkpoints" / "step-6"
    tensors = load_file(folder / "model.safetensors")
    tensors["bias_u"].view(-1)[3] = math.nan
    save_file(tensors, folder / "model.safetensors")
    mark_anew(folder)
    said = cli(command[0], run, *command[1:]).sentence()
    assert said.startswith(f"{folder}: bias_u: infinite or undefined numbers, from which nothing can be computed")


def test_a_loss_that_is_no_number_is_told(cli: Cli, run: Path):
    """Weights may be finite and what is computed from them not."""
    from safetensors.torch import load_file, save_file

    folder = run / "checkpoints" / "step-6"
    tensors = load_file(folder / "model.safetensors")
    tensors["softmax.bias"][:] = 3e38
    tensors["softmax.bias"][::2] = -3e38
    save_file(tensors, folder / "model.safetensors")
    mark_anew(folder)
    outcome = cli("eval-ppl", run, "--json")
    assert json.loads(outcome.out)["loss"] is None
    assert "WARNING: the loss is no number" in outcome.err


def test_weights_with_other_names_are_refused_by_name(cli: Cli, run: Path):
    from safetensors.torch import load_file, save_file

    folder = run / "checkpoints" / "step-6"
    tensors = load_file(folder / "model.safetensors")
    tensors["renamed"] = tensors.pop("bias_u")
    save_file(tensors, folder / "model.safetensors")
    mark_anew(folder)
    said = cli("eval-ppl", run).sentence()
    assert "missing bias_u" in said
    assert "unexpected renamed" in said


def test_a_run_of_a_graphics_card_can_be_evaluated_without_one(
    finished: tuple[Path, Any], cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    folder = run / "checkpoints" / "step-6"
    text = (folder / "config.yaml").read_text(encoding="utf-8")
    assert "device: cpu" in text
    (folder / "config.yaml").write_text(text.replace("device: cpu", "device: cuda"), encoding="utf-8")
    mark_anew(folder)
    outcome = cli("eval-ppl", run, "--json")
    assert outcome.status == 0, outcome.err
    assert "evaluating on cpu" in outcome.err
    said = cli("pretrain", finished[0] / "c.yaml", "--set", "training.device=cuda", "--overwrite").sentence()
    assert said.startswith("training.device: cuda is not there")


def test_a_configuration_is_no_run_but_names_its_own(finished: tuple[Path, Any], cli: Cli, tmp_path: Path):
    said = cli("eval-ppl", finished[0] / "c.yaml").sentence()
    assert said == (
        f"{finished[0] / 'c.yaml'}: a file, where a run's or a checkpoint's folder is needed; "
        f"its run is {finished[0] / 'run'}"
    )
    config = corpora.config_file(tmp_path, tmp_path / "a.txt")
    assert f"its run would be {tmp_path / 'run'}, which holds no checkpoint yet" in cli("eval-ppl", config).sentence()
    (tmp_path / "notes.txt").write_text("no configuration")
    assert cli("eval-ppl", tmp_path / "notes.txt").sentence().endswith("a checkpoint's folder is needed")


def test_the_protocol_is_part_of_the_result(finished: tuple[Path, Any], cli: Cli):
    run = finished[0] / "run"
    found = json.loads(cli("eval-ppl", run, "--json", "--mem-len", 20, "--clamp-len", 40).out)
    assert {key: found[key] for key in ("mode", "seq_len", "mem_len", "attention_len", "clamp_len", "same_length")} == {
        "mode": "stream", "seq_len": 32, "mem_len": 20, "attention_len": 52, "clamp_len": 40, "same_length": False,
    }  # fmt: skip
    assert (found["rows"], found["warm_up_segments"]) == (4, 2)  # two layers, one segment of memory each
    assert json.loads(cli("eval-ppl", run, "--json", "--batch-size", 1).out)["warm_up_segments"] == 0
    same = json.loads(cli("eval-ppl", run, "--json", "--same-length").out)
    assert (same["same_length"], same["attention_len"]) == (True, 16)
    sliding = json.loads(cli("eval-ppl", run, "--json", "--mode", "sliding", "--stride", 8).out)
    assert (sliding["stride"], sliding["mem_len"], sliding["attention_len"]) == (8, 0, 32)


def test_a_table_says_the_same_as_the_json_object(finished: tuple[Path, Any], cli: Cli):
    run = finished[0] / "run"
    found = without_speed(json.loads(cli("eval-ppl", run, "--json").out))
    shown = dict(line.split(maxsplit=1) for line in cli("eval-ppl", run).out.splitlines())
    assert set(found) <= set(shown)
    assert shown["targets"] == "3,787"
    assert (shown["same_length"], shown["stride"]) == ("no", "-")
    assert shown["ppl"] == f"{found['ppl']:,.6g}"
    assert float(shown["standard_error"]) == pytest.approx(found["standard_error"], rel=1e-5)


@pytest.mark.parametrize("suffix", [".jsonl", ".tsv"])
def test_every_target_is_written_once_and_the_sum_is_the_total(
    finished: tuple[Path, Any], cli: Cli, tmp_path: Path, suffix: str
):
    file = tmp_path / f"tokens{suffix}"
    outcome = cli("eval-ppl", finished[0] / "run", "--per-token", file, "--json", "--batch-size", 3)
    assert outcome.status == 0, outcome.err
    found = json.loads(outcome.out)
    rows = read_rows(file)
    assert [row["position"] for row in rows] == list(range(1, 3_788))  # all but the first token of the text
    assert math.fsum(-row["log_probability"] for row in rows) == pytest.approx(found["nll"], rel=1e-12)
    assert [row["document"] for row in rows] == sorted(row["document"] for row in rows)
    assert {row["document"] for row in rows} == set(range(6))
    assert not any(row["query"] for row in rows)
    assert sum(row["token"] == "<eod>" for row in rows) == 6
    alone = tmp_path / f"alone{suffix}"
    cli("eval-ppl", finished[0] / "run", "--per-token", alone, "--batch-size", 1)
    for one, other in zip(rows, read_rows(alone), strict=True):
        assert one["log_probability"] == pytest.approx(other["log_probability"], abs=1e-5)
        assert one["id"] == other["id"]
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def read_rows(file: Path) -> list[dict[str, Any]]:
    lines = file.read_text(encoding="utf-8").splitlines()
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in lines]
    names = lines[0].split("\t")
    assert names == ["position", "document", "token", "id", "log_probability", "query"]
    return [dict(zip(names, map(json.loads, line.split("\t")), strict=True)) for line in lines[1:]]


def test_a_file_that_cannot_be_written_is_refused_before_any_work(finished: tuple[Path, Any], cli: Cli, tmp_path: Path):
    run = finished[0] / "run"
    assert "must end in .jsonl" in cli("eval-ppl", run, "--per-token", tmp_path / "t.txt").sentence()
    assert "there is no folder" in cli("eval-ppl", run, "--per-token", tmp_path / "no" / "t.tsv").sentence()
    (tmp_path / "d.tsv").mkdir()
    assert "is a folder" in cli("eval-ppl", run, "--per-token", tmp_path / "d.tsv").sentence()


def test_a_text_that_was_trained_on_is_warned_of(
    finished: tuple[Path, Any], corpus: corpora.Corpus, cli: Cli, tmp_path: Path
):
    copy = tmp_path / "copy.txt"
    copy.write_bytes(corpus.train.read_bytes())
    for path in (corpus.train, copy):
        said = cli("eval-ppl", finished[0] / "run", "--data", path, "--json").err
        assert f"{path} is part of corpus.train: this is the loss of a text that the model has seen" in said


@pytest.fixture(scope="module")
def permuted(corpus: corpora.Corpus, cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a permutation model."""
    folder = tmp_path_factory.mktemp("permuted")
    config = corpora.config_file(
        folder, corpus.train, corpus={"validation": [str(corpus.valid)]}, objective={"name": "permutation"}
    )
    outcome = cli("pretrain", config)
    assert outcome.status == 0, outcome.err
    return folder / "run"


def test_draws_of_targets_and_orders_have_a_spread(permuted: Path, cli: Cli):
    one = json.loads(cli("eval-ppl", permuted, "--json").out)
    three = json.loads(cli("eval-ppl", permuted, "--json", "--draws", 3).out)
    assert (one["draws"], one["loss_spread"]) == (1, None)
    assert three["loss_by_draw"][0] == one["loss"]
    assert len(set(three["loss_by_draw"])) == 3
    mean = sum(three["loss_by_draw"]) / 3
    assert three["loss"] == pytest.approx(mean, rel=1e-3)  # every draw has about as many targets
    spread = math.sqrt(sum((loss - mean) ** 2 for loss in three["loss_by_draw"]) / 2)
    assert three["loss_spread"] == pytest.approx(spread, rel=1e-9)
    assert three["targets"] > 2.9 * one["targets"]
    assert without_speed(three) == without_speed(json.loads(cli("eval-ppl", permuted, "--json", "--draws", 3).out))


def test_a_permutation_model_gives_a_whole_text_a_probability_from_left_to_right(
    permuted: Path, cli: Cli, tmp_path: Path
):
    file = tmp_path / "t.jsonl"
    outcome = cli("eval-ppl", permuted, "--left-to-right", "--json", "--per-token", file, "--batch-size", 3)
    assert outcome.status == 0, outcome.err
    found = json.loads(outcome.out)
    rows = read_rows(file)
    # Every token but the <eod>s, which the permutation objective never predicts; the first one too.
    assert found["targets"] == len(rows) == found["tokens"] == 3_782
    assert "<eod>" not in {row["token"] for row in rows}
    assert all(row["query"] for row in rows)
    assert math.fsum(-row["log_probability"] for row in rows) == pytest.approx(found["nll"], rel=1e-12)
    assert found["ppl_word"] == pytest.approx(math.exp(found["nll"] / found["words"]), rel=1e-12)
    other = json.loads(cli("eval-ppl", permuted, "--left-to-right", "--json", "--batch-size", 1).out)
    assert found["nll"] == pytest.approx(other["nll"], rel=1e-6)
    assert json.loads(cli("eval-ppl", permuted, "--json").out)["ppl_word"] is None


def test_left_to_right_and_draws_are_refused_where_they_mean_nothing(
    finished: tuple[Path, Any], permuted: Path, cli: Cli, tmp_path: Path
):
    causal = finished[0] / "run"
    assert "already predicts left to right" in cli("eval-ppl", causal, "--left-to-right").sentence()
    assert "no targets are sampled here" in cli("eval-ppl", causal, "--draws", 2).sentence()
    assert "no targets are sampled here" in cli("eval-ppl", permuted, "--draws", 2, "--left-to-right").sentence()
    file = tmp_path / "t.tsv"
    assert "writes one draw" in cli("eval-ppl", permuted, "--draws", 2, "--per-token", file).sentence()


def test_a_stride_is_for_sliding_windows(finished: tuple[Path, Any], cli: Cli):
    found = cli("eval-ppl", finished[0] / "run", "--stride", "4", "--json")
    assert (found.status, found.out) == (2, "")
    assert found.err.splitlines()[-1] == "xltrain: --stride is for --mode sliding, not stream"
