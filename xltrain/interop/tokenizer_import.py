"""Tokenizers of transformers' folders, as ours: ``spiece.model`` as it is, ``tokenizer.json`` rebuilt."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from xltrain.data.cleanup import CleanUp
from xltrain.data.tokenizer import SPECIALS, CharTokenizer, SentencePieceTokenizer, Tokenizer
from xltrain.data.words import ByteTokenizer, WordTokenizer
from xltrain.errors import UsageError
from xltrain.interop import spiece
from xltrain.interop.cutting import read_normaliser, read_spaces
from xltrain.interop.imported import read_json
from xltrain.interop.tokenizer import byte_names, cuts_in_symbols, tokenizer_files

NAMES = ("spiece.model", "tokenizer.json")


def read_folder_tokenizer(folder: Path, *, given: Path | None) -> Tokenizer:
    """The tokenizer of a folder, or that of the file that was given instead.

    Args:
        folder: of the model; it also says what text goes through before ``spiece.model``.
        given: a file that is read instead.

    Raises:
        UsageError: if there is none, it is of a kind that xltrain has not, or text goes through what xltrain has not.
    """
    path = given or next((folder / name for name in NAMES if (folder / name).is_file()), None)
    if path is None:
        raise UsageError(f"{folder}: holds no tokenizer ({' or '.join(NAMES)}); give its file by --vocabulary")
    if path.suffix == ".json":
        with _understood(path):
            return from_tokenizer_json(read_json(path), path)
    with _understood(folder / "tokenizer.json"):
        cleanup = cleanup_of(folder)
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
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise UsageError(f"{path}: is JSON, but not as a tokenizer is written; copy it again") from None


def cleanup_of(folder: Path) -> CleanUp:
    """What text goes through before it is cut, as ``tokenizer.json`` says, or else as transformers' XLNet has it."""
    path = folder / "tokenizer.json"
    if path.is_file():
        return read_normaliser(read_json(path).get("normalizer"), path).cleanup
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


def from_tokenizer_json(content: Mapping[str, Any], path: Path) -> Tokenizer:
    """What ``tokenizer.json`` says: a unigram vocabulary, or characters, bytes or words that xltrain exported.

    Raises:
        UsageError: if it is of another kind, or text goes through what xltrain has not.
    """
    model = content.get("model")
    model = model if isinstance(model, dict) else {}
    kind, vocabulary = model.get("type"), model.get("vocab")
    if kind == "Unigram" and isinstance(vocabulary, list) and not model.get("byte_fallback"):
        return _unigram(content, vocabulary, unk=model.get("unk_id"), path=path)
    if kind == "WordLevel" and isinstance(vocabulary, dict):
        pieces = sorted(vocabulary, key=lambda piece: vocabulary[piece])
        if [vocabulary[piece] for piece in pieces] != list(range(len(pieces))):
            raise UsageError(f"{path}: the ids of its {len(pieces):,} pieces are not 0, 1, 2, ..., each once")
        for found in _symbols_or_words(pieces):
            if _cuts_alike(content, found):
                return found
        raise UsageError(
            f"{path}: holds a WordLevel vocabulary, which xltrain can take over only where it has exported that itself "
            "and its normaliser and pre-tokenizer are as they were"
        )
    raise UsageError(
        f"{path}: holds a {kind} vocabulary, which xltrain cannot take over from this file; put spiece.model beside it"
    )


def _symbols_or_words(pieces: list[str]) -> Iterator[Tokenizer]:
    """What a vocabulary without scores may be."""
    if pieces[: len(SPECIALS)] == list(SPECIALS):
        rest = pieces[len(SPECIALS) :]
        if rest == byte_names():
            yield ByteTokenizer()
        elif all(len(piece) == 1 for piece in rest):
            yield CharTokenizer("".join(rest))
    for eos in (True, False) if "<eos>" in pieces else (False,):
        for lower in (True, False):
            yield WordTokenizer(pieces, eos=eos, lower=lower)


def _cuts_alike(content: Mapping[str, Any], tokenizer: Tokenizer) -> bool:
    """Whether text goes through the same steps as in an export of ``tokenizer``."""
    exported = json.loads(tokenizer_files(tokenizer)["tokenizer.json"])
    return all(content.get(part) == exported[part] for part in ("normalizer", "pre_tokenizer"))


def _unigram(content: Mapping[str, Any], vocabulary: list[Any], *, unk: object, path: Path) -> Tokenizer:
    """A sentencepiece model of the same pieces, scores and normalisation."""
    added = {entry.get("content"): entry for entry in content.get("added_tokens") or [] if isinstance(entry, dict)}
    try:
        texts, scores = [str(text) for text, _ in vocabulary], [float(score) for _, score in vocabulary]
    except (TypeError, ValueError):
        raise UsageError(f"{path}: its vocabulary is no list of pieces and scores") from None
    normaliser = read_normaliser(content.get("normalizer"), path)
    pieces = []
    for number, (text, score) in enumerate(zip(texts, scores, strict=True)):
        kind = spiece.NORMAL
        if number == unk:
            kind = spiece.UNKNOWN
        elif text in added or text in normaliser.symbols:
            kind = spiece.CONTROL if text in SPECIALS[:8] else spiece.USER_DEFINED
        pieces.append(spiece.Piece(text, 0.0 if kind != spiece.NORMAL else score, kind))
    spaces = read_spaces(content.get("pre_tokenizer"), normaliser, path, cuts=_harmless_cuts(pieces))
    written = spiece.written(
        pieces,
        charsmap=normaliser.charsmap,
        rule=normaliser.rule,
        adds_space_in_front=spaces.adds_in_front,
        collapses_spaces=spaces.collapses,
    )
    return SentencePieceTokenizer(written, source=str(path), cleanup=normaliser.cleanup)


def _harmless_cuts(pieces: Sequence[spiece.Piece]) -> list[dict[str, Any]]:
    """Steps of a pre-tokenizer that cut where sentencepiece does too: within control symbols, around defined ones."""
    symbols = sorted((piece.text for piece in pieces if piece.kind == spiece.USER_DEFINED), key=len, reverse=True)
    patterns = (cuts_in_symbols(pieces), "MergedWithPrevious"), ("|".join(map(re.escape, symbols)), "Isolated")
    return [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}
        for pattern, behavior in patterns
    ]
