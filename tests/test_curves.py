"""Curves of several runs: runs can be told apart however many they are, and those that cannot be compared are told."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import pytest
from commands import Outcome

from xltrain.config.load import dump_config
from xltrain.pictures import line_look, mark_look
from xltrain.training import curves
from xltrain.training.comparable import compare

CANNOT = "their losses and perplexities are of different things and cannot be compared"


def logged(folder: Path, *, validated: bool = True) -> Path:
    """A run's metrics, of ten steps."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, 11):
            loss = 3 + 9 / step
            line = {"step": step, "loss": loss, "lr": 1e-3, "grad_norm": 1.0, "tokens_per_second": 10.0}
            file.write(json.dumps(line) + "\n")
        if validated:
            file.write(json.dumps({"step": 10, "validation_loss": 4.5, "validation_ppl": math.exp(4.5)}) + "\n")
    return folder


def configured(folder: Path, **sections: dict[str, Any]) -> Path:
    """A run that has logged something and saved nothing yet."""
    text = {"corpus": {"validation": [str(folder.parent / "valid.txt")]}}
    data = corpora.over(corpora.settings(folder.parent / "train.txt", folder.parent, **text), sections)
    (logged(folder) / "config.yaml").write_text(dump_config(corpora.checked(data)), encoding="utf-8")
    return folder


# --- how many there may be


@pytest.mark.parametrize("count", [1, 2, 5, 12, 17, 30])
@pytest.mark.parametrize(
    "name", ["run-{:02d}", "a/run/that/has/a/name/which/says/all/of/its/settings/and/is/number-{:02d}"]
)
def test_panels_keep_their_height_and_the_legend_is_whole(tmp_path: Path, count: int, name: str) -> None:
    folder = logged(tmp_path / "run")
    figure = curves.draw([curves.read(folder, name.format(number), "masked, 15% predicted") for number in range(count)])
    figure.canvas.draw()
    renderer, (legend,) = figure.canvas.get_renderer(), figure.legends
    extent, whole = legend.get_window_extent(renderer), figure.bbox
    assert whole.x0 <= extent.x0 < extent.x1 <= whole.x1
    assert whole.y0 <= extent.y0 < extent.y1 <= whole.y1
    said = [text.get_text() for text in legend.get_texts()]
    assert len(said) == count + 1
    assert all(name.format(number) in said[number].replace("\n", "") for number in range(count))
    panels = [axes for axes in figure.axes if axes.axison]
    assert len(panels) == 5
    for axes in panels:
        assert axes.get_window_extent(renderer).height / figure.dpi > 2.4
        around = axes.get_tightbbox(renderer)
        assert whole.x0 <= around.x0 < around.x1 <= whole.x1
        assert whole.y0 <= around.y0 < around.y1 <= whole.y1
        assert not extent.overlaps(around)


@pytest.mark.parametrize("name", ["_under", "a$b$c$", "$x^", "100%"])
def test_every_name_stands_in_the_legend_as_it_is(tmp_path: Path, name: str) -> None:
    figure = curves.draw([curves.read(logged(tmp_path / "run"), name)])
    figure.canvas.draw()
    text = figure.legends[0].get_texts()[0]
    assert text.get_text().splitlines()[0] == name
    assert not text.get_parse_math()


def test_lines_and_marks_of_thirty_runs_differ() -> None:
    lines = {(look["color"], look["linestyle"]) for look in map(line_look, range(30))}
    marks = {(look["color"], look["marker"]) for look in map(mark_look, range(30))}
    assert len(lines) == len(marks) == 30


# --- what cannot be compared


def test_runs_that_agree_are_drawn_without_a_word(tmp_path: Path, cli: Callable[..., Outcome]) -> None:
    """What does not change the meaning of a loss may differ: the model, its context, the schedule, the seed."""
    one = configured(tmp_path / "one")
    other = configured(
        tmp_path / "other",
        run={"seed": 8},
        model={"num_layers": 3},
        segments={"mem_len": 64},
        optimizer={"lr": 1e-4},
        corpus={"cache_dir": "elsewhere"},
    )
    assert compare([one, other]) == (["", ""], [])
    outcome = cli("plot", one, other, "--output", tmp_path / "both.png")
    assert outcome == Outcome(0, f"{tmp_path / 'both.png'}\n", "")


def test_objectives_are_named_and_warned_of(tmp_path: Path, cli: Callable[..., Outcome]) -> None:
    names = ["permutation", "causal", "masked", "seq2seq"]
    runs = [configured(tmp_path / name, objective={"name": name}) for name in names]
    outcome = cli("plot", *runs, "--output", tmp_path / "all.png")
    assert outcome.status == 0
    assert outcome.err == f"WARNING: these runs differ in objective ({', '.join(names)}): {CANNOT}\n"
    assert compare(runs)[0] == names


@pytest.mark.parametrize(
    ("one", "other", "aspect", "labels"),
    [
        ({"predict_fraction": 0.15}, {"predict_fraction": 0.3}, "share of targets", ["15% predicted", "30% predicted"]),
        ({"num_predict": 4}, {"predict_fraction": 0.3}, "share of targets", ["25% predicted", "30% predicted"]),
        ({"max_span": 1}, {}, "target spans", ["max_span 1 (word)", "max_span 5 (word)"]),
        ({"perm_size": 8}, {}, "orders", ["permuted in blocks of 8", "permuted whole"]),
    ],
)
def test_so_is_what_is_predicted_of_a_text(
    tmp_path: Path, one: dict[str, Any], other: dict[str, Any], aspect: str, labels: list[str]
) -> None:
    runs = [configured(tmp_path / "one", objective=one), configured(tmp_path / "other", objective=other)]
    assert compare(runs) == (labels, [f"these runs differ in {aspect} ({', '.join(labels)}): {CANNOT}"])


def test_a_number_of_targets_that_is_the_same_share_is_no_difference(tmp_path: Path) -> None:
    one = configured(tmp_path / "one", objective={"num_predict": 4})
    other = configured(tmp_path / "other", objective={"predict_fraction": 0.25})
    assert compare([one, other]) == (["", ""], [])


def test_texts_are_named_with_the_losses_that_they_concern(tmp_path: Path) -> None:
    first = configured(tmp_path / "first")
    trained = configured(
        tmp_path / "trained", corpus={"train": ["b.txt"]}, tokenizer={"kind": "byte", "vocab_size": None}
    )
    validated = configured(tmp_path / "validated", corpus={"validation": ["b.txt", "c.txt"]})
    shortly = configured(tmp_path / "shortly", evaluation={"max_tokens": 10})
    same = configured(tmp_path / "same", tokenizer={"kind": "byte", "vocab_size": None})
    assert compare([trained, same]) == (
        ["b.txt", "train.txt"],
        [
            "these runs differ in training text (b.txt, train.txt): their training losses are of different things and "
            "cannot be compared, those of validation can"
        ],
    )
    labels, (sentence,) = compare([first, validated, shortly])
    assert labels == [
        "valid.txt, validated on all tokens",
        "b.txt and 1 more, validated on all tokens",
        "valid.txt, validated on 10 tokens",
    ]
    assert sentence.endswith(
        ": their validation losses are of different things and cannot be compared, those of training can"
    )
    labels, (sentence,) = compare([first, same])
    assert labels == ["sentencepiece 500", "byte"]
    assert sentence == f"these runs differ in tokenizer (sentencepiece 500, byte): {CANNOT}"


def test_one_text_is_the_same_in_whichever_form_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    forms: list[list[Any]] = [
        ["w/a.txt", "w/b.txt"],
        [{"files": ["w/a.txt", "w/b.txt"]}],
        [{"files": ["./w/a.txt"], "text_field": "text"}, str(tmp_path / "w/b.txt")],
    ]
    runs = [configured(tmp_path / str(number), corpus={"validation": form}) for number, form in enumerate(forms)]
    assert compare(runs) == (["", "", ""], [])
    other = configured(tmp_path / "other", corpus={"validation": [{"files": forms[0], "format": "jsonl"}]})
    assert "validation text" in compare([runs[0], other])[1][0]
    (tmp_path / "saved").mkdir()
    places = ("saved", str(tmp_path / "saved"))
    runs = [configured(tmp_path / f"d{len(place)}", corpus={"train": [{"dataset": place}]}) for place in places]
    assert compare(runs) == (["", ""], [])


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    runs = [configured(tmp_path / name, corpus={"validation": [f"{name}/valid.txt"]}) for name in ("wiki", "books")]
    assert compare(runs)[0] == ["wiki/valid.txt", "books/valid.txt"]


def test_tokenizers_and_texts_are_known_by_their_bytes_where_a_checkpoint_has_them(
    causal: Path, train: Callable[..., Path], corpus: corpora.Corpus, tmp_path: Path
) -> None:
    """The same text under another name is the same; vocabularies of the same size need not be."""
    moved = shutil.copytree(causal, tmp_path / "moved")
    written = (moved / "config.yaml").read_text(encoding="utf-8")
    (moved / "config.yaml").write_text(written.replace(str(corpus.train), "/elsewhere/A.txt"), encoding="utf-8")
    assert compare([causal, moved]) == (["", ""], [])
    other = shutil.copytree(causal, tmp_path / "other")
    for folder in (other / "checkpoints").glob("step-*"):
        (folder / "spiece.model").write_bytes(b"another one")
    labels, (sentence,) = compare([causal, other])
    assert labels == ["sentencepiece 500 [1]", "sentencepiece 500 [2]"]
    assert sentence == (
        f"these runs differ in tokenizer ({', '.join(labels)}): {CANNOT}; "
        "eval-ppl of each on one text (--data) has bits_per_char for that, see docs/evaluation.md"
    )


def test_another_text_under_the_same_name_is_another(train: Callable[..., Path], tmp_path: Path) -> None:
    """As a checkpoint knows it; where tokenizers differ, fingerprints say nothing of the texts."""
    text, runs = tmp_path / "a.txt", []
    byte = {"kind": "byte", "vocab_size": None}
    for seed, tokenizer in ((1, byte), (2, byte), (2, byte), (2, {"kind": "char", "vocab_size": None})):
        corpora.write_text(text, lines=60, seed=seed)
        runs.append(train(corpus={"train": [str(text)]}, tokenizer=tokenizer))
    labels, (sentence,) = compare(runs[:3])
    assert labels == ["a.txt [1]", "a.txt [2]", "a.txt [2]"]
    assert sentence.startswith("these runs differ in training text (a.txt [1], a.txt [2]): their training losses are")
    assert "training text" not in compare(runs[2:])[1][0]


def test_a_folder_without_a_configuration_is_told_where_there_are_several(tmp_path: Path) -> None:
    bare, whole = logged(tmp_path / "bare"), configured(tmp_path / "whole")
    assert compare([bare]) == ([""], [])
    labels, (sentence,) = compare([bare, whole])
    assert labels == ["", ""]
    assert sentence.startswith(f"{bare}: no config.yaml that can be read is here, so it is not known whether")


@pytest.mark.parametrize("apart", ["", "causal"])
def test_the_legend_says_how_a_run_differs(tmp_path: Path, apart: str) -> None:
    figure = curves.draw([curves.read(logged(tmp_path / "run"), "run", apart)])
    said = [text.get_text() for text in figure.legends[0].get_texts()]
    assert said == [
        f"run\n{'(causal)' if apart else ''}\nlast validation loss 4.5000".replace("\n\n", "\n"),
        "validation",
    ]
