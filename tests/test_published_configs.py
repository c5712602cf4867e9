"""The published models have exactly the parameters of the originals."""

from pathlib import Path

import pytest

from xltrain.config.load import load_config
from xltrain.data.kinds import vocabulary_before_preparation
from xltrain.training.dry_run import parameters

CONFIGS = Path(__file__).parent.parent / "configs"

PARAMETERS = {
    "txl-enwik8-base": 41_055_436,
    "txl-enwik8-large": 277_231_820,
    "txl-text8-base": 40_964_635,
    "txl-text8-large": 277_050_395,
    "txl-wt103-base": 151_107_538,
    "txl-wt103-large": 285_170_506,
    "txl-lm1b-base": 357_812_065,
    "txl-lm1b-large": 841_295_961,
    "xlnet-large": 360_300_800,
    "xlnet-base": 116_750_336,
    "xlnet-mid-chinese": 208_891_904,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(name: str) -> None:
    config = load_config(CONFIGS / f"{name}.yaml")
    vocab_size = vocabulary_before_preparation(config.tokenizer)
    assert vocab_size is not None
    assert parameters(config, vocab_size=vocab_size) == PARAMETERS[name]
    assert f"{PARAMETERS[name]:,}" in (CONFIGS / f"{name}.yaml").read_text()
