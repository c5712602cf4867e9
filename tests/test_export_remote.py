"""``--format remote-code``: any model, in transformers, by the code that trained it."""

import ast
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import pytest
import torch
from logged import lines_of
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from xltrain.interop.remote_code import code_files
from xltrain.interop.tokenizer import special_ids
from xltrain.training.checkpoint import find_checkpoint

ROOT = Path(__file__).parent.parent
Train = Callable[..., Path]


@pytest.fixture(scope="module")
def exported(causal: Path, cli: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "causal"
    done = cli("export-checkpoint", causal, folder, "--format", "remote-code")
    assert (done.status, done.err) == (0, "")
    return folder


@pytest.fixture(scope="module")
def model(exported: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(exported, trust_remote_code=True).eval()


VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "adaptive": {
        "objective": {"name": "causal"},
        "model": {"adaptive": {"cutoffs": [50, 200], "div_val": 2, "tie_projections": True}, "same_length": True},
    },
    "documents apart, untied": {
        "objective": {"name": "causal"},
        "model": {"tie_embeddings": False, "tie_position_bias": True, "norm": "rms_norm", "bias": False},
        "segments": {"cross_documents": False, "mem_len": 24},
    },
    "learned positions, no memory": {
        "objective": {"name": "causal"},
        "model": {"positions": "learned", "attention_bias": True, "scale_embeddings": True},
        "segments": {"mem_len": 0},
    },
    "permutation, pre-norm": {
        "objective": {"name": "permutation"},
        "model": {"norm_position": "pre", "parametrization": "ntk", "init": {"variance": "xavier"}},
    },
    "permutation, learned positions": {
        "objective": {"name": "permutation"},
        "model": {"positions": "learned"},
        "segments": {"mem_len": 0},
    },
    "segments of one token": {"objective": {"name": "causal"}, "segments": {"seq_len": 1, "mem_len": 3}},
    "masked": {"objective": {"name": "masked"}, "model": {"attention_scale": "init"}},
    "seq2seq": {"objective": {"name": "seq2seq"}, "segments": {"mem_len": 0}},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_kind_of_model_gives_its_numbers(name: str, cli: Callable[..., Any], train: Train, tmp_path: Path):
    run = train(**VARIANTS[name])
    done = cli("export-checkpoint", run, tmp_path / "out", "--format", "remote-code", "--verify", "--json")
    assert (done.status, done.err) == (0, "")
    assert json.loads(done.out)["max_logit_difference"] < 1e-5


def test_the_code_is_ours_but_for_the_way_it_imports_itself():
    found = code_files()
    assert {"modeling_xltrain.py", "configuration_xltrain.py", "transformer.py", "attention.py"} <= set(found)
    for name, text in found.items():
        origin = next(path for path in (ROOT / "xltrain").rglob(name) if path.parent.name in ("model", "remote"))
        theirs, ours = text.splitlines()[1:], origin.read_text(encoding="utf-8").splitlines()
        assert len(theirs) == len(ours)
        changed = [(new, old) for new, old in zip(theirs, ours, strict=True) if new != old]
        assert all(new.startswith("from .") and old.startswith("from xltrain.") for new, old in changed), changed
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                assert f"{node.module}.py" in found
            elif isinstance(node, ast.ImportFrom | ast.Import):
                modules = [node.module] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
                assert not any(str(each).startswith("xltrain") for each in modules)


def test_a_fresh_process_without_xltrain_gives_the_same(exported: Path, model: Any, tmp_path: Path):
    tokens = torch.arange(9, 49)[None]  # (1, 40): three segments
    program = (
        "import sys; sys.modules['xltrain'] = None\n"
        "import torch\n"
        "from transformers import AutoModelForCausalLM\n"
        f"model = AutoModelForCausalLM.from_pretrained({str(exported)!r}, trust_remote_code=True).eval()\n"
        f"torch.save(model(torch.arange(9, 49)[None]).logits.detach(), {str(tmp_path / 'logits.pt')!r})\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert torch.equal(torch.load(tmp_path / "logits.pt"), model(tokens).logits)


def test_memory_is_passed_on(model: Any):
    tokens = torch.randint(9, 500, (2, 48), generator=torch.Generator().manual_seed(0))
    whole = model(tokens)
    first = model(tokens[:, :32])
    second = model(tokens[:, 32:], mems=first.mems)
    assert torch.allclose(second.logits, whole.logits[:, 32:], atol=1e-5)
    for after, expected in zip(second.mems, whole.mems, strict=True):
        assert torch.allclose(after.float(), expected.float(), atol=1e-5)
    without = model(tokens[:, 32:])
    assert not torch.allclose(without.logits, whole.logits[:, 32:], atol=1e-2)


def test_perplexity_through_transformers_is_that_of_eval_ppl(
    causal: Path, exported: Path, model: Any, corpus: corpora.Corpus, cli: Callable[..., Any]
):
    found = json.loads(cli("eval-ppl", causal, "--data", corpus.valid, "--batch-size", "1", "--json").out)
    checkpoint = find_checkpoint(causal)
    ids: list[int] = []
    lines = corpus.valid.read_text(encoding="utf-8").splitlines()
    tokenizer, eod = AutoTokenizer.from_pretrained(exported, trust_remote_code=True), checkpoint.tokenizer().eod
    for line in lines:
        ids += tokenizer(line, add_special_tokens=False)["input_ids"] if line else [eod]
    tokens = torch.tensor([ids])
    with torch.no_grad():
        loss = model(tokens, labels=tokens).loss.item()
    assert len(ids) - 1 == found["targets"]
    assert loss == pytest.approx(found["loss"], rel=1e-5)
    assert math.exp(loss) == pytest.approx(found["ppl"], rel=1e-4)


def test_padding_on_the_left_changes_nothing(model: Any):
    generator = torch.Generator().manual_seed(1)
    short, long = (
        torch.randint(9, 500, (1, 21), generator=generator),
        torch.randint(9, 500, (1, 32), generator=generator),
    )
    padded = torch.cat([torch.full((1, 11), 5), short], dim=1)
    mask = torch.ones(2, 32, dtype=torch.int64)
    mask[0, :11] = 0
    both = model(torch.cat([padded, long]), attention_mask=mask)
    assert torch.allclose(both.logits[1:], model(long).logits, atol=1e-5)
    # Segments are cut at other places of the shorter text, so it is compared with itself cut there.
    first = model(short[:, :5])
    rest = model(short[:, 5:], mems=first.mems)
    expected = torch.cat([first.logits, rest.logits], dim=1)
    assert torch.allclose(both.logits[:1, 11:], expected, atol=1e-5)
    nxt = torch.randint(9, 500, (2, 4), generator=generator)
    assert torch.allclose(model(nxt, mems=both.mems).logits[:1], model(nxt[:1], mems=rest.mems).logits, atol=1e-5)


BEGINNINGS: dict[str, dict[str, dict[str, Any]]] = {
    "zeros": {"objective": {"name": "causal"}, "segments": {"initial_memory": "zeros", "mem_len": 24}},
    "zeros, permutation": {
        "objective": {"name": "permutation"},
        "segments": {"initial_memory": "zeros", "mem_len": 10, "cross_documents": False},
    },
    "places": {
        "objective": {"name": "causal"},
        "segments": {"mem_len": 0},
        "model": {"positions": "learned"},
    },
}


@pytest.mark.parametrize("name", BEGINNINGS)
def test_padding_does_not_move_what_stands_before_a_text(
    name: str, cli: Callable[..., Any], train: Train, tmp_path: Path
):
    """The zeros that memory begins with, and the place where a segment begins."""
    run = train(**BEGINNINGS[name])
    done = cli("export-checkpoint", run, tmp_path / "out", "--format", "remote-code", "--verify", "--json")
    assert json.loads(done.out)["max_logit_difference"] < 1e-5
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True).eval()
    texts = [torch.randint(9, 500, (1, size), generator=torch.Generator().manual_seed(size)) for size in (5, 21, 5, 40)]
    both, mask = padded_to_the_left(texts)
    found = model(both, attention_mask=mask)
    for row, text in enumerate(texts):
        alone = model(text)
        torch.testing.assert_close(found.logits[row, mask[row] == 1], alone.logits[0], rtol=0, atol=1e-5)
        if alone.mems is not None:
            torch.testing.assert_close(found.mems[1][row], alone.mems[1][0])
            nxt = model(both[:, :3], mems=found.mems).logits[row]
            torch.testing.assert_close(
                nxt, model(both[row : row + 1, :3], mems=alone.mems).logits[0], rtol=0, atol=1e-5
            )
    options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None, "pad_token_id": 5}
    several = model.generate(both, attention_mask=mask, **options)[:, -5:]
    assert torch.equal(several, torch.cat([model.generate(text, **options)[:, -5:] for text in texts]))


def padded_to_the_left(texts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts (1, n) as one batch, and its mask."""
    longest = max(text.shape[1] for text in texts)
    rows = [torch.nn.functional.pad(text, (longest - text.shape[1], 0), value=5) for text in texts]
    lengths = torch.tensor([[text.shape[1]] for text in texts])
    return torch.cat(rows), (torch.arange(longest) >= longest - lengths).long()


def test_texts_of_different_lengths_go_on_from_memory(model: Any):
    """Also one of which there is nothing more to read."""
    generator = torch.Generator().manual_seed(4)
    begun = torch.randint(9, 500, (4, 20), generator=generator)
    more = [torch.randint(9, 500, (1, size), generator=generator) for size in (3, 18, 0, 3)]
    last = torch.randint(9, 500, (4, 4), generator=generator)
    first = model(begun)
    both, mask = padded_to_the_left(more)
    second = model.read(both, attention_mask=mask, token_type_ids=None, mems=first.mems)
    third = model(last, mems=second[1])
    for row, text in enumerate(more):
        mems = model(begun[row : row + 1]).mems
        if text.shape[1]:
            alone = model(text, mems=mems)
            logits = model.logits(second[0][row, mask[row] == 1])
            torch.testing.assert_close(logits, alone.logits[0], rtol=0, atol=1e-5)
            mems = alone.mems
        expected = model(last[row : row + 1], mems=mems).logits[0]
        torch.testing.assert_close(third.logits[row], expected, rtol=0, atol=1e-5)


def test_greedy_generation_is_one_token_after_another(model: Any):
    prompt = torch.randint(9, 500, (2, 20), generator=torch.Generator().manual_seed(2))
    found = model.generate(prompt, max_new_tokens=30, do_sample=False, eos_token_id=None, pad_token_id=5)
    output, expected = model(prompt), prompt
    for _ in range(30):
        best = output.logits[:, -1:].argmax(dim=-1)
        expected = torch.cat([expected, best], dim=1)
        output = model(best, mems=output.mems)
    assert torch.equal(found, expected)
    beams = model.generate(prompt, max_new_tokens=5, num_beams=3, do_sample=False, eos_token_id=None, pad_token_id=5)
    assert beams.shape == (2, 25)


def test_a_prompt_is_not_ended(exported: Path):
    tokenizer = AutoTokenizer.from_pretrained(exported, trust_remote_code=True)
    assert tokenizer("Mi")["input_ids"] == tokenizer("Mi", add_special_tokens=False)["input_ids"]


def test_labels_train_it(exported: Path):
    model = AutoModelForCausalLM.from_pretrained(exported, trust_remote_code=True).train()
    tokens = torch.randint(9, 500, (2, 40), generator=torch.Generator().manual_seed(3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(8):
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5
    assert model.stack.softmax.weight is model.stack.embedding.weight  # still one table


def test_a_masked_model_is_loaded_as_one(cli: Callable[..., Any], train: Train, tmp_path: Path):
    run = train(objective={"name": "masked"})
    assert cli("export-checkpoint", run, tmp_path / "out", "--format", "remote-code").status == 0
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", trust_remote_code=True)
    tokens = torch.arange(9, 25)[None]
    labels = torch.where(tokens % 3 == 0, tokens, -100)
    found = model.eval()(tokens, labels=labels)
    logits = found.logits[0][tokens[0] % 3 == 0]
    assert found.loss.item() == pytest.approx(torch.nn.functional.cross_entropy(logits, tokens[tokens % 3 == 0]).item())


def test_the_card_says_what_the_model_is(exported: Path, causal: Path):
    card = (exported / "README.md").read_text(encoding="utf-8")
    last = [line for line in lines_of(causal) if "validation_loss" in line][-1]
    assert card.startswith("---\nlicense: unknown\nlibrary_name: transformers\ntags: [xltrain, causal]\n---\n")
    for words in (
        "predicts the next token",
        f"{last['validation_loss']:.4f} nats per target",
        f"{last['unigram_loss']:.4f}",
        "tokens of `A.txt`",
        'AutoModelForCausalLM.from_pretrained("causal", trust_remote_code=True)',
    ):
        assert words in card
    assert str(causal.parent) not in card  # no folder of one computer


def test_sources_and_targets_are_parts_where_training_had_them_so(cli: Callable[..., Any], tmp_path: Path):
    config, lines = corpora.config_of_pairs(tmp_path)
    assert cli("pretrain", config).status == 0
    done = cli("export-checkpoint", tmp_path / "run", tmp_path / "out", "--format", "remote-code", "--json")
    assert json.loads(done.out)["max_logit_difference"] < 1e-5
    (tmp_path / "one.tsv").write_text(lines[0], encoding="utf-8")
    expected = json.loads(cli("eval-ppl", tmp_path / "run", "--data", tmp_path / "one.tsv", "--json").out)
    tokenizer = find_checkpoint(tmp_path / "run").tokenizer()
    source, target = (tokenizer.encode([part])[0] for part in lines[0].rstrip("\n").split("\t"))
    assert tokenizer.eod is not None
    tokens = torch.tensor([[*source, special_ids(tokenizer)["<sep>"], *target, tokenizer.eod]])
    types = (torch.arange(tokens.shape[1]) > len(source)).long()[None]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True).eval()
    logits = model(tokens, token_type_ids=types).logits[:, len(source) : -1]
    nll = torch.nn.functional.cross_entropy(logits[0], tokens[0, len(source) + 1 :], reduction="sum").item()
    assert (expected["targets"], nll) == (len(target) + 1, pytest.approx(expected["nll"], rel=1e-5))
