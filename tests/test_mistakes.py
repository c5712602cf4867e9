"""The commonest mistakes of who does not know the commands yet: the sentence says what was probably meant."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Outcome
from corpora import Corpus

Cli = Callable[..., Outcome]

MISTAKES: list[tuple[list[Any], str]] = [
    # a key of the configuration as an option or an argument
    (["pretrain", "CONFIG", "--max-steps", 3], "No such option: --max-steps; a key of the configuration is set by "
     "--set training.max_steps=... (help: xltrain pretrain --help)"),
    (["prepare", "CONFIG", "--tokenizer.vocab-size=9"], "is set by --set tokenizer.vocab_size=... (help"),
    (["pretrain", "CONFIG", "optimizer.lr=3"], "unexpected argument optimizer.lr=3; a key of the configuration is set "
     "by --set optimizer.lr=3 (help: xltrain pretrain --help)"),
    # an argument as an option, and options that are spelt otherwise or are not needed
    (["pretrain", "--config", "CONFIG"], "No such option: --config; CONFIG stands for itself, without --config (help"),
    (["eval-ppl", "--run", "RUN"], "RUN_OR_CHECKPOINT stands for itself, without --run (help"),
    (["generate", "RUN", "--prompt", "x"], "PROMPT stands for itself, without --prompt (help"),
    (["eval-ppl", "RUN", "--modes", "stream"], "No such option: --modes; did you mean --mode? (help: xltrain eval-ppl"),
    (["score", "RUN", "TEXT", "--json"], "No such option: --json; its results are JSON, a line for each (help"),
    (["eval-ppl", "RUN", "--output", "a.json"], "what a command finds goes to standard output; > FILE keeps it (help"),
    (["generate", "RUN", "once", "upon"], "unexpected argument upon; a prompt of several words stands in quotes (help"),
    (["context", "RUN", "--mem-lens", 0, 64], "64: is no run; --mem-lens takes its numbers with commas between, as in "
     "0,128,512"),
    # arguments the other way round
    (["score", "TEXT", "RUN"], "TEXT is no run, and RUN is; the run comes first: xltrain score RUN ..."),
    (["generate", "Once upon", "RUN"], "Once upon is no run, and RUN is; the run comes first: xltrain generate RUN "),
    (["export-checkpoint", "OUT", "RUN"], "the run comes first: xltrain export-checkpoint RUN ..."),
    (["generate", "nowhere", "x" * 5000], "nowhere: no such run or checkpoint folder (working directory "),
    # what lies above or below a run
    (["eval-ppl", "FOLDER"], "FOLDER: is no run, but holds one: RUN"),
    (["inspect", "RUN/checkpoints"], "RUN/checkpoints: holds the checkpoints of a run; give the run, RUN, or one of "
     "them"),
    (["generate", "RUN/checkpoints/step-6/config.yaml"], "step-6/config.yaml: is one file of a checkpoint; give its "
     "folder, RUN/checkpoints/step-6"),
    (["pretrain", "RUN"], "RUN is a folder; give a YAML file, as that of this run, RUN/config.yaml"),
    # files of another kind
    (["pretrain", "TEXT"], "TEXT: is no configuration: it must hold sections such as 'corpus:', and is text or a "),
    (["inspect", "nowhere"], "nowhere: no such configuration file, run or checkpoint (working directory "),
    (["eval-ppl", "CONFIG"], "CONFIG: a file, where a run's or a checkpoint's folder is needed; its run is RUN"),
    (["score", "RUN", "The king is dead."], "; a text itself comes by standard input: echo TEXT | xltrain score RUN"),
    (["score", "RUN", "word " * 1000], "; a text itself comes by standard input: echo TEXT | xltrain score RUN"),
    (["plot", "CONFIG"], "CONFIG: a file, where a run's folder is needed; its run is RUN"),
    (["plot", "RUN/metrics.jsonl"], "RUN/metrics.jsonl: a file, where a run's folder is needed; it lies in RUN"),
    (["plot", "RUN", "a.png"], "a.png: is no run; the picture is named by --output a.png"),
    (["plot", "nowhere"], "nowhere: no such folder of a run (working directory "),
    (["import-checkpoint", "TEXT", "OUT"], "TEXT: is no checkpoint; give the folder of one, or one of model.pt, "),
    (["import-checkpoint", "xlnet-base-cased", "OUT"], "; nothing is downloaded, so give the place where the "
     "checkpoint lies"),
    # folders that are not to be written over, whatever is asked for
    (["export-checkpoint", "RUN", "RUN", "--format", "safetensors"], "RUN already exists and is not an export of "
     "xltrain (it holds best, checkpoints, curves.png, ...); choose another OUTPUT_DIR"),
    (["import-checkpoint", "RUN/checkpoints/step-6", "RUN"], "RUN already exists and is not an import of xltrain ("),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "said"), MISTAKES, ids=[" ".join(map(str, each))[:50] for each, _ in MISTAKES])
def test_a_mistake_is_told_with_what_was_meant(
    finished: tuple[Path, Outcome], corpus: Corpus, cli: Cli, tmp_path: Path, arguments: list[Any], said: str
):
    folder = finished[0]
    places = {"RUN": folder / "run", "CONFIG": folder / "c.yaml", "TEXT": corpus.valid, "OUT": tmp_path / "out"}
    places |= {"FOLDER": folder}  # the last, since its name begins that of the run

    def placed(word: Any) -> Any:
        name, slash, rest = str(word).partition("/")
        return f"{places[name]}{slash}{rest}" if name in places else word

    found = cli(*map(placed, arguments)).sentence()
    for name, path in places.items():
        found = found.replace(str(path), name)
    assert said in found
    assert not (tmp_path / "out").exists()


def test_a_prompt_that_is_the_name_of_a_file_is_told(run: Path, cli: Cli, tmp_path: Path):
    (tmp_path / "p.txt").write_text("Bada", encoding="utf-8")
    outcome = cli("generate", run, tmp_path / "p.txt", "--max-tokens", 1)
    assert outcome.status == 0
    assert f"--file {tmp_path / 'p.txt'} reads that" in outcome.err
    assert "reads that" not in cli("generate", run, "Bada", "--max-tokens", 1).err


def test_a_run_without_a_checkpoint_yet(run: Path, cli: Cli):
    shutil.rmtree(run / "checkpoints")
    said = cli("generate", run).sentence()
    assert said.startswith(f"{run}: this run has saved no checkpoint yet; the first comes after checkpoint.every steps")
