"""``export-checkpoint``: a checkpoint in, a folder that other programs load out."""

import json
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from xltrain import console
from xltrain.config.schema import Config
from xltrain.errors import UsageError, XltrainError
from xltrain.interop import huggingface, tokenizer
from xltrain.interop.folder import check_output, replacing
from xltrain.interop.verify import LONGEST, largest_difference, load_folder
from xltrain.model.transformer import LanguageModel
from xltrain.training.build import count_parameters
from xltrain.training.checkpoint import Checkpoint, find_checkpoint

FORMATS = ("huggingface",)

TOLERANCE = 1e-4
"""Largest difference of a logit, in fp32, that passes as the same number."""

FILES = {"config.json", "model.safetensors", *tokenizer.FILES}
"""Every name that an export may have written."""

WRITTEN_BY = "exported_by"
"""Key of config.json by which an export is known again; transformers keeps it and does nothing with it."""


def export(source: Path, output: Path, *, format_name: str, verify: bool | None, overwrite: bool) -> dict[str, Any]:
    """Write ``output``; arguments as the command's options, ``verify`` None for: if transformers is installed.

    Raises:
        UsageError: if ``output`` may not be written, or the checkpoint cannot be expressed in that format; each reason
            is named, and nothing is written.
        XltrainError: if writing fails, or the numbers of the written folder are not ours; ``output`` is as it was.
    """
    if format_name not in FORMATS:
        raise UsageError(f"--format: {format_name!r} is not allowed; choose {', '.join(FORMATS)}")
    check_output(
        output,
        overwrite=overwrite,
        what="an export",
        files=FILES,
        mark="config.json",
        recognised=_is_export(output),
    )
    verify = _may_verify(verify)
    checkpoint = find_checkpoint(source)
    config, vocabulary = checkpoint.config(), checkpoint.tokenizer()
    reasons = huggingface.reasons_against(config) + tokenizer.reasons_against(vocabulary)
    if reasons:
        raise UsageError(
            f"{checkpoint.folder}: cannot be exported to {huggingface.ARCHITECTURE}: {'; '.join(reasons)}; "
            "xltrain itself evaluates it as it is (eval-ppl)"
        )
    if config.model.attention_dropout != config.model.dropout:
        console.warn(
            "transformers has one dropout rate for everything: fine-tuning there uses model.dropout "
            f"{config.model.dropout:g} where model.attention_dropout is {config.model.attention_dropout:g} here"
        )
    model = _read_model(checkpoint, config)
    difference = None
    with replacing(output, what="the export") as folder:
        _write(folder, checkpoint, config, model)
        if verify:
            difference = _compare(folder, config, model)
    return {
        "output": str(output),
        "format": format_name,
        "checkpoint": str(checkpoint.folder),
        "parameters": count_parameters(model),
        "vocab_size": vocabulary.vocab_size,
        "max_logit_difference": difference,
    }


def _is_export(folder: Path) -> bool:
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and str(found.get(WRITTEN_BY, "")).startswith("xltrain")


def _may_verify(wanted: bool | None) -> bool:
    if wanted is False or find_spec("transformers") is not None:
        return wanted is not False
    install = "pip install 'xltrain[transformers]'"
    if wanted:
        raise UsageError(f"--verify needs transformers, which is not installed: {install}, or give --no-verify")
    console.warn(f"the export is not verified, since transformers is not installed ({install})")
    return False


def _read_model(checkpoint: Checkpoint, config: Config) -> LanguageModel:
    """The model on the CPU, with the plain attention backend: the one that needs nothing special of a device."""
    plain = config.model.model_copy(update={"attention_backend": "math"})
    return checkpoint.model(torch.device("cpu"), config.model_copy(update={"model": plain})).eval()


def _write(folder: Path, checkpoint: Checkpoint, config: Config, model: LanguageModel) -> None:
    vocabulary = checkpoint.tokenizer()
    tensors = huggingface.xlnet_weights(
        {name: tensor.float() for name, tensor in huggingface.plain_weights(model).items()},
        num_layers=config.model.num_layers,
        num_heads=config.model.num_heads,
    )
    settings = huggingface.xlnet_config(
        config, vocab_size=vocabulary.vocab_size, special_ids=tokenizer.special_ids(vocabulary)
    )
    settings[WRITTEN_BY] = f"xltrain {version('xltrain')}, step {checkpoint.step}"
    configuration, tensors_file = folder / "config.json", folder / "model.safetensors"
    configuration.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, tensors_file, metadata={"format": "pt"})
    tensors_file.chmod(configuration.stat().st_mode)  # safetensors lets nobody else read what it writes
    for name, data in tokenizer.tokenizer_files(vocabulary).items():
        (folder / name).write_bytes(data)


def _compare(folder: Path, config: Config, model: LanguageModel) -> float:
    seq_len = max(2, min(config.segments.seq_len, LONGEST))
    found = largest_difference(
        model,
        load_folder(folder),
        seq_len=seq_len,
        mem_len=config.segments.mem_len,
        num_predict=min(config.objective.targets_per_segment(seq_len), seq_len - 1),
        with_segments=config.model.segment_embeddings,
    )
    if not found <= TOLERANCE:  # so that a NaN fails too
        raise XltrainError(
            f"transformers computes other logits from the exported folder: they differ by up to {found:.2g}, and "
            f"{TOLERANCE:g} is allowed; nothing was exported, please report this with the run's config.yaml"
        )
    return found
