"""A second implementation of the model, position by position, straight from the papers' formulas.

It shares the weights of a :class:`LanguageModel` and nothing else: no joined rows, no relative shift, no mask tensors,
no memory tensors. Memory is a list of (state, document) per layer and row, as long as what was read.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from xltrain.model.transformer import LanguageModel

Remembered = list[list[list[tuple[Tensor, int]]]]  # [layer][row] -> states, oldest first


def code(model: LanguageModel, distance: int, dtype: torch.dtype) -> Tensor:
    """(D,) sines, then cosines."""
    if model.clamp_len:
        distance = max(-model.clamp_len, min(model.clamp_len, distance))
    width = model.d_model
    frequencies = (1.0 / 10000.0 ** (torch.arange(0, width, 2, dtype=torch.float32) / width)).to(dtype)
    return torch.cat([(distance * frequencies).sin(), (distance * frequencies).cos()])


def norm(layer: torch.nn.LayerNorm, x: Tensor) -> Tensor:
    centred = x - x.mean()
    return centred / torch.sqrt((centred**2).mean() + layer.eps) * layer.weight + layer.bias


def attend(
    model: LanguageModel, index: int, query: Tensor, seen: list[tuple[Tensor, int, int]], segment: int | None
) -> Tensor:
    """(D,) attention output of one row; ``seen``: (state, distance, segment) of every key that it sees."""
    layer = model.layers[index].attention
    heads, width = layer.num_heads, layer.head_dim
    if not seen:
        return torch.zeros(heads * width, dtype=query.dtype) @ layer.output.weight.T
    shared = index % model.bias_u.shape[0]
    u, v = model.bias_u[shared], model.bias_v[shared]
    q = (layer.query.weight @ query).view(heads, width)
    mixed = []
    for head in range(heads):
        scores, values = [], []
        for state, distance, other in seen:
            key, value = (layer.key_value.weight @ state).view(2, heads, width)
            r = (layer.distance.weight @ code(model, distance, query.dtype)).view(heads, width)
            score = (q[head] + u[head]) @ key[head] + (q[head] + v[head]) @ r[head]
            if segment is not None and hasattr(model, "segment"):
                which = int(other != segment)
                score = score + (q[head] + model.bias_s[shared][head]) @ model.segment[index, which, head]
            scores.append(score / math.sqrt(width))
            values.append(value[head])
        weights = torch.stack(scores).softmax(0)
        mixed.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
    return torch.cat(mixed) @ layer.output.weight.T


def layer_row(
    model: LanguageModel, index: int, row: Tensor, seen: list[tuple[Tensor, int, int]], segment: int | None
) -> Tensor:
    """One row through one layer; the keys are not yet normalised."""
    layer = model.layers[index]
    feed = layer.feed_forward

    def inner(x: Tensor) -> Tensor:
        return feed.outer.weight @ feed.activation(feed.inner.weight @ x + feed.inner.bias) + feed.outer.bias

    if layer.pre_norm:
        seen = [(norm(layer.attention_norm, state), *rest) for state, *rest in seen]
        row = row + attend(model, index, norm(layer.attention_norm, row), seen, segment)
        return row + inner(norm(layer.feed_forward_norm, row))
    row = norm(layer.attention_norm, row + attend(model, index, row, seen, segment))
    return norm(layer.feed_forward_norm, row + inner(row))


def forward(
    model: LanguageModel,
    tokens: Tensor,
    order: Tensor,
    remembered: Remembered,
    *,
    predict: Tensor | None,
    stream: str,
    fresh: list[bool],
    mem_len: int,
    document: Tensor | None = None,
    segment_ids: Tensor | None = None,
    backward: Tensor | None = None,
    remember: int | None = None,
) -> tuple[Tensor, Remembered]:
    """Hidden states (B, P, D) of the predicted positions and what is remembered afterwards."""
    rows, length = tokens.shape
    after: Remembered = [[[] for _ in range(rows)] for _ in range(model.num_layers)]
    hidden = []
    for b in range(rows):
        sign = -1 if backward is not None and backward[b] else 1
        past = [[] if fresh[b] else remembered[layer][b] for layer in range(model.num_layers)]
        places = list(range(length)) if predict is None else predict[b].tolist()
        content = [model.embedding.weight[tokens[b, i]] * model.scale for i in range(length)]
        query = [model.mask_embedding for _ in places] if stream == "query" else []
        for index in range(model.num_layers):
            states = past[index]

            def keys(i: int, strict: bool) -> list[tuple[Tensor, int, int]]:
                found = []
                for slot, (state, of) in enumerate(states):  # noqa: B023
                    distance = len(states) - slot + i  # noqa: B023
                    same = document is None or of == document[b, i]  # noqa: B023
                    if same and not (model.same_length and distance >= max(mem_len, 1)):
                        found.append((state, sign * distance, 0))  # noqa: B023
                for j in range(length):
                    ordered = order[b, j] < order[b, i] if strict else order[b, j] <= order[b, i]  # noqa: B023
                    same = document is None or document[b, j] == document[b, i]  # noqa: B023
                    near = not (model.same_length and i - j >= max(mem_len, 1))
                    if ordered and same and near:
                        part = 0 if segment_ids is None else int(segment_ids[b, j])  # noqa: B023
                        found.append((content[j], sign * (i - j), part))  # noqa: B023
                return found

            def part(i: int) -> int | None:
                return None if segment_ids is None else int(segment_ids[b, i])  # noqa: B023

            docs = [0 if document is None else int(document[b, i]) for i in range(length)]
            new = states + [(content[i].detach(), docs[i]) for i in range(length if remember is None else remember)]
            after[index][b] = new[-mem_len:] if mem_len else []
            above = [layer_row(model, index, content[i], keys(i, False), part(i)) for i in range(length)]
            query = [
                layer_row(model, index, row, keys(i, True), part(i)) for row, i in zip(query, places, strict=False)
            ]
            content = above
        hidden.append(torch.stack(query if stream == "query" else [content[i] for i in places]))
    return torch.stack(hidden), after


def nll(model: LanguageModel, hidden: Tensor, targets: Tensor) -> Tensor:
    """(B, P)"""
    logits = hidden @ model.softmax.weight.T + model.softmax.bias
    flat = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=-1)
    return flat.view_as(targets)
