"""What xltrain exported for others it can take back: the same weights, tokenizer and model."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import pytest
import torch
from commands import Outcome

from xltrain.training.checkpoint import find_checkpoint

CPU = torch.device("cpu")
Cli = Callable[..., Outcome]

CASES: dict[str, dict[str, dict[str, Any]]] = {
    "words, adaptive": {
        "objective": {"name": "causal"},
        "tokenizer": {"kind": "word", "vocab_size": None, "lower": True},
        "model": {"adaptive": {"cutoffs": [20, 60], "div_val": 2, "tie_projections": [False, True, True]}},
        "segments": {"initial_memory": "zeros"},
    },
    "characters, apart": {
        "objective": {"name": "seq2seq"},
        "tokenizer": {"kind": "char", "vocab_size": None},
        "model": {"norm": "rms_norm", "norm_position": "pre", "final_norm": True, "tie_position_bias": True},
        "segments": {"cross_documents": False},
    },
    "words, apart": {
        "objective": {"name": "causal"},
        "corpus": {"document_separator": "line"},
        "tokenizer": {"kind": "word", "vocab_size": None},
        "segments": {"cross_documents": False},
    },
    "pieces, untied": {
        "objective": {"name": "permutation"},
        "tokenizer": {"vocab_size": 400},
        "model": {"tie_embeddings": False, "segment_embeddings": True, "clamp_len": 3},
    },
}


@pytest.mark.parametrize("form", ["remote-code", "safetensors"])
@pytest.mark.parametrize("name", CASES)
def test_there_and_back(name: str, form: str, corpus: corpora.Corpus, cli: Cli, tmp_path: Path) -> None:
    path = corpora.config_file(tmp_path, corpus.valid, training={"max_steps": 1}, **CASES[name])
    outcome = cli("pretrain", path)
    assert outcome.status == 0, outcome.err
    assert cli("export-checkpoint", tmp_path / "run", tmp_path / "out", "--format", form, "--no-verify").status == 0
    outcome = cli("import-checkpoint", tmp_path / "out", tmp_path / "in", "--json")
    assert outcome.status == 0, outcome.err
    assert json.loads(outcome.out)["format"] == "xltrain"
    before, after = find_checkpoint(tmp_path / "run"), find_checkpoint(tmp_path / "in")
    one, other = before.weights(CPU), after.weights(CPU)
    assert one.keys() == other.keys()
    assert all(torch.equal(tensor, other[key]) for key, tensor in one.items())
    assert before.tokenizer().files() == after.tokenizer().files()
    was, now = before.config(), after.config()
    plain = {"d_inner", "head_dim"}  # written out where they were left to a default
    assert was.model.model_dump(exclude=plain) == now.model.model_dump(exclude=plain)
    assert (was.objective.name, was.segments) == (now.objective.name, now.segments)
    assert was.corpus.document_separator == now.corpus.document_separator


@pytest.mark.parametrize("form", ["remote-code", "safetensors"])
def test_a_model_of_pairs_is_one_again(form: str, cli: Cli, tmp_path: Path) -> None:
    """What ends documents is part of what a model has learned: here, that a source is one and not running text."""
    config, lines = corpora.config_of_pairs(tmp_path)
    pairs, source = tmp_path / "pairs.tsv", lines[0].split()[0]
    assert cli("pretrain", config).status == 0
    assert cli("export-checkpoint", tmp_path / "run", tmp_path / "out", "--format", form, "--no-verify").status == 0
    outcome = cli("import-checkpoint", tmp_path / "out", tmp_path / "in")
    assert outcome.status == 0, outcome.err
    for command in (("eval-ppl", "--data", pairs), ("generate", source, "--max-tokens", 20), ("score", pairs)):
        name, *rest = command
        as_json = () if name == "score" else ("--json",)
        one, other = (cli(name, tmp_path / folder, *rest, *as_json) for folder in ("run", "in"))
        assert (one.status, other.status) == (0, 0), (one.err, other.err)
        ours, theirs = (re.findall(r'"(?:nll|log_prob)": ([-.\d]+)', outcome.out) for outcome in (one, other))
        assert ours, one.out
        assert [float(number) for number in ours] == pytest.approx([float(number) for number in theirs], rel=1e-6)


def test_sizes_that_are_missing(corpus: corpora.Corpus, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    path = corpora.config_file(tmp_path, corpus.valid, training={"max_steps": 1}, tokenizer={"kind": "byte"})
    assert cli("pretrain", path, "--set", "tokenizer.vocab_size=null").status == 0
    options = ("--format", "remote-code", "--no-verify")
    assert cli("export-checkpoint", tmp_path / "run", tmp_path / "out", *options).status == 0
    settings = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "out" / "config.json").write_text(json.dumps(settings | {"stack": 3}), encoding="utf-8")
    assert (
        "stack is 3; it must hold the sizes" in cli("import-checkpoint", tmp_path / "out", tmp_path / "in").sentence()
    )
    del settings["seq_len"], settings["stack"]["d_model"]
    (tmp_path / "out" / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    assert "segments.seq_len" in cli("import-checkpoint", tmp_path / "out", tmp_path / "in").sentence()
    assert not (tmp_path / "in").exists()
