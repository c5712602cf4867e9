"""Tokenizers whose vocabulary is plain: bytes, and words separated by white space."""

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from xltrain.data.files import FaultyFile
from xltrain.data.tokenizer import SPECIALS, left_out, listed_twice
from xltrain.errors import UsageError

_WRITTEN_HERE = re.compile(rb'\s*\{\s*("(eos|lower|words)"|\}\s*$)')
"""How a file begins that is no list, in which a brace is a word."""
LONG = 40
"""Characters of a word that a message shows."""


class ByteTokenizer:
    """One id per byte of UTF-8, line ends included, after the nine special pieces; nothing is ever unknown."""

    kind = "byte"
    file_name = "bytes.json"

    def __init__(self) -> None:
        self.vocab_size = len(SPECIALS) + 256
        self.training: dict[str, int] = {}
        self.unk: int = SPECIALS.index("<unk>")
        self.eod: int | None = SPECIALS.index("<eod>")

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        first = len(SPECIALS)
        return [[first + byte for byte in line.encode("utf-8")] for line in lines]

    def parts(self, line: str, size: int) -> Sequence[str]:
        return [line[start : start + size] for start in range(0, len(line), size)]

    def decode(self, ids: Sequence[int]) -> str:
        first = len(SPECIALS)
        return bytes(number - first for number in ids if number >= first).decode("utf-8", errors="replace")

    def piece(self, token: int) -> str:
        return SPECIALS[token] if token < len(SPECIALS) else f"<0x{token - len(SPECIALS):02X}>"

    def files(self) -> dict[str, bytes]:
        return {self.file_name: json.dumps({"kind": self.kind}).encode()}


class UnknownWord(FaultyFile):
    """A word that a vocabulary lacks, which has no ``<unk>`` either. The sentence is for who uses a trained model.

    Args:
        word: as the text has it.
        near: words of the vocabulary that are spelled alike.
    """

    def __init__(self, word: str, near: Sequence[str]) -> None:
        shown = repr(word) if len(word) <= LONG else f"that begins {word[:LONG]!r}"
        self.fact = f"the word {shown} is not in the vocabulary, which has no <unk>"
        alike = f", such as {' or '.join(map(repr, near))}" if near else ""
        super().__init__(f"{self.fact}; use words of the training text{alike}")


@contextmanager
def in_corpus() -> Iterator[None]:
    """In this block, of a vocabulary's own corpus, the sentence of an :class:`UnknownWord` is how to have no such."""
    try:
        yield
    except UnknownWord as error:
        raise FaultyFile(
            f"{error.fact}; leave rare words out by tokenizer.min_count or vocab_size, so that there is one (in a list "
            "of tokenizer.path, add <unk> or the word), or add the text to corpus.train"
        ) from None


class WordTokenizer:
    """Words between white space, as Transformer-XL's word-level corpora are read.

    The vocabulary holds ``<eos>`` first if lines end with it, then words by frequency. There is no end of document.
    A word that it lacks becomes ``<unk>`` where the vocabulary has that word, and is refused elsewhere.

    Args:
        words: by id.
        eos: whether every line, a blank one too, ends with ``<eos>``.
        lower: whether text is lower-cased first.
    """

    kind = "word"
    file_name = "words.json"

    def __init__(self, words: Sequence[str], *, eos: bool, lower: bool) -> None:
        self.words, self.eos, self.lower = list(words), eos, lower
        self.vocab_size = len(self.words)
        self.training: dict[str, int] = {}
        self._ids = {word: number for number, word in enumerate(self.words)}
        unknown = self._ids.get("<unk>", self._ids.get("<UNK>"))
        self.unk: int = -1 if unknown is None else unknown
        self.eod: int | None = None

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        found = []
        for line in lines:
            words = _split(line, lower=self.lower, eos=self.eos)
            try:
                found.append([self._ids[word] for word in words])
            except KeyError:
                found.append([self._find(word) for word in words])
        return found

    def parts(self, line: str, size: int) -> Sequence[str]:
        return [line]  # <eos> ends a line, not a part of one

    def _find(self, word: str) -> int:
        number = self._ids.get(word, self.unk)
        if number < 0:
            raise UnknownWord(word, self._near(word))
        return number

    def _near(self, word: str) -> list[str]:
        """Words that are spelled like one that there is none of, the likeliest first."""
        if len(word) > LONG:
            return []
        alike = [known for known in self.words if abs(len(known) - len(word)) <= 2 and known != "<eos>"]
        by_letters = {known.lower(): known for known in reversed(alike)}  # of several, the most frequent
        found = difflib.get_close_matches(word.lower(), by_letters, n=3)
        return [by_letters[near] for near in found]

    def decode(self, ids: Sequence[int]) -> str:
        text = " ".join(self.words[number] for number in ids)
        return text.replace(" <eos> ", "\n").replace(" <eos>", "\n") if self.eos else text

    def piece(self, token: int) -> str:
        return self.words[token]

    def files(self) -> dict[str, bytes]:
        data = {"eos": self.eos, "lower": self.lower, "words": self.words}
        return {self.file_name: json.dumps(data, ensure_ascii=False).encode("utf-8")}

    @classmethod
    def from_file(cls, data: bytes, *, source: str, eos: bool = True, lower: bool = False) -> "WordTokenizer":
        """A vocabulary written here, which knows its ``eos`` and ``lower`` itself; or a list, one word per line.

        Of a line in a list the first word counts, so that a frequency may follow. ``<eos>`` goes in front of a list
        that lacks it.
        """
        if not _WRITTEN_HERE.match(data):
            return _listed_words(data, source=source, eos=eos, lower=lower)
        try:
            found = json.loads(data)
            words, eos, lower = found["words"], found["eos"], found["lower"]
        except (ValueError, KeyError, TypeError):
            words = None
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise UsageError(f"{source}: not a word vocabulary; it holds eos, lower and words")
        twice = listed_twice(words)
        if twice is not None or (eos and "<eos>" not in words):
            problem = "has eos, and no word <eos>" if twice is None else f"lists {twice!r} twice"
            raise UsageError(f"{source}: not a word vocabulary: it {problem}")
        return cls(words, eos=eos, lower=lower)


def _listed_words(data: bytes, *, source: str, eos: bool, lower: bool) -> WordTokenizer:
    try:
        words = [line.split()[0] for line in data.decode("utf-8-sig").split("\n") if line.strip()]
    except UnicodeDecodeError as error:
        raise UsageError(f"{source}: not a word vocabulary: not UTF-8 text (byte {error.start})") from None
    twice = listed_twice(words)
    if not words or twice is not None:
        problem = "holds no word" if not words else f"lists {twice!r} twice"
        raise UsageError(f"{source}: not a word vocabulary: it {problem}; it has one word per line")
    first = ["<eos>"] if eos and "<eos>" not in words else []
    return WordTokenizer(first + words, eos=eos, lower=lower)


def train_words(
    lines: Iterable[str], *, vocab_size: int | None, eos: bool, lower: bool, min_count: int = 1
) -> WordTokenizer:
    """Count words; keep all, or those that occur ``min_count`` times, or the most frequent ``vocab_size``.

    Where words are left out, ``<unk>`` is among those that are kept.

    Raises:
        UsageError: if the text has fewer words than ``vocab_size``, or no word is kept.
    """
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(_split(line, lower=lower, eos=False))
    first = ["<eos>"] if eos else []
    words = first + [word for word, _ in counts.most_common() if word not in first]
    frequent = [word for word in words if word in first or counts[word] >= min_count]
    if len(frequent) < len(words):
        words = frequent if "<unk>" in frequent else [*frequent, "<unk>"]
    if counts and set(words) <= {*first, "<unk>"} and min_count > 1:
        raise UsageError(
            f"tokenizer.min_count: no word of this text occurs {min_count:,} times, the most frequent one "
            f"{max(counts.values()):,} times; lower it"
        )
    if vocab_size is not None and vocab_size > len(words):
        raise UsageError(
            f"tokenizer.vocab_size: {vocab_size:,} is more than this text allows: at most {len(words):,} words; "
            "lower it, or leave it out"
        )
    if vocab_size is not None and vocab_size < len(words):
        if vocab_size < len(first) + 2:
            raise UsageError(
                f"tokenizer.vocab_size: {vocab_size} leaves no room for words beside "
                f"{' and '.join([*first, '<unk>'])}; allow at least {len(first) + 2}"
            )
        words = words[:vocab_size]
        if "<unk>" not in words:
            words[-1] = "<unk>"
    tokenizer = WordTokenizer(words, eos=eos, lower=lower)
    tokenizer.training = left_out("words", counts, words)
    return tokenizer


def _split(line: str, *, lower: bool, eos: bool) -> list[str]:
    words = (line.lower() if lower else line).split()
    if eos:
        words.append("<eos>")
    return words
