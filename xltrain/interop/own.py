"""Exports of xltrain itself (``remote-code`` and ``safetensors``) as checkpoints again."""

from pathlib import Path
from typing import Any

from xltrain.config.init_from import TOKENIZER_FILES
from xltrain.config.model import AdaptiveConfig, ModelConfig
from xltrain.data.kinds import load_tokenizer
from xltrain.errors import UsageError
from xltrain.interop.imported import Imported, Settings, converting, read_json, require_weights, vocabulary_size
from xltrain.interop.tensors import folder_tensors
from xltrain.interop.tokenizer_import import read_folder_tokenizer

PREFIX = "stack."
"""In front of every name, where a wrapper holds the model."""


def read_own(folder: Path, vocabulary: Path | None) -> Imported:
    """A folder that ``export-checkpoint`` wrote, with ``stack`` in its ``config.json``: the model's arguments.

    Raises:
        UsageError: if files are missing or damaged.
    """
    settings = Settings(read_json(folder / "config.json"), folder / "config.json")
    tensors, file = folder_tensors(folder)
    require_weights(tensors, source=file)
    weights = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    ours = vocabulary is None and any((folder / name).is_file() for name in TOKENIZER_FILES.values())
    tokenizer = load_tokenizer(folder) if ours else read_folder_tokenizer(folder, given=vocabulary)
    with converting(file):
        rows = sum(len(weight) for name, weight in weights.items() if name.startswith(("embedding.w", "embedding.t")))
    vocabulary_size(settings, "vocab_size", rows=rows, tokenizer=tokenizer)
    sections = _sections(settings)
    return Imported("xltrain", weights, sections, tokenizer, str(sections["segments"]["initial_memory"]))


def _sections(settings: Settings) -> dict[str, dict[str, Any]]:
    """Keys of a configuration from the arguments of the model."""
    stack, values = settings.values.get("stack"), settings.values
    if not isinstance(stack, dict):
        raise UsageError(f"{settings.source}: stack is {stack!r}; it must hold the sizes of the model")
    model = {key: stack[key] for key in ModelConfig.model_fields if key in stack}
    model["adaptive"] = {key: stack[key] for key in AdaptiveConfig.model_fields if key in stack}
    if not model["adaptive"].get("cutoffs"):
        model["adaptive"].pop("tie_projections", None)  # a value per bin, of which there are none
    return {
        "corpus": {"document_separator": values.get("document_separator") or "blank_line"},
        "model": model,
        "objective": {"name": values.get("objective")},
        "segments": {
            "seq_len": values.get("seq_len"),
            "mem_len": values.get("mem_len"),
            "initial_memory": stack.get("initial_memory", "absent"),
            "cross_documents": values.get("cross_documents", values.get("end_of_document") is None),
        },
    }
