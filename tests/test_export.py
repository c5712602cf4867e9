"""``export-checkpoint``: what it writes, what it refuses, and that nothing half-written stays."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import files_of
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, XLNetLMHeadModel

from xltrain.errors import Stopped
from xltrain.interop import export as module
from xltrain.interop import verify
from xltrain.training.checkpoint import find_checkpoint

Train = Callable[..., Path]


@pytest.fixture(scope="module")
def trained(train: Train) -> Path:
    return train()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_folder_loads_as_it_is(cli: Callable[..., Any], trained: Path, tmp_path: Path):
    output = tmp_path / "not yet/there"
    done = cli("export-checkpoint", trained, output, "--verify", "--json")
    assert (done.status, done.err) == (0, "")
    found = json.loads(done.out)
    assert found["output"] == str(output)
    assert found["max_logit_difference"] < 1e-4
    assert names(output) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "spiece.model",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert names(output.parent) == ["there"]
    assert len({path.stat().st_mode for path in output.iterdir()}) == 1
    with safe_open(output / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float32}  # noqa: SIM118
        assert len(list(file.keys())) == 17 * 2 + 3

    model, report = XLNetLMHeadModel.from_pretrained(output, output_loading_info=True)
    assert not any(report.values()), report
    assert type(AutoModelForCausalLM.from_pretrained(output)) is XLNetLMHeadModel
    tokenizer = AutoTokenizer.from_pretrained(output)
    assert len(tokenizer) == model.config.vocab_size == 500
    assert json.loads((output / "config.json").read_text())["exported_by"].startswith("xltrain ")

    ours = find_checkpoint(trained)
    assert found["checkpoint"] == str(ours.folder)
    assert found["parameters"] == sum(tensor.numel() for tensor in ours.weights(torch.device("cpu")).values())
    prompt = torch.tensor([tokenizer("Mi", add_special_tokens=False)["input_ids"]])
    assert model.generate(prompt, max_new_tokens=4, do_sample=False).shape[1] == prompt.shape[1] + 4


def test_all_variants_that_xlnet_has(cli: Callable[..., Any], train: Train, tmp_path: Path):
    run = train(
        model={
            "segment_embeddings": True,
            "tie_position_bias": True,
            "tie_embeddings": False,
            "activation": "gelu_tanh",
            "clamp_len": 10,
        },
        segments={"mem_len": 24},
    )
    done = cli("export-checkpoint", run, tmp_path / "out", "--json")
    assert (done.status, done.err) == (0, "")
    assert json.loads(done.out)["max_logit_difference"] < 1e-4


def test_characters(cli: Callable[..., Any], train: Train, tmp_path: Path):
    run = train(tokenizer={"kind": "char", "vocab_size": None}, segments={"mem_len": 0})
    done = cli("export-checkpoint", run, tmp_path / "out", "--json")
    assert (done.status, done.err) == (0, "")
    assert json.loads(done.out)["max_logit_difference"] < 1e-4
    exported = AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "Some words.\n\n\tmore"
    ids = find_checkpoint(run).tokenizer().encode([text])[0]
    assert exported(text, add_special_tokens=False)["input_ids"] == ids
    assert names(tmp_path / "out") == [
        "README.md",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_two_dropout_rates_are_pointed_out(cli: Callable[..., Any], train: Train, tmp_path: Path):
    run = train(model={"dropout": 0.2, "attention_dropout": 0.0})
    done = cli("export-checkpoint", run, tmp_path / "out", "--no-verify", "--json")
    assert json.loads(done.out)["max_logit_difference"] is None
    assert done.err == (
        "WARNING: transformers has one dropout rate for everything: fine-tuning there uses model.dropout 0.2 where "
        "model.attention_dropout is 0 here\n"
    )


def test_what_cannot_be_expressed_is_refused_before_anything_is_written(
    cli: Callable[..., Any], train: Train, tmp_path: Path
):
    run = train(model={"norm_position": "pre", "head_dim": 16}, objective={"name": "causal"})
    done = cli("export-checkpoint", run, tmp_path / "out")
    assert (done.status, done.out) == (2, "")
    assert done.err == (
        f"xltrain: {run}/checkpoints/step-2: cannot be exported to XLNetLMHeadModel: objective.name is causal: "
        "XLNetLMHeadModel predicts from the query stream, which only a permutation model has; model.head_dim is 16: "
        "transformers requires d_head = d_model / n_head, here 32 / 4 = 8; model.norm_position is pre: XLNet "
        "normalises after each residual sum (post); --format remote-code and --format safetensors can hold it\n"
    )
    assert names(tmp_path) == []


def test_an_unknown_format_is_refused(cli: Callable[..., Any], trained: Path, tmp_path: Path):
    done = cli("export-checkpoint", trained, tmp_path / "out", "--format", "onnx")
    said = "xltrain: --format: 'onnx' is not allowed; choose huggingface, remote-code, transfo-xl, safetensors\n"
    assert (done.status, done.err) == (2, said)
    assert names(tmp_path) == []


def test_a_source_without_a_checkpoint_is_refused(cli: Callable[..., Any], tmp_path: Path):
    done = cli("export-checkpoint", tmp_path / "nowhere", tmp_path / "out")
    assert done.status == 2
    assert str(tmp_path / "nowhere") in done.err
    assert names(tmp_path) == []
    (tmp_path / "used").write_text("")  # a wrong source comes before what is wrong with the other folder
    assert f"{tmp_path / 'nowhere'}: no such run" in cli("export-checkpoint", tmp_path / "nowhere", tmp_path).err


def test_a_folder_in_use_is_replaced_only_on_request(cli: Callable[..., Any], trained: Path, tmp_path: Path):
    output = tmp_path / "out"
    output.mkdir()  # an empty folder is fine
    assert cli("export-checkpoint", trained, output, "--no-verify").status == 0
    (output / "config.json").write_text(json.dumps({"exported_by": "xltrain 0.0.1, step 1"}))
    before = files_of(output)
    done = cli("export-checkpoint", trained, output, "--no-verify")
    assert (done.status, done.err) == (
        2,
        f"xltrain: {output} already exists and is not empty; --overwrite replaces an earlier export, or choose another "
        "OUTPUT_DIR\n",
    )
    assert files_of(output) == before
    assert cli("export-checkpoint", trained, output, "--no-verify", "--overwrite").status == 0
    assert json.loads((output / "config.json").read_text())["model_type"] == "xlnet"
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"thesis.tex": "years of work"}, "it holds thesis.tex"),
        (
            {"config.json": '{"exported_by": "xltrain 0.1.0"}', "a": "", "b": "", "c": "", "d": ""},
            "it holds a, b, c, ...",
        ),
        ({"config.json": '{"model_type": "xlnet"}', "model.safetensors": ""}, "no config.json in it says so"),
        ({"model.safetensors": ""}, "no config.json in it says so"),
    ],
)
def test_what_is_no_export_is_never_deleted(
    files: dict[str, str], why: str, cli: Callable[..., Any], trained: Path, tmp_path: Path
):
    output = tmp_path / "out"
    output.mkdir()
    for name, text in files.items():
        (output / name).write_text(text)
    before = files_of(output)
    done = cli("export-checkpoint", trained, output, "--overwrite", "--no-verify")
    assert (done.status, done.err) == (
        2,
        f"xltrain: {output} is not an export of xltrain ({why}), so --overwrite will not delete it; choose another "
        "OUTPUT_DIR, or remove the folder yourself\n",
    )
    assert files_of(output) == before


def test_a_file_is_no_place_for_a_folder(cli: Callable[..., Any], trained: Path, tmp_path: Path):
    (tmp_path / "out").write_text("text")
    done = cli("export-checkpoint", trained, tmp_path / "out", "--overwrite")
    assert (done.status, done.err) == (
        2,
        f"xltrain: {tmp_path / 'out'} is a file; OUTPUT_DIR is a folder to be written, choose another name\n",
    )


def test_other_numbers_are_an_error(
    cli: Callable[..., Any], trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    output = tmp_path / "out"
    assert cli("export-checkpoint", trained, output, "--no-verify").status == 0
    before = files_of(output)
    for wrong, shown in ((0.5, "0.5"), (float("nan"), "nan")):
        monkeypatch.setattr(verify, "largest_difference", lambda *_, wrong=wrong, **__: wrong)
        done = cli("export-checkpoint", trained, output, "--overwrite")
        assert (done.status, done.err) == (
            1,
            "xltrain: transformers computes other logits from the exported folder: they differ by up to "
            f"{shown}, and 0.0001 is allowed; nothing was exported, please report this with the run's config.yaml\n",
        )
        assert files_of(output) == before
        assert cli("export-checkpoint", trained, tmp_path / "further/out").status == 1
        assert names(tmp_path) == ["out"]


def test_tensors_that_transformers_does_not_take_are_an_error(
    cli: Callable[..., Any], trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    save = module.save

    def save_without_bias(tensors: dict[str, torch.Tensor], folder: Path) -> None:
        save({name: tensor for name, tensor in tensors.items() if name != "lm_loss.bias"}, folder)

    monkeypatch.setattr(module, "save", save_without_bias)
    done = cli("export-checkpoint", trained, tmp_path / "out")
    assert done.status == 1
    assert "does not load the exported folder cleanly: missing_keys: lm_loss.bias\n" in done.err
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (
            OSError(28, "No space left on device"),
            1,
            "the export could not be written: [Errno 28] No space left on device",
        ),
        (Stopped("stopped by SIGTERM", signal_number=15), 143, "stopped by SIGTERM"),
    ],
)
def test_an_interrupted_export_leaves_nothing(
    error: Exception,
    status: int,
    message: str,
    cli: Callable[..., Any],
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(module, "save", fail)
    done = cli("export-checkpoint", trained, tmp_path / "deep/out")
    assert done.status == status
    assert message in done.err
    assert names(tmp_path) == []


def test_without_transformers(cli: Callable[..., Any], trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    done = cli("export-checkpoint", trained, tmp_path / "out", "--verify")
    assert (done.status, done.err) == (
        2,
        "xltrain: --verify needs transformers, which is not installed: pip install 'xltrain[transformers]', or give "
        "--no-verify\n",
    )
    assert names(tmp_path) == []
    done = cli("export-checkpoint", trained, tmp_path / "out", "--json")
    assert (done.status, json.loads(done.out)["max_logit_difference"]) == (0, None)
    assert done.err == (
        "WARNING: the export is not verified, since transformers is not installed "
        "(pip install 'xltrain[transformers]')\n"
    )
    quiet = cli("export-checkpoint", trained, tmp_path / "other", "--no-verify", "--json")
    assert (quiet.status, quiet.err) == (0, "")
