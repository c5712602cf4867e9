"""Fixtures that several test files share."""

import contextlib
import io
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import corpora
import pytest
import torch

from xltrain.cli import main

torch.set_num_threads(1)  # the models are so small that threads cost more than they give


@dataclass(frozen=True)
class Outcome:
    """What a command left behind: exit status, standard output, standard error."""

    status: int
    out: str
    err: str


def run_command(*arguments: object) -> Outcome:
    """Run ``xltrain ARGUMENTS`` within this process."""
    out, err = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    status: object = 0
    with (
        mock.patch.object(sys, "argv", ["xltrain", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stop:
            status = stop.code
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return Outcome(status if isinstance(status, int) else 0, out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def cli() -> Callable[..., Outcome]:
    """``cli("prepare", path, "--json")`` runs a command as a person would."""
    return run_command


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> corpora.Corpus:
    """Two files of an invented language, the same bytes everywhere."""
    folder = tmp_path_factory.mktemp("corpus")
    return corpora.Corpus(
        train=corpora.write_text(folder / "A.txt", lines=3000, seed=11),
        valid=corpora.write_text(folder / "A-valid.txt", lines=300, seed=12),
    )


@pytest.fixture(scope="session")
def spiece(corpus: corpora.Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentencepiece model of 500 pieces, trained on the invented language."""
    from xltrain.data.prepare import make_tokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = make_tokenizer(corpora.config_for(corpus.train, folder), [corpus.train])
    path = folder / "spiece.model"
    path.write_bytes(tokenizer.files()["spiece.model"])
    return path
