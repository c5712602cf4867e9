"""Checkpoints of the three Transformer-XL programs give, imported, the original's own losses and memories.

``tests/golden`` holds weights and outputs of the original PyTorch code; the files around them are made here.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import foreign
import pytest
import torch
from commands import Outcome
from safetensors.torch import load_file
from torch import Tensor

from xltrain.interop.import_checkpoint import configuration, find_source
from xltrain.interop.imported import Imported
from xltrain.interop.readers import read_pytorch_transformer_xl, read_transfo_xl
from xltrain.interop.words import read_words
from xltrain.model.transformer import LanguageModel
from xltrain.objectives.causal import Causal
from xltrain.objectives.draws import Draw
from xltrain.training.build import build_model
from xltrain.training.checkpoint import find_checkpoint, load_weights

CPU = torch.device("cpu")
NAMES = sorted(path.stem for path in foreign.GOLDEN.glob("txl_[!t]*.safetensors"))
Cli = Callable[..., Outcome]

WRITERS: dict[str, tuple[Callable[..., Path], Callable[[Path, Path | None], Imported]]] = {
    "original": (foreign.write_original, read_pytorch_transformer_xl),
    "nvidia": (foreign.write_nvidia, read_pytorch_transformer_xl),
    "transformers": (foreign.write_transfo_xl, read_transfo_xl),
}


def losses(model: LanguageModel, config: dict[str, Any], tokens: Tensor, *, cached: bool = False) -> list[Tensor]:
    make = model.empty_cache if cached else model.empty_memory
    memory: Any = make(rows=tokens.shape[0], mem_len=config["mem_len"])
    found = []
    for number in range(4):
        segment = foreign.segment_of(tokens, number, config["seq_len"])
        plan = Causal().plan(segment, Draw(0, 0, torch.arange(tokens.shape[0])))
        with torch.no_grad():
            nll, memory = model(**plan.model_inputs(), memory=memory)
        found.append(nll)
    return found


def test_a_byte_order_mark_is_no_part_of_the_first_word(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("\n".join(foreign.words(60)), encoding="utf-8-sig")
    tokenizer = read_words(path)
    assert (tokenizer.words, tokenizer.eos) == (foreign.words(60), True)


@pytest.mark.parametrize("program", WRITERS)
@pytest.mark.parametrize("name", NAMES)
def test_losses_are_the_originals(name: str, program: str, tmp_path: Path) -> None:
    config, tensors = foreign.read_golden(name)
    writer, reader = WRITERS[program]
    imported = reader(writer(tmp_path / program, config, foreign.weights_of(tensors)), None)
    described = configuration(imported, tmp_path)
    if program == "nvidia" and config["same_length"]:
        assert described.segments.mem_len == config["mem_len"] + 1  # there a row sees one key more
    else:
        assert described.segments.mem_len == config["mem_len"]
    assert (described.model.dropout, described.model.attention_dropout) == (0.25, 0.125)
    model = build_model(described, vocab_size=imported.tokenizer.vocab_size, device=CPU).double().eval()
    load_weights(model, imported.weights, source=tmp_path)
    for number, nll in enumerate(losses(model, config, tensors["input.tokens"])):
        torch.testing.assert_close(nll, tensors[f"expected.nll.{number}"], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("program", "file_name"),
    [("original", "model.pt"), ("nvidia", "checkpoint_best.pt"), ("transformers", "config.json")],
)
def test_the_command_writes_a_checkpoint_of_the_same_losses(
    program: str, file_name: str, cli: Cli, tmp_path: Path
) -> None:
    config, tensors = foreign.read_golden("txl_adaptive")
    source = tmp_path / "source"
    WRITERS[program][0](source, config, foreign.weights_of(tensors))
    output = tmp_path / "deep" / "imported"
    outcome = cli("import-checkpoint", source, output, "--json")
    assert outcome.status == 0, outcome.err
    assert "float64" in outcome.err  # what is kept in less precision is said
    model = find_checkpoint(output).model(CPU).eval()
    for number, nll in enumerate(losses(model, config, tensors["input.tokens"])):
        torch.testing.assert_close(nll.double(), tensors[f"expected.nll.{number}"], rtol=0, atol=1e-5)
    assert (source / file_name).exists()
    assert [path.name for path in output.parent.iterdir()] == ["imported"]


@pytest.mark.parametrize("name", ["txl_plain", "txl_adaptive", "txl_adaptive_div1"])
def test_the_old_form_of_torch_save_and_untied_weights(name: str, tmp_path: Path) -> None:
    config, tensors = foreign.read_golden(name)
    weights = foreign.weights_of(tensors)
    for key in weights:
        if key.startswith("crit.out_layers") and key.endswith("weight"):
            weights[key] = weights[key] + 1.0
    old = read_pytorch_transformer_xl(foreign.write_original(tmp_path / "old", config, weights, old=True), None)
    new = read_pytorch_transformer_xl(foreign.write_original(tmp_path / "new", config, weights), None)
    nvidia = read_pytorch_transformer_xl(foreign.write_nvidia(tmp_path / "nvidia", config, weights), None)
    assert not old.sections["model"]["tie_embeddings"]
    for other in (new, nvidia):
        assert other.sections["model"] == old.sections["model"]
        assert other.weights.keys() == old.weights.keys()
        assert all(torch.equal(other.weights[key], tensor) for key, tensor in old.weights.items())
    softmax = "softmax.weight" if name == "txl_plain" else "softmax.weights.0"
    table = "embedding.weight" if name == "txl_plain" else "embedding.tables.0"
    assert torch.equal(old.weights[softmax], old.weights[table] + 1.0)
    described = configuration(old, tmp_path)
    model = build_model(described, vocab_size=config["vocab_size"], device=CPU).double()
    load_weights(model, old.weights, source=tmp_path)


def test_transformers_biases_of_layers_and_its_older_weights(tmp_path: Path) -> None:
    config, tensors = foreign.read_golden("txl_adaptive")
    weights = foreign.weights_of(tensors)
    folder = foreign.write_transfo_xl(tmp_path / "bin", config, weights, safe=False)
    state = torch.load(folder / "pytorch_model.bin", weights_only=True)
    state["transformer.layers.1.dec_attn.r_w_bias"] += 1.0
    torch.save(state, folder / "pytorch_model.bin")
    imported = read_transfo_xl(folder, None)
    assert not imported.sections["model"]["tie_position_bias"]
    assert torch.equal(imported.weights["bias_u"][1], imported.weights["bias_u"][0] + 1.0)
    tied = foreign.write_transfo_xl(tmp_path / "tied", config, weights, untie_r=False)
    assert read_transfo_xl(tied, None).sections["model"]["tie_position_bias"]
    assert imported.initial_memory == "zeros"
    assert torch.equal(imported.weights["softmax.cluster_bias"], weights["crit.cluster_bias"].flip(0))


LENGTHS = {"seq_len": 8, "mem_len": 12}


@pytest.mark.parametrize("cached", [False, True])
def test_losses_that_transformers_itself_computed(cached: bool, cli: Cli, tmp_path: Path) -> None:
    """Written and computed by transformers 4.30.2, whose memory begins as zeros that rows attend to."""
    source = foreign.GOLDEN / "transfo_xl"
    expected = load_file(source / "expected.safetensors")
    wanted = torch.stack([expected[f"nll.{number}"] for number in range(4)])
    found = {}
    for policy in ("absent", "zeros"):
        outcome = cli("import-checkpoint", source, tmp_path / policy, "--initial-memory", policy, "--json")
        assert outcome.status == 0, outcome.err
        reported = json.loads(outcome.out)
        assert (reported["initial_memory"], reported["initial_memory_there"]) == (policy, "zeros")
        assert ("--initial-memory zeros" in outcome.err) == (policy == "absent")
        assert ("and here too, as --initial-memory asks for" in outcome.err) == (policy == "zeros")
        model = find_checkpoint(tmp_path / policy).model(CPU).eval()
        found[policy] = torch.stack(losses(model, LENGTHS, expected["tokens"], cached=cached))
    torch.testing.assert_close(found["zeros"], wanted, rtol=0, atol=1e-5)
    apart = (found["absent"] - wanted).abs().amax(dim=(1, 2))
    assert apart[0] > 0.1
    assert apart[3] < 1e-5  # rows see 12 keys in each of two layers, so what was before is forgotten by then


def test_zeros_return_where_a_row_starts_anew(cli: Cli, tmp_path: Path) -> None:
    source = foreign.GOLDEN / "transfo_xl"
    tokens = load_file(source / "expected.safetensors")["tokens"]
    assert cli("import-checkpoint", source, tmp_path / "out", "--initial-memory", "zeros").status == 0
    model = find_checkpoint(tmp_path / "out").model(CPU).eval()
    first = losses(model, LENGTHS, tokens)[0]
    for make in (model.empty_memory, model.empty_cache):
        memory: Any = make(rows=2, mem_len=12)
        for number, fresh in enumerate((True, False, True)):
            segment = foreign.segment_of(tokens, number % 2, 8)
            segment = replace(segment, fresh=torch.tensor([fresh, False]))
            with torch.no_grad():
                plan = Causal().plan(segment, Draw(0, 0, torch.arange(2)))
                nll, memory = model(**plan.model_inputs(), memory=memory)
        torch.testing.assert_close(nll[0], first[0], rtol=0, atol=1e-5)
        assert (nll[1] - first[1]).abs().max() > 0.01
    text = tmp_path / "text.txt"
    text.write_text("w3 w4 w5\n" * 30, encoding="utf-8")
    outcome = cli("eval-ppl", tmp_path / "out", "--data", text, "--batch-size", 1, "--json")
    assert outcome.status == 0, outcome.err


def test_zeros_need_keys_that_are_zero(cli: Cli, tmp_path: Path) -> None:
    config, tensors = foreign.read_golden("txl_pre_norm")
    folder = foreign.write_transfo_xl(tmp_path / "pre", config, foreign.weights_of(tensors))
    outcome = cli("import-checkpoint", folder, tmp_path / "out", "--initial-memory", "zeros")
    assert "segments.initial_memory: zeros need model.norm_position post" in outcome.sentence()
    assert "choose absent, zeros" in cli("import-checkpoint", folder, "out", "--initial-memory", "no").sentence()


def test_words_keep_their_ids_and_text_is_evaluated(cli: Cli, tmp_path: Path) -> None:
    config, tensors = foreign.read_golden("txl_adaptive_div1")
    path = foreign.write_original(tmp_path / "source", config, foreign.weights_of(tensors))
    assert cli("import-checkpoint", path, tmp_path / "imported").status == 0
    tokenizer = find_checkpoint(tmp_path / "imported").tokenizer()
    assert tokenizer.encode(["w3 w59x", ""]) == [[3, 59, 0], [0]]
    text = tmp_path / "text.txt"
    text.write_text("w1 w2 w3\n" * 20, encoding="utf-8")
    outcome = cli("eval-ppl", tmp_path / "imported", "--data", text, "--json")
    assert outcome.status == 0, outcome.err
    assert cli("inspect", tmp_path / "imported").status == 0


def test_a_vocabulary_of_text_and_a_missing_one(cli: Cli, tmp_path: Path) -> None:
    config, tensors = foreign.read_golden("txl_plain")
    path = foreign.write_original(tmp_path / "source", config, foreign.weights_of(tensors))
    (path.parent / "cache.pt").unlink()
    assert "holds no vocabulary" in cli("import-checkpoint", path.parent, tmp_path / "out").sentence()
    text = tmp_path / "words.txt"
    text.write_text("".join(f"{word} {7}\n" for word in foreign.words(config["vocab_size"])), encoding="utf-8")
    outcome = cli("import-checkpoint", path.parent, tmp_path / "out", "--vocabulary", text)
    assert outcome.status == 0, outcome.err
    assert find_checkpoint(tmp_path / "out").tokenizer().piece(3) == "w3"


def test_sources_are_recognised(tmp_path: Path) -> None:
    config, tensors = foreign.read_golden("txl_plain")
    weights = foreign.weights_of(tensors)
    model = foreign.write_original(tmp_path / "a", config, weights)
    nvidia = foreign.write_nvidia(tmp_path / "b", config, weights)
    folder = foreign.write_transfo_xl(tmp_path / "c", config, weights)
    assert find_source(model.parent, "auto") == ("transformer-xl", model)
    assert find_source(nvidia, "auto") == ("nvidia-transformer-xl", nvidia)
    assert find_source(folder, "auto") == ("transfo-xl", folder)
