"""A run can start from the weights of another: its architecture and tokenizer come along, or are compared."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import pytest
import torch
import yaml
from commands import Outcome

from xltrain.config.init_from import TOKENIZER_FILES
from xltrain.config.load import load_config
from xltrain.data.tokenizer import CharTokenizer, SentencePieceTokenizer
from xltrain.data.words import ByteTokenizer, WordTokenizer
from xltrain.training.checkpoint import find_checkpoint, newest_checkpoint

CPU = torch.device("cpu")
Cli = Callable[..., Outcome]


def written(folder: Path, corpus: corpora.Corpus, origin: Path, **sections: dict[str, Any]) -> Path:
    """A configuration that says nothing of the model, but for what ``sections`` say."""
    data = corpora.settings(corpus.valid, folder, training={"max_steps": 1})
    del data["tokenizer"], data["model"]
    data["run"] |= {"init_from": str(origin), "output_dir": str(folder / "more")}
    return corpora.write_config(folder / "more.yaml", corpora.over(data, sections))


def test_the_first_step_reads_the_weights_that_were_left(
    run: Path, corpus: corpora.Corpus, cli: Cli, tmp_path: Path
) -> None:
    path = written(tmp_path, corpus, run, optimizer={"lr": 1e-30})
    outcome = cli("pretrain", path)
    assert outcome.status == 0, outcome.err
    assert f"starting from the weights of {run / 'checkpoints' / 'step-6'}" in outcome.err
    before, after = find_checkpoint(run), newest_checkpoint(tmp_path / "more")
    assert after is not None
    assert after.tokenizer().files() == before.tokenizer().files()
    for name, tensor in after.weights(CPU).items():
        torch.testing.assert_close(tensor, before.weights(CPU)[name], rtol=0, atol=1e-9)
    config = after.config()
    assert config.model == before.config().model
    assert config.objective.name == "causal"


def test_a_run_that_moves_on_meanwhile_gives_the_weights_that_were_looked_at(
    run: Path, corpus: corpora.Corpus, cli: Cli, tmp_path: Path
) -> None:
    (run / "latest").write_text("checkpoints/step-4\n")  # as it was before step-6 came
    outcome = cli("pretrain", written(tmp_path, corpus, run))
    assert f"starting from the weights of {run / 'checkpoints' / 'step-4'}" in outcome.err
    after = newest_checkpoint(tmp_path / "more")
    assert after is not None
    assert after.config().run.init_from == str(run / "checkpoints" / "step-4")


def test_a_resumed_run_needs_no_weights_of_its_origin_but_its_tokenizer(
    run: Path, corpus: corpora.Corpus, cli: Cli, tmp_path: Path
) -> None:
    path = written(tmp_path, corpus, run)
    assert cli("pretrain", path).status == 0
    outcome = cli("pretrain", path, "--resume", "--set", "training.max_steps=2")
    assert outcome.status == 0, outcome.err
    assert "starting from" not in outcome.err
    assert cli("eval-ppl", tmp_path / "more", "--data", corpus.valid).status == 0


def test_every_key_that_would_make_another_model_is_named(
    run: Path, corpus: corpora.Corpus, cli: Cli, tmp_path: Path
) -> None:
    path = written(
        tmp_path,
        corpus,
        run,
        model={"num_layers": 3, "d_model": 64, "dropout": 0.0, "head_dim": 8},
        tokenizer={"kind": "char"},
    )
    outcome = cli("pretrain", path)
    assert outcome.status == 2
    for key in ("model.num_layers: 3", "model.d_model: 64", "tokenizer.kind: 'char'"):
        assert key in outcome.err
    assert "head_dim" not in outcome.err  # 32 / 4, said in another way
    assert "dropout" not in outcome.err
    assert not (tmp_path / "more").exists()


@pytest.mark.parametrize("name", ["causal", "permutation", "masked", "seq2seq"])
@pytest.mark.parametrize("first", ["causal", "permutation"])
def test_the_same_weights_serve_another_objective(
    first: str, name: str, corpus: corpora.Corpus, cli: Cli, tmp_path: Path
) -> None:
    origin = corpora.config_file(
        tmp_path,
        corpus.valid,
        objective={"name": first},
        tokenizer={"kind": "char", "vocab_size": None},
        training={"max_steps": 1},
    )
    assert cli("pretrain", origin).status == 0
    before = find_checkpoint(tmp_path / "run").weights(CPU)
    path = written(tmp_path, corpus, tmp_path / "run", objective={"name": name}, optimizer={"lr": 1e-30})
    outcome = cli("pretrain", path)
    assert outcome.status == 0, outcome.err
    said = f"these weights were trained with the {first} objective, and go on with {name}"
    assert (said in outcome.err) == (name != first)
    assert ("own vector is left out" in outcome.err) == (first == "permutation" != name)
    assert ("own vector starts at random" in outcome.err) == (name == "permutation" != first)
    after = find_checkpoint(tmp_path / "more").weights(CPU)
    assert ("mask_embedding" in after) == (name == "permutation")
    for key in after.keys() & before.keys():
        torch.testing.assert_close(after[key], before[key], rtol=0, atol=1e-9)
    only_one = {"mask_embedding"} if (first == "permutation") != (name == "permutation") else set()
    assert after.keys() ^ before.keys() == only_one


def test_what_changes_no_weight_may_be_given_anew(run: Path, corpus: corpora.Corpus, tmp_path: Path) -> None:
    given = {"dropout": 0.0, "num_layers": 2, "clamp_len": 4, "init": {"std": 0.02}}
    config = load_config(written(tmp_path, corpus, run, model=given))
    assert (config.model.dropout, config.model.clamp_len, config.model.d_model) == (0.0, 4, 32)


def test_adaptive_bins_agree_however_they_are_written(corpus: corpora.Corpus, cli: Cli, tmp_path: Path) -> None:
    adaptive = {"cutoffs": [20, 60], "div_val": 2, "tie_projections": True}
    path = corpora.config_file(
        tmp_path,
        corpus.valid,
        model={"adaptive": adaptive},
        objective={"name": "causal"},
        tokenizer={"kind": "word", "vocab_size": None},
        training={"max_steps": 1},
    )
    assert cli("pretrain", path).status == 0
    run = tmp_path / "run"
    same = written(tmp_path, corpus, run, model={"adaptive": adaptive | {"tie_projections": [True, True, True]}})
    assert load_config(same).model.adaptive.tie_projections == [True, True, True]
    other = written(tmp_path, corpus, run, model={"adaptive": {"tie_projections": [False, True, True]}})
    assert "model.adaptive.tie_projections: [False, True, True] does not fit" in cli("prepare", other).sentence()
    for section in ("model", "tokenizer", "objective"):
        data = yaml.safe_load(same.read_text(encoding="utf-8")) | {section: 3}
        assert f"{section}: 3 is not allowed" in cli("prepare", corpora.write_config(same, data)).err


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"init_from": "nowhere"}, "nowhere is no run and no checkpoint (working directory"),
        ({"init_from": "{run}/checkpoints"}, "xltrain import-checkpoint makes one of it"),
        ({"output_dir": "{run}"}, "lies in this run's own folder"),
        ({"init_from": "{run}/checkpoints/step-6", "output_dir": "{run}"}, "lies in this run's own folder"),
        ({"init_from": 3}, "run.init_from: 3 is not allowed"),
    ],
)
def test_origins_that_cannot_be(
    change: dict[str, Any], wanted: str, run: Path, corpus: corpora.Corpus, cli: Cli, tmp_path: Path
) -> None:
    path = written(tmp_path, corpus, run)
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    data["run"] |= {key: value.format(run=run) if isinstance(value, str) else value for key, value in change.items()}
    outcome = cli("pretrain", corpora.write_config(path, data))
    assert outcome.status == 2
    assert wanted in outcome.err


def test_another_tokenizer_file_is_refused(
    run: Path, corpus: corpora.Corpus, cli: Cli, tmp_path: Path, spiece: Path
) -> None:
    same = written(tmp_path, corpus, run, tokenizer={"path": str(spiece)})  # a copy of the same bytes
    assert load_config(same).tokenizer.path == str(run / "checkpoints" / "step-6" / "spiece.model")
    other = tmp_path / "other.model"
    other.write_bytes(spiece.read_bytes() + b"\0")
    path = written(tmp_path, corpus, run, tokenizer={"path": str(other)})
    assert "other.model is not the tokenizer of" in cli("prepare", path).sentence()


def test_a_damaged_origin_is_refused_by_name(run: Path, corpus: corpora.Corpus, cli: Cli, tmp_path: Path) -> None:
    folder = run / "checkpoints" / "step-6"
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    outcome = cli("pretrain", written(tmp_path, corpus, folder))
    assert "model.safetensors has" in outcome.sentence()
    assert not (tmp_path / "more").exists()


def test_files_of_tokenizers_are_where_the_tokenizers_say() -> None:
    kinds = (SentencePieceTokenizer, CharTokenizer, ByteTokenizer, WordTokenizer)
    assert {kind.kind: kind.file_name for kind in kinds} == TOKENIZER_FILES
