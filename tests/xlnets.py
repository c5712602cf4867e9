"""XLNets of every shape, ours and transformers' side by side."""

import shutil
from pathlib import Path
from typing import Any

import corpora
import torch
from transformers import XLNetConfig, XLNetLMHeadModel

from xltrain.config.schema import Config
from xltrain.interop.huggingface import plain_weights, xlnet_config, xlnet_weights
from xltrain.model.transformer import LanguageModel
from xltrain.training.build import build_model

V = 37
SPECIALS = {"<unk>": 0, "<s>": 1, "</s>": 2, "<pad>": 5}

CASES: dict[str, dict[str, dict[str, Any]]] = {
    "as it comes": {},
    "segments": {"model": {"segment_embeddings": True}},
    "segments, shared biases": {"model": {"segment_embeddings": True, "tie_position_bias": True}},
    "clamped": {"model": {"clamp_len": 5}},
    "shared biases": {"model": {"tie_position_bias": True, "num_layers": 3}},
    "gelu_tanh": {"model": {"activation": "gelu_tanh", "d_inner": 40}},
    "relu, one head": {"model": {"activation": "relu", "num_heads": 1}},
    "silu, untied": {"model": {"activation": "silu", "tie_embeddings": False}},
    "long memory": {"segments": {"seq_len": 6, "mem_len": 14}},
    "short memory": {"segments": {"seq_len": 12, "mem_len": 5}, "model": {"clamp_len": 9}},
    "no memory": {"segments": {"seq_len": 12, "mem_len": 0}},
    "no biases": {"model": {"bias": False, "norm_eps": 1e-5}},
    "undivided scores": {"model": {"attention_scale": "init", "segment_embeddings": True}},
    "ntk": {"model": {"parametrization": "ntk", "attention_scale": "init"}},
}
SMALL: dict[str, dict[str, Any]] = {
    "segments": {"seq_len": 9, "mem_len": 9},
    "model": {"num_layers": 2, "d_model": 24, "num_heads": 4, "d_inner": 48, "init": {"std": 0.3}},
}


def config_of(**sections: dict[str, Any]) -> Config:
    merged = {name: SMALL.get(name, {}) | sections.get(name, {}) for name in {*SMALL, *sections}}
    return corpora.checked({"corpus": {"train": ["text"]}, **merged})


def pair(config: Config, dtype: torch.dtype) -> tuple[LanguageModel, XLNetLMHeadModel]:
    """Our model, with no weight at a value that would hide a mistake, and theirs with what is exported of it."""
    ours = build_model(config, vocab_size=V, device=torch.device("cpu")).to(dtype).eval()
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=draw, dtype=dtype)
    settings = xlnet_config(config, vocab_size=V, special_ids=SPECIALS)
    theirs = XLNetLMHeadModel(XLNetConfig(**settings)).to(dtype).eval()
    tensors = xlnet_weights(plain_weights(ours), num_layers=config.model.num_layers, num_heads=config.model.num_heads)
    missing, unexpected = theirs.load_state_dict(tensors, strict=False)
    assert unexpected == []
    assert missing == (["lm_loss.weight"] if config.model.tie_embeddings else [])
    return ours, theirs


def save_transformers(folder: Path, spiece: Path, *, seed: int = 0, **settings: Any) -> XLNetLMHeadModel:
    """A model that transformers itself made and wrote."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": 500, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48, "initializer_range": 0.2}
    model = XLNetLMHeadModel(XLNetConfig(**(sizes | {"dropout": 0.0, "mem_len": 16} | settings))).eval()
    model.save_pretrained(folder)
    shutil.copy(spiece, folder / "spiece.model")
    return model
