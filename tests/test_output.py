"""Results come out whatever standard output is: in another encoding, closed by its reader, full, or not there."""

import ast
import contextlib
import io
import json
import math
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import corpora
import pytest
from commands import Outcome

from xltrain import console
from xltrain.cli import main
from xltrain.training.checkpoint import find_checkpoint

PACKAGE = Path(console.__file__).parent


def run_into(stream: io.TextIOWrapper | None, *arguments: object, errors_too: bool = False) -> Outcome:
    """``xltrain ARGUMENTS`` with standard output (and with ``errors_too`` standard error) going to ``stream``."""
    err = io.StringIO()
    told: Any = err
    if errors_too:  # a descriptor of its own, as a shell gives it
        told = stream and os.fdopen(os.dup(stream.fileno()), "w", encoding="utf-8")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    status: object = 0
    with (
        mock.patch.object(sys, "argv", ["xltrain", *map(str, arguments)]),
        mock.patch.object(sys, "stdout", stream),
        mock.patch.object(sys, "stderr", told),
        mock.patch.object(console, "_told", False),
    ):
        try:
            main()
        except SystemExit as stop:
            status = stop.code
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return Outcome(status if isinstance(status, int) else 0, "", err.getvalue())


def bytes_of(encoding: str, *arguments: object, errors: str = "strict") -> tuple[bytes, str]:
    """What a command writes to a file of this encoding, and what it says."""
    file = io.BytesIO()
    stream = io.TextIOWrapper(file, encoding=encoding, errors=errors)  # which closes the file when it goes
    outcome = run_into(stream, *arguments)
    assert outcome.status == 0, outcome.err
    return file.getvalue(), outcome.err


@contextlib.contextmanager
def closed_pipe() -> Iterator[io.TextIOWrapper]:
    """The writing end of a pipe whose reader has ended."""
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w", encoding="utf-8")
    yield stream
    stream.close()  # raises nothing: what it still held went nowhere


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("Bada kilemo.\n語 🙂\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_json_is_ascii_where_standard_output_is_not_utf_8(run: Path, lines: Path, encoding: str):
    arguments = ("score", run, lines, "--per-token")
    readable, _ = bytes_of("utf-8", *arguments)
    assert "▁" in readable.decode("utf-8")
    found, said = bytes_of(encoding, *arguments)
    assert found.isascii()
    assert [json.loads(line) for line in found.splitlines()] == [json.loads(line) for line in readable.splitlines()]
    assert "escapes" not in said


def test_json_has_no_numbers_that_it_does_not_know(capsys: pytest.CaptureFixture[str]):
    console.out_json({"a": float("nan"), "b": [1, -math.inf, {"c": (0.5, math.inf)}], "d": "NaN", "e": True})
    found = capsys.readouterr().out
    assert json.loads(found) == {"a": None, "b": [1, None, {"c": [0.5, None]}], "d": "NaN", "e": True}
    assert '"NaN"' in found


@pytest.mark.parametrize(
    ("encoding", "errors", "shown", "told"),
    [
        ("ascii", "strict", b"\\u8a9e\\xe9\\U0001f642", True),
        ("latin-1", "strict", b"\\u8a9e\xe9\\U0001f642", True),
        ("ascii", "surrogateescape", b"\\u8a9e\\xe9\\U0001f642", True),
        ("ascii", "replace", b"???", False),  # as PYTHONIOENCODING=ascii:replace asks for
        ("utf-8", "strict", "語é🙂".encode(), False),
    ],
)
def test_text_becomes_escapes_and_a_word_about_it(run: Path, encoding: str, errors: str, shown: bytes, told: bool):
    found, said = bytes_of(encoding, "generate", run, "語é🙂", "--max-tokens", 4, errors=errors)
    assert found.startswith(shown)
    assert said.count("they are written as escapes") == told


def test_bytes_of_a_name_that_are_no_characters(run: Path, lines: Path):
    text = lines.rename(os.fsdecode(os.fsencode(lines.parent) + b"/r\xff.txt"))
    found, _ = bytes_of("utf-8", "eval-ppl", run, "--data", text)
    assert rb"r\udcff.txt" in found
    found, _ = bytes_of("utf-8", "eval-ppl", run, "--data", text, "--json")
    assert json.loads(found)["text"] == str(text)


COMMANDS: dict[str, list[Any]] = {
    "score": ["score", "RUN", "LINES"],
    "generate": ["generate", "RUN", "--max-tokens", 3],
    "several samples": ["generate", "RUN", "--max-tokens", 3, "--num-samples", 2],
    "eval-ppl": ["eval-ppl", "RUN"],
    "json": ["eval-ppl", "RUN", "--json"],
    "inspect": ["inspect", "RUN"],
    "dry run": ["pretrain", "CONFIG", "--dry-run"],
    "prepare": ["prepare", "CONFIG"],
    "context": ["context", "RUN", "--targets", 0, "--mem-lens", 0],
    "version": ["--version"],
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("errors_too", [False, True])
def test_a_reader_that_has_ended_ends_the_command_quietly(
    finished: tuple[Path, Outcome], lines: Path, name: str, errors_too: bool
):
    places = {"RUN": finished[0] / "run", "CONFIG": finished[0] / "c.yaml", "LINES": lines}
    arguments = [places.get(str(argument), argument) for argument in COMMANDS[name]]
    with closed_pipe() as stream:
        outcome = run_into(stream, *arguments, errors_too=errors_too)
    assert outcome.status == 141
    assert "xltrain: " not in outcome.err
    assert "Traceback" not in outcome.err


def test_a_mistake_that_nobody_can_be_told_ends_quietly_too():
    with closed_pipe() as stream:
        assert run_into(stream, "inspect", "nowhere", errors_too=True).status == 2


def test_training_goes_on_where_nobody_reads_how_it_goes(corpus: corpora.Corpus, tmp_path: Path):
    config = corpora.config_file(tmp_path, corpus.valid, tokenizer={"kind": "char", "vocab_size": None})
    with closed_pipe() as stream:
        assert run_into(stream, "pretrain", config, errors_too=True).status == 0
    assert find_checkpoint(tmp_path / "run").step == 6


def test_a_full_disk_is_named():
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        outcome = run_into(full, "--version")
    assert outcome.status == 1
    assert outcome.err == "xltrain: standard output: No space left on device\n"


def test_without_standard_output_a_command_works_for_nobody(finished: tuple[Path, Outcome]):
    assert run_into(None, "inspect", finished[0] / "run", errors_too=True).status == 0


def test_without_standard_input_there_is_nothing_to_read(finished: tuple[Path, Outcome], monkeypatch: Any):
    monkeypatch.setattr(sys, "stdin", None)
    assert run_into(io.TextIOWrapper(io.BytesIO()), "prepare", finished[0] / "c.yaml").status == 0
    monkeypatch.setattr(sys, "stdin", None)
    outcome = run_into(io.TextIOWrapper(io.BytesIO()), "score", finished[0] / "run")
    assert outcome.sentence() == "standard input: holds no line to score; give texts, one a line"


def test_who_is_to_type_is_told(finished: tuple[Path, Outcome], monkeypatch: Any):
    typed = io.TextIOWrapper(io.BytesIO(b"Bada kile.\n"))
    monkeypatch.setattr(typed, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdin", typed)
    found, said = bytes_of("utf-8", "score", finished[0] / "run")
    assert json.loads(found)["line"] == 1
    assert "reading what is typed here; Ctrl-D at the beginning of a line ends it" in said.splitlines()


def test_all_results_go_through_one_place():
    """So that the rule above holds for every command."""
    for path in [PACKAGE / "cli.py", *sorted((PACKAGE / "commands").glob("*.py"))]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {
            node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert "print" not in names, path
