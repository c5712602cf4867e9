"""Does the exported folder give the same numbers? Both programs read the same segments, and their logits are compared.

Shapes: B rows, T segment length, M memory length, P predicted positions, D model size, V vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xltrain.errors import XltrainError
from xltrain.model.softmax import Softmax
from xltrain.model.transformer import LanguageModel
from xltrain.model.visibility import Visibility

ROWS, SEGMENTS = 2, 3

LONGEST = 128
"""Segments of a longer model are cut to this: transformers computes T queries per segment where P would do."""


def load_folder(folder: Path) -> Any:
    """The model of an exported folder, as transformers loads it.

    Raises:
        XltrainError: if transformers refuses it, or reports any tensor as missing, unexpected or of another shape, or
            if the folder's tokenizer has another size than its model.
    """
    from transformers import AutoTokenizer, XLNetLMHeadModel

    try:
        with quiet():
            loaded: Any = XLNetLMHeadModel.from_pretrained(
                folder, output_loading_info=True, local_files_only=True, dtype=torch.float32
            )
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, ImportError) as error:
        raise XltrainError(f"transformers does not load the exported folder: {error}") from error
    return cleanly(*loaded, pieces=len(tokenizer))


def cleanly(model: Any, report: dict[str, Any], *, pieces: int) -> Any:
    """The model in evaluation mode, if transformers found every tensor a place and the tokenizer has its size.

    Raises:
        XltrainError: otherwise, with all that transformers reported.
    """
    faults = [f"{kind}: {', '.join(map(str, found))}" for kind, found in report.items() if found]
    if pieces != model.config.vocab_size:
        faults.append(f"the tokenizer has {pieces:,} pieces and the model {model.config.vocab_size:,}")
    if faults:
        raise XltrainError(f"transformers does not load the exported folder cleanly: {'; '.join(faults)}")
    return model.eval()


@torch.no_grad()
def largest_difference(
    ours: LanguageModel,
    theirs: Any,
    *,
    seq_len: int,
    mem_len: int,
    num_predict: int,
    with_segments: bool,
    seed: int = 0,
) -> float:
    """Largest absolute difference of logits over three consecutive segments of random tokens, memory carried.

    Every segment has targets and an order of its own. Both sides must be in evaluation mode, so without dropout.

    Args:
        ours: the trained model.
        theirs: an ``XLNetLMHeadModel`` with the same weights.
        seq_len: T.
        mem_len: M, as in ``theirs.config``.
        num_predict: P, below T: where a first target could see nothing at all, transformers lets it see everything.
        with_segments: give segment ids too.
        seed: of tokens, targets and orders.
    """
    generator = torch.Generator().manual_seed(seed)
    head, vocab_size = ours.softmax, theirs.config.vocab_size
    if not isinstance(head, Softmax):
        raise TypeError(f"{type(head).__name__} has no logits over the whole vocabulary")
    memory, mems = ours.empty_memory(rows=ROWS, mem_len=mem_len), None
    largest = 0.0
    for _ in range(SEGMENTS):
        tokens = torch.randint(vocab_size, (ROWS, seq_len), generator=generator)  # (B, T)
        place = torch.rand(ROWS, seq_len, generator=generator).argsort(dim=1)  # (B, T)
        predict = place[:, :num_predict].sort(dim=1).values  # (B, P)
        is_target = torch.zeros(ROWS, seq_len, dtype=torch.bool).scatter(1, predict, True)  # (B, T)
        order = torch.where(is_target, 1 + torch.rand(ROWS, seq_len, generator=generator).argsort(dim=1), 0)  # (B, T)
        parts = torch.randint(2, (ROWS, seq_len), generator=generator) if with_segments else None  # (B, T)
        hidden, memory = ours.hidden(tokens, order, memory, stream="query", predict=predict, segment_ids=parts)
        found = theirs(
            input_ids=tokens,
            perm_mask=hidden_keys(order, is_target).to(hidden.dtype),
            target_mapping=torch.nn.functional.one_hot(predict, seq_len).to(hidden.dtype),  # (B, P, T)
            token_type_ids=parts,
            mems=mems,
            use_mems=mem_len > 0,
        )
        mems = found.mems if mem_len else None
        largest = max(largest, (head.logits(hidden) - found.logits).abs().max().item())  # (B, P, V)
    return largest


def hidden_keys(order: Tensor, is_target: Tensor) -> Tensor:
    """(B, T, T) transformers' ``perm_mask``: true where the row may not see the key.

    One mask serves both of its streams; it adds by itself that a position of the content stream sees itself. So the
    rows of targets are those of the query stream, and of others, which have no query, those of the content stream.

    Args:
        order: (B, T).
        is_target: (B, T).
    """
    seq_len = order.shape[1]
    seen = Visibility.of_segment(
        order=order,
        memory_valid=torch.zeros(order.shape[0], 0, dtype=torch.bool),
        slots=torch.arange(seq_len).expand_as(order),
    ).dense()  # (B, 2T, T)
    return ~torch.where(is_target[:, :, None], seen[:, seq_len:], seen[:, :seq_len])


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
