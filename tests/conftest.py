"""Fixtures that several test files share."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import hypothesis
import pytest
import torch
from commands import Outcome, run_command

torch.set_num_threads(1)  # the models are so small that threads cost more than they give

# How long an example takes says more about the machine than about the program.
hypothesis.settings.register_profile(
    "patient",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much],
)
hypothesis.settings.load_profile("patient")


@pytest.fixture(autouse=True)
def _no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of runs need no curves, which take half a second; those that ask for them are marked."""
    if request.node.get_closest_marker("pictures") is None:
        monkeypatch.setattr("xltrain.training.report.plot_run", lambda folder: folder / "curves.png")


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


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some hundred short documents, and a validation file."""
    folder = tmp_path_factory.mktemp("text")
    draw = torch.Generator().manual_seed(1)
    words = ["lo", "ra", "mi", "tu", "ken", "sol", "dar", "vi", "pa", "ne"]
    for name, documents in (("train", 36), ("validation", 8)):
        lines = []
        for _ in range(documents):
            picked = torch.randint(0, len(words), (int(torch.randint(4, 14, (1,), generator=draw)),), generator=draw)
            lines.append(" ".join(words[i] for i in picked.tolist()) + ".\n\n")
        (folder / f"{name}.txt").write_text("".join(lines))
    return folder


@pytest.fixture(params=["jsonl", "jsonl.gz", "jsonl.zst", "parquet", "parquet.xz", "folder", "loader", "streamed"])
def entry(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[list[str | None]], Any]:
    """A function that stores texts as records of one kind, and gives the entry of ``corpus.train`` for them."""
    from stored import store_records

    return lambda texts: store_records(request.param, texts, tmp_path)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the invented language is cut into many pieces."""
    monkeypatch.setattr("xltrain.data.corpus.PIECE_BYTES", 20_000)


@pytest.fixture(scope="session")
def spiece(corpus: corpora.Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentencepiece model of 500 pieces, trained on the invented language."""
    from xltrain.data.prepare import corpus_sources, make_tokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    config = corpora.config_for(corpus.train, folder)
    tokenizer = make_tokenizer(config, corpus_sources(config)["train"])
    path = folder / "spiece.model"
    path.write_bytes(tokenizer.files()["spiece.model"])
    return path


@pytest.fixture(scope="session")
def finished(
    corpus: corpora.Corpus, cli: Callable[..., Outcome], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Outcome]:
    """A folder with a configuration and its finished run, and what the command said. Nobody may change it."""
    folder = tmp_path_factory.mktemp("finished")
    config = corpora.config_file(
        folder,
        corpus.train,
        corpus={"validation": [str(corpus.valid)], "test": [str(corpus.valid)]},
        objective={"name": "causal"},
        model={"dropout": 0.3},
        checkpoint={"every": 2},
        evaluation={"every": 4},
        segments={"seq_len": 32},
    )
    outcome = cli("pretrain", config)
    assert outcome.status == 0, outcome.err
    return folder, outcome


@pytest.fixture
def run(finished: tuple[Path, Outcome], tmp_path: Path) -> Path:
    """A copy of the finished run that a test may damage."""
    return shutil.copytree(finished[0] / "run", tmp_path / "run")


@pytest.fixture(scope="session")
def train(
    corpus: corpora.Corpus, cli: Callable[..., Outcome], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """``train(model={...})`` trains for two steps and gives the run's folder. Nobody may change it."""
    cache = tmp_path_factory.mktemp("cache")

    def run(**sections: dict[str, Any]) -> Path:
        folder = tmp_path_factory.mktemp("trained")
        data = corpora.settings(corpus.train, folder, corpus={"cache_dir": str(cache)}, training={"max_steps": 2})
        data["model"]["init"] = {"std": 0.2}  # large enough that a mistake in numbers shows
        outcome = cli("pretrain", corpora.write_config(folder / "config.yaml", corpora.over(data, sections)))
        assert outcome.status == 0, outcome.err
        return folder / "run"

    return run


@pytest.fixture(scope="session")
def causal(train: Callable[..., Path], corpus: corpora.Corpus) -> Path:
    """A run of a model that transformers has no class for, with three checkpoints. Nobody may change it."""
    return train(
        corpus={"validation": [str(corpus.valid)]},
        objective={"name": "causal"},
        model={"norm_position": "pre", "final_norm": True, "head_dim": 16},
        segments={"seq_len": 16, "mem_len": 24},
        training={"max_steps": 6},
        checkpoint={"every": 2, "keep": 3},
        evaluation={"max_tokens": 500},
    )


@pytest.fixture
def refused_import(cli: Callable[..., Outcome], tmp_path: Path) -> Callable[..., str]:
    """``refused_import(source)`` is the sentence; nothing new lies anywhere afterwards."""

    def run(source: Path, *options: object) -> str:
        before = sorted(tmp_path.rglob("*"))
        sentence = cli("import-checkpoint", source, tmp_path / "new" / "out", *options).sentence()
        assert sorted(tmp_path.rglob("*")) == before
        return sentence

    return run


@pytest.fixture
def xlnet(spiece: Path, tmp_path: Path) -> Path:
    """The folder of an XLNet that transformers wrote, for a test to damage."""
    from xlnets import save_transformers

    save_transformers(tmp_path / "xlnet", spiece)
    return tmp_path / "xlnet"


@pytest.fixture
def golden() -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Settings and weights of an adaptive Transformer-XL of the original program."""
    import foreign

    config, tensors = foreign.read_golden("txl_adaptive")
    return config, foreign.weights_of(tensors)
