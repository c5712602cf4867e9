"""Models without memory, exported by ``--format remote-code``, generate as xltrain itself does."""

from typing import Any

import pytest
import torch
from loaded import TOKENIZER, T, V, loaded
from torch import Tensor

from xltrain.evaluation.loading import Loaded
from xltrain.evaluation.reading import Reader
from xltrain.interop.remote.configuration_xltrain import XltrainConfig
from xltrain.interop.remote.modeling_xltrain import XltrainForCausalLM
from xltrain.interop.remote_code import remote_config

PAD = 5

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "learned": ("causal", {"model": {"positions": "learned"}, "segments": {"mem_len": 0}}),
    "sinusoid": ("causal", {"model": {"positions": "sinusoid"}, "segments": {"mem_len": 0}}),
    "permutation, learned": ("permutation", {"model": {"positions": "learned"}, "segments": {"mem_len": 0}}),
    "seq2seq": ("seq2seq", {"segments": {"mem_len": 0}}),
    "seq2seq, learned": ("seq2seq", {"model": {"positions": "learned"}, "segments": {"mem_len": 0}}),
}


def wrapped(model: Loaded) -> XltrainForCausalLM:
    settings = remote_config(model.config, TOKENIZER, special_ids={"<pad>": PAD})
    found = XltrainForCausalLM(XltrainConfig(**settings)).eval()
    found.stack.load_state_dict(model.model.state_dict())
    return found


def some_tokens(rows: int, count: int, *, seed: int = 0) -> Tensor:
    return torch.randint(9, V, (rows, count), generator=torch.Generator().manual_seed(seed))


def padded(tokens: Tensor, count: int) -> dict[str, Tensor]:
    """A batch whose rows all have so much padding on their left."""
    width = (tokens.shape[0], count)
    mask = torch.cat([torch.zeros(width, dtype=torch.int64), torch.ones_like(tokens)], dim=1)
    return {"input_ids": torch.cat([torch.full(width, PAD), tokens], dim=1), "attention_mask": mask}


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padding", [None, 4])
def test_without_memory_every_new_token_is_what_our_reader_says(kind: str, padding: int | None):
    """Also where nobody says what is padding, and what the prompt of a seq2seq model is."""
    objective, sections = KINDS[kind]
    own = loaded(objective, **sections)
    reader = Reader.of(own)
    prompt = some_tokens(1, 7)
    count = T if reader.mem_len is None else 6  # longer than a segment where one is read again and again
    given = {"inputs": prompt} if padding is None else padded(prompt, padding)
    made = wrapped(own).generate(
        **given,
        max_new_tokens=count,
        do_sample=True,
        eos_token_id=None,
        output_logits=True,
        return_dict_in_generate=True,
    )
    log_probs, state = reader.read(prompt.tolist())
    for logits, token in zip(made.logits, made.sequences[0, -count:].tolist(), strict=True):
        torch.testing.assert_close(logits.log_softmax(dim=-1), log_probs, atol=1e-4, rtol=0)
        log_probs, state = reader.step(torch.tensor([token]), state)
