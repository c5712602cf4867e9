"""Pickles of others are read for their data alone: nothing in them is run, and nothing of them is written."""

import contextlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import foreign
import pytest
import torch

from xltrain.errors import UsageError
from xltrain.interop.pickles import Bag, read_pickle, read_torch


class Touch:
    """Pickled, it asks for a file to be touched when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("old", [False, True], ids=["zip", "old form"])
def test_a_pickle_that_would_touch_a_file(
    old: bool, refused_import: Callable[..., str], golden: Any, tmp_path: Path
) -> None:
    touched, config = tmp_path / "touched", golden[0]
    source = foreign.write_original(tmp_path / "source", *golden)
    for content in (
        Touch(touched),
        {"model_state": {"a": Touch(touched)}, "model_config": {"n_layer": 1}},
        {"a": torch.zeros(2), "b": [Touch(touched)]},
    ):
        torch.save(content, source, _use_new_zipfile_serialization=not old)
        sentence = refused_import(source)
        assert "model.pt: asks for posix.mkdir" in sentence
        assert "nothing of it was read" in sentence
    source = foreign.write_original(tmp_path / "source", config, golden[1])
    torch.save({"idx2sym": Touch(touched)}, source.parent / "cache.pt", _use_new_zipfile_serialization=not old)
    assert "cache.pt: asks for posix.mkdir" in refused_import(source)
    assert not touched.exists()


def test_plain_pickles_and_weights_of_transformers(
    refused_import: Callable[..., str], golden: Any, xlnet: Path, tmp_path: Path
) -> None:
    touched = tmp_path / "touched"
    folder = foreign.write_transfo_xl(tmp_path / "txl", *golden)
    foreign.write_pickle(folder / "vocab.pkl", {"idx2sym": ["a"], "more": Touch(touched)})
    assert "vocab.pkl: asks for posix.mkdir" in refused_import(folder)
    (xlnet / "model.safetensors").unlink()
    torch.save({"a": Touch(touched)}, xlnet / "pytorch_model.bin")
    assert "pytorch_model.bin: asks for posix.mkdir" in refused_import(xlnet)
    assert not touched.exists()


@pytest.mark.parametrize(
    "name",
    [
        "data_utils\nCorpus",
        "collections\nCounter",
        "collections\nOrderedDict",
        "builtins\nset",
        "torch._utils\n_rebuild_tensor",
        "torch._utils\n_rebuild_tensor_v2",
        "torch._utils\n_rebuild_parameter",
    ],
)
def test_a_pickle_cannot_have_torch_write_a_file_of_differences(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its old form torch compares the source of a class with the stored one, and writes what differs on request.

    The pickle sets ``dump_patches`` on something that it names, and then says that this is a stored class.
    """
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.pt"
    torch.save({}, path, _use_new_zipfile_serialization=False)
    start = path.read_bytes()
    start = start[: start.index(b"\x80\x02}q\x00.")]  # the content; the magic number, version and machine are before it

    def text(value: str) -> bytes:
        return b"X" + len(value).to_bytes(4, "little") + value.encode()

    named = b"c" + name.encode() + b"\n"
    change = b"N}" + text("dump_patches") + b"\x88s\x86b"  # BUILD of (None, {"dump_patches": True})
    module = b"(" + text("module") + named + text("file") + text("other source") + b"tQ"  # a persistent id
    path.write_bytes(start + b"\x80\x02" + named + change + b"0" + module + b"." + pickle.dumps([], protocol=2))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UsageError, match=r"not a file of torch\.save or pickle, or one that is damaged"):
        read_torch(path)
    assert sorted(tmp_path.iterdir()) == before
    path.write_bytes(start + b"\x80\x02" + module + b"." + pickle.dumps([], protocol=2))
    with contextlib.suppress(UsageError):
        read_torch(path)
    assert sorted(tmp_path.iterdir()) == before
    assert Bag.dump_patches is False


def test_a_module_that_contains_itself(refused_import: Callable[..., str], golden: Any, tmp_path: Path) -> None:
    source = foreign.write_original(tmp_path / "source", *golden)
    with foreign.programs() as classes:
        model = classes["MemTransformerLM"]()
        model._modules["inner"] = model
        torch.save(model, source)
    assert "model.pt: not a file of torch.save or pickle, or one that is damaged" in refused_import(source)


def test_functions_beyond_data_are_not_even_named(tmp_path: Path) -> None:
    for name in ("builtins\neval", "os\nsystem", "torch\nload", "collections\nnamedtuple", "mem_transformer\nother"):
        path = tmp_path / "a.pkl"
        path.write_bytes(f"\x80\x02c{name}\n.".encode("latin-1"))
        with pytest.raises(UsageError, match=name.replace("\n", ".")):
            read_pickle(path)


def test_torch_is_asked_for_weights_only(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"a": torch.arange(3)}, path)
    assert torch.equal(read_torch(path)["a"], torch.arange(3))
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(UsageError, match="not a file of"):
        read_torch(path)
