"""Files that Python pickled, read without running anything that they ask for.

A pickle is a program: it may import any function and call it. Here only tensors, plain containers and numbers come
through, and the classes listed in ``INERT`` as bags of their attributes, without any of their code. A file that names
anything else is refused as a whole. Files of ``torch.save`` are read by torch's own ``weights_only`` reader. That one
refuses whole modules in torch's form of before 2020, which the original Transformer-XL's are, so these are read by
Python's with the same list, as are plain pickles.
"""

import pickle
import re
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import torch

from xltrain.errors import UsageError


class _Sealed(type):
    """A pickle can set attributes of what it names; those of these classes it cannot."""

    def __setattr__(cls, name: str, value: object) -> None:
        raise TypeError(f"{cls.__name__}.{name} cannot be set")


class _Rebuild:
    """A function that makes a tensor, without attributes that a pickle could set.

    torch writes a file for what has a source and an attribute ``dump_patches``, which a function could be given.
    """

    __slots__ = ("function",)
    function: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        object.__setattr__(self, "function", function)

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def __setattr__(self, name: str, value: object) -> None:
        raise TypeError(f"{name} cannot be set")


class Bag(metaclass=_Sealed):
    """Stands for an object whose class is not there: its attributes, and nothing that it could do."""

    dump_patches = False  # torch asks every pickled module of the old form whether to write a file of differences

    def __init__(self, *arguments: object) -> None:
        del arguments

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)

    def __getattr__(self, name: str) -> Any:
        """Submodules and parameters of a torch module, which lie in dictionaries of their own."""
        for place in ("_modules", "_parameters", "_buffers"):
            if name in self.__dict__.get(place, ()):
                return self.__dict__[place][name]
        raise AttributeError(name)


INERT: dict[str, str] = {
    "mem_transformer": "MemTransformerLM AdaptiveEmbedding PositionalEmbedding PositionwiseFF MultiHeadAttn "
    "RelMultiHeadAttn RelPartialLearnableMultiHeadAttn RelLearnableMultiHeadAttn DecoderLayer "
    "RelLearnableDecoderLayer RelPartialLearnableDecoderLayer",
    "utils.proj_adaptive_softmax": "ProjectedAdaptiveLogSoftmax",
    "utils.log_uniform_sampler": "LogUniformSampler",
    "utils.data_parallel": "BalancedDataParallel",
    "utils.vocabulary": "Vocab OpenAIVocab",
    "vocabulary": "Vocab",
    "data_utils": "Corpus LMOrderedIterator",
    "torch.nn.modules.container": "ModuleList ParameterList Sequential",
    "torch.nn.modules.linear": "Linear",
    "torch.nn.modules.sparse": "Embedding",
    "torch.nn.modules.dropout": "Dropout",
    "torch.nn.modules.activation": "ReLU",
    "torch.nn.modules.normalization": "LayerNorm",
    "torch.nn.parallel.data_parallel": "DataParallel",
    "torch.nn.backends.thnn": "_get_thnn_function_backend",
    "argparse": "Namespace",
    # What tokenizers of transformers 4.x keep beside the words.
    "tokenizers": "AddedToken",
    "transformers.tokenization_utils": "Trie",
    "transformers.tokenization_utils_base": "AddedToken",
    "sacremoses.normalize": "MosesPunctNormalizer",
    "sacremoses.tokenize": "MosesTokenizer MosesDetokenizer",
    "re": "_compile",
}
"""Module -> classes (and functions that make an object) that become a bag."""

BAGS: dict[str, type[Bag]] = {
    f"{module}.{name}": cast(type[Bag], _Sealed(name, (Bag,), {}))
    for module, names in INERT.items()
    for name in names.split()
}

_LET_THROUGH: dict[str, Any] = {
    "collections.OrderedDict": OrderedDict,
    "collections.Counter": _Sealed("Counter", (Bag,), {}),
    "builtins.set": set,
    "__builtin__.set": set,
    "torch._utils._rebuild_tensor": _Rebuild(torch._utils._rebuild_tensor),
    "torch._utils._rebuild_tensor_v2": _Rebuild(torch._utils._rebuild_tensor_v2),
    "torch._utils._rebuild_parameter": _Rebuild(torch._utils._rebuild_parameter),
}
"""All of these refuse to have attributes set."""

_ZIP, _OLD = b"PK\x03\x04", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""How files of ``torch.save`` begin, in the current form and in the old one."""


class Unpickler(pickle.Unpickler):
    """Python's, for which nothing exists but what is let through."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        name = f"{module_name}.{global_name}"
        if name in _LET_THROUGH:
            return _LET_THROUGH[name]
        if name in BAGS:
            return BAGS[name]
        raise pickle.UnpicklingError(f"GLOBAL {name} is not let through")


class _Restricted:
    """What torch takes for the module ``pickle``."""

    __name__ = "restricted"
    Unpickler = Unpickler

    @staticmethod
    def load(file: IO[bytes], **options: Any) -> Any:
        return Unpickler(file, **options).load()


def read_torch(path: Path) -> Any:
    """The content of a file of ``torch.save``, in the current or the old form, tensors on the CPU.

    Raises:
        UsageError: if the file cannot be read, or asks for anything beyond data.
    """
    with explained(path), path.open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old files hold the source of their classes, which torch compares
        begin = file.read(len(_OLD))
        file.seek(0)
        if begin == _OLD:
            return torch.load(file, map_location="cpu", pickle_module=_Restricted(), weights_only=False)
        if not begin.startswith(_ZIP):  # torch would also try forms that nobody has written since 2017
            raise pickle.UnpicklingError("neither form of torch.save")
        with torch.serialization.safe_globals([(bag, name) for name, bag in BAGS.items()]):
            return torch.load(file, map_location="cpu", weights_only=True)


def read_pickle(path: Path) -> Any:
    """The content of a plain pickle; a file of ``torch.save`` is recognised and read as one.

    Raises:
        UsageError: as :func:`read_torch`.
    """
    with explained(path), path.open("rb") as file:
        begin = file.read(len(_OLD))
        file.seek(0)
        if begin != _OLD and not begin.startswith(_ZIP):
            return Unpickler(file).load()
    return read_torch(path)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Every failure of reading ``path`` as one sentence."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UsageError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        named = re.search(r"GLOBAL ([\w.]+)|function ([\w.]+)|class ([\w.]+)", str(error))
        if named is None:
            why = "not a file of torch.save or pickle, or one that is damaged or was cut short"
            raise UsageError(f"{path}: {why}") from None
        raise UsageError(
            f"{path}: asks for {next(filter(None, named.groups()))}, which is no part of a Transformer-XL checkpoint; "
            "a file like that could run any program, so nothing of it was read"
        ) from None


def tensors_of(module: Bag, prefix: str = "") -> dict[str, torch.Tensor]:
    """The parameters and buffers of a pickled torch module, by the names of its ``state_dict``."""
    found: dict[str, torch.Tensor] = {}
    for place in ("_parameters", "_buffers"):
        for name, tensor in getattr(module, place, {}).items():
            if isinstance(tensor, torch.Tensor):
                found[prefix + name] = tensor.detach()
    for name, inner in getattr(module, "_modules", {}).items():
        if isinstance(inner, Bag):
            found |= tensors_of(inner, f"{prefix}{name}.")
    return found
