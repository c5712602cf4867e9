"""The eval-ppl command: its JSON, its protocols, its warnings, and what it refuses."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import pytest

Cli = Callable[..., Any]

EVALUATION_KEYS = {
    "mode", "seq_len", "mem_len", "tokens", "targets", "nll", "loss", "ppl", "ppl_word", "bits_per_char",
    "bits_per_byte", "words", "characters", "bytes", "unknown_rate", "tokens_per_second",
}  # fmt: skip


def without_speed(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key != "tokens_per_second"}


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
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    logged = {line["step"]: line["validation_loss"] for line in lines if "validation_loss" in line}
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
    remark(folder)
    outcome = cli("eval-ppl", run)
    assert outcome.status == 0
    assert "is worse than guessing among" in outcome.err
    assert "the tokenizer is not the one that it was trained with" in outcome.err


def remark(folder: Path) -> None:
    """Write the completeness mark of a checkpoint again, after a change that should pass for sound."""
    from xltrain.data.files import digest

    names = [path for path in folder.iterdir() if path.name != "complete.json"]
    mark = {path.name: {"bytes": path.stat().st_size, "digest": digest(path)} for path in names}
    (folder / "complete.json").write_text(json.dumps(mark), encoding="utf-8")


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


def test_weights_with_other_names_are_refused_by_name(cli: Cli, run: Path):
    from safetensors.torch import load_file, save_file

    folder = run / "checkpoints" / "step-6"
    tensors = load_file(folder / "model.safetensors")
    tensors["renamed"] = tensors.pop("bias_u")
    save_file(tensors, folder / "model.safetensors")
    remark(folder)
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
    remark(folder)
    outcome = cli("eval-ppl", run, "--json")
    assert outcome.status == 0, outcome.err
    assert "evaluating on cpu" in outcome.err
    said = cli("pretrain", finished[0] / "c.yaml", "--set", "training.device=cuda", "--overwrite").sentence()
    assert said.startswith("training.device: cuda is not there")


def test_a_stride_is_for_sliding_windows(finished: tuple[Path, Any], cli: Cli):
    found = cli("eval-ppl", finished[0] / "run", "--stride", "4", "--json")
    assert (found.status, found.out) == (2, "")
    assert found.err.splitlines()[-1] == "xltrain: --stride is for --mode sliding, not stream"
