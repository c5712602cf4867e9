"""Word vocabularies of the Transformer-XL programs, as our ``word`` tokenizer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xltrain.data.words import WordTokenizer
from xltrain.errors import UsageError
from xltrain.interop.pickles import BAGS, Bag, read_pickle

NAMES = ("cache.pt", "vocab.pkl", "vocab.bin", "vocab.txt")
"""Files that may hold the vocabulary beside a checkpoint, the first that is there."""


def find_words(folder: Path, given: Path | None) -> WordTokenizer:
    """The vocabulary of a checkpoint: the file that was given, or one of ``NAMES`` in its folder.

    Raises:
        UsageError: if there is none, or it holds no words.
    """
    if given is not None:
        return read_words(given)
    for name in NAMES:
        if (folder / name).is_file():
            return read_words(folder / name)
    raise UsageError(
        f"{folder}: holds no vocabulary ({', '.join(NAMES)}); give its file by --vocabulary: cache.pt of the data's "
        "folder, or text with a word per line, in the order of their ids"
    )


def read_words(path: Path) -> WordTokenizer:
    """The words of a vocabulary's file: a pickled corpus or vocabulary, or text with a word per line."""
    if path.suffix == ".txt":
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: cannot be read as UTF-8 text ({error})") from None
        words = [line.split()[0] for line in lines if line.strip()]  # a count may follow the word
        return _tokenizer({"idx2sym": words}, path)
    return words_of(read_pickle(path), path)


def words_of(found: Any, path: Path) -> WordTokenizer:
    """The words of a pickled corpus, of a vocabulary, or of a vocabulary's attributes.

    Raises:
        UsageError: if there are none, or if the vocabulary cuts text otherwise than at white space.
    """
    if isinstance(found, Bag) and "vocab" in vars(found):
        found = found.vocab
    if isinstance(found, BAGS["utils.vocabulary.OpenAIVocab"]):
        raise UsageError(f"{path}: the vocabulary is GPT-2's subwords, and xltrain has no tokenizer for these")
    attributes = found if isinstance(found, Mapping) else vars(found) if isinstance(found, Bag) else {}
    return _tokenizer(attributes, path)


def _tokenizer(attributes: Mapping[str, Any], path: Path) -> WordTokenizer:
    words = attributes.get("idx2sym")
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise UsageError(f"{path}: holds no vocabulary, a list of words by id")
    if len(set(words)) < len(words):
        raise UsageError(f"{path}: {len(words) - len(set(words)):,} words of the vocabulary stand in it twice")
    if attributes.get("delimiter") is not None:
        raise UsageError(
            f"{path}: the vocabulary cuts text at {attributes['delimiter']!r}; xltrain's words end at white space"
        )
    return WordTokenizer(words, eos="<eos>" in words, lower=bool(attributes.get("lower_case")))
