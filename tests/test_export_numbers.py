"""transformers computes the same logits from exported weights: three segments, memory carried, orders of our own."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.xlnet.modeling_xlnet import XLNetModel
from xlnets import CASES, SPECIALS, V, config_of, pair

from xltrain.config.schema import Config
from xltrain.errors import XltrainError
from xltrain.interop.huggingface import plain_weights, reasons_against, xlnet_config, xlnet_weights
from xltrain.interop.verify import hidden_keys, largest_difference
from xltrain.model.positions import sinusoid


def difference(config: Config, dtype: torch.dtype) -> float:
    ours, theirs = pair(config, dtype)
    return largest_difference(
        ours,
        theirs,
        seq_len=config.segments.seq_len,
        mem_len=config.segments.mem_len,
        num_predict=4,
        with_segments=config.model.segment_embeddings,
    )


@pytest.fixture
def one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers computes its sinusoids in float32 whatever the weights are; here both sides have the same ones."""

    def encode(self: Any, qlen: int, klen: int, bsz: int, device: torch.device) -> Tensor:
        distance = torch.arange(klen, -qlen, -1)
        if self.clamp_len > 0:
            distance = distance.clamp(-self.clamp_len, self.clamp_len)
        return sinusoid(distance, d_model=self.d_model, dtype=torch.float64)[:, None].expand(-1, bsz, -1)

    monkeypatch.setattr(XLNetModel, "relative_positional_encoding", encode)


@pytest.mark.parametrize("name", CASES)
def test_the_same_logits_in_float32(name: str):
    config = config_of(**CASES[name])
    assert reasons_against(config) == []
    assert difference(config, torch.float32) < 1e-4


@pytest.mark.usefixtures("one_table")
@pytest.mark.parametrize("name", CASES)
def test_the_same_logits_in_float64(name: str):
    assert difference(config_of(**CASES[name]), torch.float64) < 1e-9


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rel_attn.r_w_bias", "rel_attn.r_r_bias"),
        ("rel_attn.q", "rel_attn.r"),
        ("rel_attn.k", "rel_attn.v"),
        ("rel_attn.layer_norm.weight", "ff.layer_norm.weight"),
        ("rel_attn.seg_embed", None),
        ("rel_attn.r_s_bias", None),
        ("rel_attn.o", None),
    ],
)
def test_a_wrong_tensor_would_be_noticed(one: str, other: str | None):
    config = config_of(model={"segment_embeddings": True})
    ours, theirs = pair(config, torch.float32)
    tensors = dict(theirs.named_parameters())
    first = tensors[f"transformer.layer.0.{one}"].data
    second = first.flip(0) if other is None else tensors[f"transformer.layer.0.{other}"].data
    first[:], second[:] = second.clone(), first.clone()
    found = largest_difference(ours, theirs, seq_len=9, mem_len=9, num_predict=4, with_segments=True)
    assert found > 1e-3


def test_memory_that_is_not_carried_would_be_noticed():
    ours, theirs = pair(config_of(segments={"mem_len": 9}), torch.float32)
    found = largest_difference(ours, theirs, seq_len=9, mem_len=0, num_predict=4, with_segments=False)
    assert found < 1e-4
    theirs.transformer.mem_len = 4
    found = largest_difference(ours, theirs, seq_len=9, mem_len=9, num_predict=4, with_segments=False)
    assert found > 1e-3


def test_segment_ids_change_nothing_in_a_model_without_segment_embeddings():
    _, theirs = pair(config_of(), torch.float32)
    tokens = torch.arange(18).view(2, 9)
    parts = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 2]]).expand(2, -1)
    with torch.no_grad():
        assert torch.equal(theirs(tokens).logits, theirs(tokens, token_type_ids=parts).logits)


def test_without_memory_transformers_remembers_nothing_either():
    _, theirs = pair(config_of(segments={"mem_len": 0}), torch.float32)
    assert theirs(torch.arange(9)[None]).mems is None
    _, theirs = pair(config_of(segments={"mem_len": 5}), torch.float32)
    assert [tuple(layer.shape) for layer in theirs(torch.arange(9)[None]).mems] == [(5, 1, 24)] * 2


def test_the_mask_is_the_order_rule():
    order = torch.tensor([[0, 3, 0, 1, 2, 0]])
    is_target = torch.tensor([[False, True, False, True, False, False]])  # the fifth is a SEP: ordered, not predicted
    found = hidden_keys(order, is_target)[0]
    for row, key in itertools.product(range(6), repeat=2):
        seen = order[0, key] < order[0, row] if is_target[0, row] else order[0, key] <= order[0, row]
        assert bool(found[row, key]) is not bool(seen)


def test_tensors_that_do_not_fit_are_named():
    ours, _ = pair(config_of(), torch.float32)
    tensors = plain_weights(ours)
    tensors["layers.0.attention.gate.weight"] = tensors.pop("layers.1.attention.query.weight")
    del tensors["softmax.bias"]
    with pytest.raises(XltrainError) as caught:
        xlnet_weights(tensors, num_layers=2, num_heads=4)
    assert str(caught.value) == (
        "these weights are not those of an XLNetLMHeadModel: missing layers.1.attention.query.weight; "
        "missing softmax.bias; no place for layers.0.attention.gate.weight"
    )


def test_the_configuration():
    config = config_of(
        segments={"seq_len": 9, "mem_len": 7},
        model={"activation": "gelu_tanh", "dropout": 0.2, "clamp_len": 30, "norm_eps": 1e-6},
    )
    assert xlnet_config(config, vocab_size=V, special_ids=SPECIALS) == {
        "architectures": ["XLNetLMHeadModel"],
        "model_type": "xlnet",
        "vocab_size": 37,
        "d_model": 24,
        "n_layer": 2,
        "n_head": 4,
        "d_head": 6,
        "d_inner": 48,
        "ff_activation": "gelu_new",
        "layer_norm_eps": 1e-6,
        "initializer_range": 0.3,
        "dropout": 0.2,
        "tie_word_embeddings": True,
        "untie_r": True,
        "attn_type": "bi",
        "same_length": False,
        "clamp_len": 30,
        "mem_len": 7,
        "seq_len": 9,
        "reuse_len": None,
        "use_mems_eval": True,
        "use_mems_train": False,
        "bi_data": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 5,
        "dtype": "float32",
    }
    without = xlnet_config(config_of(segments={"mem_len": 0}), vocab_size=V, special_ids={"<unk>": 0})
    assert (without["mem_len"], without["use_mems_eval"], without["clamp_len"]) == (0, False, -1)
    assert (without["bos_token_id"], without["pad_token_id"]) == (None, None)


@pytest.mark.parametrize(
    ("sections", "reasons"),
    [
        (
            {"objective": {"name": "causal"}},
            [
                "objective.name is causal: XLNetLMHeadModel predicts from the query stream, which only a permutation "
                "model has"
            ],
        ),
        (
            {"model": {"head_dim": 16}},
            ["model.head_dim is 16: transformers requires d_head = d_model / n_head, here 24 / 4 = 6"],
        ),
        (
            {"model": {"norm_position": "pre", "final_norm": True, "scale_embeddings": True}},
            [
                "model.norm_position is pre: XLNet normalises after each residual sum (post)",
                "model.final_norm is on: XLNet has none",
                "model.scale_embeddings is on: XLNet does not scale its embeddings",
            ],
        ),
        (
            {"model": {"norm": "rms_norm", "attention_bias": True}},
            [
                "model.norm is rms_norm: XLNet has layer_norm",
                "model.attention_bias is on: XLNet's attention has no biases",
            ],
        ),
        (
            {"model": {"positions": "sinusoid"}, "segments": {"mem_len": 0}},
            ["model.positions is sinusoid: XLNet's are relative"],
        ),
        (
            {"model": {"adaptive": {"cutoffs": [10]}}},
            ["model.adaptive has cutoffs: XLNet has one embedding table and one softmax"],
        ),
        (
            {"model": {"same_length": True}, "objective": {"name": "causal"}},
            [
                "objective.name is causal: XLNetLMHeadModel predicts from the query stream, which only a permutation "
                "model has",
                "model.same_length is on: XLNet's rows see all of their memory",
            ],
        ),
    ],
)
def test_what_xlnet_cannot_express(sections: dict[str, dict[str, Any]], reasons: list[str]):
    assert reasons_against(config_of(**sections)) == reasons


def test_a_setting_that_the_export_has_not_heard_of_is_refused_where_it_is_used():
    class Newer(type(config_of().model)):  # type: ignore[misc]
        gates: int = 0

    config = config_of()
    plain, gated = (Newer(**config.model.model_dump(), gates=number) for number in (0, 2))
    assert reasons_against(config.model_copy(update={"model": plain})) == []
    assert reasons_against(config.model_copy(update={"model": gated})) == [
        "model.gates is 2: XLNet has nothing like it"
    ]
