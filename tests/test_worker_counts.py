"""The token stream is the tokenizer applied document by document: for any mix of sources, cuts and processes."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import context, get_context
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import pytest
from commands import files_of
from corpora import write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stored import PACKERS, parquet

from xltrain.data import corpus as corpus_module
from xltrain.data import records, workers
from xltrain.data.prepare import prepare
from xltrain.data.tokenizer import Tokenizer

Lines = list[str]

LINE = st.text(st.sampled_from("abA .é語\u2028"), min_size=1, max_size=12).filter(lambda line: bool(line.strip()))
DOCUMENTS = st.lists(st.lists(LINE, min_size=1, max_size=4), max_size=12)
SEPARATORS = ("blank_line", "line", "file")


@dataclass(frozen=True)
class Given:
    """A source of documents, each some lines: how it is stored, and how often it is read."""

    kind: str
    documents: list[Lines]
    weight: int

    def stored(self, folder: Path, name: str) -> dict[str, Any]:
        """The entry of ``corpus`` for it."""
        path = folder / f"{name}.{self.kind}"
        texts = ["\n".join(lines) for lines in self.documents]
        if self.kind == "parquet":
            parquet(path, [*texts], rows=2)
        elif self.kind == "jsonl":
            write(path, "".join(json.dumps({"text": text}) + "\n" for text in texts))
        else:
            content = "".join(text + "\n\n" for text in texts).encode()
            write(path, PACKERS["gz"](content) if self.kind.endswith("gz") else content)
        return {"files": [str(path)], "weight": self.weight}

    def read(self, separator: str) -> Iterator[Lines]:
        """Its documents as they are tokenised, by the rules that docs/data.md gives."""
        is_text = self.kind.startswith("txt")
        for _ in range(self.weight):
            if separator == "line":
                yield from ([line] for lines in self.documents for line in lines)
            elif separator == "file":
                between = ["\n"] if is_text else []
                whole = [part for lines in self.documents for part in [*(line + "\n" for line in lines), *between]]
                yield from [whole] if whole else []
            else:
                for lines in self.documents:
                    yield [line + "\n" for line in lines[:-1]] + [lines[-1] + ("\n" if is_text else "")]


@st.composite
def sources(draw: st.DrawFn) -> list[Given]:
    """Some sources, the first of which has text."""
    kinds, weights = st.sampled_from(["txt", "txt.gz", "jsonl", "parquet"]), st.sampled_from([1, 1, 2])
    found = draw(st.lists(st.builds(Given, kinds, DOCUMENTS, weights), min_size=1, max_size=4))
    if not found[0].documents:
        found[0] = Given(found[0].kind, [["a b"], ["é"]], found[0].weight)
    return draw(st.permutations(found))


def stream(given_: list[Given], separator: str, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Ids, and where documents end: every document on its own, line by line."""
    ids: list[int] = []
    ends = []
    for lines in (lines for source in given_ for lines in source.read(separator)):
        for line in lines:
            ids += tokenizer.encode([line])[0]
        ids += [] if tokenizer.eod is None else [tokenizer.eod]
        ends.append(len(ids))
    return ids, ends


@pytest.fixture(scope="module")
def quick_starts() -> Iterator[None]:
    """Processes as fresh as the program's own, from a server that has loaded what they need: hundreds of them start
    in the time that a few take otherwise."""
    server = get_context("forkserver")
    server.set_forkserver_preload(["pytest", "pyarrow.parquet", "sentencepiece", "xltrain.data.workers"])

    def instead(method: str) -> context.BaseContext:
        assert method == "spawn"
        return server

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "get_context", instead)
        yield


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(
    train=sources(),
    validation=sources(),
    separator=st.sampled_from(SEPARATORS),
    kind=st.sampled_from(["char", "byte", "word", "sentencepiece"]),
    size=st.integers(1, 120),
    count=st.integers(2, 4),
)
def test_stores_are_equal_for_every_number_of_processes_and_are_what_each_document_gives(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    quick_starts: None,
    spiece: Path,
    train: list[Given],
    validation: list[Given],
    separator: str,
    kind: str,
    size: int,
    count: int,
):
    folder = tmp_path_factory.mktemp("counts")
    entries = {
        "train": [source.stored(folder, f"train-{number}") for number, source in enumerate(train)],
        "validation": [
            source.stored(folder, f"validation-{number}") | {"weight": 1} for number, source in enumerate(validation)
        ],
    }
    validation = [Given(source.kind, source.documents, 1) for source in validation]
    given_tokenizers = {"sentencepiece": spiece, "word": write(folder / "words.txt", "<unk>\na\nab\n語\n")}
    tokenizer = {"kind": kind, "vocab_size": None}
    if kind in given_tokenizers:
        tokenizer["path"] = str(given_tokenizers[kind])
    stores = []
    for num_workers, piece_bytes in ((1, 1 << 20), (1, size), (count, size)):
        monkeypatch.setattr(corpus_module, "PIECE_BYTES", piece_bytes)
        monkeypatch.setattr(records, "PIECE_BYTES", piece_bytes)
        settled = {"document_separator": separator, "num_workers": num_workers}
        cache = {"cache_dir": str(folder / f"{num_workers}-{piece_bytes}")}
        config = corpora.config_for([], folder, corpus=entries | settled | cache, tokenizer=tokenizer)
        stores.append(prepare(config).store)
    assert files_of(stores[0].folder) == files_of(stores[1].folder) == files_of(stores[2].folder)
    for name, given_ in (("train", train), ("validation", validation)):
        split = stores[2].split(name)
        ids, ends = stream(given_, separator, stores[2].tokenizer())
        assert split.tokens.tolist() == ids
        assert np.array_equal(split.ends, ends)
