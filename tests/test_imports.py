"""Which part of the program may know which, by the rules of design.md, section 5."""

import ast
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "xltrain"
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in FILES}


def imports_of(source: str) -> set[str]:
    """Every module that a source imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide which part is meant"
            assert node.module is not None
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inner & MODULES) or {node.module}
    return found


def imports_under(part: str) -> Iterator[tuple[str, str]]:
    """(file, imported module) for every import of a sub-package."""
    for path in sorted((PACKAGE / part).rglob("*.py")):
        for module in sorted(imports_of(path.read_text(encoding="utf-8"))):
            yield str(path.relative_to(ROOT)), module


def within(module: str, *parents: str) -> bool:
    return any(module == parent or module.startswith(parent + ".") for parent in parents)


def is_standard(module: str) -> bool:
    return module.split(".")[0] in sys.stdlib_module_names


def reads_environment(source: str) -> bool:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv", "getenvb"):
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            return any(alias.name in ("environ", "environb", "getenv", "getenvb") for alias in node.names)
    return False


def test_the_walk_sees_imports_inside_functions_and_submodules_taken_from_packages():
    source = (
        "import os.path\ndef f():\n    from xltrain.model import memory\n    from xltrain.errors import UsageError\n"
    )
    assert imports_of(source) == {"os.path", "xltrain.model.memory", "xltrain.errors"}


def test_the_walk_sees_every_way_to_read_the_environment():
    assert reads_environment("import os\nos.environ['A']")
    assert reads_environment("import os\nos.getenv('A')")
    assert reads_environment("from os import environ")
    assert not reads_environment("import os\nos.kill(1, 0)")


def test_config_needs_only_pydantic_and_yaml():
    wrong = [
        (file, module)
        for file, module in imports_under("config")
        if not is_standard(module)
        and not within(module, "pydantic", "pydantic_core", "yaml", "xltrain.config", "xltrain.errors")
    ]
    assert wrong == []


def test_model_needs_only_torch():
    wrong = [
        (file, module)
        for file, module in imports_under("model")
        if not is_standard(module) and not within(module, "torch", "xltrain.model")
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("part", "forbidden"),
    [
        ("objectives", ("xltrain.model", "xltrain.training", "xltrain.evaluation", "xltrain.interop")),
        (
            "data",
            ("xltrain.model", "xltrain.objectives", "xltrain.training", "xltrain.evaluation", "xltrain.interop"),
        ),
        ("training", ("xltrain.interop", "xltrain.commands")),
        ("evaluation", ("xltrain.training.loop", "xltrain.commands")),
        ("interop", ("xltrain.training.loop", "xltrain.commands")),
    ],
)
def test_a_part_does_not_know(part: str, forbidden: tuple[str, ...]):
    assert (PACKAGE / part).is_dir()
    assert [(file, module) for file, module in imports_under(part) if within(module, *forbidden)] == []


def test_training_and_evaluation_meet_in_perplexity_which_knows_no_training():
    """Training validates by it, and the rest of evaluation reads what training has left."""
    used = {module for _, module in imports_under("training") if within(module, "xltrain.evaluation")}
    assert used == {"xltrain.evaluation.perplexity"}
    knows = imports_of((PACKAGE / "evaluation" / "perplexity.py").read_text(encoding="utf-8"))
    assert [module for module in knows if within(module, "xltrain.training", "xltrain.evaluation")] == []


def test_only_the_command_line_knows_typer():
    knowing = {path.relative_to(PACKAGE).as_posix() for path in FILES if uses_typer(path.read_text(encoding="utf-8"))}
    assert {name for name in knowing if not name.startswith("commands/")} == {"cli.py"}


def uses_typer(source: str) -> bool:
    return any(within(module, "typer", "click") for module in imports_of(source))


def test_only_distributed_reads_the_environment():
    reading = {path.name for path in FILES if reads_environment(path.read_text(encoding="utf-8"))}
    assert reading == {"distributed.py"}


def test_no_file_of_tests_imports_another_or_the_fixtures():
    """What several share is in files that are named for what they hold."""
    found = {
        path.name: [module for module in imports_of(path.read_text(encoding="utf-8")) if is_test(module)]
        for path in (ROOT / "tests").glob("*.py")
    }
    assert {name: modules for name, modules in found.items() if modules} == {}


def test_every_file_that_tests_share_is_in_the_table_of_contributing():
    table = [line for line in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    shared = [path.name for path in (ROOT / "tests").glob("*.py") if not is_test(path.stem)]
    assert len(shared) > 10
    assert [name for name in shared if not any(f"`{name}`" in line for line in table)] == []


def is_test(module: str) -> bool:
    return module.split(".")[0] in ("conftest", "tests") or module.startswith("test_")


def test_every_file_has_a_name_and_a_size_that_can_be_taken_in():
    files = FILES + [path for folder in ("scripts", "tests") for path in sorted((ROOT / folder).rglob("*.py"))]
    assert [path.name for path in files if path.stem in ("utils", "util", "helpers", "misc", "common")] == []
    long = {path.name: count for path in files if (count := len(path.read_text(encoding="utf-8").splitlines())) > 400}
    assert long == {}


def test_packages_hold_no_code_of_their_own():
    for path in FILES:
        if path.name == "__init__.py":
            body = ast.parse(path.read_text(encoding="utf-8")).body
            assert all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in body), path


@pytest.mark.parametrize("arguments", [["--help"], ["pretrain", "--help"], ["eval-ppl", "--help"]])
def test_help_loads_neither_torch_nor_numpy(arguments: list[str]):
    program = (
        f"import sys; sys.argv = ['xltrain', *{arguments!r}]\n"
        "from xltrain.cli import main\n"
        "try: main()\n"
        "except SystemExit as stop: print(stop.code, sorted({'torch', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_reading_a_configuration_loads_no_torch():
    program = "import sys, xltrain.config.load; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_what_trains_and_reads_models_loads_no_compiler():
    """It takes a second, for nothing unless ``training.compile`` is set."""
    program = "import sys, xltrain.training.loop; print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_help_answers_in_under_half_a_second():
    def used() -> float:  # processor time: other work on the machine counts for little
        found = resource.getrusage(resource.RUSAGE_CHILDREN)
        return found.ru_utime + found.ru_stime

    best = float("inf")
    for _ in range(5):
        begin = used()
        done = subprocess.run([sys.executable, "-m", "xltrain", "--help"], capture_output=True, text=True, check=True)
        best = min(best, used() - begin)
        if best < 0.5:
            break
    assert "pretrain" in done.stdout
    assert best < 0.5
