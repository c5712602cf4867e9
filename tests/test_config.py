"""Configuration: what people write in YAML, and what they are told when it is wrong."""

from pathlib import Path

import corpora
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from xltrain.config.load import dump_config, load_config, parse_yaml, validate
from xltrain.config.schema import Config
from xltrain.errors import UsageError

TEXT = "corpus: {train: [a.txt]}\n"


def load(folder: Path, text: str, *overrides: str) -> Config:
    path = folder / "c.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, overrides)


def refusal(folder: Path, text: str, *overrides: str) -> str:
    """The message for a configuration that must be refused, without the path in front."""
    with pytest.raises(UsageError) as caught:
        load(folder, text, *overrides)
    return str(caught.value).removeprefix(f"{folder / 'c.yaml'}: ")


# --- numbers, booleans and text as a person writes them


@pytest.mark.parametrize(
    ("written", "meant"), [("1e-4", 1e-4), ("5e4", 5e4), ("1E-4", 1e-4), (".5", 0.5), ("1.", 1.0), ("+2e+1", 20.0)]
)
def test_a_rate_may_be_written_in_any_usual_way(tmp_path: Path, written: str, meant: float):
    lr = load(tmp_path, TEXT + f"optimizer: {{lr: {written}}}").optimizer.lr
    assert lr == meant
    assert isinstance(lr, float)


@pytest.mark.parametrize(
    ("written", "meant"), [("010", 10), ("1_000", 1000), ("5e1", 50), ("10.0", 10), ("'7'", 7), ("+3", 3)]
)
def test_a_count_may_be_written_in_any_usual_way(tmp_path: Path, written: str, meant: int):
    steps = load(tmp_path, TEXT + f"schedule: {{warmup_steps: {written}}}").schedule.warmup_steps
    assert steps == meant
    assert isinstance(steps, int)


@pytest.mark.parametrize(("written", "meant"), [("no", False), ("Off", False), ("yes", True), ("TRUE", True)])
def test_yes_and_no_are_booleans_where_one_is_asked_for(tmp_path: Path, written: str, meant: bool):
    assert load(tmp_path, TEXT + f"segments: {{cross_documents: {written}}}").segments.cross_documents is meant


@pytest.mark.parametrize(
    ("section", "key", "written"),
    [
        ("training", "max_steps", "1:30"),
        ("training", "max_steps", "0x10"),
        ("training", "max_steps", "10.5"),
        ("training", "max_steps", "no"),
        ("training", "max_steps", ".inf"),
        ("training", "batch_size", "0"),
        ("training", "batch_size", "-1"),
        ("training", "device", "gpu"),
        ("training", "precision", "fp8"),
        ("optimizer", "lr", "yes"),
        ("optimizer", "lr", "1e-4x"),
        ("optimizer", "lr", "0"),
        ("optimizer", "lr", ".nan"),
        ("optimizer", "betas", "[0.9]"),
        ("optimizer", "betas", "[0.9, 1.0]"),
        ("optimizer", "betas", "[0.9, 0.99, 0.999]"),
        ("run", "name", "no"),
        ("run", "name", "7"),
        ("run", "seed", "-1"),
        ("schedule", "warmup_steps", "yes"),
        ("run", "seed", "4294967296"),
        ("segments", "seq_len", "[1]"),
        ("segments", "cross_documents", "maybe"),
        ("tokenizer", "character_coverage", "0.97"),
        ("tokenizer", "character_coverage", "1.01"),
        ("tokenizer", "user_defined_symbols", "<eop>"),
        ("corpus", "train", "7"),
        ("corpus", "train", "[]"),
        ("model", "init", "3"),
        ("logging", "every", "0"),
    ],
)
def test_what_means_nothing_for_a_key_is_refused_by_that_key(tmp_path: Path, section: str, key: str, written: str):
    text = f"{section}: {{{key}: {written}}}"
    message = refusal(tmp_path, text if section == "corpus" else TEXT + text)
    assert message.startswith(f"{section}.{key}")
    assert "\n" not in message


def test_a_bad_value_is_shown_with_what_is_allowed(tmp_path: Path):
    assert refusal(tmp_path, TEXT + "training: {max_steps: 1:30}").endswith(": give a whole number, written like 1000")
    assert "'1:30'" in refusal(tmp_path, TEXT + "training: {max_steps: 1:30}")
    assert refusal(tmp_path, TEXT + "optimizer: {lr: fast}").endswith(": give a number, written like 0.5 or 1e-4")
    for betas in ("0.9", "[0.9]", "[0.9, 0.99, 0.999]"):
        said = ": give a list of two numbers, such as [0.9, 0.999]"
        assert refusal(tmp_path, TEXT + f"optimizer: {{betas: {betas}}}").endswith(f"{betas} is not allowed{said}")
    for stage in ("[0, 64, 3]", "[0]"):
        said = refusal(tmp_path, TEXT + f"schedule: {{seq_len_stages: [{stage}]}}")
        assert said.endswith(f": {stage} is not allowed: give a list of two numbers")
    assert "choose auto, cpu, cuda or cuda:N" in refusal(tmp_path, TEXT + "training: {device: gpu}")
    assert "put it in quotes" in refusal(tmp_path, TEXT + "run: {name: 7}")
    assert "[a.txt, b.txt]" in refusal(tmp_path, "corpus: {train: 7}")


# --- files that are no configuration


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a\n- b\n", "must hold sections"),
        ("just words\n", "must hold sections"),
        ("", "corpus.train: is missing"),
        ("# nothing yet\n", "corpus.train: is missing"),
        ("run: {seed: 3}\n", "corpus.train: is missing"),
        ("corpus: {validation: [v.txt]}\n", "corpus.train: is missing"),
        (
            "corpus: {train: [a.txt\nrun: {}\n",
            "not valid YAML: line 2, column 4: expected ',' or ']', but got ':' "
            "(while parsing a flow sequence that begins in line 1)",
        ),
        (
            "corpus:\n\ttrain: [a.txt]\n",
            "not valid YAML: line 2, column 1: found character '\\t' that cannot start any",
        ),
        ("corpus:\n\ttrain: [a.txt]\n", "; indent with spaces, not with tabs"),
        ("corpus:\n  train:\n    - *.txt\n", "; put patterns that begin with * or hold [ ] into quotes"),
        ("corpus:\n  train: *books\n", "; put patterns that begin with * or hold [ ] into quotes"),
        ("corpus:\n  train: [ab].txt\n", "; put patterns that begin with * or hold [ ] into quotes"),
        ("corpus:\n  train: [a[bc].txt]\n", "; put patterns that begin with * or hold [ ] into quotes"),
        ("corpus: {train: [a.txt]}\nrun: !!int x\n", "not valid YAML"),
        ("corpus:\n  train: [a.txt]\n  train: [b.txt]\n", "'train' is given twice (line 3)"),
        ("corpus: {train: [a.txt]}\nrun: {}\nrun: {}\n", "'run' is given twice (line 3)"),
        ("? [corpus]\n: {train: [a.txt]}\n", "a key must be a name (line 1)"),
        ("corpus: {train: [a.txt]}\n1: 2\n", "1: no such key"),
        ("corpus: {train: [a.txt]}\nmodel: {1: 2}\n", "model.1"),
        ("corpus: {train: [a.txt]}\nmodel: 3\n", "model: 3 is not allowed; a section holds keys"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_in_one_line(tmp_path: Path, text: str, said: str):
    message = refusal(tmp_path, text)
    assert said in message
    assert "\n" not in message


def test_a_missing_file_a_folder_and_another_encoding_are_named(tmp_path: Path):
    with pytest.raises(UsageError, match=r"nowhere\.yaml: no such configuration file \(working directory "):
        load_config(tmp_path / "nowhere.yaml")
    with pytest.raises(UsageError, match="is a folder; give a YAML file"):
        load_config(tmp_path)
    (tmp_path / "utf16.yaml").write_bytes(TEXT.encode("utf-16-le") + b"\xff")
    with pytest.raises(UsageError, match=r"utf16\.yaml: not"):
        load_config(tmp_path / "utf16.yaml")


def test_merged_keys_may_be_replaced_but_not_given_twice():
    shared = "a: &shared {x: 1, y: 2}\nb:\n  <<: *shared\n  y: 3\n"
    assert parse_yaml(shared) == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}
    for again in ("y: 4", "<<: *shared"):
        with pytest.raises(yaml.YAMLError, match="is given twice"):
            parse_yaml(f"{shared}  {again}\n")


# --- unknown keys, and all mistakes at once


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("modle: {}", "modle: no such key; did you mean 'model'?"),
        ("model: {n_layers: 2}", "model.n_layers: no such key; did you mean 'num_layers'?"),
        ("model: {init: {sdt: 1}}", "model.init.sdt: no such key; did you mean 'std'?"),
        ("model: {mem_len: 5}", "model.mem_len: no such key; did you mean 'segments.mem_len'?"),
        ("model: {lr: 1}", "model.lr: no such key; did you mean 'optimizer.lr'?"),
        ("warmup_steps: 5", "warmup_steps: no such key; did you mean 'schedule.warmup_steps'?"),
        ("logging: {zzzzz: 5}", "logging.zzzzz: no such key; allowed here: every, tensorboard"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_valid_one(tmp_path: Path, text: str, said: str):
    assert refusal(tmp_path, TEXT + text) == said


def test_all_mistakes_come_in_one_message_with_dotted_paths(tmp_path: Path):
    text = """
corpus: {validation: [v.txt]}
modle: {}
model: {n_layers: 2, init: {std: -1}}
optimizer: {lr: fast}
"""
    message = refusal(tmp_path, text, "--", "schedule.nam=cosine", "training.device=tpu")
    lines = message.splitlines()
    assert lines[0] == "8 mistakes"
    assert [line.split(": ")[0].strip() for line in lines[1:]] == [
        "--set --",
        "modle",
        "corpus.train",
        "model.init.std",
        "model.n_layers",
        "optimizer.lr",
        "schedule.nam",
        "training.device",
    ]


def test_a_faulty_value_hides_no_fault_of_another_section(tmp_path: Path):
    message = refusal(tmp_path, TEXT + "optimizer: {lr: fast}\nmodel: {d_model: 65, num_heads: 5}")
    assert message.startswith("2 mistakes")
    assert "model.d_model: 65 is odd" in message


# --- faults that show only when keys are read together


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: {d_model: 25, num_heads: 5}", "model.d_model: 25 is odd"),
        ("model: {d_model: 50, num_heads: 4}", "model.num_heads: 4 does not divide d_model 50"),
        ("model: {num_layers: 0}", "model.num_layers: 0 is not allowed"),
        ("model: {dropout: 1.5}", "model.dropout: 1.5 is not allowed"),
        ("segments: {mem_len: -1}", "segments.mem_len: -1 is not allowed"),
        ("objective: {num_predict: 129}", "objective.num_predict: 129 exceeds segments.seq_len 128"),
        ("segments: {reuse_len: 128}", "segments.reuse_len: 128 must be below segments.seq_len 128"),
        ("segments: {bidirectional: true}\ntraining: {batch_size: 3}", "segments.bidirectional: half of the rows"),
        ("objective: {perm_size: 5}", "objective.perm_size: 5 must divide each part of a segment (one has 128)"),
        ("model: {adaptive: {cutoffs: [20, 10]}}", "model.adaptive.cutoffs: [20, 10] must ascend"),
        ("model: {adaptive: {cutoffs: [9], div_val: 3}}", "model.adaptive.div_val: 3^1 does not divide d_model 256"),
        ("model: {positions: learned}", "model.positions: learned positions start anew in every segment"),
        ("model: {norm: batch_norm}", "model.norm: batch_norm lets positions see one another"),
        ("model: {final_norm: true}", "model.final_norm: a post-norm model ends with a norm already"),
        ("model: {same_length: true}", "model.same_length: it needs objective.name causal"),
    ],
)
def test_impossible_shapes_are_refused_with_the_rule_and_the_value(tmp_path: Path, text: str, said: str):
    assert refusal(tmp_path, TEXT + text).startswith(said)


def test_a_head_width_of_its_own_frees_the_number_of_heads(tmp_path: Path):
    assert load(tmp_path, TEXT + "model: {d_model: 50, num_heads: 4, head_dim: 16}").model.head_width == 16


def test_every_bad_symbol_of_the_vocabulary_is_listed(tmp_path: Path):
    text = """tokenizer: {user_defined_symbols: ["<eop>", "", "<pad>", "'<n>'", "<x>", "<x>", "a b"]}"""
    message = refusal(tmp_path, TEXT + text)
    for said in (
        "'' is empty",
        "'<pad>' is already a control symbol",
        "\"'<n>'\" has quotes in its name",
        "'<x>' is listed twice",
        "'a b' contains white space",
    ):
        assert f"tokenizer.user_defined_symbols: {said}" in message
    assert message.startswith("5 mistakes")


def test_the_paragraph_symbol_keeps_its_place_in_a_trained_vocabulary(tmp_path: Path):
    assert "'<eop>'" in refusal(tmp_path, TEXT + "tokenizer: {user_defined_symbols: []}")
    char = load(tmp_path, TEXT + "tokenizer: {kind: char, user_defined_symbols: []}")
    assert char.tokenizer.user_defined_symbols == []


def test_bytes_take_neither_a_file_nor_a_size_of_their_own(tmp_path: Path):
    message = refusal(tmp_path, TEXT + "tokenizer: {kind: byte, path: x.model, vocab_size: 500}")
    assert "tokenizer.path: 'x.model' is not allowed" in message
    assert "tokenizer.vocab_size: 500 is not allowed: 256 bytes and 9 special pieces make 265" in message
    assert load(tmp_path, TEXT + "tokenizer: {kind: byte, vocab_size: 265}").tokenizer.vocab_size == 265


# --- --set


def test_set_overrides_the_file_the_last_one_winning(tmp_path: Path):
    config = load(
        tmp_path,
        TEXT + "model: {num_layers: 3}",
        "model.num_layers=4",
        "optimizer.lr=1e-4",
        "optimizer.lr = 5e-4",
        "model.init.std=.5",
        "corpus.validation=[b.txt, c.txt]",
        "run.name=a=b",
        "segments.cross_documents=no",
        "model.head_dim=null",
    )
    assert (config.model.num_layers, config.optimizer.lr, config.model.init.std) == (4, 5e-4, 0.5)
    assert config.corpus.validation == ["b.txt", "c.txt"]
    assert config.corpus.train == ["a.txt"]
    assert (config.run.name, config.segments.cross_documents, config.model.head_dim) == ("a=b", False, None)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("optimizer.lr", "--set optimizer.lr: must have the form section.key=value"),
        ("lr=3", "--set lr=3: 'lr' names no key; write section.key=value"),
        ("optimizer..lr=3", "--set optimizer..lr=3: must have the form"),
        ("optimizer.lr=[1", "--set optimizer.lr=[1: the value is not valid YAML"),
        ("run.seed.x=1", "run.seed"),
        ("optimiser.lr=3", "optimiser: no such key; did you mean 'optimizer'?"),
        ("optimizer.lr=", "optimizer.lr: None is not allowed"),
    ],
)
def test_a_bad_override_is_refused_as_one_in_the_file_is(tmp_path: Path, override: str, said: str):
    message = refusal(tmp_path, TEXT + "run: {seed: 3}", override)
    assert said in message
    assert "\n" not in message


# --- after loading


def test_a_loaded_configuration_cannot_be_changed(tmp_path: Path):
    config = load(tmp_path, TEXT)
    with pytest.raises(ValidationError, match="frozen"):
        config.run.seed = 3  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        config.run = config.run  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        config.model.init.std = 1.0  # type: ignore[misc]


def test_what_is_written_out_reads_back_the_same(tmp_path: Path):
    text = "optimizer: {lr: 1e-7, betas: [0.8, 0.95]}\nmodel: {init: {std: 0.3}, head_dim: 8}\nrun: {name: 語料}\n"
    config = load(tmp_path, TEXT + text)
    assert load(tmp_path, dump_config(config)) == config
    assert "語料" in dump_config(config)
    unset = [name for name, section in config.as_dict().items() if f"{name}:" not in dump_config(config)]
    assert unset == []


LOOKALIKES = [
    "1e-4",
    "5E4",
    ".5",
    "010",
    "1:30",
    "no",
    "Yes",
    "null",
    "~",
    "0x1F",
    "1_0",
    "<<",
    "=",
    "2024-01-01",
    " a",
]


@given(st.one_of(st.sampled_from(LOOKALIKES), st.text(min_size=1).filter(lambda text: text.isprintable())))
def test_any_name_survives_being_written_out(name: str):
    config, problems = validate({"run": {"name": name}, "corpus": {"train": [name, "b"], "cache_dir": name}})
    assert problems == []
    assert config is not None
    again, problems = validate(parse_yaml(dump_config(config)))
    assert problems == []
    assert again == config


def test_the_test_configuration_is_valid(tmp_path: Path):
    assert corpora.config_for(tmp_path / "a.txt", tmp_path).run.seed == 7


def test_one_file_may_stand_for_a_list_of_one(tmp_path: Path):
    assert load(tmp_path, "corpus: {train: a.txt}").corpus.train == ["a.txt"]
