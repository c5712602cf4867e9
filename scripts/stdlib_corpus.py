"""A text corpus that needs no download: the docstrings of Python's own standard library.

    python scripts/stdlib_corpus.py runs/demo-corpus

writes ``train.txt``, ``validation.txt`` and ``test.txt``: real English prose, one document per module, a blank line
after each. The same Python version gives the same bytes on every machine:

- Modules come from :data:`sys.stdlib_module_names`, which is equal on all platforms; what else lies in the library's
  folder (installed packages, build leftovers) is not looked at.
- What distributions split off, strip or patch is left out (:data:`LEFT_OUT`).
- Sources are parsed, never imported, so neither missing C libraries nor ``python -OO`` matter.
"""

import ast
import hashlib
import inspect
import os
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

SPLITS = ("train", "validation", "test")

STRIPPED = "test tests idle_test idlelib lib2to3 turtledemo turtle tkinter ensurepip venv"
"""Tests, and applications that many distributions leave out or ship as packages of their own."""
OPTIONAL = "curses dbm sqlite3"
"""Built only where a C library was found, and packaged apart by some."""
PATCHED = "distutils site sysconfig"
"""Changed by distributions to say where packages are installed."""
NO_PROSE = "pydoc_data antigravity this __hello__ __phello__"
LEFT_OUT = frozenset(f"{STRIPPED} {OPTIONAL} {PATCHED} {NO_PROSE}".split())
"""Names of modules, at any depth, that the corpus leaves out."""

HELD_OUT_PERCENT = 5
SALT = "xltrain-0"  # under it, the shares come near to that on Python 3.11, 3.12 and 3.13


def write_corpus(folder: Path) -> dict[str, Path]:
    """Write the three files; returns their paths by split. Each file is replaced in one step, or not at all."""
    texts = {split: "\n".join(documents) for split, documents in collect().items()}
    folder.mkdir(parents=True, exist_ok=True)
    paths = {split: folder / f"{split}.txt" for split in SPLITS}
    for split, path in paths.items():
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(texts[split], encoding="utf-8", newline="\n")
        temporary.replace(path)
    return paths


def collect(library: Path | None = None) -> dict[str, list[str]]:
    """Documents of each split, in the order of module names. A docstring that occurs twice counts once.

    Without that, a text that two modules share could be learnt from one and tested on the other.
    """
    library = library or Path(sysconfig.get_path("stdlib"))
    found: dict[str, list[str]] = {split: [] for split in SPLITS}
    seen: set[str] = set()
    for name, path in modules(library):
        document = []
        for docstring in docstrings(path):
            if (text := clean(docstring)) and text not in seen:
                seen.add(text)
                document.append(text)
        if document:
            found[split_of(name)].append("".join(document))
    empty = [split for split, documents in found.items() if not documents]
    if empty:
        raise SystemExit(
            f"{library} holds no docstrings for {', '.join(empty)}: this Python ships no source of its standard "
            "library. Use one that does, or point corpus.train of the configuration at a text of your own."
        )
    return found


def modules(library: Path) -> list[tuple[str, Path]]:
    """Dotted name and source file of every module of the corpus, sorted by name."""
    found = {}
    for name in sys.stdlib_module_names - LEFT_OUT:
        sources = [library / f"{name}.py", *(library / name).rglob("*.py")]
        for source in filter(Path.is_file, sources):
            parts = source.relative_to(library).with_suffix("").parts
            if LEFT_OUT.isdisjoint(parts):
                found[".".join(parts).removesuffix(".__init__")] = source
    return sorted(found.items())


def docstrings(path: Path) -> Iterator[str]:
    """Docstrings of a source file in the order in which they stand there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of invalid escapes, which are the library's business
        tree = ast.parse(path.read_bytes())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        if docstring := ast.get_docstring(node, clean=False):
            yield docstring


def clean(docstring: str) -> str:
    """Lines of prose, each with its line end: no indentation, no interactive sessions, no blank lines.

    A blank line would end the document; a session (``>>>`` up to the next blank line) is code.
    """
    kept = []
    in_session = False
    for line in inspect.cleandoc(docstring).splitlines():
        text = " ".join(line.split())
        in_session = bool(text) and (in_session or text.startswith(">>>"))
        if text and not in_session and any(character.isalpha() for character in text):
            kept.append(text + "\n")
    return "".join(kept)


def split_of(name: str) -> str:
    """The split of a module, from a hash of its family's name: it does not depend on which other modules exist.

    A package goes with its submodules, and the Python twin of a C module with what it stands for (``_pyio``, ``io``),
    so that what is held out is really unseen. About one twentieth of the text falls to each held-out split.
    """
    family = name.split(".")[0].removeprefix("_py").strip("_")
    percent = int.from_bytes(hashlib.sha256(f"{SALT}/{family}".encode()).digest()[:8], "big") % 100
    if percent < HELD_OUT_PERCENT:
        return "validation"
    return "test" if percent < 2 * HELD_OUT_PERCENT else "train"


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit("usage: python scripts/stdlib_corpus.py FOLDER (writes train, validation and test.txt there)")
    for split, path in write_corpus(Path(sys.argv[1])).items():
        text = path.read_text(encoding="utf-8")
        documents = text.count("\n\n") + 1
        print(f"{split:<11} {documents:>4} modules  {len(text.encode()):>9,} bytes  {path}")


if __name__ == "__main__":
    main()
