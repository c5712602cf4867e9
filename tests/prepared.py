"""Texts prepared with a tokenizer of one's own, or refused."""

from pathlib import Path
from typing import Any

import corpora
import pytest

from xltrain.config.schema import Config
from xltrain.data.prepare import Prepared, prepare
from xltrain.errors import UsageError


def built(train: Path | list[Path], folder: Path, valid: Path | None = None, **tokenizer: object) -> Prepared:
    splits = {} if valid is None else {"validation": [str(valid)]}
    return prepare(corpora.config_for(train, folder, corpus=splits, tokenizer=tokenizer))


def refused(train: Path, folder: Path, **tokenizer: object) -> str:
    """The one sentence for what must be refused, after a look that nothing is left behind."""
    with pytest.raises(UsageError) as caught:
        built(train, folder, **tokenizer)
    assert list((folder / "cache").glob("*")) == []
    assert "\n" not in str(caught.value)
    return str(caught.value)


def characters(train: Path | list[Path], folder: Path, **sections: Any) -> Config:
    """The configuration of a run on characters, whose store takes milliseconds."""
    return corpora.config_for(train, folder, **{"tokenizer": {"kind": "char", "vocab_size": None}} | sections)
