"""Every configuration that is shipped can be loaded and built, and the demo's explains itself."""

import re
import sys
from pathlib import Path

import pytest

from xltrain.config.load import load_config
from xltrain.evaluation.inspect import inspect
from xltrain.training.dry_run import amounts

ROOT = Path(__file__).parent.parent
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
DEMO = ROOT / "configs" / "demo.yaml"


def test_there_are_configurations() -> None:
    assert DEMO in CONFIGS


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_loads_and_builds(path: Path) -> None:
    lines = amounts(load_config(path))
    assert lines[0].startswith("parameters")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_can_be_inspected(path: Path) -> None:
    found = inspect(path, overrides=[], signal=False, picture=None)
    assert found["parameters"] == sum(found["parts"].values())
    adaptive = load_config(path).model.adaptive.cutoffs != []
    assert found["activation_bytes"] is None if adaptive else found["activation_bytes"] > 0


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_is_explained(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# "), "say at the top what this is"


def test_the_demo_explains_every_key() -> None:
    for line in DEMO.read_text(encoding="utf-8").splitlines():
        if re.match(r"\s+[a-z_]+: ", line):
            assert re.search(r"\s# \S", line), f"no comment: {line}"


def test_the_demo_uses_the_folders_that_its_script_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    demo = sys.modules.get("demo") or __import__("demo")
    config = load_config(ROOT / demo.CONFIG)
    assert Path(config.run.folder) == demo.RUN
    assert config.corpus.train == [str(demo.CORPUS / "train.txt")]
    assert config.corpus.test == [str(demo.CORPUS / "test.txt")]
