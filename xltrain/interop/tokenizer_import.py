"""Tokenizers of transformers' folders, as ours: ``spiece.model`` as it is, ``tokenizer.json`` rebuilt."""

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from xltrain.data.cleanup import CleanUp
from xltrain.data.tokenizer import SPECIALS, CharTokenizer, SentencePieceTokenizer, Tokenizer
from xltrain.data.words import ByteTokenizer, WordTokenizer
from xltrain.errors import UsageError
from xltrain.interop import spiece
from xltrain.interop.imported import read_json
from xltrain.interop.tokenizer import byte_names

NAMES = ("spiece.model", "tokenizer.json")


def read_folder_tokenizer(folder: Path, *, given: Path | None, cleanup: CleanUp | None = None) -> Tokenizer:
    """The tokenizer of a folder, or that of the file that was given instead.

    Args:
        folder: of the model.
        given: a file that is read instead.
        cleanup: what text goes through first; None: what the folder says.

    Raises:
        UsageError: if there is none, or it is of a kind that xltrain has not.
    """
    path = given or next((folder / name for name in NAMES if (folder / name).is_file()), None)
    if path is None:
        raise UsageError(f"{folder}: holds no tokenizer ({' or '.join(NAMES)}); give its file by --vocabulary")
    with _understood(folder / "tokenizer.json"):
        cleanup = cleanup_of(folder) if cleanup is None else cleanup
    if path.suffix == ".json":
        with _understood(path):
            return from_tokenizer_json(read_json(path), path, cleanup=cleanup)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    if not data:  # sentencepiece would take this for a model without pieces
        raise UsageError(f"{path}: is empty")
    return SentencePieceTokenizer(data, source=str(path), cleanup=cleanup)


@contextmanager
def _understood(path: Path) -> Iterator[None]:
    """Whatever fails in making something of ``path`` that holds other things than such files do, as one sentence."""
    try:
        yield
    except (AttributeError, RecursionError, TypeError, ValueError):
        raise UsageError(f"{path}: is JSON, but not as a tokenizer is written; copy it again") from None


def cleanup_of(folder: Path) -> CleanUp:
    """What text goes through before it is cut, as ``tokenizer.json`` says, or else as transformers' XLNet has it."""
    if (folder / "tokenizer.json").is_file():
        steps = list(_steps(read_json(folder / "tokenizer.json").get("normalizer")))
        kinds = {step.get("type") for step in steps}
        replaced = [step.get("pattern") for step in steps if step.get("type") == "Replace"]
        return CleanUp(quotes={"String": "``"} in replaced, accents="NFKD" in kinds, lower="Lowercase" in kinds)
    path = folder / "tokenizer_config.json"
    said = read_json(path) if path.is_file() else {}
    return CleanUp(
        quotes=True, accents=not said.get("keep_accents", False), lower=bool(said.get("do_lower_case", False))
    )


def read_original_tokenizer(folder: Path, *, given: Path | None) -> Tokenizer:
    """``spiece.model`` with the clean-up of the original XLNet code, commas after digits included."""
    found = read_folder_tokenizer(folder, given=given)
    if isinstance(found, SentencePieceTokenizer):
        pieces = map(found.piece, range(found.vocab_size))
        if any(piece[-1] == "," and piece[-2:-1].isdigit() for piece in pieces if piece):
            return SentencePieceTokenizer(found.model, cleanup=replace(found.cleanup, digit_commas=True))
    return found


def from_tokenizer_json(content: Mapping[str, Any], path: Path, *, cleanup: CleanUp | None = None) -> Tokenizer:
    """What ``tokenizer.json`` says: a unigram vocabulary, or characters, bytes or words that xltrain exported.

    Raises:
        UsageError: if it is of another kind.
    """
    model = content.get("model")
    model = model if isinstance(model, dict) else {}
    kind, vocabulary = model.get("type"), model.get("vocab")
    if kind == "Unigram" and isinstance(vocabulary, list):
        written = _unigram(content, vocabulary, unk=model.get("unk_id"), path=path)
        return SentencePieceTokenizer(written, source=str(path), cleanup=cleanup)
    if kind == "WordLevel" and isinstance(vocabulary, dict):
        pieces = sorted(vocabulary, key=lambda piece: vocabulary[piece])
        if [vocabulary[piece] for piece in pieces] != list(range(len(pieces))):
            raise UsageError(f"{path}: the ids of its {len(pieces):,} pieces are not 0, 1, 2, ..., each once")
        if pieces[: len(SPECIALS)] == list(SPECIALS):
            rest = pieces[len(SPECIALS) :]
            if rest == byte_names():
                return ByteTokenizer()
            if all(len(piece) == 1 for piece in rest):
                return CharTokenizer("".join(rest))
        if (content.get("pre_tokenizer") or {}).get("type") == "Split":  # as words are exported
            steps = list(_steps(content.get("normalizer")))
            lower = any(step.get("type") == "Lowercase" for step in steps)
            return WordTokenizer(pieces, eos=any(step.get("content") == " <eos> " for step in steps), lower=lower)
    raise UsageError(
        f"{path}: holds a {kind} vocabulary, which xltrain cannot take over from this file; put spiece.model beside it"
    )


def _unigram(content: Mapping[str, Any], vocabulary: list[Any], *, unk: object, path: Path) -> bytes:
    """A sentencepiece model of the same pieces, scores and normalisation."""
    added = {entry.get("content"): entry for entry in content.get("added_tokens") or [] if isinstance(entry, dict)}
    try:
        texts, scores = [str(text) for text, _ in vocabulary], [float(score) for _, score in vocabulary]
        charsmap = _charsmap(content.get("normalizer"))
    except (TypeError, ValueError):
        raise UsageError(f"{path}: its vocabulary is no list of pieces and scores") from None
    pieces = []
    for number, (text, score) in enumerate(zip(texts, scores, strict=True)):
        kind = spiece.NORMAL
        if number == unk:
            kind = spiece.UNKNOWN
        elif text in added:
            kind = spiece.CONTROL if text in SPECIALS[:8] else spiece.USER_DEFINED
        pieces.append(spiece.Piece(text, 0.0 if kind != spiece.NORMAL else score, kind))
    return spiece.written(pieces, charsmap=charsmap)


def _charsmap(normalizer: Any) -> bytes:
    """The compiled normalisation; empty if there is none."""
    found = (step.get("precompiled_charsmap") for step in _steps(normalizer) if step.get("type") == "Precompiled")
    return base64.b64decode(next(found, None) or "")


def _steps(normalizer: Any) -> Iterator[dict[str, Any]]:
    """Every step of a normaliser, those of sequences too."""
    if isinstance(normalizer, dict):
        yield normalizer
        for inner in normalizer.get("normalizers") or []:
            yield from _steps(inner)
