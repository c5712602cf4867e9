"""What the pages say exists: links, commands and their options, make targets, keys, and the generated page."""

import re
import shlex
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import config_docs
import pytest

from xltrain.config.load import load_config
from xltrain.config.schema import Config
from xltrain.training.run import MAY_CHANGE

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(page: Path) -> Iterator[str]:
    """Code of a page: fenced blocks, and blocks indented by four spaces."""
    text = page.read_text(encoding="utf-8")
    yield from (match[1] for match in re.finditer(r"^```\w*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE))
    yield "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))


def commands(page: Path, program: str) -> list[list[str]]:
    """The lines of code that run ``program``, as words; comments and what a shell would do with a result cut off."""
    found = []
    for block in blocks(page):
        for line in block.replace("\\\n", " ").splitlines():
            line = re.sub(r"^\$ ", "", line.strip())
            line = re.sub(r"^(\.venv/bin/)?python -m xltrain\b", "xltrain", line)
            if line.startswith(f"{program} "):
                found.append(shlex.split(re.split(r" [|>] ", line)[0], comments=True))
    return found


def slug(heading: str) -> str:
    """The anchor of a heading, as code hosts make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_the_configuration_page_is_current() -> None:
    assert config_docs.PAGE.read_text(encoding="utf-8") == config_docs.page(), "run: python scripts/config_docs.py"


def test_no_file_has_two_versions_of_a_passage() -> None:
    patterns = ("*.md", "docs/**/*.md", "configs/*.yaml", "*.toml", "*.txt", "Makefile")
    patterns += tuple(f"{room}/**/*.py" for room in ("xltrain", "scripts", "tests"))
    files = [path for pattern in patterns for path in ROOT.glob(pattern)]
    marks = re.compile(r"^(<{7}|>{7}|\|{7}) ", flags=re.MULTILINE)  # as git leaves them
    assert len(files) > 200
    assert [path.name for path in files if marks.search(path.read_text(encoding="utf-8"))] == []


def test_every_key_has_its_words() -> None:
    text = config_docs.page()
    for name in Config.model_fields:
        assert f"\n## {name}\n" in text
    assert not re.search(r"\\\n\s*\n", text), "a key without documentation"
    assert "PydanticUndefined" not in text


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))


def keys(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(r"`([a-z_]+\.[a-z_.]+)[`:]", text) + re.findall(r"--set ([a-z_]+\.[a-z_.]+)=", text)


def files(page: Path) -> list[str]:
    return re.findall(r"`((?:xltrain|scripts|configs|tests|docs)/[\w./-]+)`", page.read_text(encoding="utf-8"))


def overrides(page: Path) -> list[list[str]]:
    """The arguments of ``--set`` of every command that has some."""
    given = [[word for before, word in pairwise(words) if before == "--set"] for words in commands(page, "xltrain")]
    return [each for each in given if each]


def test_the_pages_hold_what_the_tests_below_look_for() -> None:
    """Each of which would pass for a page in which it finds nothing."""
    found = {search.__name__: sum(len(search(page)) for page in PAGES) for search in (links, keys, files, overrides)}
    found |= {program: sum(len(commands(page, program)) for page in PAGES) for program in ("xltrain", "make")}
    least = {"links": 30, "keys": 150, "files": 25, "overrides": 1, "xltrain": 15, "make": 6}
    assert {name for name, count in found.items() if count < least[name]} == set()


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in [slug(heading) for heading in headings], target


@each_page
def test_commands_exist_with_their_options(page: Path, cli: Callable[..., object]) -> None:
    for words in commands(page, "xltrain"):
        if words[1].startswith("-"):
            continue
        help_text = getattr(cli(words[1], "--help"), "out", "")
        assert help_text, " ".join(words)
        for option in re.findall(r"--[a-z][a-z-]+", " ".join(words)):
            assert option in help_text, " ".join(words)


@each_page
def test_make_targets_exist(page: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    for words in commands(page, "make"):
        assert set(words[1:]) <= set(targets), " ".join(words)


@each_page
def test_keys_exist(page: Path) -> None:
    for key in keys(page):
        kind: object = Config
        section, *names = key.split(".")
        if section not in Config.model_fields or names[-1] in ("py", "json", "yaml", "toml", "safetensors", "pt"):
            continue
        for name in [section, *names]:
            fields = getattr(kind, "model_fields", {})
            assert name in fields, f"{key} in {page.name}"
            kind = fields[name].annotation


@each_page
def test_files_named_exist(page: Path) -> None:
    for name in files(page):
        assert (ROOT / name).exists(), f"{name} in {page.name}"


def test_overrides_on_the_pages_are_accepted() -> None:
    for given in (each for page in PAGES for each in overrides(page)):
        changed = load_config(ROOT / "configs" / "demo.yaml", given)
        assert changed != load_config(ROOT / "configs" / "demo.yaml")


def test_the_readmes_own_configuration_loads(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"^```yaml\n(.*?)^```", readme, flags=re.DOTALL | re.MULTILINE)
    assert found
    for text in found:
        path = tmp_path / "own.yaml"
        path.write_text(text, encoding="utf-8")
        load_config(path)


def test_the_dry_run_that_the_readme_suggests(cli: Callable[..., object]) -> None:
    outcome = cli("pretrain", ROOT / "configs" / "demo.yaml", "--dry-run")
    assert getattr(outcome, "status", None) == 0
    assert "parameters" in getattr(outcome, "out", "")


def test_the_page_on_runs_tells_every_key_that_may_change() -> None:
    """By its name, or by that of its whole section."""
    page = (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
    passage = page[page.index("These may differ") : page.index("Anything else is refused")]
    untold = [
        key for key in sorted(MAY_CHANGE) if f"`{key}`" not in passage and f"`{key.split('.')[0]}`" not in passage
    ]
    assert untold == []
    for part, keys in EXCEPT.items():
        section = {f"{part}.{key}" for key in Config.model_fields[part].annotation.model_fields}
        assert section - MAY_CHANGE == {f"{part}.{key}" for key in keys}
        assert all(f"`{key}`" in passage for key in keys)


EXCEPT = {"optimizer": ("name", "layer_decay"), "schedule": ("seq_len_stages",), "training": ()}
"""Sections that the page says may differ but for these keys."""
