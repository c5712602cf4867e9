"""Weights and sizes as they are, for programs that bring a model of their own."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from xltrain.model.transformer import LanguageModel


@torch.no_grad()
def largest_difference(ours: LanguageModel, folder: Path, *, seed: int = 0) -> float:
    """Largest absolute difference of the last hidden states of one random segment: ours, and the folder's.

    Args:
        ours: the trained model, in evaluation mode.
        folder: with ``config.json``, whose ``stack`` holds the sizes, and ``*.safetensors``.
        seed: of the tokens.
    """
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    theirs = LanguageModel(**settings["stack"]).eval()
    tensors = {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}
    theirs.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, strict=False)
    wanted = {name for name, _ in theirs.named_parameters()}
    if wanted != set(tensors):
        return float("nan")
    seq_len = min(settings["seq_len"], 32)
    tokens = torch.randint(settings["vocab_size"], (2, seq_len), generator=torch.Generator().manual_seed(seed))
    order = torch.arange(seq_len).expand_as(tokens)  # (B, T)
    hidden = [
        model.hidden(tokens, order, model.empty_memory(rows=2, mem_len=settings["mem_len"]))[0]
        for model in (ours, theirs)
    ]
    return (hidden[0] - hidden[1]).abs().max().item()
