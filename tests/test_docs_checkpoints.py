"""The page on other programs' checkpoints has the tables of names that the program uses, and no others."""

from collections.abc import Iterator
from pathlib import Path

from xltrain.interop import huggingface, tensorflow, transformer_xl
from xltrain.interop.import_checkpoint import FORMATS

PAGE = Path(__file__).parent.parent / "docs" / "checkpoints.md"


def xlnet_rows() -> Iterator[str]:
    """Ours, transformers', TensorFlow's."""
    variables = {
        theirs: f"`{name}`" for name, theirs, _ in (*tensorflow.WHOLE, *tensorflow.OF_ALL_LAYERS, *tensorflow.PER_LAYER)
    }
    for ours, theirs, _ in (*huggingface.WHOLE, huggingface.UNTIED):
        yield f"| `{ours}` | `{theirs}` | {variables.get(theirs, '')} |"
    for ours, theirs, _ in (*huggingface.PER_LAYER, *huggingface.SEGMENTS):
        yield f"| `{ours}` | `transformer.layer.{{}}.{theirs}` | {variables[theirs]} |"


def transformer_xl_rows() -> Iterator[str]:
    """Ours, the original's."""
    table = transformer_xl
    untied = (table.UNTIED_PLAIN, table.UNTIED_TABLE, table.UNTIED_PROJECTION)
    rows = (*table.WHOLE, *table.PER_LAYER, *table.PLAIN, *table.ADAPTIVE, *table.PER_TABLE, table.PROJECTION, *untied)
    for theirs, ours, _ in rows:
        yield f"| `{ours}` | `{theirs}` |"


def tables() -> list[list[str]]:
    """Rows of every table of the page, without the heads."""
    found: list[list[str]] = []
    before = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("|---"):
            found.append([])
        elif line.startswith("|") and before.startswith("|") and found:
            found[-1].append(line)
        before = line
    return found


def test_the_tables_of_names_are_the_programs() -> None:
    written = tables()
    assert list(xlnet_rows()) in written
    assert list(transformer_xl_rows()) in written


def test_every_format_is_explained() -> None:
    rows = [row for table in tables() for row in table]
    for name in FORMATS:
        assert any(row.startswith(f"| `{name}` |") for row in rows), name
