"""The original Transformer-XL's numbers, imported and exported again, in programs that do not know xltrain."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import foreign
import pytest
import torch
from commands import Outcome
from safetensors.torch import load_file

Cli = Callable[..., Outcome]
NAMES = sorted(path.stem for path in foreign.GOLDEN.glob("txl_[!t]*.safetensors"))

PROGRAM = """
import json, sys
sys.modules["xltrain"] = None
import torch
from transformers import AutoModelForCausalLM

for folder, tokens, output, seq_len in json.load(sys.stdin):
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    tokens, mems, found = torch.load(tokens), None, []
    with torch.no_grad():
        for number in range(4):
            start = number * seq_len
            given = model(tokens[:, start : start + seq_len], mems=mems)
            wanted, mems = tokens[:, start + 1 : start + seq_len + 1], given.mems
            found.append(-given.logits.log_softmax(-1).gather(2, wanted[:, :, None]).squeeze(2))
    torch.save(found, output)
"""


@pytest.fixture(scope="module")
def imported(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every golden model as a checkpoint of ours."""
    found = {}
    for name in NAMES:
        folder = tmp_path_factory.mktemp(name)
        config, tensors = foreign.read_golden(name)
        source = foreign.write_original(folder / "source", config, foreign.weights_of(tensors))
        done = cli("import-checkpoint", source, folder / "ours")
        assert done.status == 0, done.err
        found[name] = folder / "ours"
    return found


def test_the_folder_with_its_code_gives_the_originals_losses(imported: dict[str, Path], cli: Cli, tmp_path: Path):
    work = []
    for name, checkpoint in imported.items():
        config, tensors = foreign.read_golden(name)
        done = cli("export-checkpoint", checkpoint, tmp_path / name, "--format", "remote-code", "--json")
        assert done.status == 0, done.err
        assert json.loads(done.out)["max_logit_difference"] < 1e-5
        torch.save(tensors["input.tokens"], tmp_path / f"{name}.tokens")
        work.append([str(tmp_path / each) for each in (name, f"{name}.tokens", f"{name}.nll")] + [config["seq_len"]])
    subprocess.run([sys.executable, "-c", PROGRAM], input=json.dumps(work).encode(), check=True, capture_output=True)
    for name in NAMES:
        _, tensors = foreign.read_golden(name)
        for number, nll in enumerate(torch.load(tmp_path / f"{name}.nll")):
            torch.testing.assert_close(nll.double(), tensors[f"expected.nll.{number}"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_to_transformers_4_and_back_bit_for_bit(name: str, imported: dict[str, Path], cli: Cli, tmp_path: Path):
    exported, back = tmp_path / "exported", tmp_path / "back"
    done = cli("export-checkpoint", imported[name], exported, "--format", "transfo-xl", "--verify", "--json")
    assert done.status == 0, done.err
    assert json.loads(done.out)["max_logit_difference"] < 1e-5
    done = cli("import-checkpoint", exported, back)
    assert done.status == 0, done.err
    before, after = load_file(imported[name] / "model.safetensors"), load_file(back / "model.safetensors")
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        given = tensor.expand_as(after[key]) if key in ("bias_u", "bias_v") else tensor  # one for each layer there
        assert torch.equal(given, after[key]), key
    words = [(folder / "words.json").read_text(encoding="utf-8") for folder in (imported[name], back)]
    assert json.loads(words[0])["words"] == json.loads(words[1])["words"]


def test_what_transformers_4_cannot_express_is_refused(cli: Cli, run: Path, tmp_path: Path):
    done = cli("export-checkpoint", run, tmp_path / "out", "--format", "transfo-xl")
    assert done.status == 2
    assert "cannot be exported to TransfoXLLMHeadModel: model.activation is gelu: it has relu; " in done.err
    assert "model.scale_embeddings is false: it scales its embeddings by sqrt(d_model)" in done.err
    assert not (tmp_path / "out").exists()
