"""XLNet's own clean-up of text before sentencepiece (its prepro_utils.py), each part on its own, and off unless asked.

XLNet also makes every run of white space one space, which sentencepiece's default normalisation does by itself.
"""

import json
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from xltrain.errors import UsageError

SPACE = "▁"
"""What sentencepiece writes for a space (U+2581)."""


@dataclass(frozen=True)
class CleanUp:
    """What is done to a line before it is encoded, and in the last case after; in this order.

    quotes: two grave accents, and two apostrophes, become a quotation mark.
    accents: characters are taken apart (NFKD) and combining marks dropped. This also takes apart Hangul and removes
        vowels of Indic scripts and Thai.
    lower: letters become lower case.
    digit_commas: a piece that ends with a digit and a comma is encoded again without the comma, which follows it.
    """

    quotes: bool = False
    accents: bool = False
    lower: bool = False
    digit_commas: bool = False

    @property
    def changes_text(self) -> bool:
        return self.quotes or self.accents or self.lower

    def __call__(self, line: str) -> str:
        if self.quotes:
            line = line.replace("``", '"').replace("''", '"')
        if self.accents and not line.isascii():
            decomposed = unicodedata.normalize("NFKD", line)
            line = "".join(character for character in decomposed if not unicodedata.combining(character))
        return line.lower() if self.lower else line

    def names(self) -> list[str]:
        """The keys of the tokenizer section that are on."""
        keys = {"quotes": "quotes", "accents": "strip_accents", "lower": "lower", "digit_commas": "split_digit_commas"}
        return [f"tokenizer.{keys[name]}" for name, value in asdict(self).items() if value]

    def to_file(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_file(cls, data: bytes, *, source: str) -> "CleanUp":
        try:
            found = cls(**json.loads(data))
        except (ValueError, TypeError):
            found = None
        if found is None or not all(isinstance(value, bool) for value in asdict(found).values()):
            raise UsageError(f"{source}: damaged; it says which clean-up a vocabulary was trained with")
        return found


def digit_comma_pieces(
    pieces: Sequence[str], *, encode: Callable[[str], list[str]], find: Callable[[str], int]
) -> dict[int, list[int]]:
    """For each piece that ends with a digit and a comma, the ids that XLNet has in its place.

    What is before the comma is encoded anew. Where the piece did not begin a word, neither does that, so the mark that
    sentencepiece puts in front of every text is taken off again.
    """
    found = {}
    for number, piece in enumerate(pieces):
        if len(piece) < 2 or piece[-1] != "," or not piece[-2].isdigit():
            continue
        parts = encode(piece[:-1].replace(SPACE, ""))
        if not piece.startswith(SPACE) and parts[0].startswith(SPACE):
            parts = parts[1:] if len(parts[0]) == 1 else [parts[0][1:], *parts[1:]]
        found[number] = [find(part) for part in [*parts, ","]]
    return found
