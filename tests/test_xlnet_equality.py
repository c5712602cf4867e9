"""Equal to the XLNet of transformers in float64: logits, loss, memory and the gradient of every parameter."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from xltrain.interop.huggingface import xlnet_weights
from xltrain.model.init import initialise
from xltrain.model.positions import sinusoid
from xltrain.model.transformer import LanguageModel
from xltrain.objectives.permutation import factorization_order

transformers = pytest.importorskip("transformers")


@dataclass(frozen=True)
class Shape:
    layers: int = 2
    d_model: int = 16
    heads: int = 2
    seq_len: int = 8
    mem_len: int = 12
    predict: int = 3
    clamp_len: int = 0
    reuse_len: int | None = None
    bidirectional: bool = False
    activation: str = "gelu"


SHAPES = {
    "plain": Shape(),
    "deep, short memory": Shape(layers=4, d_model=24, heads=4, mem_len=5, activation="relu"),
    "clamped": Shape(clamp_len=5),
    "reused part": Shape(reuse_len=4, mem_len=10),
    "bidirectional": Shape(bidirectional=True),
    "everything": Shape(
        layers=3, heads=4, mem_len=9, reuse_len=4, bidirectional=True, clamp_len=6, activation="gelu_tanh"
    ),
}
THEIR_ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "gelu_tanh": "gelu_new"}
B, V = 4, 13


@pytest.fixture(autouse=True)
def _same_sinusoids(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers computes its table in fp32; for float64 both sides are handed the same one."""

    def in_float64(pos_seq: Tensor, inv_freq: Tensor, bsz: int | None = None) -> Tensor:
        table = sinusoid(pos_seq, d_model=2 * inv_freq.shape[0], dtype=torch.float64)[:, None]  # (J, 1, D)
        return table if bsz is None else table.expand(-1, bsz, -1)

    monkeypatch.setattr(transformers.XLNetModel, "positional_embedding", staticmethod(in_float64))


def both(shape: Shape) -> tuple[LanguageModel, torch.nn.Module]:
    ours = LanguageModel(
        vocab_size=V,
        num_layers=shape.layers,
        d_model=shape.d_model,
        num_heads=shape.heads,
        head_dim=shape.d_model // shape.heads,
        d_inner=2 * shape.d_model,
        activation=shape.activation,
        clamp_len=shape.clamp_len,
        segment_embeddings=True,
        query_stream=True,
        two_sided=True,
    ).double()
    initialise(ours, std=0.4, generator=torch.Generator().manual_seed(5))
    config = transformers.XLNetConfig(
        vocab_size=V,
        d_model=shape.d_model,
        n_layer=shape.layers,
        n_head=shape.heads,
        d_inner=2 * shape.d_model,
        ff_activation=THEIR_ACTIVATIONS[shape.activation],
        clamp_len=shape.clamp_len or -1,
        mem_len=shape.mem_len,
        reuse_len=shape.reuse_len,
        bi_data=shape.bidirectional,
        dropout=0.0,
        use_mems_train=True,
    )
    theirs = transformers.XLNetLMHeadModel(config).double().train()
    tensors = dict(ours.named_parameters())
    theirs.load_state_dict(converted(tensors, shape), strict=False)
    return ours, theirs


def converted(tensors: dict[str, Tensor], shape: Shape) -> dict[str, Tensor]:
    found = xlnet_weights(
        {name: tensor.detach() for name, tensor in tensors.items()}, num_layers=shape.layers, num_heads=shape.heads
    )
    return found | {"lm_loss.weight": found["transformer.word_embedding.weight"]}


@pytest.mark.parametrize("name", SHAPES)
def test_four_segments_with_memory(name: str) -> None:
    shape = SHAPES[name]
    ours, theirs = both(shape)
    draw = torch.Generator().manual_seed(6)
    memory, mems = ours.empty_memory(rows=B, mem_len=shape.mem_len), None
    backward = torch.tensor([0, 0, 1, 1]) if shape.bidirectional else None
    total, total_theirs = torch.zeros(()).double(), torch.zeros(()).double()
    for _ in range(4):
        tokens = torch.randint(0, V, (B, shape.seq_len), generator=draw)
        predict = torch.rand(B, shape.seq_len, generator=draw).argsort(1)[:, : shape.predict].sort(1).values
        ordered = torch.zeros_like(tokens, dtype=torch.bool).scatter(1, predict, True)
        ordered[:, -1] = True  # as SEP or CLS: ordered, but not predicted
        place = torch.rand(B, shape.seq_len, generator=draw).argsort(1)
        order = factorization_order(place, ordered)
        parts = torch.randint(0, 3, (B, shape.seq_len), generator=draw).sort(1).values
        hidden, memory = ours.hidden(
            tokens,
            order,
            memory,
            stream="query",
            predict=predict,
            segment_ids=parts,
            backward=backward,
            remember=shape.reuse_len,
        )
        found = theirs(
            tokens,
            perm_mask=perm_mask(order, ordered),
            target_mapping=functional.one_hot(predict, shape.seq_len).double(),
            token_type_ids=parts,
            mems=mems,
            use_mems=True,
        )
        mems = found.mems
        torch.testing.assert_close(ours.softmax.logits(hidden), found.logits, rtol=0, atol=1e-9)
        targets = tokens.gather(1, predict)
        total = total + ours.softmax(hidden, targets).mean()
        total_theirs = total_theirs + functional.cross_entropy(found.logits.flatten(0, 1), targets.flatten())
        for layer, remembered in enumerate(mems):  # (M', B, D)
            kept = remembered.shape[0]
            expected = remembered.transpose(0, 1)
            torch.testing.assert_close(memory.states[layer, :, -kept:], expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(total, total_theirs, rtol=0, atol=1e-9)
    total.backward()
    total_theirs.backward()
    gradients = {name: parameter.grad for name, parameter in ours.named_parameters()}
    for their_name, expected in converted(gradients, shape).items():
        actual = dict(theirs.named_parameters(remove_duplicate=False))[their_name].grad
        torch.testing.assert_close(expected, actual, rtol=0, atol=1e-9, msg=lambda text, n=their_name: f"{n}: {text}")


def perm_mask(order: Tensor, ordered: Tensor) -> Tensor:
    """(B, T, T), 1 where the row may not see the key. transformers lets the content stream see itself besides."""
    strict = order[:, None, :] < order[:, :, None]
    same = order[:, None, :] <= order[:, :, None]
    return (~torch.where(ordered[:, :, None], strict, same)).double()
