"""A preparation that was stopped at any moment leaves what the next one goes on from."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import corpora
import pytest
from commands import files_of
from prepared import characters

from xltrain.data import building as building_module
from xltrain.data.prepare import prepare


class Killed(BaseException):
    """Stands for a signal."""


def test_a_preparation_goes_on_from_every_moment_at_which_it_was_stopped(
    corpus: corpora.Corpus, tmp_path: Path, small_pieces: None, monkeypatch: pytest.MonkeyPatch
):
    """Stopped before each rename, sync and deletion of a file in turn, in one process."""
    config = characters(corpus.train, tmp_path, corpus={"num_workers": 1, "validation": [str(corpus.valid)]})
    whole = prepare(characters(corpus.train, tmp_path / "whole", corpus={"validation": [str(corpus.valid)]})).store
    left = 0

    def stopping(original: Any) -> Any:
        def call(*given: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            return original(*given, **more)

        return call

    monkeypatch.setattr(Path, "rename", stopping(Path.rename))
    monkeypatch.setattr(os, "fsync", stopping(os.fsync))
    monkeypatch.setattr(building_module, "assemble", stopping(building_module.assemble))
    for count in range(1, 400, 3):
        left = count
        try:
            prepared = prepare(config)
        except Killed:
            continue
        assert count > 10, "stopped often"
        break
    assert files_of(prepared.store.folder) == files_of(whole.folder)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [whole.folder.name]


PROGRAM = """
import sys
from xltrain.data import corpus
corpus.PIECE_BYTES = 100_000
from xltrain.cli import main
if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_a_preparation_by_processes_that_is_killed_leaves_what_the_next_one_goes_on_from(
    corpus: corpora.Corpus, tmp_path: Path
):
    """scripts/kill_prepare.py does so more often, on more text."""
    text = tmp_path / "text.txt"
    text.write_bytes(corpus.train.read_bytes() * 20)
    whole = prepare(corpora.config_for(text, tmp_path / "whole")).store
    config = corpora.config_file(tmp_path, text, corpus={"num_workers": 2})
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    for seconds in (1.5, 2.5, 3.5, None):
        started = subprocess.Popen([sys.executable, program, "prepare", config], stderr=subprocess.PIPE, text=True)
        if seconds is not None:
            time.sleep(seconds)
            started.kill()
        _, said = started.communicate(timeout=120)
    assert started.returncode == 0, said
    assert files_of(tmp_path / "cache" / whole.folder.name) == files_of(whole.folder)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [whole.folder.name]
