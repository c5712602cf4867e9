"""What an export can be told: to be a mean, of half precision, in several files, under a licence."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tiny_runs import mark_anew
from transformers import AutoModelForCausalLM

from xltrain.interop import export as module

Train = Callable[..., Path]


def test_an_average_is_the_mean_of_checkpoints(causal: Path, cli: Callable[..., Any], tmp_path: Path):
    done = cli("export-checkpoint", causal, tmp_path / "out", "--format", "safetensors", "--average", "3", "--json")
    assert json.loads(done.out)["max_logit_difference"] == 0.0
    parts = [load_file(causal / f"checkpoints/step-{step}/model.safetensors") for step in (2, 4, 6)]
    for name, tensor in load_file(tmp_path / "out/model.safetensors").items():
        mean = sum(part[name].double() for part in parts) / 3
        assert torch.equal(tensor, mean.float()), name
    assert "the mean of steps 6, 4, 2" in (tmp_path / "out/README.md").read_text()
    of_two = cli("export-checkpoint", causal / "checkpoints/step-4", tmp_path / "two", "--format", "safetensors",
                 "--average", "2", "--no-verify")  # fmt: skip
    assert of_two.status == 0
    assert json.loads((tmp_path / "two/config.json").read_text())["exported_by"].endswith("mean of steps 4, 2")
    many = cli("export-checkpoint", causal, tmp_path / "many", "--format", "safetensors", "--average", "4")
    assert (many.status, many.err) == (
        2,
        f"xltrain: --average: 4 checkpoints are wanted, and {causal} holds 3 up to step 6; ask for fewer, or train "
        "with a larger checkpoint.keep\n",
    )


def card_of(cli: Callable[..., Any], source: Path, output: Path, *options: object) -> dict[str, str]:
    """The rows of the card of an export, by what stands on their left."""
    done = cli("export-checkpoint", source, output, "--format", "safetensors", "--no-verify", *options)
    assert done.status == 0, done.err
    lines = (output / "README.md").read_text(encoding="utf-8").splitlines()
    return dict(line.strip("| ").split(" | ", 1) for line in lines if line.startswith("| ") and " | " in line[2:-2])


def test_a_card_gives_no_figure_as_that_of_other_weights(causal: Path, cli: Callable[..., Any], tmp_path: Path):
    alone = card_of(cli, causal, tmp_path / "alone")
    assert "validation at step 6" in alone
    assert "which is" not in alone
    caveat = "that of one of the averaged steps alone; the mean of steps, which these weights are, was not evaluated"
    mean = card_of(cli, causal, tmp_path / "mean", "--average", "2", "--dtype", "bf16")
    assert mean == alone | {
        "parameters": alone["parameters"].replace("fp32", "bf16"),
        "weights": alone["weights"].replace("step 6", "the mean of steps 6, 4"),
        "which is": caveat,
    }
    rounded = card_of(cli, causal, tmp_path / "rounded", "--dtype", "bf16")
    assert rounded["which is"] == "that of the weights before they were rounded to bf16"
    run = shutil.copytree(causal, tmp_path / "run")
    written = (run / "metrics.jsonl").read_text().replace('"step": 6, "validation', '"step": 5, "validation')
    (run / "metrics.jsonl").write_text(written)
    state = run / "checkpoints/step-6/state.json"
    progress = json.loads(state.read_text())
    state.write_text(json.dumps(progress | {"validated": {**progress["validated"], "step": 5}}))
    mark_anew(state.parent)
    earlier = card_of(cli, run, tmp_path / "earlier", "--dtype", "fp16")
    assert earlier["validation at step 5"] == alone["validation at step 6"]
    rounding = "that of the weights before they were rounded to fp16"
    assert earlier["which is"] == f"that of another step than 6; {rounding}"
    both = card_of(cli, run, tmp_path / "both", "--average", "2")
    assert both["which is"] == (
        "that of another step than 6, 4; the mean of steps, which these weights are, was not evaluated"
    )


def test_a_card_says_how_much_of_the_text_the_vocabulary_lacks(cli: Callable[..., Any], train: Train, tmp_path: Path):
    """As ``eval-ppl`` counts it, and of those tokens alone that were validated on."""
    known, other = " ".join("abcdefgh"), " ".join("abcdstuv")
    texts = [corpora.write_lines(tmp_path / f"{text[-1]}.txt", [text, ""] * 60) for text in (known, other)]
    run = train(
        corpus={"train": [str(texts[0])], "validation": [str(texts[1])], "cache_dir": str(tmp_path / "cache")},
        tokenizer={"kind": "word", "vocab_size": 8},
        objective={"name": "causal"},
    )
    card = card_of(cli, run, tmp_path / "out")
    found = json.loads(cli("eval-ppl", run, "--json").out)
    unknown, total = found["unknown"], found["tokens"]
    assert 0.3 < unknown / total < 0.6
    assert card["unknown tokens"].startswith(
        f"{unknown:,} of {total:,} validation tokens ({unknown / total:.1%}) are `<unk>`: rare words"
    )
    assert f"perplexity {found['ppl']:.2f} (" in card["validation at step 2"]
    shutil.rmtree(tmp_path / "cache")
    assert card_of(cli, run, tmp_path / "gone")["unknown tokens"] == (
        "not known, since the token store of the validation text was not found"
    )


def test_a_card_takes_no_other_text_for_the_validation_text(cli: Callable[..., Any], train: Train, tmp_path: Path):
    """A store of the same training text may hold another one; what an earlier version saved does not say which."""
    names = {"train": "abcdefgh", "valid": "abcdstuv", "other": "stuvwxyz"}
    texts = {
        name: str(corpora.write_lines(tmp_path / f"{name}.txt", [" ".join(text), ""] * 60))
        for name, text in names.items()
    }
    cache = tmp_path / "cache"
    sections: dict[str, Any] = {
        "corpus": {"train": [texts["train"]], "validation": [texts["valid"]], "cache_dir": str(cache)},
        "tokenizer": {"kind": "word", "vocab_size": 8},
    }
    run = train(**sections, objective={"name": "causal"})
    own = next(cache.glob("store-*"))
    sections["corpus"] = {**sections["corpus"], "validation": [texts["other"]]}
    config = corpora.config_file(tmp_path, Path(texts["train"]), **sections)
    assert cli("prepare", config).status == 0
    assert len(list(cache.glob("store-*"))) == 2
    found = json.loads(cli("eval-ppl", run, "--json").out)
    both = card_of(cli, run, tmp_path / "both")["unknown tokens"]
    assert both.startswith(f"{found['unknown']:,} of {found['tokens']:,} validation tokens")
    state = run / "checkpoints/step-2/state.json"
    written = json.loads(state.read_text())
    old = {key: value for key, value in written.items() if key != "validated"}
    for content in (old, written | {"validated": {**written["validated"], "step": 1}}):
        state.write_text(json.dumps(content))
        mark_anew(state.parent)
        assert card_of(cli, run, tmp_path / f"out-{len(content)}")["unknown tokens"] == (
            "not known, since the checkpoint does not say which token store was validated on"
        )
    state.write_text(json.dumps(written))
    mark_anew(state.parent)
    shutil.rmtree(own)
    assert card_of(cli, run, tmp_path / "gone")["unknown tokens"] == (
        "not known, since the token store of the validation text was not found"
    )


def test_of_a_part_of_the_text_a_card_counts_that_part(cli: Callable[..., Any], causal: Path, tmp_path: Path):
    """``causal`` validates on at most 500 tokens, and a document is longer: it is validated on whole."""
    card = card_of(cli, causal, tmp_path / "out")
    count = next(line["targets"] for line in [json.loads(cli("eval-ppl", causal, "--json").out)])
    read = int(card["unknown tokens"].split(" of ")[1].split()[0].replace(",", ""))
    assert 500 < read < count
    assert f" on the first {read:,} tokens (" in card["validation at step 6"]


@pytest.mark.parametrize("objective", ["permutation", "masked", "seq2seq"])
def test_a_card_says_what_a_perplexity_is_of(
    objective: str, corpus: corpora.Corpus, cli: Callable[..., Any], train: Train, tmp_path: Path
):
    run = train(
        corpus={"validation": [str(corpus.valid)]}, objective={"name": objective}, evaluation={"max_tokens": 50}
    )
    of = {"permutation": "sampled targets", "masked": "hidden tokens", "seq2seq": "second parts"}[objective]
    assert f" of the {of} on the first " in card_of(cli, run, tmp_path / "out")["validation at step 2"]


@pytest.mark.parametrize(("dtype", "kind"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_half_precision_says_what_it_costs(
    dtype: str, kind: torch.dtype, causal: Path, cli: Callable[..., Any], tmp_path: Path
):
    done = cli("export-checkpoint", causal, tmp_path / "out", "--format", "remote-code", "--dtype", dtype, "--json")
    found = json.loads(done.out)
    assert found["max_logit_difference"] < 1e-5 < found["rounding_logit_difference"] < 1.0
    assert {tensor.dtype for tensor in load_file(tmp_path / "out/model.safetensors").values()} == {kind}
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True)
    assert next(model.parameters()).dtype == kind
    assert model.generate(torch.tensor([[20, 21]]), max_new_tokens=3, do_sample=False).shape == (1, 5)
    wrong = cli("export-checkpoint", causal, tmp_path / "other", "--dtype", "int8")
    assert (wrong.status, wrong.err) == (2, "xltrain: --dtype: 'int8' is not allowed; choose fp32, bf16, fp16\n")


def test_numbers_that_half_precision_has_not_are_not_exported(causal: Path, cli: Callable[..., Any], tmp_path: Path):
    run = shutil.copytree(causal, tmp_path / "run")
    checkpoint = run / "checkpoints/step-6"
    tensors = load_file(checkpoint / "model.safetensors")
    tensors["softmax.bias"][3] = 7e4
    save_file(tensors, checkpoint / "model.safetensors")
    mark_anew(checkpoint)
    options = ("--format", "safetensors", "--no-verify", "--dtype")
    said = cli("export-checkpoint", run, tmp_path / "half", *options, "fp16").sentence(status=1)
    assert said.startswith("softmax.bias: holds numbers that float16 has not")
    assert not (tmp_path / "half").exists()
    assert cli("export-checkpoint", run, tmp_path / "bf16", *options, "bf16").status == 0


@pytest.mark.parametrize("licence", ["", "a: b", "mit\nlibrary_name: other", "[1"])
def test_a_licence_is_an_identifier(licence: str, causal: Path, cli: Callable[..., Any], tmp_path: Path):
    options = ("--format", "safetensors", "--license", licence)
    said = cli("export-checkpoint", causal, tmp_path / "out", *options).sentence()
    assert said.startswith(f"--license: {licence!r} is not allowed")


def test_large_weights_are_spread_over_files(
    causal: Path, cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "SHARD_BYTES", 100_000)
    output = tmp_path / "out"
    for _ in range(2):  # the second time over the first
        done = cli("export-checkpoint", causal, output, "--format", "remote-code", "--overwrite", "--json")
        assert (done.status, done.err) == (0, "")
        assert json.loads(done.out)["max_logit_difference"] < 1e-5
        shards = list(output.glob("model-*-of-*.safetensors"))
        assert len(shards) > 1
        assert (output / "model.safetensors.index.json").is_file()
    monkeypatch.setattr(module, "SHARD_BYTES", 10**9)
    assert cli("export-checkpoint", causal, output, "--format", "remote-code", "--overwrite").status == 0
    assert list(output.glob("model*.safetensors*")) == [output / "model.safetensors"]


def test_running_statistics_are_not_exported(cli: Callable[..., Any], train: Train, tmp_path: Path):
    run = train(objective={"name": "masked"}, model={"norm": "batch_norm"}, checkpoint={"every": 1})
    for form in ("safetensors", "remote-code"):
        done = cli("export-checkpoint", run, tmp_path / "out", "--format", form, "--average", "2")
        assert (done.status, "model.norm is batch_norm: its running statistics" in done.err) == (2, True), done.err
    assert list(tmp_path.iterdir()) == []


def test_nothing_of_one_computer_is_published(causal: Path, cli: Callable[..., Any], tmp_path: Path):
    run = shutil.copytree(causal, tmp_path / "run")
    checkpoint = run / "checkpoints/step-6"
    config = yaml.safe_load((checkpoint / "config.yaml").read_text())
    config["corpus"]["train"] = [{"files": ["/home/somebody/A.txt"], "weight": 2.0}, "/home/somebody/B.txt"]
    config["tokenizer"]["path"] = "/home/somebody/spiece.model"
    corpora.write_config(checkpoint / "config.yaml", config)
    mark_anew(checkpoint)
    metrics = run / "metrics.jsonl"
    worse = {"step": 6, "validation_loss": None, "validation_ppl": None, "unigram_loss": 5.0}
    metrics.write_text(metrics.read_text() + json.dumps(worse) + "\n")
    for form in ("remote-code", "safetensors"):
        done = cli("export-checkpoint", run, tmp_path / form, "--format", form, "--no-verify")
        assert done.status == 0, done.err
        for path in (tmp_path / form).glob("*.[!s]*"):
            if path.suffix in (".md", ".json", ".yaml"):
                text = path.read_text(encoding="utf-8")
                assert "/home" not in text
                assert str(tmp_path) not in text
        card = (tmp_path / form / "README.md").read_text(encoding="utf-8")
        assert "tokens of `A.txt`, `B.txt`" in card
        assert "nats per target" in card  # of the last validation that was a number
