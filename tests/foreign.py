"""Checkpoints as other programs write them, made for tests: the same classes' names, the same files."""

import contextlib
import json
import shutil
import sys
import types
import warnings
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from xltrain.data.streams import Segment

GOLDEN = Path(__file__).parent / "golden"


def read_golden(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Settings and tensors of a file of the original Transformer-XL's numbers."""
    with safe_open(GOLDEN / f"{name}.safetensors", "pt") as file:
        return json.loads(file.metadata()["config"]), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118


def weights_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix("weights."): tensor for key, tensor in tensors.items() if key.startswith("weights.")}


def words(size: int) -> list[str]:
    return ["<eos>", *(f"w{number}" for number in range(1, size - 1)), "<unk>"]


@contextlib.contextmanager
def programs() -> Iterator[dict[str, type]]:
    """The classes of the original program by name, importable for as long as something is pickled."""
    modules: dict[str, types.ModuleType] = {}
    found: dict[str, type] = {}
    for place, base in {
        "mem_transformer.MemTransformerLM": nn.Module,
        "mem_transformer.AdaptiveEmbedding": nn.Module,
        "mem_transformer.PositionalEmbedding": nn.Module,
        "mem_transformer.RelPartialLearnableDecoderLayer": nn.Module,
        "mem_transformer.RelPartialLearnableMultiHeadAttn": nn.Module,
        "mem_transformer.PositionwiseFF": nn.Module,
        "utils.proj_adaptive_softmax.ProjectedAdaptiveLogSoftmax": nn.Module,
        "utils.vocabulary.Vocab": object,
        "utils.vocabulary.OpenAIVocab": object,
        "data_utils.Corpus": object,
    }.items():
        module, _, name = place.rpartition(".")
        parts = module.split(".")
        for number in range(1, len(parts) + 1):
            modules.setdefault(".".join(parts[:number]), types.ModuleType(module))
        found[name] = type(name, (base,), {"__module__": module})
        setattr(modules[module], name, found[name])
    with mock.patch.dict(sys.modules, modules):
        yield found


def vocabulary(classes: Mapping[str, type], size: int, **attributes: Any) -> Any:
    made = classes["Vocab"]()
    listed = words(size)
    made.__dict__ |= {
        "counter": Counter(listed),
        "special": ["<eos>"],
        "min_freq": 0,
        "max_size": None,
        "lower_case": False,
        "delimiter": None,
        "vocab_file": None,
        "idx2sym": listed,
        "sym2idx": OrderedDict((word, number) for number, word in enumerate(listed)),
        **attributes,
    }
    return made


def _linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    made.weight = nn.Parameter(weight)
    if bias is not None:
        made.bias = nn.Parameter(bias)
    return made


def _norm(weights: Mapping[str, Tensor], prefix: str, eps: float) -> nn.LayerNorm:
    made = nn.LayerNorm(weights[f"{prefix}.weight"].shape[0], eps=eps)
    made.weight, made.bias = nn.Parameter(weights[f"{prefix}.weight"]), nn.Parameter(weights[f"{prefix}.bias"])
    return made


def original_module(classes: Mapping[str, type], config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> nn.Module:
    """``MemTransformerLM`` with the attributes that the original's has; tied tensors are one object, as there."""
    eps, cutoffs, div_val = config["layer_norm_eps"], config["cutoffs"], config["div_val"]
    model = classes["MemTransformerLM"]()
    model.__dict__ |= {
        "n_token": config["vocab_size"],
        "d_embed": config["d_model"],
        "d_model": config["d_model"],
        "n_head": config["num_heads"],
        "d_head": config["head_dim"],
        "n_layer": config["num_layers"],
        "tgt_len": config["seq_len"],
        "mem_len": config["mem_len"],
        "ext_len": 0,
        "attn_type": 0,
        "max_klen": 20,
        "sample_softmax": -1,
        "same_length": config["same_length"],
        "clamp_len": config["clamp_len"],
    }
    tables = len(cutoffs) + 1 if div_val > 1 else 1
    model.word_emb = embedding = classes["AdaptiveEmbedding"]()
    embedding.__dict__ |= {"n_token": config["vocab_size"], "d_embed": config["d_model"], "div_val": div_val}
    embedding.cutoffs = [*cutoffs, config["vocab_size"]]
    embedding.emb_layers = nn.ModuleList(
        nn.Embedding.from_pretrained(weights[f"word_emb.emb_layers.{number}.weight"], freeze=False)
        for number in range(tables)
    )
    embedding.emb_projs = nn.ParameterList(
        nn.Parameter(weights[f"word_emb.emb_projs.{number}"]) for number in range(tables if div_val > 1 else 0)
    )
    model.drop = nn.Dropout(0.25)
    model.layers = nn.ModuleList()
    for number in range(config["num_layers"]):
        prefix = f"layers.{number}"
        layer = classes["RelPartialLearnableDecoderLayer"]()
        layer.dec_attn = attention = classes["RelPartialLearnableMultiHeadAttn"]()
        attention.__dict__ |= {"n_head": config["num_heads"], "pre_lnorm": config["pre_norm"]}
        attention.drop, attention.dropatt = nn.Dropout(0.25), nn.Dropout(0.125)
        for name in ("qkv_net", "o_net", "r_net"):
            setattr(attention, name, _linear(weights[f"{prefix}.dec_attn.{name}.weight"]))
        attention.layer_norm = _norm(weights, f"{prefix}.dec_attn.layer_norm", eps)
        layer.pos_ff = inner = classes["PositionwiseFF"]()
        core = [
            _linear(
                weights[f"{prefix}.pos_ff.CoreNet.{place}.weight"], weights[f"{prefix}.pos_ff.CoreNet.{place}.bias"]
            )
            for place in (0, 3)
        ]
        inner.CoreNet = nn.Sequential(core[0], nn.ReLU(inplace=True), nn.Dropout(0.25), core[1], nn.Dropout(0.25))
        inner.layer_norm = _norm(weights, f"{prefix}.pos_ff.layer_norm", eps)
        model.layers.append(layer)
    model.crit = softmax = classes["ProjectedAdaptiveLogSoftmax"]()
    softmax.out_layers, softmax.out_projs = nn.ModuleList(), nn.ParameterList()
    for number in range(tables):
        made = _linear(weights[f"crit.out_layers.{number}.weight"], weights[f"crit.out_layers.{number}.bias"])
        if torch.equal(made.weight, embedding.emb_layers[number].weight):
            made.weight = embedding.emb_layers[number].weight
        softmax.out_layers.append(made)
        if div_val > 1:
            projection = nn.Parameter(weights[f"crit.out_projs.{number}"])
            tied = torch.equal(projection, embedding.emb_projs[number])
            softmax.out_projs.append(embedding.emb_projs[number] if tied else projection)
    if cutoffs:
        softmax.cluster_weight = nn.Parameter(weights["crit.cluster_weight"])
        softmax.cluster_bias = nn.Parameter(weights["crit.cluster_bias"])
    model.r_w_bias, model.r_r_bias = nn.Parameter(weights["r_w_bias"]), nn.Parameter(weights["r_r_bias"])
    model.pos_emb = classes["PositionalEmbedding"]()
    model.pos_emb.register_buffer("inv_freq", torch.ones(config["d_model"] // 2))
    return model


def write_original(
    folder: Path,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    *,
    size: int | None = None,
    old: bool = False,
) -> Path:
    """``model.pt``, a pickled module, and ``cache.pt``, a pickled corpus; returns the former."""
    folder.mkdir(exist_ok=True)
    with programs() as classes, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that classes made here have no source
        corpus = classes["Corpus"]()
        corpus.__dict__ |= {"dataset": "wt103", "vocab": vocabulary(classes, config["vocab_size"])}
        corpus.train = torch.arange(5)
        model = original_module(classes, config, weights)
        torch.save(model, folder / "model.pt", _use_new_zipfile_serialization=not old)
        torch.save(corpus, folder / "cache.pt", _use_new_zipfile_serialization=not old)
    return folder / "model.pt"


def write_nvidia(folder: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor], **changes: Any) -> Path:
    """``checkpoint_best.pt``: a dictionary of weights, settings, vocabulary and everything that a training has."""
    import argparse

    state: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        kind, _, rest = name.partition(".")
        number = rest.split(".")[1] if kind == "crit" and rest.count(".") else ""
        if name.startswith("crit.out_layers."):
            embedding = weights[f"word_emb.emb_layers.{number}.weight"]
            if name.endswith("bias"):
                state[f"crit.out_layers_biases.{number}"] = tensor
            elif not torch.equal(tensor, embedding):
                state[f"crit.out_layers_weights.{number}"] = tensor
        elif name.startswith("crit.out_projs."):
            state[f"crit.shared_out_projs.{number}"] = weights[f"word_emb.emb_projs.{number}"]
            if not torch.equal(tensor, weights[f"word_emb.emb_projs.{number}"]):
                state[name] = tensor
        else:
            state[name] = tensor
    state["pos_emb.inv_freq"] = torch.ones(config["d_model"] // 2)
    settings = {
        "n_token": config["vocab_size"],
        "n_layer": config["num_layers"],
        "n_head": config["num_heads"],
        "d_model": config["d_model"],
        "d_head": config["head_dim"],
        "d_inner": config["d_inner"],
        "dropout": 0.25,
        "dropatt": 0.125,
        "dtype": None,
        "tie_weight": True,
        "d_embed": config["d_model"],
        "div_val": config["div_val"],
        "tie_projs": config["tie_projs"],
        "pre_lnorm": config["pre_norm"],
        "tgt_len": config["seq_len"],
        "ext_len": 0,
        "mem_len": config["mem_len"],
        "cutoffs": config["cutoffs"],
        "same_length": config["same_length"],
        "attn_type": 0,
        "clamp_len": config["clamp_len"],
        "sample_softmax": -1,
        **changes,
    }
    folder.mkdir(exist_ok=True)
    with programs() as classes:
        content = {
            "args": argparse.Namespace(dataset="wt103", lr=0.01),
            "model_config": settings,
            "model_state": state,
            "optimizer_state": {"state": {0: {"step": 3, "exp_avg": torch.ones(2)}}},
            "vocab": vocabulary(classes, config["vocab_size"]),
            "amp_state": None,
            "train_step": 7,
            "best_val_loss": 3.5,
        }
        torch.save(content, folder / "checkpoint_best.pt")
    return folder / "checkpoint_best.pt"


def write_transfo_xl(
    folder: Path, config: Mapping[str, Any], weights: Mapping[str, Tensor], *, safe: bool = True, **changes: Any
) -> Path:
    """A folder of transformers 4's ``TransfoXLLMHeadModel``: clusters the other way round, biases in every layer."""
    folder.mkdir(exist_ok=True)
    state: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if name in ("r_w_bias", "r_r_bias"):
            for layer in range(config["num_layers"]):
                state[f"transformer.layers.{layer}.dec_attn.{name}"] = tensor.clone()
        elif name.startswith("crit.cluster"):
            state[name] = tensor.flip(0)
        elif name.startswith("crit.out_layers.") and name.endswith("weight") and safe:
            continue  # tied, and stored once
        else:
            state[name if name.startswith("crit.") else f"transformer.{name}"] = tensor.clone()
    settings = {
        "model_type": "transfo-xl",
        "architectures": ["TransfoXLLMHeadModel"],
        "vocab_size": config["vocab_size"],
        "n_layer": config["num_layers"],
        "n_head": config["num_heads"],
        "d_model": config["d_model"],
        "d_head": config["head_dim"],
        "d_inner": config["d_inner"],
        "d_embed": config["d_model"],
        "cutoffs": config["cutoffs"],
        "div_val": config["div_val"],
        "pre_lnorm": config["pre_norm"],
        "mem_len": config["mem_len"],
        "clamp_len": config["clamp_len"],
        "same_length": config["same_length"],
        "proj_share_all_but_first": True,
        "attn_type": 0,
        "sample_softmax": -1,
        "adaptive": True,
        "dropout": 0.25,
        "dropatt": 0.125,
        "untie_r": True,
        "layer_norm_epsilon": 1e-5,
        "init_std": 0.02,
        "tie_word_embeddings": True,
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    if safe:
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "model.safetensors")
    else:
        torch.save(OrderedDict(state), folder / "pytorch_model.bin")
    with programs() as classes:
        write_pickle(folder / "vocab.pkl", vars(vocabulary(classes, config["vocab_size"])))
    return folder


def write_pickle(path: Path, content: object) -> Path:
    import pickle

    path.write_bytes(pickle.dumps(content))
    return path


TENSORFLOW = {"n_layer": 2, "d_model": 8, "n_head": 2, "d_head": 4, "d_inner": 12, "n_token": 500}
"""Sizes of the checkpoint in ``golden/tensorflow``."""


def tensorflow_variables(sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """The variables of an XLNet as TensorFlow names them, with numbers that can be told apart.

    ``golden/tensorflow`` holds these, written by TensorFlow 2.21's ``tf.compat.v1.train.Saver``.
    """
    count, width, heads = sizes["n_layer"], sizes["d_model"], sizes["n_head"]
    head, inner, size = sizes["d_head"], sizes["d_inner"], sizes["n_token"]
    root = "model/transformer/"
    shapes: dict[str, Sequence[int]] = {
        root + "word_embedding/lookup_table": (size, width),
        root + "mask_emb/mask_emb": (1, 1, width),
        "model/lm_loss/bias": (size,),
        root + "r_w_bias": (count, heads, head),
        root + "r_r_bias": (count, heads, head),
        root + "r_s_bias": (count, heads, head),
        root + "seg_embed": (count, 2, heads, head),
    }
    for layer in range(count):
        prefix = f"{root}layer_{layer}/"
        shapes |= {f"{prefix}rel_attn/{name}/kernel": (width, heads, head) for name in "qkvro"}
        for part in ("rel_attn", "ff"):
            shapes |= {f"{prefix}{part}/LayerNorm/{name}": (width,) for name in ("gamma", "beta")}
        shapes |= {f"{prefix}ff/layer_1/kernel": (width, inner), f"{prefix}ff/layer_1/bias": (inner,)}
        shapes |= {f"{prefix}ff/layer_2/kernel": (inner, width), f"{prefix}ff/layer_2/bias": (width,)}
    found = {}
    for number, (name, shape) in enumerate(shapes.items()):
        values = ((torch.arange(torch.Size(shape).numel()) * 37 + 11 * number) % 101 - 50) / 256
        found[name] = values.view(*shape)
    return found


def tensorflow_folder(folder: Path, spiece: Path, **changes: Any) -> Path:
    """The checkpoint in ``golden/tensorflow`` with what the original lays beside it; ``changes`` of its settings."""
    folder.mkdir()
    for path in (GOLDEN / "tensorflow").iterdir():
        shutil.copy(path, folder)
    shutil.copy(spiece, folder / "spiece.model")
    settings = TENSORFLOW | {"ff_activation": "gelu", "untie_r": True} | changes
    (folder / "xlnet_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def segment_of(tokens: Tensor, number: int, length: int) -> Segment:
    """A piece of the tokens that ``golden`` has losses for."""
    rows = tokens.shape[0]
    piece = tokens[:, number * length : (number + 1) * length].long()
    return Segment(
        tokens=piece,
        length=torch.full((rows,), length),
        next_token=tokens[:, (number + 1) * length].long(),
        document=torch.zeros_like(piece),
        next_document=torch.zeros(rows, dtype=torch.int64),
        fresh=torch.full((rows,), number == 0),
    )
