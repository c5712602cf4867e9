"""Tokenizers of transformers' folders, as ours: ``spiece.model`` as it is, ``tokenizer.json`` rebuilt."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xltrain.data.tokenizer import SPECIALS, CharTokenizer, SentencePieceTokenizer, Tokenizer
from xltrain.data.words import ByteTokenizer
from xltrain.errors import UsageError
from xltrain.interop import spiece
from xltrain.interop.imported import read_json
from xltrain.interop.tokenizer import byte_names

NAMES = ("spiece.model", "tokenizer.json")


def read_folder_tokenizer(folder: Path, *, given: Path | None) -> Tokenizer:
    """The tokenizer of a folder, or that of the file that was given instead.

    Raises:
        UsageError: if there is none, or it is of a kind that xltrain has not.
    """
    path = given or next((folder / name for name in NAMES if (folder / name).is_file()), None)
    if path is None:
        raise UsageError(f"{folder}: holds no tokenizer ({' or '.join(NAMES)}); give its file by --vocabulary")
    if path.suffix == ".json":
        return from_tokenizer_json(read_json(path), path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    if not data:  # sentencepiece would take this for a model without pieces
        raise UsageError(f"{path}: is empty")
    return SentencePieceTokenizer(data, source=str(path))


def from_tokenizer_json(content: Mapping[str, Any], path: Path) -> Tokenizer:
    """What ``tokenizer.json`` says: a unigram vocabulary, or one of single characters or bytes that xltrain exported.

    Raises:
        UsageError: if it is of another kind.
    """
    model = content.get("model")
    model = model if isinstance(model, dict) else {}
    kind, vocabulary = model.get("type"), model.get("vocab")
    if kind == "Unigram" and isinstance(vocabulary, list):
        return SentencePieceTokenizer(
            _unigram(content, vocabulary, unk=model.get("unk_id"), path=path), source=str(path)
        )
    if kind == "WordLevel" and isinstance(vocabulary, dict):
        pieces = sorted(vocabulary, key=lambda piece: int(vocabulary[piece]))
        if pieces[: len(SPECIALS)] == list(SPECIALS):
            rest = pieces[len(SPECIALS) :]
            if rest == byte_names():
                return ByteTokenizer()
            if all(len(piece) == 1 for piece in rest):
                return CharTokenizer("".join(rest))
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
    """The compiled normalisation of the first ``Precompiled`` step; empty if there is none."""
    if not isinstance(normalizer, dict):
        return b""
    if normalizer.get("type") == "Precompiled":
        return base64.b64decode(normalizer.get("precompiled_charsmap") or "")
    steps = normalizer.get("normalizers")
    return next(filter(None, map(_charsmap, steps)), b"") if isinstance(steps, list) else b""
