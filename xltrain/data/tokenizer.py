"""Text to ids and back: sentencepiece with XLNet's special ids, or single characters."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from xltrain.data.cleanup import SPACE, CleanUp, digit_comma_pieces
from xltrain.errors import UsageError

SPECIALS = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
"""The first pieces of every vocabulary trained here, at ids 0..8, as XLNet has them."""

CONTROLS = SPECIALS[1:8]

_BETWEEN_WORDS = re.compile(r"(?<=[A-Za-z0-9]) (?=[A-Za-z0-9])")


class Tokenizer(Protocol):
    """What the rest of the program knows of a tokenizer."""

    kind: str
    vocab_size: int
    unk: int
    """Id of an unknown piece; -1 where there is none."""
    eod: int | None
    """Id that ends a document; None where documents are not marked."""
    training: dict[str, int]
    """What the vocabulary was trained on, and what of that it lacks; empty where it was not trained just now."""

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Ids of each line. No id of a control symbol ever comes from text."""
        ...

    def parts(self, line: str, size: int) -> Sequence[str]:
        """Parts of a very long line, of about ``size`` characters, whose ids one after the other are the line's.

        The whole line where it cannot be cut so.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def piece(self, token: int) -> str: ...

    def files(self) -> dict[str, bytes]:
        """Name and content of what to write so that ``load_tokenizer`` finds it again."""
        ...


class SentencePieceTokenizer:
    """A sentencepiece model; lines are encoded one by one, so a line end is no id.

    ``cleanup`` is done to every line; it is part of the tokenizer, and kept in a file beside the model.

    Raises:
        UsageError: if ``model`` is no sentencepiece model, or has neither ``<eod>`` nor ``</s>``.
    """

    kind = "sentencepiece"
    file_name = "spiece.model"
    cleanup_name = "cleanup.json"

    def __init__(self, model: bytes, *, source: str = "spiece.model", cleanup: CleanUp | None = None) -> None:
        import sentencepiece

        no_model = UsageError(f"{source}: not a sentencepiece model")
        if not model:  # sentencepiece takes an empty file for a model without pieces
            raise no_model
        try:
            self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError:
            raise no_model from None
        self.model = model
        self.vocab_size: int = self.processor.get_piece_size()
        self.unk: int = self.processor.unk_id()
        ids = {piece: self.processor.piece_to_id(piece) for piece in ("<eod>", "</s>")}
        known = [number for number in ids.values() if number != self.unk]
        if not known:
            raise UsageError(f"{source}: has neither <eod> nor </s>, which mark the end of a document; train one here")
        self.eod: int | None = known[0]
        self.num_threads = -1
        """Threads that encode; -1: one per core."""
        self.cleanup = cleanup or CleanUp()
        self.training: dict[str, int] = {}
        self._instead: dict[int, list[int]] = {}
        if self.cleanup.digit_commas:
            self._instead = digit_comma_pieces(
                [self.piece(number) for number in range(self.vocab_size)],
                encode=lambda text: self.processor.encode(text, out_type=str),
                find=self.processor.piece_to_id,
            )

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        texts = [line.rstrip("\n") for line in lines]
        if self.cleanup.changes_text:
            texts = [self.cleanup(text) for text in texts]
        found = self.processor.encode(texts, num_threads=self.num_threads)
        if self._instead:
            find = self._instead
            found = [[part for number in ids for part in find.get(number, (number,))] for ids in found]
        return found

    def parts(self, line: str, size: int) -> Sequence[str]:
        if not self._has_no_piece_across_words:
            return [line]
        cuts, found = [0], _BETWEEN_WORDS.search(line, size)
        while found:
            cuts.append(found.start())
            found = _BETWEEN_WORDS.search(line, found.end() + size)
        return [line[start:stop] for start, stop in pairwise([*cuts, len(line)])]

    @cached_property
    def _has_no_piece_across_words(self) -> bool:
        """Whether words between spaces are encoded independently, so that a line may be cut at a space."""
        across = any(SPACE in self.processor.id_to_piece(token)[1:] for token in range(self.vocab_size))
        one, two, three = self.processor.encode(["a", "a  a", " a "])
        return not across and two == one + one and three == one

    def decode(self, ids: Sequence[int]) -> str:
        return self.processor.decode([int(number) for number in ids])

    def piece(self, token: int) -> str:
        return self.processor.id_to_piece(token)

    def files(self) -> dict[str, bytes]:
        return {self.file_name: self.model} | (
            {self.cleanup_name: self.cleanup.to_file()} if self.cleanup.names() else {}
        )


class CharTokenizer:
    """One id per character, line ends included: the nine special pieces, then the alphabet by code point."""

    kind = "char"
    file_name = "characters.json"

    def __init__(self, alphabet: str) -> None:
        self.alphabet = alphabet
        self.vocab_size = len(SPECIALS) + len(alphabet)
        self.unk = SPECIALS.index("<unk>")
        self.eod: int | None = SPECIALS.index("<eod>")
        self.training: dict[str, int] = {}
        self._ids = {character: number for number, character in enumerate(alphabet, start=len(SPECIALS))}

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        find, unknown = self._ids.get, self.unk
        return [[find(character, unknown) for character in line] for line in lines]

    def parts(self, line: str, size: int) -> Sequence[str]:
        return [line[start : start + size] for start in range(0, len(line), size)]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.piece(number) for number in ids)

    def piece(self, token: int) -> str:
        return SPECIALS[token] if token < len(SPECIALS) else self.alphabet[token - len(SPECIALS)]

    def files(self) -> dict[str, bytes]:
        text = json.dumps({"alphabet": self.alphabet}, ensure_ascii=False)
        return {self.file_name: text.encode("utf-8")}

    @classmethod
    def from_file(cls, data: bytes, *, source: str) -> "CharTokenizer":
        try:
            alphabet = json.loads(data)["alphabet"]
        except (ValueError, KeyError, TypeError):
            alphabet = None
        if not isinstance(alphabet, str):
            raise UsageError(f"{source}: not a character vocabulary; it holds {{'alphabet': '...'}}")
        if (twice := listed_twice(alphabet)) is not None:
            raise UsageError(f"{source}: not a character vocabulary: it lists {twice!r} twice")
        return cls(alphabet)


def listed_twice(items: Iterable[str]) -> str | None:
    """The first of the items that is there more than once."""
    return next((item for item, count in Counter(items).items() if count > 1), None)


def train_characters(lines: Iterable[str], *, vocab_size: int | None) -> CharTokenizer:
    """Every character of the text, or the most frequent ones if ``vocab_size`` leaves room for fewer.

    Raises:
        UsageError: if ``vocab_size`` is larger than the text gives, or leaves no room for any character.
    """
    counts: dict[str, int] = {}
    for line in lines:
        for character in line:
            counts[character] = counts.get(character, 0) + 1
    largest = len(counts) + len(SPECIALS)
    if vocab_size is not None:
        if vocab_size > largest:
            raise UsageError(
                f"tokenizer.vocab_size: {vocab_size:,} is more than this text allows: at most {largest:,} "
                f"({len(counts):,} characters and {len(SPECIALS)} special pieces); lower it, or leave it out"
            )
        if vocab_size <= len(SPECIALS):
            raise UsageError(f"tokenizer.vocab_size: {vocab_size} leaves no room for characters; allow at least 10")
        frequent = sorted(counts, key=lambda character: (-counts[character], character))
        kept = frequent[: vocab_size - len(SPECIALS)]
    else:
        kept = list(counts)
    tokenizer = CharTokenizer("".join(sorted(kept)))
    tokenizer.training = left_out("characters", counts, kept)
    return tokenizer


def left_out(unit: str, counts: Mapping[str, int], kept: Iterable[str]) -> dict[str, int]:
    """What a vocabulary lacks of the ``unit``s that its text has ``counts`` of: how many, and how often they occur."""
    lacking = counts.keys() - set(kept)
    return {
        unit: len(counts),
        f"dropped_{unit}": len(lacking),
        "dropped_occurrences": sum(counts[item] for item in lacking),
        "occurrences": sum(counts.values()),
    }


def starts_word(tokenizer: Tokenizer) -> np.ndarray:
    """(V,) bool: tokens that begin a word, as XLNet's span masking asks.

    These are pieces with a leading space mark, control symbols, punctuation, and pieces of scripts that are written
    without spaces; every token of other kinds.
    """
    if tokenizer.kind != "sentencepiece":
        return np.ones(tokenizer.vocab_size, dtype=bool)
    pieces = (tokenizer.piece(token) for token in range(tokenizer.vocab_size))
    return np.fromiter((_begins(piece) for piece in pieces), dtype=bool, count=tokenizer.vocab_size)


_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "IDEOGRAPHIC")


def _begins(piece: str) -> bool:
    if piece.startswith((SPACE, "<")) or not piece:
        return True
    first = piece[0]
    return unicodedata.category(first)[0] in "PSZ" or unicodedata.name(first, "").startswith(_UNSPACED)


def find_piece(tokenizer: Tokenizer, piece: str) -> int | None:
    """Id of a piece, or None if the vocabulary lacks it."""
    return next((token for token in range(tokenizer.vocab_size) if tokenizer.piece(token) == piece), None)


def never_target(tokenizer: Tokenizer) -> np.ndarray:
    """(V,) bool: control symbols, which no objective asks to predict at a masked place."""
    found = np.zeros(tokenizer.vocab_size, dtype=bool)
    for token in range(tokenizer.vocab_size):
        if tokenizer.piece(token) in CONTROLS:
            found[token] = True
    return found


def describe(tokenizer: Tokenizer) -> dict[str, Any]:
    """What a manifest says of a tokenizer."""
    return {"kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size, "unk": tokenizer.unk, "eod": tokenizer.eod}
