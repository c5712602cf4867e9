"""How a text was read and what was asked of it: what has to agree before two figures are compared."""

import hashlib
from typing import Any

import numpy as np

from xltrain.config.schema import Config
from xltrain.data.prepare import stores_of
from xltrain.data.store import Split
from xltrain.data.tokenizer import Tokenizer
from xltrain.errors import UsageError
from xltrain.evaluation.loading import Loaded
from xltrain.evaluation.perplexity import SEED, Protocol
from xltrain.evaluation.texts import line_end

NEXT_TOKEN = ("causal", "seq2seq")
"""Objectives whose rows predict the token after their place."""
SAMPLED = ("permutation", "masked", "seq2seq")
"""Objectives whose targets are drawn."""


def draws_targets(config: Config, *, left_to_right: bool) -> bool:
    """Whether another draw would ask for other targets, or in another order."""
    return config.objective.name in SAMPLED and not left_to_right and not config.two_columns


def said_of_text(config: Config, protocol: Protocol, text: Split, *, num_layers: int) -> dict[str, Any]:
    """How the text was read."""
    stream = protocol.mode == "stream"
    rows = protocol.rows(text.num_tokens, num_layers=num_layers) if stream else protocol.batch_size
    warm_up = protocol.warm_up(num_layers=num_layers) if stream and rows > 1 else 0
    apart = protocol.mode in ("document", "pairs") or not config.segments.cross_documents
    longest = int(text.lengths().max()) if apart else text.num_tokens
    window = protocol.mem_len if config.model.same_length else protocol.mem_len + min(protocol.seq_len, longest)
    if config.segments.initial_memory == "absent":
        window = min(window, longest)
    return {
        "stride": protocol.stride if protocol.mode == "sliding" else None,
        "reuse_len": protocol.advance,
        "attention_len": window,
        "clamp_len": config.model.clamp_len,
        "same_length": config.model.same_length,
        "initial_memory": config.segments.initial_memory,
        "documents_apart": not config.segments.cross_documents,
        "rows": rows,
        "warm_up_segments": warm_up,
    }


def said_of_targets(config: Config, *, left_to_right: bool) -> dict[str, Any]:
    """What decides which targets are drawn; nothing where none are."""
    if not draws_targets(config, left_to_right=left_to_right):
        return {}
    found: dict[str, Any] = {"seed": SEED}
    wanted = config.objective
    if wanted.name in ("permutation", "masked"):
        found |= {
            "predict_fraction": None if wanted.num_predict else wanted.predict_fraction,
            "num_predict": wanted.num_predict,
            "max_span": wanted.max_span,
            "span_unit": wanted.span_unit,
        }
    if wanted.name == "permutation":
        found["perm_size"] = wanted.perm_size
    return found


def said_of_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """Its kind, its size, whether line ends are ids, and a mark that two tokenizers share only if they are the same."""
    mark = hashlib.sha256()
    for name, content in sorted(tokenizer.files().items()):
        mark.update(f"{name} {len(content)}\n".encode() + content)
    return {
        "tokenizer": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "line_ends_predicted": line_end(tokenizer) is not None,
        "tokenizer_digest": mark.hexdigest()[:16],
    }


def training_unigram(loaded: Loaded) -> np.ndarray | None:
    """(V,) how often each id occurs in the training text, if its token store is still here."""
    store = next(stores_of(loaded.config, loaded.fingerprint), None) if loaded.fingerprint else None
    if store is None:
        return None
    try:
        found = store.unigram()
    except UsageError:  # damaged, which a run will say
        return None
    return found if len(found) == loaded.tokenizer.vocab_size else None
