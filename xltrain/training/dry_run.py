"""What a configuration amounts to, without reading any text."""

import torch

from xltrain.config.schema import Config
from xltrain.data.kinds import DEFAULT_PIECES, vocabulary_before_preparation
from xltrain.training.build import build_model, count_parameters
from xltrain.training.dealing import deal
from xltrain.training.report import shape_lines


def amounts(config: Config, processes: int = 1) -> list[str]:
    """Lines on parameters, rows, tokens and context; built on torch's meta device, so the size does not matter."""
    vocab_size, known = assumed_vocabulary(config)
    lines = shape_lines(config, deal(config.training, processes), parameters=parameters(config, vocab_size=vocab_size))
    if not known:
        lines.append(f"(the vocabulary is known only after prepare; counted here with {vocab_size:,})")
    return lines


def assumed_vocabulary(config: Config) -> tuple[int, bool]:
    """V, and whether the configuration says it; if only the text does, a size that its adaptive bins allow."""
    said = vocabulary_before_preparation(config.tokenizer)
    if said is not None:
        return said, True
    return max(DEFAULT_PIECES, *(2 * cutoff for cutoff in config.model.adaptive.cutoffs), 0), False


def parameters(config: Config, *, vocab_size: int) -> int:
    """How many parameters the model of this configuration has."""
    with torch.device("meta"):
        return count_parameters(build_model(config, vocab_size=vocab_size, device=torch.device("meta")))
