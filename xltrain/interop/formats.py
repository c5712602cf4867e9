"""What can be written: one entry per format, each a handful of functions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from xltrain.config.load import dump_config
from xltrain.config.schema import Config
from xltrain.data.tokenizer import Tokenizer
from xltrain.data.words import WordTokenizer
from xltrain.interop import huggingface, plain, remote_code, tokenizer, transfo_xl, verify
from xltrain.interop.card import without_places
from xltrain.model.transformer import LanguageModel


@dataclass(frozen=True)
class Subject:
    """What is exported: weights in fp32 on the CPU, in evaluation mode, and what goes with them."""

    config: Config
    vocabulary: Tokenizer
    model: LanguageModel


@dataclass(frozen=True)
class Format:
    """A kind of folder.

    target: what it is for, as a sentence names it.
    reasons: everything that speaks against exporting a run with this configuration and tokenizer.
    settings: content of ``config.json``.
    tensors: content of ``model.safetensors``.
    files: every further file, by name.
    difference: largest difference of a logit between the folder, as its readers load it, and the subject.
    needs_transformers: whether ``difference`` does.
    usage: lines of Python that load the folder.
    """

    target: str
    reasons: Callable[[Config, Tokenizer], list[str]]
    settings: Callable[[Subject], dict[str, Any]]
    tensors: Callable[[Subject], dict[str, Tensor]]
    files: Callable[[Subject], Mapping[str, bytes]]
    difference: Callable[[Path, Subject], float]
    usage: str
    needs_transformers: bool = True


def _segment(config: Config) -> int:
    """Tokens of a segment that both sides read; two at least where one is predicted from the other's place."""
    return max(1 + (config.objective.name == "permutation"), min(config.segments.seq_len, verify.LONGEST))


def _xlnet_reasons(config: Config, vocabulary: Tokenizer) -> list[str]:
    return huggingface.reasons_against(config) + tokenizer.reasons_against(vocabulary)


def _xlnet_settings(subject: Subject) -> dict[str, Any]:
    specials = tokenizer.special_ids(subject.vocabulary)
    return huggingface.xlnet_config(subject.config, vocab_size=subject.vocabulary.vocab_size, special_ids=specials)


def _xlnet_tensors(subject: Subject) -> dict[str, Tensor]:
    sizes = subject.config.model
    tensors = huggingface.plain_weights(subject.model)
    return huggingface.xlnet_weights(tensors, num_layers=sizes.num_layers, num_heads=sizes.num_heads)


def _xlnet_difference(folder: Path, subject: Subject) -> float:
    config, seq_len = subject.config, _segment(subject.config)
    return verify.largest_difference(
        subject.model,
        verify.load_folder(folder),
        seq_len=seq_len,
        mem_len=config.segments.mem_len,
        num_predict=min(config.objective.targets_per_segment(seq_len), seq_len - 1),
        with_segments=config.model.segment_embeddings,
    )


def _tokenizer_files(subject: Subject) -> Mapping[str, bytes]:
    return tokenizer.tokenizer_files(subject.vocabulary)


def _plain_reasons(config: Config, vocabulary: Tokenizer) -> list[str]:
    del vocabulary
    if config.model.norm == "batch_norm":
        return ["model.norm is batch_norm: its running statistics are no parameters, and only those are exported"]
    return []


def _remote_reasons(config: Config, vocabulary: Tokenizer) -> list[str]:
    return tokenizer.reasons_against(vocabulary) + _plain_reasons(config, vocabulary)


def _remote_settings(subject: Subject) -> dict[str, Any]:
    specials = tokenizer.special_ids(subject.vocabulary)
    return remote_code.remote_config(subject.config, subject.vocabulary, special_ids=specials)


def _remote_tensors(subject: Subject) -> dict[str, Tensor]:
    return {f"stack.{name}": tensor for name, tensor in huggingface.folded_weights(subject.model).items()}


def _remote_files(subject: Subject) -> Mapping[str, bytes]:
    code = {name: text.encode("utf-8") for name, text in remote_code.code_files().items()}
    masked = subject.config.objective.name == "masked"  # the others go on where a text stops
    return {**code, **tokenizer.tokenizer_files(subject.vocabulary, ends_text=masked)}


def _remote_difference(folder: Path, subject: Subject) -> float:
    config = subject.config
    return remote_code.largest_difference(
        subject.model,
        remote_code.load_folder(folder, config),
        seq_len=_segment(config),
        parts=config.two_columns and config.model.segment_embeddings,
    )


def _transfo_xl_reasons(config: Config, vocabulary: Tokenizer) -> list[str]:
    return transfo_xl.reasons_against(config) + tokenizer.reasons_against(vocabulary)


def _transfo_xl_settings(subject: Subject) -> dict[str, Any]:
    specials = tokenizer.special_ids(subject.vocabulary)
    end = specials.get("<eod>", specials.get("<eos>"))
    return transfo_xl.settings(subject.config, vocab_size=subject.vocabulary.vocab_size, end=end)


def _transfo_xl_tensors(subject: Subject) -> dict[str, Tensor]:
    sizes, layout = subject.config.model, transfo_xl.layout_of(subject.config)
    original = transfo_xl.to_original(huggingface.folded_weights(subject.model), layout)
    return transfo_xl.to_transformers(original, num_layers=sizes.num_layers, d_model=sizes.d_model)


def _transfo_xl_files(subject: Subject) -> Mapping[str, bytes]:
    found = dict(tokenizer.tokenizer_files(subject.vocabulary, ends_text=False))
    if isinstance(subject.vocabulary, WordTokenizer):
        found["vocab.txt"] = "".join(f"{word}\n" for word in subject.vocabulary.words).encode("utf-8")
    return found


def _transfo_xl_difference(folder: Path, subject: Subject) -> float:
    size = subject.vocabulary.vocab_size
    return transfo_xl.largest_difference(subject.model, folder, subject.config, vocab_size=size)


def _plain_settings(subject: Subject) -> dict[str, Any]:
    settings = _remote_settings(subject)
    return {key: value for key, value in settings.items() if key not in ("architectures", "auto_map", "model_type")}


def _plain_tensors(subject: Subject) -> dict[str, Tensor]:
    return huggingface.folded_weights(subject.model)


def _plain_difference(folder: Path, subject: Subject) -> float:
    return plain.largest_difference(subject.model, folder)


def _plain_files(subject: Subject) -> Mapping[str, bytes]:
    return {"config.yaml": dump_config(without_places(subject.config)).encode("utf-8"), **subject.vocabulary.files()}


FORMATS: dict[str, Format] = {
    "huggingface": Format(
        target=huggingface.ARCHITECTURE,
        reasons=_xlnet_reasons,
        settings=_xlnet_settings,
        tensors=_xlnet_tensors,
        files=_tokenizer_files,
        difference=_xlnet_difference,
        usage=(
            "from transformers import AutoTokenizer, XLNetLMHeadModel\n\n"
            'model = XLNetLMHeadModel.from_pretrained("{folder}")\n'
            'tokenizer = AutoTokenizer.from_pretrained("{folder}")'
        ),
    ),
    "remote-code": Format(
        target="a folder with code of its own",
        reasons=_remote_reasons,
        settings=_remote_settings,
        tensors=_remote_tensors,
        files=_remote_files,
        difference=_remote_difference,
        usage=(
            "from transformers import AutoTokenizer, {auto}\n\n"
            'model = {auto}.from_pretrained("{folder}", trust_remote_code=True)\n'
            'tokenizer = AutoTokenizer.from_pretrained("{folder}", trust_remote_code=True)'
        ),
    ),
    "transfo-xl": Format(
        target=transfo_xl.ARCHITECTURE,
        reasons=_transfo_xl_reasons,
        settings=_transfo_xl_settings,
        tensors=_transfo_xl_tensors,
        files=_transfo_xl_files,
        difference=_transfo_xl_difference,
        usage=(
            "from transformers import AutoTokenizer, TransfoXLLMHeadModel  # transformers 4.x\n\n"
            'model = TransfoXLLMHeadModel.from_pretrained("{folder}")\n'
            'tokenizer = AutoTokenizer.from_pretrained("{folder}")'
        ),
        needs_transformers=False,
    ),
    "safetensors": Format(
        target="plain files",
        reasons=_plain_reasons,
        settings=_plain_settings,
        tensors=_plain_tensors,
        files=_plain_files,
        difference=_plain_difference,
        usage=(
            "from safetensors.torch import load_file\n\n"
            'tensors = load_file("{folder}/model.safetensors")  # names as in xltrain/model'
        ),
        needs_transformers=False,
    ),
}
"""By the name that ``--format`` takes."""
