"""The corpus that needs no download, and the sentences that the demo asks about."""

import ast
from pathlib import Path

import demo
import pytest
import stdlib_corpus

SCRIPTS = Path(__file__).parent.parent / "scripts"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return stdlib_corpus.write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def texts(written: dict[str, Path]) -> dict[str, str]:
    return {split: path.read_text(encoding="utf-8") for split, path in written.items()}


def test_it_is_a_few_megabytes_and_a_tenth_is_held_out(written: dict[str, Path]) -> None:
    sizes = {split: path.stat().st_size for split, path in written.items()}
    total = sum(sizes.values())
    assert 1_000_000 < total < 4_000_000
    for split in ("validation", "test"):
        assert 0.03 < sizes[split] / total < 0.08


def test_the_same_bytes_every_time(written: dict[str, Path], tmp_path: Path) -> None:
    again = stdlib_corpus.write_corpus(tmp_path / "new" / "folder")
    assert {split: path.read_bytes() for split, path in again.items()} == {
        split: path.read_bytes() for split, path in written.items()
    }
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == [
        "test.txt",
        "train.txt",
        "validation.txt",
    ]


def test_documents_are_separated_by_one_blank_line_and_have_none_inside(texts: dict[str, str]) -> None:
    for text in texts.values():
        assert text.endswith("\n")
        assert not text.endswith("\n\n")
        assert "\n\n\n" not in text
        assert all(line == line.strip() for line in text.split("\n"))


def test_no_docstring_is_in_two_splits(texts: dict[str, str]) -> None:
    known = "Translate a shell PATTERN to a regular expression."  # of fnmatch, which is held out
    assert [split for split, text in texts.items() if known in text] == ["test"]
    long_lines = {split: {line for line in text.split("\n") if len(line.split()) > 3} for split, text in texts.items()}
    for split in ("validation", "test"):
        shared = long_lines[split] & long_lines["train"]
        assert len(shared) < 0.02 * len(long_lines[split])


@pytest.mark.parametrize(
    ("one", "other"),
    [("xml", "xml.dom.minidom"), ("decimal", "_pydecimal"), ("datetime", "_pydatetime"), ("io", "_pyio")],
)
def test_what_belongs_together_is_held_out_together(one: str, other: str) -> None:
    assert stdlib_corpus.split_of(one) == stdlib_corpus.split_of(other)


def test_only_modules_of_the_standard_library_that_every_python_has(tmp_path: Path) -> None:
    for name in ("argparse.py", "json/__init__.py", "json/tool.py", "json/tests/check.py", "numpy.py", "site.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('"""Some words."""')
    assert [name for name, _ in stdlib_corpus.modules(tmp_path)] == ["argparse", "json", "json.tool"]


def test_a_python_without_sources_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="ships no source of its standard library"):
        stdlib_corpus.collect(tmp_path)


def test_docstrings_come_in_the_order_of_the_source(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text(
        '"""First."""\nimport os\nif os:\n    class A:\n        """Second."""\n        def f(self):\n'
        '            "Third."\nelse:\n    async def g():\n        """Fourth."""\nx = "No docstring."\n'
    )
    assert list(stdlib_corpus.docstrings(source)) == ["First.", "Second.", "Third.", "Fourth."]
    ast.parse(source.read_bytes())


def test_cleaning_leaves_prose() -> None:
    docstring = """Adds  two\tnumbers.

        Like this:

            >>> add(1,
            ...     2)
            3

        ---------
        The end.\u2028
    """
    assert stdlib_corpus.clean(docstring) == "Adds two numbers.\nLike this:\nThe end.\n"


def test_the_gap_is_the_known_word_nearest_to_the_middle() -> None:
    gap = demo.open_gap("Return a list of the names in that file here.", {"list", "names", "here."})
    assert gap == demo.Gap(before="Return a list of the", word="names", after="in that file here.")
    assert demo.open_gap("Return a list.", {"value"}) is None


def test_sentences_are_plain_and_whole() -> None:
    document = (
        "Return the value that was given to\nthe function when it was called. Use f(x) when you do not know\n"
        "what else there could be to use. Too short to ask."
    )
    assert list(demo.sentences(document)) == ["Return the value that was given to the function when it was called."]


def test_the_demo_asks_about_three_sentences_that_training_never_saw(
    written: dict[str, Path], texts: dict[str, str]
) -> None:
    class Pieces:
        def get_vocab(self) -> dict[str, int]:
            return {f"▁{word}": 0 for word in demo.common_words(texts["train"])}

    gaps = demo.choose_gaps(written["train"].parent, Pieces())
    assert len({gap.word for gap in gaps}) == demo.SENTENCES
    for gap in gaps:
        sentence = f"{gap.before} {gap.word} {gap.after}"
        assert sentence in " ".join(texts["test"].split())
        assert sentence not in " ".join(texts["train"].split())
