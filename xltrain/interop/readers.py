"""From files of other programs to :class:`Imported`: a function per format, where files, tables and settings meet."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from xltrain.data.words import WordTokenizer
from xltrain.errors import UsageError
from xltrain.interop import tensorflow, transformer_xl, xlnet_import
from xltrain.interop.bundle import Bundle
from xltrain.interop.imported import (
    Imported,
    Settings,
    converting,
    listed,
    read_json,
    require_names,
    require_weights,
    vocabulary_size,
)
from xltrain.interop.pickles import BAGS, Bag, explained, read_torch, tensors_of
from xltrain.interop.tensors import folder_tensors
from xltrain.interop.tokenizer_import import read_folder_tokenizer, read_original_tokenizer
from xltrain.interop.transformer_xl import Layout, find_ties, from_original
from xltrain.interop.words import find_words, words_of

WRAPPERS = ("torch.nn.parallel.data_parallel.DataParallel", "utils.data_parallel.BalancedDataParallel")
"""Classes that hold a model as ``module``, to run it on several devices."""


def read_xlnet(folder: Path, vocabulary: Path | None) -> Imported:
    """A folder of transformers' ``XLNetLMHeadModel``."""
    settings = Settings(read_json(folder / "config.json"), folder / "config.json")
    tokenizer = read_folder_tokenizer(folder, given=vocabulary)
    tensors, file = folder_tensors(folder)
    return _xlnet(
        tensors,
        settings,
        file=file,
        tokenizer=tokenizer,
        activations=xlnet_import.THEIR_ACTIVATIONS,
        name="huggingface",
        initial_memory="absent",
        notes=(),
    )


def read_tensorflow_xlnet(prefix: Path, vocabulary: Path | None) -> Imported:
    """``xlnet_config.json``, ``spiece.model`` and the TensorFlow checkpoint of the original XLNet."""
    folder = prefix.parent
    settings = Settings(read_json(folder / "xlnet_config.json"), folder / "xlnet_config.json")
    tokenizer = read_original_tokenizer(folder, given=vocabulary)
    bundle = Bundle(prefix)
    num_layers = settings.layers(tensors=len(bundle.entries))
    left = {name for name in bundle.entries if tensorflow.is_of_the_optimizer(name)}
    wanted = tensorflow.wanted_variables(num_layers, present=bundle.entries)
    require_names(bundle.entries, wanted=wanted, ignored=left, source=bundle.index)
    notes = [f"{len(left):,} variables of the optimizer are left out ({listed(sorted(left)[:3])}, ...)"] if left else []
    variables = {name: bundle.read(name) for name in wanted}
    require_weights(variables, source=bundle.index)
    with converting(bundle.index):
        tensors = tensorflow.to_transformers(variables, num_layers=num_layers)
    return _xlnet(
        tensors,
        settings,
        file=bundle.index,
        tokenizer=tokenizer,
        activations={"gelu": "gelu_tanh", "relu": "relu"},  # the original's gelu is the tanh form
        name="tensorflow-xlnet",
        initial_memory="zeros",
        notes=tuple(notes),
    )


def _xlnet(
    tensors: Mapping[str, Tensor],
    settings: Settings,
    *,
    file: Path,
    tokenizer: Any,
    activations: Mapping[str, str],
    name: str,
    initial_memory: str,
    notes: tuple[str, ...],
) -> Imported:
    num_layers = settings.layers(tensors=len(tensors))
    require_weights(tensors, source=file)
    with converting(file):
        weights = xlnet_import.from_xlnet(tensors, num_layers=num_layers, source=file)
        rows = weights["embedding.weight"].shape[0]
    vocabulary_size(settings, "vocab_size", "n_token", rows=rows, tokenizer=tokenizer)
    found = xlnet_import.sections(settings, weights, activations=activations)
    if "seq_len" not in settings.values:
        notes += (_unsaid(found["segments"]["seq_len"]),)
    if settings.flag("bi_data", False):
        notes += ("trained on text in both directions (bi_data): segments.bidirectional goes on so",)
    if found["segments"]["mem_len"] and not settings.values.get("mem_len"):
        there = "which transformers takes for a memory without end" if name == "huggingface" else "and nothing says it"
        kept = found["segments"]["mem_len"]
        notes += (f"mem_len is not set, {there}; here it is {kept:,}, as in the published models",)
    return Imported(name, weights, found, tokenizer, initial_memory, notes)


def read_transfo_xl(folder: Path, vocabulary: Path | None) -> Imported:
    """A folder of ``TransfoXLLMHeadModel``, which transformers had until 4.x."""
    path = folder / "config.json"
    settings = Settings(read_json(path), path)
    values = settings.values
    stored, file = folder_tensors(folder)
    cutoffs = _cutoffs(settings)
    share = values.get("proj_share_all_but_first", True)
    ties = values.get("tie_projs") or [False, *[bool(share)] * len(cutoffs)]
    require_weights(stored, source=file)
    with converting(file):
        tensors = transformer_xl.from_transformers(stored, untied=settings.flag("untie_r", True))
    described = {
        **values,
        "tie_weight": values.get("tie_word_embeddings", True) and values.get("tie_weight", True),
        "tie_projs": ties,
        "cutoffs": cutoffs,
        "pre_lnorm": values.get("pre_lnorm", False),
        "layer_norm_eps": values.get("layer_norm_epsilon", 1e-5),
        "n_token": values.get("vocab_size", values.get("n_token")),
        "init_std": values.get("init_std", 0.02),
    }
    return _transformer_xl(
        tensors,
        Settings(described, path),
        file=file,
        tokenizer=find_words(folder, vocabulary),
        name="transfo-xl",
        initial_memory="zeros",
        notes=("TransfoXLTokenizer splits punctuation off (Moses); xltrain reads words between white space",),
    )


def read_pytorch_transformer_xl(path: Path, vocabulary: Path | None) -> Imported:
    """``model.pt`` of the original PyTorch code, or ``checkpoint_*.pt`` of NVIDIA's."""
    found = read_torch(path)
    if isinstance(found, dict) and "model_state" in found:
        return _nvidia(found, path, vocabulary)
    if isinstance(found, tuple(BAGS[name] for name in WRAPPERS)):
        found = getattr(found, "module", None)
    if not isinstance(found, BAGS["mem_transformer.MemTransformerLM"]):
        what = type(found).__name__ if isinstance(found, Bag) else f"a {type(found).__name__}"
        raise UsageError(
            f"{path}: holds {what}; a Transformer-XL is a pickled MemTransformerLM (the original's model.pt) or a "
            "dictionary with model_state and model_config (NVIDIA's checkpoint_*.pt)"
        )
    tokenizer = find_words(path.parent, vocabulary)
    with explained(path):  # attributes may be anything
        tensors, settings = tensors_of(found), _settings_of_module(found)
    return _transformer_xl(
        tensors,
        Settings(settings, path),
        file=path,
        tokenizer=tokenizer,
        name="transformer-xl",
        initial_memory="absent",
        notes=_notes_on_words(tokenizer),
    )


def _nvidia(found: dict[str, Any], path: Path, vocabulary: Path | None) -> Imported:
    values = found.get("model_config")
    if not isinstance(values, dict) or not isinstance(found["model_state"], dict):
        raise UsageError(
            f"{path}: has model_state but no model_config with the model's sizes; NVIDIA's code saves both"
        )
    if vocabulary is None and found.get("vocab") is not None:
        tokenizer = words_of(found["vocab"], path)
    else:
        tokenizer = find_words(path.parent, vocabulary)
    left = [name for name in ("optimizer_state", "scheduler_state", "amp_state", "memory") if found.get(name)]
    described = {**values, "layer_norm_eps": 1e-5}
    notes = [f"{', '.join(left)} are left out: a run starts anew from the weights"] if left else []
    if values.get("same_length") and isinstance(values.get("mem_len"), int):
        described["mem_len"] = values["mem_len"] + 1
        notes.append(
            f"with same_length NVIDIA's rows see mem_len + 1 keys: segments.mem_len is {described['mem_len']:,} here"
        )
    tensors = {name: tensor for name, tensor in found["model_state"].items() if isinstance(tensor, Tensor)}
    return _transformer_xl(
        transformer_xl.from_nvidia(tensors),
        Settings(described, path),
        file=path,
        tokenizer=tokenizer,
        name="nvidia-transformer-xl",
        initial_memory="absent",
        notes=(*notes, *_notes_on_words(tokenizer)),
    )


def _settings_of_module(model: Bag) -> dict[str, Any]:
    """What the constructor of the original's ``MemTransformerLM`` was given, as far as its objects still say it."""
    found: dict[str, Any] = {key: value for key, value in vars(model).items() if isinstance(value, int | float | bool)}
    embedding, layers = getattr(model, "word_emb", None), getattr(model, "layers", None)
    for key in ("cutoffs", "div_val"):
        found[key] = getattr(embedding, key, None)
    if isinstance(found["cutoffs"], list):
        found["cutoffs"] = found["cutoffs"][:-1]  # the last is the vocabulary
    found["dropout"] = getattr(getattr(model, "drop", None), "p", None)
    first = next(iter(getattr(layers, "_modules", {}).values()), None)
    attention = getattr(first, "dec_attn", None)
    found["pre_lnorm"] = getattr(attention, "pre_lnorm", False)
    found["dropatt"] = getattr(getattr(attention, "dropatt", None), "p", None)
    found["layer_norm_eps"] = getattr(getattr(attention, "layer_norm", None), "eps", None)
    return found


def _transformer_xl(
    tensors: Mapping[str, Tensor],
    settings: Settings,
    *,
    file: Path,
    tokenizer: WordTokenizer,
    name: str,
    initial_memory: str,
    notes: tuple[str, ...],
) -> Imported:
    """A Transformer-XL whose tensors and settings have the original's names."""
    values, d_model, num_layers = settings.values, settings.count("d_model"), settings.layers(tensors=len(tensors))
    require_weights(tensors, source=file)
    settings.refuse_unless("attn_type", 0, 0, "it is Transformer-XL's attention")
    if settings.number("sample_softmax", -1) > 0:
        settings.refuse_unless("sample_softmax", -1, -1, "xltrain has no sampled softmax")
    if values.get("d_embed") is not None:
        settings.refuse_unless("d_embed", d_model, d_model, "embeddings are as wide as the model")
    cutoffs, div_val = _cutoffs(settings), settings.count("div_val") if values.get("div_val") is not None else 1
    num_tables = len(cutoffs) + 1 if div_val > 1 else 1
    given = values.get("tie_projs")
    given = [bool(tied) for tied in given] if isinstance(given, list | tuple) else []
    ties = given + [False] * (num_tables - len(given))
    tie_embeddings, tie_projections = find_ties(
        tensors,
        num_bins=num_tables,
        tie_embeddings=settings.flag("tie_weight", True),
        tie_projections=ties[:num_tables],
    )
    layout = Layout(num_layers, tuple(cutoffs), div_val, tie_embeddings, tie_projections)
    require_names(tensors, wanted=[theirs for theirs, _, _ in layout.rows()], ignored=layout.copies(), source=file)
    with converting(file):
        weights = from_original(tensors, layout)
        d_inner = weights["layers.0.feed_forward.inner.bias"].shape[0]
        tables = [weight for ours, weight in weights.items() if ours.startswith(("embedding.weight", "embedding.tab"))]
        rows = sum(len(table) for table in tables)
    vocabulary_size(settings, "n_token", rows=rows, tokenizer=tokenizer)
    dropout, seq_len = settings.number("dropout", 0.1), settings.length("tgt_len", 128)
    if not values.get("tgt_len"):
        notes += (_unsaid(seq_len),)
    return Imported(
        name,
        weights,
        {
            "model": {
                "num_layers": layout.num_layers,
                "d_model": d_model,
                "num_heads": settings.count("n_head"),
                "head_dim": settings.count("d_head"),
                "d_inner": d_inner,
                "activation": "relu",
                "dropout": dropout,
                "attention_dropout": settings.number("dropatt", 0.0),
                "tie_position_bias": weights["bias_u"].shape[0] == 1,
                "clamp_len": settings.length("clamp_len"),
                "same_length": settings.flag("same_length", False),
                "norm_eps": settings.number("layer_norm_eps", 1e-5),
                "norm_position": "pre" if settings.flag("pre_lnorm", False) else "post",
                "scale_embeddings": True,
                "tie_embeddings": tie_embeddings,
                "adaptive": {
                    "cutoffs": cutoffs,
                    "div_val": div_val,
                    "tie_projections": list(tie_projections) if div_val > 1 and cutoffs else False,
                },
                "init": {"std": settings.number("init_std", 0.02)},
            },
            "objective": {"name": "causal"},
            "segments": {"seq_len": seq_len, "mem_len": settings.length("mem_len")},
        },
        tokenizer,
        initial_memory,
        notes,
    )


def _unsaid(seq_len: int) -> str:
    return (
        f"the files do not say how long segments were in training: segments.seq_len is {seq_len} here; eval-ppl takes "
        "another by --seq-len, and a run that starts from these weights by the key"
    )


def _cutoffs(settings: Settings) -> list[int]:
    """Where bins begin, without the vocabulary's size, which some programs append."""
    if settings.values.get("adaptive") is False:
        return []
    given = settings.values.get("cutoffs") or []
    size = settings.values.get("n_token", settings.values.get("vocab_size"))
    if not isinstance(given, list | tuple) or not all(isinstance(cutoff, int) for cutoff in given):
        raise UsageError(f"{settings.source}: cutoffs is {given!r}; it must be a list of ids")
    return [cutoff for cutoff in given if cutoff != size]


def _notes_on_words(tokenizer: WordTokenizer) -> tuple[str, ...]:
    if "<S>" in tokenizer.words:
        return ("the original put <S> before and after each sentence; write them into the text",)
    return ()
