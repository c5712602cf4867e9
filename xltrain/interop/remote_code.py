"""Models that no class of transformers can hold, as a folder that brings its own code.

The code is this program's: the files of ``xltrain/model`` that the wrapper in ``xltrain/interop/remote`` needs, each
copied with its imports made relative and nothing else changed.
"""

import ast
import re
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xltrain.config.schema import Config
from xltrain.data.tokenizer import Tokenizer
from xltrain.errors import XltrainError
from xltrain.interop.verify import ROWS, SEGMENTS, cleanly, quiet
from xltrain.model.softmax import Softmax
from xltrain.model.transformer import LanguageModel
from xltrain.training.build import model_arguments

ROOTS = ("xltrain.interop.remote.modeling_xltrain", "xltrain.interop.remote.configuration_xltrain")

_OURS = re.compile(r"^from xltrain\.(?:model|interop\.remote)\.(\w+) import", re.MULTILINE)


def code_files() -> dict[str, str]:
    """Name and content of every module that the exported folder needs."""
    found: dict[str, str] = {}
    waiting = list(ROOTS)
    while waiting:
        module = waiting.pop()
        package, _, name = module.rpartition(".")
        if f"{name}.py" in found:
            continue
        source = (files(package) / f"{name}.py").read_text(encoding="utf-8")
        waiting += [
            node.module
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("xltrain.")
        ]
        found[f"{name}.py"] = f"# From xltrain {version('xltrain')}, MIT licence.\n" + _OURS.sub(
            r"from .\1 import", source
        )
    return found


def class_name(config: Config) -> tuple[str, str]:
    """transformers' name of the kind of model, and ours."""
    if config.objective.name == "masked":
        return "AutoModelForMaskedLM", "XltrainForMaskedLM"
    return "AutoModelForCausalLM", "XltrainForCausalLM"


def remote_config(config: Config, tokenizer: Tokenizer, *, special_ids: dict[str, int]) -> dict[str, Any]:
    """The content of ``config.json``."""
    stack = model_arguments(config, vocab_size=tokenizer.vocab_size)
    kind, name = class_name(config)
    return {
        "architectures": [name],
        "model_type": "xltrain",
        "auto_map": {
            "AutoConfig": "configuration_xltrain.XltrainConfig",
            kind: f"modeling_xltrain.{name}",
        },
        "vocab_size": tokenizer.vocab_size,
        "stack": {key: list(value) if isinstance(value, tuple) else value for key, value in stack.items()},
        "objective": config.objective.name,
        "seq_len": config.segments.seq_len,
        "mem_len": config.segments.mem_len,
        "parts": config.two_columns and config.model.segment_embeddings,
        "document_separator": config.corpus.document_separator,  # means nothing there, nor does the next:
        "cross_documents": config.segments.cross_documents,  # `import-checkpoint` reads them
        "end_of_document": None if config.segments.cross_documents else tokenizer.eod,
        "tie_word_embeddings": config.model.tie_embeddings,
        "bos_token_id": special_ids.get("<s>"),
        "eos_token_id": special_ids.get("<eod>", special_ids.get("<eos>")),
        "pad_token_id": special_ids.get("<pad>"),
    }


def load_folder(folder: Path, config: Config) -> Any:
    """The model of an exported folder, as transformers loads it.

    Raises:
        XltrainError: if transformers refuses it, or does not find every tensor a place.
    """
    import transformers

    kind, _ = class_name(config)
    try:
        with quiet():
            loaded: Any = getattr(transformers, kind).from_pretrained(
                folder,
                trust_remote_code=True,
                output_loading_info=True,
                local_files_only=True,
                dtype=torch.float32,
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                folder, trust_remote_code=True, local_files_only=True
            )
    except (OSError, ValueError, ImportError) as error:
        raise XltrainError(f"transformers does not load the exported folder: {error}") from error
    return cleanly(*loaded, pieces=len(tokenizer))


@torch.no_grad()
def largest_difference(ours: LanguageModel, theirs: Any, *, seq_len: int, parts: bool, seed: int = 0) -> float:
    """Largest absolute difference of logits over three consecutive segments of random tokens, memory carried.

    Both read from left to right where the objective has a direction; the stack is asked here for each objective in the
    way in which training asks it.

    Args:
        ours: the trained model, in evaluation mode.
        theirs: the wrapper, as transformers loaded it.
        seq_len: T, not above that of ``theirs.config``.
        parts: whether training gave sources and targets as parts of their own.
        seed: of the tokens.
    """
    generator = torch.Generator().manual_seed(seed)
    config, head = theirs.config, ours.softmax
    score = head.logits if isinstance(head, Softmax) else head.log_probs
    memory, mems, largest = ours.empty_memory(rows=ROWS, mem_len=config.mem_len), None, 0.0
    began = torch.zeros(ROWS, dtype=torch.int64)  # documents begun so far, by row
    for _ in range(SEGMENTS):
        tokens = torch.randint(config.vocab_size, (ROWS, seq_len), generator=generator)  # (B, T)
        order = torch.arange(seq_len).expand_as(tokens)  # (B, T)
        types = None
        document = None
        options: dict[str, Any] = {}
        skip = 0
        if config.objective == "masked":
            order = torch.zeros_like(order)
        elif config.objective == "seq2seq":
            types = (order >= seq_len // 2).long()
            order = torch.where(types == 0, 0, 1 + order)
            options = {"segment_ids": types} if parts else {}
        elif config.objective == "permutation":
            places = torch.arange(1, seq_len).expand(ROWS, -1)  # (B, T-1): a query for each token but the first
            options, skip = {"stream": "query", "predict": places}, 1
        if config.end_of_document is not None:
            document, began = _documents(tokens, began, end=config.end_of_document)
        hidden, memory = ours.hidden(tokens, order, memory, document=document, **options)
        found = theirs(input_ids=tokens, token_type_ids=types, mems=mems, use_cache=True)
        mems = found.mems
        expected = score(hidden)  # (B, T or T-1, V)
        largest = max(largest, (expected - found.logits[:, : seq_len - skip]).abs().max().item())
        if not config.mem_len:
            mems = None
    return largest


def _documents(tokens: Tensor, began: Tensor, *, end: int) -> tuple[Tensor, Tensor]:
    """Number of every token's document, counting on from ``began``; and the count after these tokens."""
    numbers = torch.empty_like(tokens)
    now = began.clone()
    for place in range(tokens.shape[1]):
        numbers[:, place] = now
        now = now + (tokens[:, place] == end)
    return numbers, now
