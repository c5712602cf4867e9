"""What a configuration amounts to, without preparing any text."""

import torch

from xltrain.config.schema import Config
from xltrain.data.kinds import DEFAULT_PIECES
from xltrain.data.vocabulary import vocabulary_at_hand
from xltrain.training.build import build_model, count_parameters
from xltrain.training.dealing import deal
from xltrain.training.report import shape_lines


def amounts(config: Config, processes: int = 1) -> list[str]:
    """Lines on parameters, rows, tokens, context and vocabulary."""
    vocab_size, known = assumed_vocabulary(config)
    total = parameters(config, vocab_size=vocab_size)
    said = f"vocabulary          {vocab_size:,} ids"
    if not known:
        more = parameters(config, vocab_size=vocab_size + 1000) - total
        said += f", assumed: only prepare will know; 1,000 more or fewer are {more:,} parameters"
    return [*shape_lines(config, deal(config.training, processes), parameters=total), said]


def assumed_vocabulary(config: Config) -> tuple[int, bool]:
    """V, and whether it is known; if it is not, a size that the adaptive bins allow."""
    known = vocabulary_at_hand(config)
    if known is not None:
        return known, True
    return max(DEFAULT_PIECES, *(2 * cutoff for cutoff in config.model.adaptive.cutoffs), 0), False


def parameters(config: Config, *, vocab_size: int) -> int:
    """How many parameters the model of this configuration has; built on the meta device, so size does not matter."""
    with torch.device("meta"):
        return count_parameters(build_model(config, vocab_size=vocab_size, device=torch.device("meta")))
