"""``training.activation_checkpointing``: the same numbers, and less that waits for the backward."""

from pathlib import Path
from typing import Any

import pytest
import torch
from logged import losses
from tiny_runs import config_of

from xltrain.model.transformer import LanguageModel
from xltrain.training.loop import pretrain


@pytest.mark.parametrize("objective", ["permutation", "causal"])
def test_losses_are_equal_to_the_last_digit_with_dropout(text: Path, tmp_path: Path, objective: str) -> None:
    for name, wanted in (("plain", False), ("recomputed", True)):
        changes: dict[str, Any] = {"training__activation_checkpointing": wanted, "objective__name": objective}
        pretrain(config_of(text, tmp_path / name, steps=12, training__accumulate=2, **changes))
    assert losses(tmp_path / "plain") == losses(tmp_path / "recomputed")


def kept_bytes(*, recompute: bool, num_layers: int) -> int:
    """What a forward keeps for its backward, beside the weights."""
    model = LanguageModel(
        vocab_size=20,
        num_layers=num_layers,
        d_model=16,
        num_heads=2,
        head_dim=8,
        d_inner=32,
        dropout=0.1,
        attention_dropout=0.1,
        recompute=recompute,
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage
        return tensor

    tokens = torch.zeros(4, 32, dtype=torch.long)
    order = torch.arange(32).expand(4, -1)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        nll, _ = model(tokens, order, tokens, model.empty_memory(rows=4, mem_len=32))
    assert nll.requires_grad
    return sum(storage.nbytes() for storage in found.values())


def test_a_further_layer_keeps_a_small_part_of_what_it_would() -> None:
    plain, recomputed = (
        kept_bytes(recompute=wanted, num_layers=4) - kept_bytes(recompute=wanted, num_layers=2)
        for wanted in (False, True)
    )
    assert 0 < recomputed < plain / 5


def test_evaluation_recomputes_nothing() -> None:
    model = LanguageModel(vocab_size=9, num_layers=1, d_model=8, num_heads=1, head_dim=8, d_inner=8, recompute=True)
    calls = []
    model.layers[0].register_forward_hook(lambda *given: calls.append(1))
    tokens = torch.zeros(1, 4, dtype=torch.long)
    model.eval()
    nll, _ = model(tokens, torch.arange(4)[None], tokens, model.empty_memory(rows=1, mem_len=2))
    nll.sum().backward()
    assert len(calls) == 1
