"""The commands as a person meets them: exit statuses, one plain sentence, JSON, and files that stay whole."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import pytest
from commands import files_of
from logged import lines_of

from xltrain.cli import COMMANDS

Cli = Callable[..., Any]

SPLIT_KEYS = {"documents", "lines", "bytes", "characters", "words", "tokens", "unknown"}


# --- a run from beginning to end


def test_a_run_leaves_the_files_that_it_promises(finished: tuple[Path, Any]):
    run = finished[0] / "run"
    assert {path.name for path in run.iterdir()} == {
        *("config.yaml", "metrics.jsonl", "curves.png", "checkpoints", "latest", "best")
    }
    assert (run / "latest").read_text(encoding="utf-8") == "checkpoints/step-6\n"
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"step-2", "step-4", "step-6"}
    lines = lines_of(run)
    training = [line for line in lines if "loss" in line]
    validation = [line for line in lines if "validation_loss" in line]
    assert [line["step"] for line in training] == [2, 4, 6]
    assert [line["step"] for line in validation] == [4, 6]
    assert {"step", "loss", "lr", "grad_norm", "tokens_seen", "tokens_per_second"} <= set(training[0])
    assert {"step", "validation_loss", "validation_ppl", "unigram_loss"} <= set(validation[0])
    assert training[-1]["tokens_seen"] == 6 * 4 * 32


def test_a_log_in_a_file_has_plain_lines_only(finished: tuple[Path, Any]):
    log = finished[1].err
    assert finished[1].out == ""
    assert not re.search(r"[\r\x1b]", log)
    steps = re.findall(r"^step (\d)/6  loss \d+\.\d+  lr \S+  .*[\d,]+ tokens/s", log, flags=re.MULTILINE)
    assert steps == ["2", "4", "6"]
    assert len(log.splitlines()) < 20
    assert "unused per epoch" in log


def test_a_tail_of_the_training_text_that_is_not_used_is_told(cli: Cli, tmp_path: Path):
    train = tmp_path / "a.txt"
    train.write_text("x" * 999, encoding="utf-8")  # and one end of a document
    config = corpora.config_file(
        tmp_path,
        train,
        tokenizer={"kind": "char", "vocab_size": None},
        training={"batch_size": 1, "max_steps": 1},
        segments={"seq_len": 64},
    )
    assert re.search("unused per epoch +40 of 1,000 training tokens", cli("pretrain", config).err)


# --- prepare


def test_prepare_prints_one_json_object_and_says_when_it_reuses(corpus: corpora.Corpus, cli: Cli, tmp_path: Path):
    config = corpora.config_file(tmp_path, corpus.train, corpus={"validation": [str(corpus.valid)]})
    first, second = (cli("prepare", config, "--json") for _ in range(2))
    assert (first.status, second.status) == (0, 0)
    assert first.out.count("\n") == 1
    found = json.loads(first.out)
    assert {"vocab_size", "fingerprint", "reused", "splits"} <= set(found)
    assert found["splits"]["train"] == {
        "documents": 60,
        "lines": 3_060,
        "bytes": 206_416,
        "characters": 206_416,
        "words": 29_968,
        "tokens": 36_953,
        "unknown": found["splits"]["train"]["unknown"],
    }
    assert set(found["splits"]["validation"]) == SPLIT_KEYS
    assert found["vocab_size"] == 500
    assert json.loads(second.out) == found | {"reused": True}
    assert "reusing the token store" in second.err
    plain = cli("prepare", config)
    assert plain.status == 0
    assert "vocabulary 500" in plain.out


def test_a_chinese_folder_works_in_the_c_locale(tmp_path: Path):
    folder = tmp_path / "語料"
    folder.mkdir()
    train = folder / "文.txt"
    train.write_text("".join(line + "\n" for line in corpora.chinese_lines(200, 30)), encoding="utf-8")
    config = corpora.config_file(folder, train, tokenizer={"vocab_size": 390})
    command = [sys.executable, "-m", "xltrain", "prepare", str(config), "--json"]
    c_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    outcomes = []
    for environment in (c_locale, {"PYTHONUTF8": "1"}):
        done = subprocess.run(command, env=environment, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "語料" in done.stderr.decode("utf-8")
        outcomes.append(json.loads(done.stdout))
    assert outcomes[1] == outcomes[0] | {"reused": True}
    command += ["--set", "corpus.train=[無.txt]"]
    missing = subprocess.run(command, env=c_locale, capture_output=True, check=False)
    assert missing.returncode == 2
    assert "no file matches 無.txt" in missing.stderr.decode("utf-8")


# --- faults that are found before any work


def test_a_configuration_that_is_not_there(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for command in ("prepare", "pretrain"):
        said = cli(command, "nowhere.yaml").sentence()
        assert said == f"nowhere.yaml: no such configuration file (working directory {tmp_path})"


@pytest.mark.parametrize("command", ["prepare", "pretrain"])
@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.n_layer=3", "model.n_layer: no such key; did you mean 'num_layers'?"),
        ("training.max_steps=1:30", "training.max_steps: '1:30' is not allowed"),
        ("corpus.train=[missing.txt]", "corpus.train: no file matches missing.txt (working directory "),
        ("corpus.train=['*.text']", "corpus.train: no file matches *.text (working directory "),
        ("corpus.validation=[nothing.txt]", "corpus.validation: no file matches nothing.txt (working directory "),
        ("tokenizer.vocab_size=8000", "tokenizer.vocab_size: 8,000 is more than this text allows: at most 659"),
        ("tokenizer.path=no.model", "tokenizer.path: no.model does not exist (working directory "),
    ],
)
def test_a_mistake_gets_one_sentence_and_leaves_nothing(
    corpus: corpora.Corpus, cli: Cli, tmp_path: Path, command: str, override: str, said: str
):
    config = corpora.config_file(tmp_path, corpus.train)
    assert said in cli(command, config, "--set", override).sentence()
    assert files_of(tmp_path) == {"c.yaml": config.read_bytes()}


def test_a_folder_that_cannot_be_made_is_found_before_the_text_is_prepared(
    corpus: corpora.Corpus, cli: Cli, tmp_path: Path
):
    config = corpora.config_file(tmp_path, corpus.train)
    said = cli("pretrain", config, "--set", "run.output_dir=/proc/none/run").sentence()
    assert said.startswith("run.output_dir: /proc/none/run cannot be used (")
    assert said.endswith("; choose another folder")
    assert files_of(tmp_path) == {"c.yaml": config.read_bytes()}


def test_all_mistakes_of_a_configuration_come_at_once(corpus: corpora.Corpus, cli: Cli, tmp_path: Path):
    outcome = cli("pretrain", corpora.config_file(tmp_path, corpus.train, model={"n_layer": 3}, optimizer={"lr": "x"}))
    assert outcome.status == 2
    lines = outcome.err.splitlines()
    assert lines[0].endswith("c.yaml: 2 mistakes")
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["model.n_layer", "optimizer.lr"]


def test_text_shorter_than_a_batch_of_segments(cli: Cli, tmp_path: Path):
    train = tmp_path / "short.txt"
    train.write_text("x" * 39, encoding="utf-8")
    config = corpora.config_file(
        tmp_path, train, tokenizer={"kind": "char", "vocab_size": None}, segments={"seq_len": 64}
    )
    said = cli("pretrain", config).sentence()
    assert said == (
        "corpus.train: needs at least 260 tokens (4 rows x (seq_len 64 + 1)), this text has 40; "
        "add text, or lower training.batch_size, training.accumulate or segments.seq_len"
    )
    assert not (tmp_path / "run").exists()


def test_a_validation_text_shorter_than_a_segment_is_scored_whole(corpus: corpora.Corpus, cli: Cli, tmp_path: Path):
    valid = tmp_path / "short.txt"
    valid.write_text("x" * 39, encoding="utf-8")
    config = corpora.config_file(
        tmp_path,
        corpus.train,
        corpus={"validation": [str(valid)]},
        tokenizer={"kind": "char", "vocab_size": None},
        objective={"name": "causal"},
        segments={"seq_len": 64},
        training={"max_steps": 1},
    )
    assert cli("pretrain", config).status == 0
    assert json.loads(cli("eval-ppl", tmp_path / "run", "--json").out)["targets"] == 39


def test_resume_and_overwrite_exclude_each_other(corpus: corpora.Corpus, cli: Cli, tmp_path: Path):
    said = cli("pretrain", corpora.config_file(tmp_path, corpus.train), "--resume", "--overwrite").sentence()
    assert said == "--resume and --overwrite exclude each other; give one of them"


def test_a_dry_run_says_what_a_run_would_be_and_writes_nothing(cli: Cli, tmp_path: Path):
    config = corpora.config_file(tmp_path, tmp_path / "not-there-yet.txt", training={"accumulate": 2})
    outcome = cli("pretrain", config, "--set", "optimizer.lr=1e-4", "--dry-run")
    assert outcome.status == 0, outcome.err
    for said in ("lr: 0.0001", "parameters +[0-9,]+", "tokens per update +128 ", "effective context +32 "):
        assert re.search(said, outcome.out)
    assert files_of(tmp_path) == {"c.yaml": config.read_bytes()}


def test_context_ends_where_documents_are_kept_apart_and_the_run_says_so(
    corpus: corpora.Corpus, cli: Cli, tmp_path: Path
):
    config = corpora.config_file(tmp_path, corpus.train, segments={"cross_documents": False})
    arguments = [config, "--set", "training.max_steps=1"]
    bound = "effective context   32 tokens back (2 layers x mem_len), within a document"
    why = ": segments.cross_documents is false\n"
    assert bound + why in cli("pretrain", *arguments, "--dry-run").out
    assert f"{bound} (616 tokens on average){why}" in cli("pretrain", *arguments).err  # 36,953 in 60
    assert json.loads(cli("inspect", tmp_path / "run", "--json").out)["documents_apart"] is True
    whole = cli("pretrain", *arguments, "--set", "segments.cross_documents=true", "--dry-run").out
    assert "effective context   32 tokens back (2 layers x mem_len)\n" in whole
    none = cli("pretrain", *arguments, "--set", "segments.mem_len=0", "--dry-run").out
    assert "effective context   0 tokens back (2 layers x mem_len)\n" in none


def test_a_memory_that_no_row_can_fill_is_told(corpus: corpora.Corpus, cli: Cli, tmp_path: Path):
    config = corpora.config_file(tmp_path, corpus.train, training={"max_steps": 1})
    rows = 36_953 // 4  # tokens of each row
    said = f"of mem_len {rows + 1:,} no more than {rows:,} positions are ever used"
    assert said in cli("pretrain", config, "--set", f"segments.mem_len={rows + 1}").err
    assert "are ever used" not in cli("pretrain", config, "--overwrite", "--set", f"segments.mem_len={rows}").err


# --- tracebacks, and where the device is missing


def test_a_traceback_is_shown_only_when_asked_for_and_the_option_may_stand_anywhere(cli: Cli, tmp_path: Path):
    from xltrain.errors import UsageError

    missing = tmp_path / "nowhere.yaml"
    assert "no such configuration file" in cli("prepare", missing).sentence()
    for arguments in (["--debug", "prepare", missing], ["prepare", missing, "--debug"]):
        with pytest.raises(UsageError, match="no such configuration file"):
            cli(*arguments)


def test_a_full_disk_is_one_line_and_status_one(
    corpus: corpora.Corpus, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("xltrain.data.building.write_shards", full)
    outcome = cli("prepare", corpora.config_file(tmp_path, corpus.train))
    assert outcome.sentence(status=1) == (
        f"corpus.cache_dir: the token store could not be written to {tmp_path / 'cache'}: No space left on device; "
        "make room there, or choose another folder"
    )
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("columns", [80, 140])
@pytest.mark.parametrize("command", [name for name, *_ in COMMANDS])
def test_every_command_has_help_with_an_example(cli: Cli, command: str, columns: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    outcome = cli(command, "--help")
    assert outcome.status == 0
    *lines, before, example = outcome.out.splitlines()
    assert before.strip() == "Example:"
    assert example.startswith(f"    xltrain {command} ")  # in one piece, to be copied
    assert max(map(len, lines)) <= min(columns, 110)
    assert not re.search(r"<\w|[{]\w|x>=", "\n".join(lines))  # as Python and typer put it
    if command in ("generate", "export-checkpoint"):  # which have long lines
        assert (max(map(len, lines)) > 80) == (columns == 140)


def test_the_list_of_commands_is_not_cut_short(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = cli("--help").out
    assert "..." not in said.replace("[ARGS]...", "")
    assert all(re.search(rf"^  {name} +{re.escape(short)}$", said, re.MULTILINE) for name, _, short, _ in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["generate", "run", "--temperature", -1], "--temperature: must be at least 0 (help: xltrain generate --help)"),
        (["eval-ppl", "run", "--seq-len", "x"], "--seq-len: must be a whole number (help: xltrain eval-ppl --help)"),
        (
            ["eval-ppl", "run", "a.txt"],
            "unexpected argument a.txt; a text is given by --data FILE (help: xltrain eval-ppl --help)",
        ),
        (["prepare", "a.yaml", "b.yaml"], "unexpected argument b.yaml (help: xltrain prepare --help)"),
        (["prepare", "c.yaml", "--fast"], "No such option: --fast"),
        (["prepare"], "Missing argument 'CONFIG'"),
        (["pretrian", "c.yaml"], "No such command 'pretrian'"),
    ],
)
def test_options_and_arguments_that_cannot_be_get_one_sentence(cli: Cli, arguments: list[Any], said: str):
    assert said in cli(*arguments).sentence()


def test_without_a_command_help_is_shown(cli: Cli):
    outcome = cli()
    assert outcome.status == 2
    assert "eval-ppl" in outcome.out + outcome.err
