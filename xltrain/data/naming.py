"""What names a token store: the bytes of its corpus, its tokenizer, and the settings that decide about its ids."""

import hashlib
import json
from pathlib import Path
from typing import Any

from xltrain import console
from xltrain.config.schema import Config
from xltrain.data.digests import Digests
from xltrain.data.files import AnyFile, digest, named_by
from xltrain.data.kinds import cleanup_of
from xltrain.data.sources import FileSource, SampledSource, Source
from xltrain.data.store import FORMAT
from xltrain.errors import UsageError

_WITHOUT_PIECES = {"kind", "vocab_size", "eos", "lower", "min_count"}
"""What matters in the tokenizer section where the kind is not sentencepiece."""


def marks_of(sources: dict[str, list[Source]], digests: Digests | None = None) -> dict[str, list[Any]]:
    """The mark of every source; one that is taken several times is read once for it.

    ``digests``: those of files that were digested before; None: all are read.
    """
    digests = digests or Digests()
    known: dict[int, Any] = {}

    def mark(source: Source) -> Any:
        if id(source) not in known:
            known[id(source)] = (
                source.marked(mark(source.source)) if isinstance(source, SampledSource) else source.mark(digests)
            )
        return known[id(source)]

    found, size = {}, digests.unread(files_of(sources))
    said = f"digesting {size / 1e9:,.1f} GB of corpus, which names its token store"
    with console.busy(said, at_once=False):
        for name, of_split in sources.items():
            with named_by(f"corpus.{name}"):
                found[name] = [mark(source) for source in of_split]
    return found


def files_of(sources: dict[str, list[Source]]) -> list[AnyFile]:
    """The files of all splits, each once."""
    plain = [
        source.source if isinstance(source, SampledSource) else source for found in sources.values() for source in found
    ]
    return list(dict.fromkeys(source.file for source in plain if isinstance(source, FileSource)))


def fingerprints(config: Config, marks: dict[str, list[Any]]) -> dict[str, str]:
    """What names a store, and what a run depends on.

    ``fingerprint`` changes with any byte of the corpus or tokenizer and with any setting that changes an id, and with
    nothing else; ``training_fingerprint`` is the same without validation and test, which a resumed run may have
    different. ``marks``: of the sources, by split.
    """
    tokenizer = config.tokenizer.model_dump(mode="json")
    if config.tokenizer.path is not None:  # an existing tokenizer: its bytes matter, how one is trained does not
        path = Path(config.tokenizer.path).expanduser()
        if not path.is_file():
            raise UsageError(f"tokenizer.path: {path} does not exist (working directory {Path.cwd()})")
        with named_by("tokenizer.path"):
            content = digest(path)
        tokenizer = {
            "kind": config.tokenizer.kind,
            "digest": content,
            "vocab_size": config.tokenizer.vocab_size,
            "cleanup": cleanup_of(config.tokenizer).names(),
            "words": [config.tokenizer.eos, config.tokenizer.lower] if config.tokenizer.kind == "word" else None,
        }
    elif config.tokenizer.kind != "sentencepiece":
        tokenizer = config.tokenizer.model_dump(mode="json", include=_WITHOUT_PIECES)
    settings = {
        "format": FORMAT,
        "document_separator": config.corpus.document_separator,
        "lines": config.needs_lines,
        "tokenizer": tokenizer,
    }
    return {
        "fingerprint": _mark(settings | {"files": marks}),
        "training_fingerprint": _mark(settings | {"files": {"train": marks["train"]}}),
    }


def _mark(content: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()
