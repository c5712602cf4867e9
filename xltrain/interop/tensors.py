"""Weights as transformers lays them into a folder: safetensors or a pickle, in one file or in several."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from xltrain.errors import UsageError
from xltrain.interop.imported import read_json
from xltrain.interop.pickles import read_torch


def folder_tensors(folder: Path) -> tuple[dict[str, Tensor], Path]:
    """The tensors of a folder of transformers, in one file or several, and the file to name in sentences.

    Raises:
        UsageError: if there are none, or a file is damaged.
    """
    for name in ("model.safetensors", "pytorch_model.bin"):
        index = folder / f"{name}.index.json"
        if index.is_file():
            parts = read_json(index).get("weight_map")
            if not isinstance(parts, dict) or not all(isinstance(part, str) for part in parts.values()):
                raise UsageError(f"{index}: has no weight_map, which says where each tensor lies")
            found: dict[str, Tensor] = {}
            for part in sorted(set(parts.values())):
                found |= _tensors_in(folder / Path(part).name)
            return found, index
        if (folder / name).is_file():
            return _tensors_in(folder / name), folder / name
    raise UsageError(f"{folder}: holds no weights (model.safetensors or pytorch_model.bin)")


def _tensors_in(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise UsageError(f"{path}: not a safetensors file, or one that was cut short ({error})") from None
    found = read_torch(path)
    if not isinstance(found, dict):
        raise UsageError(f"{path}: holds no tensors by name")
    return {str(name): tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}
