"""``export-checkpoint``: a checkpoint in, a folder that other programs load out."""

import json
import re
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from torch import Tensor

from xltrain import console
from xltrain.config.init_from import TOKENIZER_FILES
from xltrain.config.schema import Config
from xltrain.data.tokenizer import SentencePieceTokenizer
from xltrain.errors import UsageError, XltrainError
from xltrain.evaluation.loading import read_whole
from xltrain.interop import remote_code, tokenizer
from xltrain.interop.card import model_card
from xltrain.interop.folder import check_output, replacing
from xltrain.interop.formats import FORMATS, Format, Subject
from xltrain.model.transformer import LanguageModel
from xltrain.training.build import count_parameters
from xltrain.training.checkpoint import Checkpoint, damage, list_checkpoints

TOLERANCE = 1e-4
"""Largest difference of a logit, in fp32, that passes as the same number."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""What ``--dtype`` takes."""

SHARD_BYTES = 5_000_000_000
"""Weights above this are spread over several files, with an index."""

WRITTEN_BY = "exported_by"
"""Key of config.json by which an export is known again; transformers keeps it and does nothing with it."""


def export(
    source: Path,
    output: Path,
    *,
    format_name: str,
    verify: bool | None,
    overwrite: bool,
    average: int = 1,
    dtype: str = "fp32",
    licence: str = "unknown",
) -> dict[str, Any]:
    """Write ``output``; arguments as the command's options, ``verify`` None for: if transformers is installed.

    Raises:
        UsageError: if ``output`` may not be written, or the checkpoint cannot be expressed in that format; each reason
            is named, and nothing is written.
        XltrainError: if writing fails, or the numbers of the written folder are not ours; ``output`` is as it was.
    """
    if format_name not in FORMATS:
        raise UsageError(f"--format: {format_name!r} is not allowed; choose {', '.join(FORMATS)}")
    if dtype not in DTYPES:
        raise UsageError(f"--dtype: {dtype!r} is not allowed; choose {', '.join(DTYPES)}")
    if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", licence, re.ASCII):
        raise UsageError(f"--license: {licence!r} is not allowed; give an identifier as hubs spell it, like apache-2.0")
    chosen = FORMATS[format_name]

    def read(checkpoint: Checkpoint) -> tuple[Subject, list[Checkpoint], str]:
        """What is exported, the checkpoints whose mean it is, and its card, for which they are read too."""
        nonlocal verify
        check_output(
            output,
            overwrite=overwrite,
            what="an export",
            files=_names(output),
            mark="config.json",
            recognised=_is_export(output),
        )
        verify = _may_verify(verify, needs_transformers=chosen.needs_transformers)
        config, vocabulary = checkpoint.config(), checkpoint.tokenizer()
        _refuse(chosen, format_name, checkpoint, config)
        averaged = _last(checkpoint, average)
        model = _read_model(averaged, config)
        card = model_card(
            config, vocabulary, model, averaged, usage=chosen.usage, dtype=dtype, licence=licence, name=output.name
        )
        return Subject(config, vocabulary, model), averaged, card

    subject, averaged, card = read_whole(source, read, count=average)
    config = subject.config
    if format_name == "huggingface" and config.model.attention_dropout != config.model.dropout:
        console.warn(
            "transformers has one dropout rate for everything: fine-tuning there uses model.dropout "
            f"{config.model.dropout:g} where model.attention_dropout is {config.model.attention_dropout:g} here"
        )
    difference = cost = None
    with replacing(output, what="the export") as folder:
        with console.busy(f"writing {output}", at_once=False):
            _write(folder, chosen, subject, averaged, dtype=torch.float32)
        (folder / "README.md").write_text(card, encoding="utf-8")
        if verify:
            difference = _compare(folder, chosen, subject)
        if dtype != "fp32":  # what was just compared, rounded: the difference is now that of rounding alone
            with console.busy(f"rounding it to {dtype}", at_once=False):
                _write(folder, chosen, subject, averaged, dtype=DTYPES[dtype])
                cost = chosen.difference(folder, subject) if verify else None
    found = {
        "output": str(output),
        "format": format_name,
        "checkpoint": ", ".join(str(each.folder) for each in averaged),
        "parameters": count_parameters(subject.model),
        "vocab_size": subject.vocabulary.vocab_size,
        "dtype": dtype,
        "max_logit_difference": difference,
    }
    return found if dtype == "fp32" else found | {"rounding_logit_difference": cost}


def _refuse(chosen: Format, format_name: str, checkpoint: Checkpoint, config: Config) -> None:
    reasons = chosen.reasons(config, checkpoint.tokenizer())
    if not reasons:
        return
    others = [
        name
        for name, other in FORMATS.items()
        if name != format_name and not other.reasons(config, checkpoint.tokenizer())
    ]
    raise UsageError(
        f"{checkpoint.folder}: cannot be exported to {chosen.target}: {'; '.join(reasons)}; "
        f"{' and '.join(f'--format {name}' for name in others)} can hold it"
    )


def _names(output: Path) -> set[str]:
    """Every name that an export may have written."""
    shards = {path.name for path in output.glob("model-*-of-*.safetensors")} if output.is_dir() else set()
    return {
        *("config.json", "config.yaml", "model.safetensors", "model.safetensors.index.json", "README.md"),
        *tokenizer.FILES,
        *("vocab.txt", SentencePieceTokenizer.cleanup_name, *TOKENIZER_FILES.values()),
        *remote_code.code_files(),
        *shards,
    }


def _is_export(folder: Path) -> bool:
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and str(found.get(WRITTEN_BY, "")).startswith("xltrain")


def _may_verify(wanted: bool | None, *, needs_transformers: bool) -> bool:
    if wanted is False or not needs_transformers or find_spec("transformers") is not None:
        return wanted is not False
    install = "pip install 'xltrain[transformers]'"
    if wanted:
        raise UsageError(f"--verify needs transformers, which is not installed: {install}, or give --no-verify")
    console.warn(f"the export is not verified, since transformers is not installed ({install})")
    return False


def _last(checkpoint: Checkpoint, count: int) -> list[Checkpoint]:
    """The checkpoint and those before it in its run, ``count`` in all, the newest first.

    Raises:
        UsageError: if there are fewer.
    """
    if count == 1:
        return [checkpoint]
    run = checkpoint.folder.parent.parent
    found = [Checkpoint(folder) for folder in list_checkpoints(run) if damage(folder) is None]
    found = [each for each in found if each.step <= checkpoint.step]
    if len(found) < count:
        raise UsageError(
            f"--average: {count} checkpoints are wanted, and {run} holds {len(found)} up to step {checkpoint.step:,}; "
            "ask for fewer, or train with a larger checkpoint.keep"
        )
    return found[:count]


def _read_model(checkpoints: list[Checkpoint], config: Config) -> LanguageModel:
    """The model on the CPU, with the plain attention backend: the one that needs nothing special of a device.

    Of several checkpoints, the mean of their weights, summed in float64.
    """
    cpu = torch.device("cpu")
    settings = config.model.model_copy(update={"attention_backend": "math"})
    model = checkpoints[0].model(cpu, config.model_copy(update={"model": settings})).eval()
    if len(checkpoints) > 1:
        parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
        sums = {name: tensor.double() for name, tensor in parameters.items()}
        for checkpoint in checkpoints[1:]:
            for name, tensor in checkpoint.weights(cpu).items():
                sums[name] += tensor.double()
        for name, tensor in parameters.items():
            tensor.copy_(sums[name] / len(checkpoints))
    return model


def _write(
    folder: Path, chosen: Format, subject: Subject, checkpoints: list[Checkpoint], *, dtype: torch.dtype
) -> None:
    steps = ", ".join(str(each.step) for each in checkpoints)
    settings = chosen.settings(subject) | {
        "dtype": str(dtype).removeprefix("torch."),
        WRITTEN_BY: f"xltrain {version('xltrain')}, {'step' if len(checkpoints) == 1 else 'mean of steps'} {steps}",
    }
    configuration = folder / "config.json"
    configuration.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    for earlier in folder.glob("model*.safetensors*"):
        earlier.unlink()
    tensors = {name: tensor.to(dtype).contiguous() for name, tensor in chosen.tensors(subject).items()}
    beyond = [name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())]
    if beyond:
        raise XltrainError(
            f"{', '.join(beyond[:3])}: holds numbers that {str(dtype).removeprefix('torch.')} has not, or none; "
            "nothing was exported" + ("; give --dtype bf16 or fp32" if dtype == torch.float16 else "")
        )
    save(tensors, folder)
    for path in folder.glob("*.safetensors"):
        path.chmod(configuration.stat().st_mode)  # safetensors lets nobody else read what it writes
    for name, data in chosen.files(subject).items():
        (folder / name).write_bytes(data)


def save(tensors: dict[str, Tensor], folder: Path) -> None:
    """``model.safetensors``, or several files and their index where that would be large."""
    save_torch_state_dict(tensors, folder, max_shard_size=SHARD_BYTES, metadata={"format": "pt"})


def _compare(folder: Path, chosen: Format, subject: Subject) -> float:
    reader = "transformers" if chosen.needs_transformers else "a new model"
    with console.busy(f"comparing its logits with those that {reader} computes from it", at_once=False):
        found = chosen.difference(folder, subject)
    if not found <= TOLERANCE:  # so that a NaN fails too
        raise XltrainError(
            f"{reader} computes other logits from the exported folder: they differ by up to {found:.2g}, and "
            f"{TOLERANCE:g} is allowed; nothing was exported, please report this with the run's config.yaml"
        )
    return found
