"""``import-checkpoint``: another program's checkpoint in, one of ours out.

The result is a folder like ``checkpoints/step-N`` without what only a running training has (optimizer, memory,
position): ``eval-ppl``, ``inspect`` and ``export-checkpoint`` read it, and ``run.init_from`` starts a run from it.
"""

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from xltrain import console
from xltrain.config.init_from import MARK, TOKENIZER_FILES
from xltrain.config.load import dump_config, validate
from xltrain.config.schema import Config
from xltrain.data.tokenizer import SentencePieceTokenizer, Tokenizer
from xltrain.data.words import WordTokenizer
from xltrain.errors import UsageError
from xltrain.interop import own, readers
from xltrain.interop.folder import check_output, replacing
from xltrain.interop.imported import Imported, listed, read_json
from xltrain.training.build import build_model, count_parameters
from xltrain.training.checkpoint import load_weights, mark_complete

ABOUT = "imported.json"
"""Says where an imported checkpoint comes from."""

INITIAL_MEMORY = ("absent", "zeros")

FILES = {
    *("config.yaml", "model.safetensors", ABOUT, MARK),
    *(*TOKENIZER_FILES.values(), SentencePieceTokenizer.cleanup_name),
}
"""Every name that an import may have written."""

FORMATS: dict[str, tuple[Callable[[Path, Path | None], Imported], str]] = {
    "huggingface": (readers.read_xlnet, "a folder of transformers' XLNetLMHeadModel"),
    "xltrain": (own.read_own, "an export of xltrain itself, remote-code or safetensors"),
    "transfo-xl": (readers.read_transfo_xl, "a folder of TransfoXLLMHeadModel, of transformers 4"),
    "tensorflow-xlnet": (readers.read_tensorflow_xlnet, "xlnet_model.ckpt of the original XLNet"),
    "transformer-xl": (readers.read_pytorch_transformer_xl, "model.pt of the original PyTorch Transformer-XL"),
    "nvidia-transformer-xl": (readers.read_pytorch_transformer_xl, "checkpoint_*.pt of NVIDIA's Transformer-XL"),
}
"""Name of a format -> its reader, and what it is."""

_MODEL_TYPES = {"xlnet": "huggingface", "transfo-xl": "transfo-xl"}
_PICKLES = {
    "model.pt": "transformer-xl",
    "checkpoint_best.pt": "nvidia-transformer-xl",
    "checkpoint_last.pt": "nvidia-transformer-xl",
}


def import_checkpoint(
    source: Path,
    output: Path,
    *,
    format_name: str,
    vocabulary: Path | None,
    initial_memory: str | None,
    overwrite: bool,
) -> dict[str, Any]:
    """Write ``output``; arguments as the command's options.

    Raises:
        UsageError: if ``source`` cannot be read as the format, or ``output`` may not be written; nothing is written.
        XltrainError: if writing fails; ``output`` is as it was.
    """
    if format_name not in ("auto", *FORMATS):
        raise UsageError(f"--format: {format_name!r} is not allowed; choose auto, {', '.join(FORMATS)}")
    if initial_memory not in (None, *INITIAL_MEMORY):
        allowed = ", ".join(INITIAL_MEMORY)
        raise UsageError(f"--initial-memory: {initial_memory!r} is not allowed; choose {allowed}")
    check_output(
        output,
        overwrite=overwrite,
        what="an import",
        files=FILES,
        mark=ABOUT,
        recognised=(output / ABOUT).is_file(),
    )
    name, path = find_source(source, format_name)
    reader, what = FORMATS[name]
    with console.busy(f"reading {path}, {what}"):
        imported = reader(path, vocabulary)
    config = configuration(imported, path, initial_memory=initial_memory)
    initial_memory = config.segments.initial_memory
    check_weights(imported, config, path)
    precisions = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in imported.weights.values()})
    notes = list(imported.notes)
    if imported.initial_memory == "zeros" and "initial_memory" not in imported.sections["segments"]:
        notes.append(
            "there, memory begins as zeros that rows attend to, and here "
            + (
                "too, as --initial-memory asks for"
                if initial_memory == "zeros"
                else "as nothing, so the first tokens of a text have other losses; --initial-memory zeros imports it "
                "as it is there"
            )
        )
    if precisions != ["float32"]:
        notes.append(f"weights are kept in float32; they were stored in {', '.join(precisions)}")
    about = {
        "imported_by": f"xltrain {version('xltrain')}",
        "format": imported.format,
        "source": str(path.resolve()),
        "initial_memory": initial_memory,
        "initial_memory_there": imported.initial_memory,
        "notes": notes,
    }
    with replacing(output, what="the import") as folder, console.busy(f"writing {output}", at_once=False):
        _write(folder, imported, config, about)
    for note in notes:
        console.say(f"note: {note}")
    return {
        "output": str(output),
        "format": imported.format,
        "source": str(path),
        "parameters": sum(tensor.numel() for tensor in imported.weights.values()),
        "vocab_size": imported.tokenizer.vocab_size,
        "initial_memory": initial_memory,
        "initial_memory_there": imported.initial_memory,
        "notes": notes,
    }


def find_source(source: Path, format_name: str) -> tuple[str, Path]:
    """The format, and the path that its reader takes: a folder, a file, or a TensorFlow checkpoint's prefix.

    Raises:
        UsageError: if nothing that can be imported lies there.
    """
    source = source if source.name else source.resolve()  # "." has no name to put an ending to
    if not source.name:
        raise UsageError(f"{source}: is no checkpoint; name the folder that holds it")
    index = _tensorflow_prefix(source)
    if index is not None:
        return _as_asked("tensorflow-xlnet", index, format_name)
    if source.is_file():
        if source.suffix != ".pt":
            part = source.suffix in (".safetensors", ".bin", ".json", ".model")
            raise UsageError(
                f"{source}: is one file of a checkpoint; give the folder that it lies in"
                if part
                else f"{source}: is no checkpoint; give the folder of one, or one of {', '.join(_PICKLES)}"
            )
        name = "nvidia-transformer-xl" if source.name.startswith("checkpoint") else "transformer-xl"
        pickled = {"transformer-xl", "nvidia-transformer-xl"}
        return (format_name if format_name in pickled else _as_asked(name, source, format_name)[0]), source
    if not source.is_dir():
        raise UsageError(
            f"{source}: no such file or folder (working directory {Path.cwd()}); nothing is downloaded, so give the "
            "place where the checkpoint lies"
        )
    if (source / MARK).is_file() or (source / "latest").is_file():
        raise UsageError(f"{source}: is xltrain's own already; run.init_from starts a run from it as it is")
    if (source / "config.json").is_file():
        settings = read_json(source / "config.json")
        if "stack" in settings:
            return _as_asked("xltrain", source, format_name)
        given = settings.get("model_type")
        if not isinstance(given, str) or given not in _MODEL_TYPES:
            known = ", ".join(_MODEL_TYPES)
            raise UsageError(f"{source / 'config.json'}: model_type is {given!r}; only {known} can be imported")
        return _as_asked(_MODEL_TYPES[given], source, format_name)
    for file_name, name in _PICKLES.items():
        if (source / file_name).is_file():
            return _as_asked(name, source / file_name, format_name)
    raise UsageError(
        f"{source}: holds nothing that can be imported: config.json of transformers, an .index of a TensorFlow "
        f"checkpoint, or {', '.join(_PICKLES)}"
    )


def _tensorflow_prefix(source: Path) -> Path | None:
    """``xlnet_model.ckpt`` for itself, for any of its files, and for its folder if no other checkpoint is there."""
    if source.with_name(source.name + ".index").is_file():
        return source
    for ending in (".index", ".meta"):
        if source.name.endswith(ending):
            return source.with_name(source.name.removesuffix(ending))
    if ".data-0" in source.name:
        return source.with_name(source.name.partition(".data-0")[0])
    if not source.is_dir() or (source / "config.json").is_file():
        return None
    found = sorted(path.with_name(path.name.removesuffix(".index")) for path in source.glob("*.index"))
    if len(found) > 1:
        raise UsageError(
            f"{source}: holds {len(found)} checkpoints; name one of {listed([str(path) for path in found])}"
        )
    return found[0] if found else None


def _as_asked(found: str, path: Path, asked: str) -> tuple[str, Path]:
    if asked not in ("auto", found):
        raise UsageError(f"{path}: is {FORMATS[found][1]} ({found}), not {FORMATS[asked][1]} as --format {asked} says")
    return found, path


def configuration(imported: Imported, source: Path, *, initial_memory: str | None = None) -> Config:
    """A configuration of which the checkpoint is one; ``initial_memory``: as asked for, whatever it is there.

    Raises:
        UsageError: if what the other program says makes no model here; each fault is named.
    """
    tokenizer, segments = imported.tokenizer, imported.sections["segments"]
    if initial_memory is not None:
        segments = segments | {"initial_memory": initial_memory}
    config, problems = validate(
        {
            "run": {"name": "imported"},
            "tokenizer": {"kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size} | _tokenizer_keys(tokenizer),
            **imported.sections,
            "corpus": imported.sections.get("corpus", {}) | {"train": [f"(unknown: imported from {source.name})"]},
            "segments": segments,
        }
    )
    if problems or config is None:
        raise UsageError(f"{source}: makes no model here: {'; '.join(f'{key}: {text}' for key, text in problems)}")
    return config


def _tokenizer_keys(tokenizer: Tokenizer) -> dict[str, bool]:
    """What a configuration says of how text is cut."""
    if isinstance(tokenizer, WordTokenizer):
        return {"eos": tokenizer.eos, "lower": tokenizer.lower}
    if isinstance(tokenizer, SentencePieceTokenizer):
        return {name.removeprefix("tokenizer."): True for name in tokenizer.cleanup.names()}
    return {}


def check_weights(imported: Imported, config: Config, source: Path) -> None:
    """Refuse weights that do not fit the model in name or shape, or that hold numbers that are none."""
    meta = torch.device("meta")
    with meta:
        model = build_model(config, vocab_size=imported.tokenizer.vocab_size, device=meta)
    load_weights(model, {name: tensor.to(meta) for name, tensor in imported.weights.items()}, source=source)
    broken = [name for name, tensor in imported.weights.items() if not bool(torch.isfinite(tensor).all())]
    if broken:
        raise UsageError(f"{source}: {listed(broken)} hold infinite or undefined numbers; training had failed before")
    counted = sum(tensor.numel() for tensor in imported.weights.values())
    assert counted == count_parameters(model)


def _write(folder: Path, imported: Imported, config: Config, about: dict[str, Any]) -> None:
    settings = folder / "config.yaml"
    settings.write_text(dump_config(config), encoding="utf-8")
    weights: dict[str, Tensor] = {name: tensor.float().contiguous() for name, tensor in imported.weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(settings.stat().st_mode)  # safetensors lets nobody else read what it writes
    for name, data in imported.tokenizer.files().items():
        (folder / name).write_bytes(data)
    (folder / ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    mark_complete(folder)
