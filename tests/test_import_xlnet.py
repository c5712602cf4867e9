"""XLNets of transformers and of the original TensorFlow code become ours bit for bit, and can be trained on."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import foreign
import pytest
import torch
from commands import Outcome
from logged import lines_of
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import XLNetConfig
from xlnets import CASES, config_of, pair, save_transformers

from xltrain.config.load import load_config
from xltrain.data.prepare import prepare
from xltrain.data.tokenizer import SentencePieceTokenizer
from xltrain.distributed import find_place
from xltrain.interop.bundle import Bundle, crc32c
from xltrain.interop.huggingface import plain_weights, xlnet_weights
from xltrain.interop.imported import Settings
from xltrain.interop.readers import read_xlnet
from xltrain.interop.tensorflow import to_transformers
from xltrain.interop.verify import hidden_keys, largest_difference
from xltrain.interop.xlnet_import import THEIR_ACTIVATIONS, from_xlnet, sections
from xltrain.training.checkpoint import find_checkpoint
from xltrain.training.live import Run

CPU = torch.device("cpu")
Cli = Callable[..., Outcome]

SHAPES: dict[str, dict[str, Any]] = {
    **{name: CASES[name].get("model", {}) for name in CASES if name not in ("ntk", "undivided scores", "no biases")},
    "one layer": {"num_layers": 1, "tie_position_bias": True},
    "deep and untied": {"num_layers": 5, "segment_embeddings": True, "tie_embeddings": False},
    "wide": {"d_model": 64, "num_heads": 2, "d_inner": 16},
}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize("name", SHAPES)
def test_there_and_back_bit_for_bit(name: str) -> None:
    config = config_of(model=SHAPES[name])
    model, _ = pair(config, torch.float32)
    before = plain_weights(model)
    theirs = xlnet_weights(before, num_layers=config.model.num_layers, num_heads=config.model.num_heads)
    after = from_xlnet(theirs, num_layers=config.model.num_layers, source=Path("x"))
    equal(before, after)
    described = sections(
        Settings(XLNetConfig(d_model=24, n_layer=config.model.num_layers, n_head=4).to_dict(), Path("x")),
        after,
        activations=THEIR_ACTIVATIONS,
    )["model"]
    assert described["tie_embeddings"] == config.model.tie_embeddings
    assert described["segment_embeddings"] == config.model.segment_embeddings
    assert described["tie_position_bias"] == (config.model.tie_position_bias and config.model.num_layers > 1)


@pytest.fixture(scope="module")
def trained(train: Callable[..., Path]) -> Path:
    """A short run of an XLNet."""
    model = {"dropout": 0.0, "attention_dropout": 0.0, "segment_embeddings": True, "activation": "gelu_tanh"}
    return train(model=model)


@pytest.fixture(scope="module")
def exported(trained: Path, cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "folder"
    assert cli("export-checkpoint", trained, folder, "--no-verify").status == 0
    return folder


def test_a_run_exported_imported_and_exported_again(trained: Path, exported: Path, cli: Cli, tmp_path: Path) -> None:
    outcome = cli("import-checkpoint", exported, tmp_path / "imported", "--json")
    assert outcome.status == 0, outcome.err
    found = json.loads(outcome.out)
    assert (found["format"], found["vocab_size"]) == ("huggingface", 500)
    before, after = find_checkpoint(trained), find_checkpoint(tmp_path / "imported")
    equal(before.weights(CPU), after.weights(CPU))
    assert before.tokenizer().files() == after.tokenizer().files()
    one, other = before.config(), after.config()
    assert one.model.model_dump(exclude={"d_inner", "head_dim"}) == other.model.model_dump(
        exclude={"d_inner", "head_dim"}
    )
    assert one.segments.mem_len == other.segments.mem_len
    assert cli("export-checkpoint", tmp_path / "imported", tmp_path / "again").status == 0
    for name in ("model.safetensors", "tokenizer.json", "spiece.model"):
        assert (tmp_path / "again" / name).read_bytes() == (exported / name).read_bytes(), name


@pytest.mark.parametrize("settings", [{}, {"tie_word_embeddings": False, "ff_activation": "relu", "clamp_len": 9}])
def test_what_transformers_wrote_gives_its_logits(
    settings: dict[str, Any], spiece: Path, cli: Cli, tmp_path: Path
) -> None:
    theirs = save_transformers(tmp_path / "theirs", spiece, **settings)
    assert cli("import-checkpoint", tmp_path / "theirs", tmp_path / "ours").status == 0
    ours = find_checkpoint(tmp_path / "ours").model(CPU).eval()
    found = largest_difference(ours, theirs, seq_len=12, mem_len=16, num_predict=5, with_segments=True)
    assert found < 1e-4


@pytest.mark.parametrize(("settings", "kept"), [({"mem_len": None}, 384), ({"mem_len": 0, "use_mems_eval": False}, 0)])
def test_a_memory_without_end_is_pointed_out(
    settings: dict[str, Any], kept: int, spiece: Path, cli: Cli, tmp_path: Path
) -> None:
    save_transformers(tmp_path / "theirs", spiece, **settings)
    outcome = cli("import-checkpoint", tmp_path / "theirs", tmp_path / "ours")
    assert ("a memory without end; here it is 384" in outcome.err) == (kept == 384)
    assert find_checkpoint(tmp_path / "ours").config().segments.mem_len == kept


def test_older_files_and_files_in_parts(spiece: Path, tmp_path: Path) -> None:
    save_transformers(tmp_path / "whole", spiece)
    whole = read_xlnet(tmp_path / "whole", None)
    tensors = load_file(tmp_path / "whole" / "model.safetensors")
    tensors["lm_loss.weight"] = tensors["transformer.word_embedding.weight"].clone()  # older files hold it twice
    for name in ("old", "parts"):
        shutil.copytree(tmp_path / "whole", tmp_path / name)
        (tmp_path / name / "model.safetensors").unlink()
    torch.save(tensors, tmp_path / "old" / "pytorch_model.bin")
    names = sorted(tensors)
    parts = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(names)}
    for part in set(parts.values()):
        save_file({name: tensors[name] for name in names if parts[name] == part}, tmp_path / "parts" / part)
    index = tmp_path / "parts" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": parts}), encoding="utf-8")
    for name in ("old", "parts"):
        other = read_xlnet(tmp_path / name, None)
        equal(whole.weights, other.weights)
        assert other.sections == whole.sections


def test_the_first_loss_of_a_continued_training_is_transformers(
    spiece: Path, corpus: corpora.Corpus, cli: Cli, tmp_path: Path
) -> None:
    theirs = save_transformers(tmp_path / "theirs", spiece)
    assert cli("import-checkpoint", tmp_path / "theirs", tmp_path / "imported").status == 0
    data = corpora.settings(corpus.valid, tmp_path, training={"max_steps": 1}, logging={"every": 1})
    del data["tokenizer"], data["model"]
    data["run"]["init_from"] = str(tmp_path / "imported")
    path = corpora.write_config(tmp_path / "continued.yaml", data)
    outcome = cli("pretrain", path)
    assert outcome.status == 0, outcome.err
    ours = lines_of(tmp_path / "run")[0]["loss"]

    config = load_config(path)
    run = Run.build(config, find_place("cpu"), prepare(config).store, None)
    segment, _ = run.stream.read(run.progress.position)
    plan = run._plan(segment, torch.arange(4), 1, 0, 4)
    inputs = plan.model_inputs()
    tokens, order, predict, targets = (inputs[name] for name in ("tokens", "order", "predict", "targets"))
    is_target = torch.zeros_like(tokens, dtype=torch.bool).scatter(1, predict, True)
    with torch.no_grad():
        logits = theirs(
            input_ids=tokens,
            perm_mask=hidden_keys(order, is_target).float(),
            target_mapping=torch.nn.functional.one_hot(predict, tokens.shape[1]).float(),
        ).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
    assert ours == pytest.approx(expected.item(), abs=2e-5)


def test_what_tensorflow_wrote_is_read_whole() -> None:
    bundle = Bundle(foreign.GOLDEN / "tensorflow" / "xlnet_model.ckpt")
    wanted = foreign.tensorflow_variables(foreign.TENSORFLOW)
    equal(wanted, {name: bundle.read(name) for name in wanted})
    others = {"global_step", "model/lm_loss/bias/Adam"}
    assert set(bundle.entries) == {*wanted, *others}
    assert (bundle.read("global_step").dtype, bundle.read("global_step").shape) == (torch.int64, ())


def of_transformers(variables: dict[str, Tensor], num_layers: int) -> dict[str, Tensor]:
    """The mapping of transformers' converter, written out once more."""
    root = "model/transformer/"
    found = {
        "transformer.word_embedding.weight": variables[root + "word_embedding/lookup_table"],
        "transformer.mask_emb": variables[root + "mask_emb/mask_emb"],
        "lm_loss.bias": variables["model/lm_loss/bias"],
    }
    for layer in range(num_layers):
        to, of = f"transformer.layer.{layer}.", f"{root}layer_{layer}/"
        for name in ("r_w_bias", "r_r_bias", "r_s_bias", "seg_embed"):
            found[f"{to}rel_attn.{name}"] = variables[root + name][layer]
        for name in "qkvro":
            found[f"{to}rel_attn.{name}"] = variables[f"{of}rel_attn/{name}/kernel"]
        for part in ("rel_attn", "ff"):
            found[f"{to}{part}.layer_norm.weight"] = variables[f"{of}{part}/LayerNorm/gamma"]
            found[f"{to}{part}.layer_norm.bias"] = variables[f"{of}{part}/LayerNorm/beta"]
        for name in ("layer_1", "layer_2"):
            found[f"{to}ff.{name}.weight"] = variables[f"{of}ff/{name}/kernel"].transpose(0, 1)
            found[f"{to}ff.{name}.bias"] = variables[f"{of}ff/{name}/bias"]
    return found


def test_tensorflow_to_ours_to_transformers(spiece: Path, cli: Cli, tmp_path: Path) -> None:
    folder = foreign.tensorflow_folder(tmp_path / "tf", spiece)
    outcome = cli("import-checkpoint", folder, tmp_path / "imported", "--json")
    assert outcome.status == 0, outcome.err
    found = json.loads(outcome.out)
    assert (found["format"], found["initial_memory_there"]) == ("tensorflow-xlnet", "zeros")
    assert "note: there, memory begins as zeros that rows attend to, and here as nothing, so the first" in outcome.err
    assert "note: mem_len is not set, and nothing says it; here it is 384, as in the published models" in outcome.err
    assert "2 variables of the optimizer are left out" in outcome.err
    config = find_checkpoint(tmp_path / "imported").config()
    assert (config.model.activation, config.segments.mem_len) == ("gelu_tanh", 384)
    assert (config.tokenizer.quotes, config.tokenizer.strip_accents, config.tokenizer.lower) == (True, True, False)
    assert cli("export-checkpoint", tmp_path / "imported", tmp_path / "exported").status == 0
    written = load_file(tmp_path / "exported" / "model.safetensors")
    equal(written, of_transformers(foreign.tensorflow_variables(foreign.TENSORFLOW), 2))


def test_text_is_cleaned_as_xlnet_does(spiece: Path, corpus: corpora.Corpus, cli: Cli, tmp_path: Path) -> None:
    save_transformers(tmp_path / "theirs", spiece)
    for name, settings, wanted in (
        ("plain", {}, ["tokenizer.quotes", "tokenizer.strip_accents"]),
        ("lower", {"do_lower_case": True, "keep_accents": True}, ["tokenizer.quotes", "tokenizer.lower"]),
    ):
        folder = shutil.copytree(tmp_path / "theirs", tmp_path / f"theirs-{name}")
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
        assert cli("import-checkpoint", folder, tmp_path / name).status == 0
        tokenizer = find_checkpoint(tmp_path / name).tokenizer()
        assert isinstance(tokenizer, SentencePieceTokenizer)
        assert tokenizer.cleanup.names() == wanted
        data = corpora.settings(corpus.valid, tmp_path / f"more-{name}")
        del data["tokenizer"], data["model"]
        data["run"]["init_from"] = str(tmp_path / name)
        store = prepare(load_config(corpora.write_config(tmp_path / f"{name}.yaml", data))).store
        assert store.tokenizer().files() == tokenizer.files()  # a continued training cuts text in the same way
        exported = tmp_path / f"exported-{name}"
        assert cli("export-checkpoint", tmp_path / name, exported, "--no-verify").status == 0
        assert cli("import-checkpoint", exported, tmp_path / f"again-{name}").status == 0
        assert find_checkpoint(tmp_path / f"again-{name}").tokenizer().files() == tokenizer.files()


@pytest.mark.parametrize("name", ["xlnet_model.ckpt", "xlnet_model.ckpt.index", "xlnet_model.ckpt.data-00000-of-00001"])
def test_any_file_of_a_tensorflow_checkpoint_names_it(name: str, spiece: Path, cli: Cli, tmp_path: Path) -> None:
    folder = foreign.tensorflow_folder(tmp_path / "tf", spiece)
    assert cli("import-checkpoint", folder / name, tmp_path / "imported").status == 0


def test_tensorflow_without_segments_and_with_shared_biases() -> None:
    variables = foreign.tensorflow_variables(foreign.TENSORFLOW)
    for name in ("r_s_bias", "seg_embed"):
        del variables[f"model/transformer/{name}"]
    for name in ("r_w_bias", "r_r_bias"):
        variables[f"model/transformer/{name}"] = variables[f"model/transformer/{name}"][0]
    ours = from_xlnet(to_transformers(variables, num_layers=2), num_layers=2, source=Path("x"))
    assert "segment" not in ours
    assert torch.equal(ours["bias_u"], variables["model/transformer/r_w_bias"][None])


def test_checksums() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720's own example follows
    assert crc32c(bytes(32)) == 0x8A9136AA
    data = bytes(torch.randint(256, (5000,), generator=torch.Generator().manual_seed(0), dtype=torch.uint8).tolist())
    one = 0xFFFFFFFF
    for byte in data:
        one ^= byte
        for _ in range(8):
            one = (one >> 1) ^ (0x82F63B78 if one & 1 else 0)
    assert crc32c(data) == one ^ 0xFFFFFFFF


@pytest.mark.parametrize("kind", ["char", "byte"])
def test_characters_and_bytes_come_back(kind: str, corpus: corpora.Corpus, cli: Cli, tmp_path: Path) -> None:
    path = corpora.config_file(tmp_path, corpus.train, tokenizer={"kind": kind, "vocab_size": None})
    assert cli("pretrain", path, "--set", "training.max_steps=1").status == 0
    assert cli("export-checkpoint", tmp_path / "run", tmp_path / "out", "--no-verify").status == 0
    assert cli("import-checkpoint", tmp_path / "out", tmp_path / "in").status == 0
    before, after = find_checkpoint(tmp_path / "run"), find_checkpoint(tmp_path / "in")
    assert before.tokenizer().files() == after.tokenizer().files()
    equal(before.weights(CPU), after.weights(CPU))
