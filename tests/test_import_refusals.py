"""What cannot be imported is refused in one sentence, status 2, and nothing is written."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import foreign
import pytest
import torch
from commands import Outcome
from safetensors.torch import load_file, save_file

from xltrain.errors import UsageError
from xltrain.interop import import_checkpoint as module
from xltrain.interop.bundle import Bundle

Cli = Callable[..., Outcome]


def change_json(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text(encoding="utf-8")) | changes
    content = {key: value for key, value in content.items() if value != "gone"}
    path.write_text(json.dumps(content), encoding="utf-8")


def change_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("kind", ["safetensors", "pt", "old pt", "tf index", "tf data", "json", "vocab", "spiece"])
def test_files_that_were_cut_short(
    kind: str, share: float, refused_import: Callable[..., str], golden: Any, xlnet: Path, spiece: Path, tmp_path: Path
) -> None:
    if kind in ("safetensors", "json", "spiece"):
        source = xlnet
        change_json(xlnet / "config.json")  # without a line end, which might be missed
        path = xlnet / {"safetensors": "model.safetensors", "json": "config.json", "spiece": "spiece.model"}[kind]
    elif kind.startswith("tf"):
        source = foreign.tensorflow_folder(tmp_path / "tf", spiece)
        path = source / {"tf index": "xlnet_model.ckpt.index", "tf data": "xlnet_model.ckpt.data-00000-of-00001"}[kind]
    else:
        source = foreign.write_original(tmp_path / "source", *golden, old=kind == "old pt")
        path = source.parent / "cache.pt" if kind == "vocab" else source
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    sentence = refused_import(source)
    assert path.name in sentence


def test_a_damaged_byte_of_a_tensorflow_checkpoint(
    refused_import: Callable[..., str], spiece: Path, tmp_path: Path
) -> None:
    folder = foreign.tensorflow_folder(tmp_path / "tf", spiece)
    for name, place in (("xlnet_model.ckpt.data-00000-of-00001", 5000), ("xlnet_model.ckpt.index", 300)):
        path = folder / name
        data = bytearray(path.read_bytes())
        data[place] ^= 4
        path.write_bytes(data)
        assert "checksum differs" in refused_import(folder)
        data[place] ^= 4
        path.write_bytes(data)


@pytest.mark.parametrize("field", ["size", "offset"])
def test_a_tensorflow_tensor_of_more_bytes_than_there_are(field: str, spiece: Path, tmp_path: Path) -> None:
    bundle = Bundle(foreign.tensorflow_folder(tmp_path / "tf", spiece) / "xlnet_model.ckpt")
    name = "model/lm_loss/bias"
    beyond: dict[str, Any] = {"size": 2**62, "shape": (2**60,)} if field == "size" else {"offset": 2**64 - 8}
    bundle.entries[name] = replace(bundle.entries[name], **beyond)
    with pytest.raises(UsageError, match="ends inside of model/lm_loss/bias; the file was cut short"):
        bundle.read(name)


def test_another_architecture(refused_import: Callable[..., str], xlnet: Path, golden: Any, tmp_path: Path) -> None:
    change_json(xlnet / "config.json", model_type="bert")
    assert "model_type is 'bert'; only xlnet, transfo-xl can be imported" in refused_import(xlnet)
    source = tmp_path / "model.pt"
    torch.save(torch.nn.Linear(2, 2), source)
    assert "holds Linear; a Transformer-XL is" in refused_import(source)
    torch.save({"weight": torch.zeros(2)}, source)
    assert "holds a dict; a Transformer-XL is" in refused_import(source)
    (tmp_path / "empty").mkdir()
    assert "holds nothing that can be imported" in refused_import(tmp_path / "empty")
    assert "config.json: is one file of a checkpoint; give the folder" in refused_import(xlnet / "config.json")
    assert "no such file or folder" in refused_import(tmp_path / "nowhere")


def test_missing_and_unexpected_tensors_are_named(
    refused_import: Callable[..., str], xlnet: Path, golden: Any, spiece: Path, tmp_path: Path
) -> None:
    def rename(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["transformer.mask_emb"]
        tensors["renamed"] = tensors.pop("transformer.layer.1.rel_attn.q")

    change_tensors(xlnet / "model.safetensors", rename)
    sentence = refused_import(xlnet)
    assert "missing transformer.layer.1.rel_attn.q, transformer.mask_emb; unexpected renamed" in sentence

    folder = foreign.tensorflow_folder(tmp_path / "tf", spiece, n_layer=3)
    sentence = refused_import(folder)
    assert "model/transformer/layer_2/ff/LayerNorm/beta" in sentence
    assert "and 1 more" in sentence

    folder = foreign.write_transfo_xl(tmp_path / "txl", *golden)
    change_tensors(folder / "model.safetensors", lambda tensors: tensors.update(other=tensors.pop("crit.cluster_bias")))
    assert "missing crit.cluster_bias; unexpected other" in refused_import(folder)

    source = foreign.write_nvidia(tmp_path / "nv", *golden, n_layer=1)
    assert "unexpected layers.1.dec_attn.layer_norm.bias" in refused_import(source)


def test_another_shape_is_named(refused_import: Callable[..., str], xlnet: Path) -> None:
    change_json(xlnet / "config.json", d_inner=40)
    assert "feed_forward.inner.bias has shape (48,), not (40,)" in refused_import(xlnet)


def test_numbers_that_are_none(refused_import: Callable[..., str], xlnet: Path) -> None:
    change_tensors(xlnet / "model.safetensors", lambda tensors: tensors["transformer.mask_emb"].fill_(float("nan")))
    assert "mask_embedding hold infinite or undefined numbers" in refused_import(xlnet)


TABLE = "transformer.word_embedding.weight"


@pytest.mark.parametrize(
    ("name", "change", "wanted"),
    [
        ("transformer.layer.1.rel_attn.q", torch.Tensor.flatten, "layer.1.rel_attn.q has shape (1024,), but transform"),
        ("transformer.layer.1.rel_attn.r_w_bias", lambda bias: bias[1:], "has shape (3, 8), but transformer.layer.0"),
        (TABLE, lambda table: table[0, 0], "the shapes of its tensors are not those of such a model"),
        (TABLE, lambda table: (table * 100).to(torch.int8), "these are not: transformer.word_embedding.weight (int8)"),
        (TABLE, lambda table: table.to(torch.float8_e4m3fn), "transformer.word_embedding.weight (float8_e4m3fn)"),
        (TABLE, lambda table: table.to(torch.complex64), "transformer.word_embedding.weight (complex64)"),
    ],
)
def test_tensors_that_cannot_be_what_their_names_say(
    name: str, change: Callable[..., torch.Tensor], wanted: str, refused_import: Callable[..., str], xlnet: Path
) -> None:
    change_tensors(
        xlnet / "model.safetensors", lambda tensors: tensors.update({name: change(tensors[name]).contiguous()})
    )
    assert wanted in refused_import(xlnet)


def test_thirds_of_a_transformer_xl_that_are_none(
    refused_import: Callable[..., str], golden: Any, tmp_path: Path
) -> None:
    folder = foreign.write_transfo_xl(tmp_path / "txl", *golden)
    path = folder / "model.safetensors"
    names = [name for name in load_file(path) if name.endswith("qkv_net.weight")]
    change_tensors(path, lambda tensors: tensors.update({name: tensors[name][:-1].clone() for name in names}))
    assert "the shapes of its tensors are not those of such a model" in refused_import(folder)


def test_vocabularies_of_another_size(
    refused_import: Callable[..., str], xlnet: Path, golden: Any, spiece: Path, tmp_path: Path
) -> None:
    change_json(xlnet / "config.json", vocab_size=501)
    assert "vocab_size is 501, but the embedding table has 500 rows" in refused_import(xlnet)
    folder = foreign.tensorflow_folder(tmp_path / "tf", spiece, n_token=32000)
    assert "n_token is 32,000, but the embedding table has 500 rows" in refused_import(folder)
    source = foreign.write_original(tmp_path / "source", *golden)
    text = tmp_path / "words.txt"
    text.write_text("\n".join(foreign.words(59)), encoding="utf-8")
    assert "the tokenizer has 59 pieces, but the embedding table has 60 rows" in refused_import(
        source, "--vocabulary", text
    )


@pytest.mark.parametrize("given", [-1, 0, None, "gone"])
def test_a_size_that_says_nothing_is_taken_from_the_tokenizer(
    given: object, cli: Cli, spiece: Path, tmp_path: Path
) -> None:
    folder = foreign.tensorflow_folder(tmp_path / "tf", spiece)
    change_json(folder / "xlnet_config.json", n_token=given)
    outcome = cli("import-checkpoint", folder, tmp_path / "out", "--json")
    assert outcome.status == 0, outcome.err
    assert json.loads(outcome.out)["vocab_size"] == 500


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"n_layer": "gone"}, "n_layer is missing"),
        ({"d_model": -1}, "d_model is -1; it must be a positive whole number"),
        ({"n_head": "four"}, "n_head is 'four'"),
        ({"ff_activation": "tanh"}, "ff_activation is 'tanh'"),
        ({"attn_type": "uni"}, "attn_type is 'uni'"),
        ({"dropout": "much"}, "dropout is 'much'; it must be a number"),
        ({"dropout": 2}, "model.dropout: 2.0 is not allowed"),
        ({"n_layer": 10**30}, "n_layer is 1000000000000000000000000000000; it must be a positive whole number"),
        ({"n_layer": 10**9}, "n_layer is 1,000,000,000, but there are only 37 tensors"),
        ({"mem_len": math.inf}, "mem_len is inf; it must be a number"),
        ({"clamp_len": math.nan}, "clamp_len is nan; it must be a number"),
        ({"ff_activation": ["gelu"]}, "ff_activation is ['gelu']"),
        ({"model_type": ["xlnet"]}, "model_type is ['xlnet']"),
        ({"bi_data": "false"}, "bi_data is 'false'; it must be true or false"),
    ],
)
def test_settings_of_xlnet(
    changes: dict[str, Any], wanted: str, refused_import: Callable[..., str], xlnet: Path
) -> None:
    change_json(xlnet / "config.json", **changes)
    assert wanted in refused_import(xlnet)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"attn_type": 2}, "attn_type is 2, and only 0 can be imported"),
        ({"d_embed": 16}, "d_embed is 16, and only 32 can be imported"),
        ({"sample_softmax": 5}, "sample_softmax is 5"),
        ({"cutoffs": "20"}, "cutoffs is '20'"),
        ({"div_val": 1}, "unexpected"),
        ({"n_token": 61}, "n_token is 61, but the embedding table has 60 rows"),
    ],
)
def test_settings_of_transformer_xl(
    changes: dict[str, Any], wanted: str, refused_import: Callable[..., str], golden: Any, tmp_path: Path
) -> None:
    assert wanted in refused_import(foreign.write_nvidia(tmp_path / "source", *golden, **changes))


def test_vocabularies_that_are_none(refused_import: Callable[..., str], golden: Any, tmp_path: Path) -> None:
    source = foreign.write_original(tmp_path / "source", *golden)
    cache = source.parent / "cache.pt"
    for content, wanted in (
        ({"idx2sym": ["a", "a"]}, "1 words of the vocabulary stand in it twice"),
        ({"words": 3}, "holds no vocabulary"),
        ([1], "holds no vocabulary"),
        ({"idx2sym": ["a"], "delimiter": ""}, "cuts text at ''"),
    ):
        torch.save(content, cache)
        assert wanted in refused_import(source)
    with foreign.programs() as classes:
        torch.save({"vocab": None, "of": classes["OpenAIVocab"]()}["of"], cache)
    assert "GPT-2's subwords" in refused_import(source)


def test_a_tokenizer_of_another_kind(refused_import: Callable[..., str], xlnet: Path) -> None:
    (xlnet / "spiece.model").unlink()
    assert "holds no tokenizer" in refused_import(xlnet)
    (xlnet / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordPiece"}}), encoding="utf-8")
    assert "holds a WordPiece vocabulary" in refused_import(xlnet)


@pytest.mark.parametrize(
    "change",
    [
        {"added_tokens": 5},
        {"added_tokens": [{"content": []}]},
        {"normalizer": {"type": []}},
        {"normalizer": {"normalizers": 5}},
        {"pre_tokenizer": "Split"},
    ],
)
def test_a_tokenizer_that_is_not_written_as_one(
    change: dict[str, Any], refused_import: Callable[..., str], xlnet: Path
) -> None:
    (xlnet / "spiece.model").unlink()
    vocabulary = [[f"piece{number}", -1.0] for number in range(500)]
    content = {"model": {"type": "Unigram", "unk_id": 0, "vocab": vocabulary}} | change
    (xlnet / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    assert "tokenizer.json: is JSON, but not as a tokenizer is written" in refused_import(xlnet)


@pytest.mark.parametrize("ids", [[0, 2], [0, 0], [1, 2], [0, 1.5], ["x", "y"]])
def test_ids_with_a_gap(ids: list[Any], refused_import: Callable[..., str], xlnet: Path) -> None:
    (xlnet / "spiece.model").unlink()
    model = {"type": "WordLevel", "vocab": dict(zip("ab", ids, strict=True))}
    (xlnet / "tokenizer.json").write_text(json.dumps({"model": model, "pre_tokenizer": {"type": "Split"}}))
    assert "the ids of its 2 pieces are not 0, 1, 2, ..., each once" in refused_import(xlnet)


def test_formats_that_were_not_meant(refused_import: Callable[..., str], xlnet: Path, finished: Any) -> None:
    assert "choose auto, huggingface" in refused_import(xlnet, "--format", "bert")
    assert "is a folder of transformers' XLNetLMHeadModel (huggingface), not" in refused_import(
        xlnet, "--format", "transfo-xl"
    )
    assert "is xltrain's own already" in refused_import(finished[0] / "run")
    assert refused_import(Path("/")).startswith("/: is no checkpoint")


def test_two_checkpoints_in_one_folder(refused_import: Callable[..., str], spiece: Path, tmp_path: Path) -> None:
    folder = foreign.tensorflow_folder(tmp_path / "tf", spiece)
    shutil.copy(folder / "xlnet_model.ckpt.index", folder / "other.ckpt.index")
    assert "holds 2 checkpoints; name one of" in refused_import(folder)


def test_what_may_be_replaced(cli: Cli, xlnet: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert cli("import-checkpoint", xlnet, output).status == 0
    assert "--overwrite replaces an earlier import" in cli("import-checkpoint", xlnet, output).sentence()
    assert cli("import-checkpoint", xlnet, output, "--overwrite").status == 0
    (output / "mine.txt").touch()
    assert "it holds mine.txt" in cli("import-checkpoint", xlnet, output, "--overwrite").sentence()
    (output / "mine.txt").unlink()
    (output / "imported.json").unlink()
    assert "no imported.json in it says so" in cli("import-checkpoint", xlnet, output, "--overwrite").sentence()


def test_a_full_disk_leaves_nothing(cli: Cli, xlnet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "mark_complete", fail)
    before = sorted(tmp_path.rglob("*"))
    assert "No space left on device" in cli("import-checkpoint", xlnet, tmp_path / "a" / "out").sentence(status=1)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_import_that_was_damaged_later_is_refused(cli: Cli, xlnet: Path, tmp_path: Path) -> None:
    assert cli("import-checkpoint", xlnet, tmp_path / "out").status == 0
    change_tensors(tmp_path / "out" / "model.safetensors", lambda tensors: tensors.pop("mask_embedding"))
    for command in (("eval-ppl",), ("inspect",)):
        assert "model.safetensors has" in cli(*command, tmp_path / "out").sentence()
