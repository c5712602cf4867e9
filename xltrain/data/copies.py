"""Lines that validation and test text share with the training text: looked for while that is tokenised.

A text that was copied in part, under another name or among other text, is found by its lines alone. A few thousand of
them tell the share, and to look for these takes about a hundredth of the time of tokenising.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, islice

from xltrain.data.files import named_by
from xltrain.data.sources import Source

LOOKED_FOR = 10_000
"""Lines of a split, as many of each of its sources; ten times as many are read to find such that are fit."""
SHORTEST = 40
"""Bytes. Shorter lines, such as headings and answers, occur in texts that have nothing else in common."""
LONGEST = 10_000
"""Characters; longer ones may be cut before they are encoded."""
CHARACTERS = 2_000_000
"""In the lines of a split together: every process holds them."""

Lines = Mapping[str, tuple[str, ...]]
"""By split, each once and without line ends."""


def lines_to_find(sources: Mapping[str, list[Source]]) -> Lines:
    """The first lines of validation and test text that are long enough to occur once only."""
    found = {}
    for name, of_split in sources.items():
        if name == "train":
            continue
        with named_by(f"corpus.{name}"):
            lines = chain.from_iterable(_first_fit(source, share=len(of_split)) for source in of_split)
            found[name] = tuple(dict.fromkeys(lines))
    return found


def _first_fit(source: Source, *, share: int) -> Iterator[str]:
    """The first lines of a source that are fit, a ``share``-th of all that are looked for."""
    most, room = -(-LOOKED_FOR // share), CHARACTERS // share
    for line in islice((line for piece in source.pieces() for line in piece.lines()), 10 * most):
        text = line.rstrip("\n")
        if len(text) > LONGEST or len(text.encode()) < SHORTEST:
            continue
        most, room = most - 1, room - len(text)
        if room < 0:
            return
        yield text
        if most == 0:
            return


class Finder:
    """What of ``lines`` occurs in the lines that it is shown; lines are numbered over all splits, each once."""

    def __init__(self, lines: Lines) -> None:
        self._numbers = {line + end: number for number, line in enumerate(numbered(lines)) for end in ("", "\n")}
        self._wanted = frozenset(self._numbers)
        self._found: set[str] = set()

    def look(self, lines: list[str]) -> None:
        if self._wanted:
            self._found |= self._wanted.intersection(lines)

    def numbers(self) -> list[int]:
        """Of the lines that were found, in their order."""
        return sorted({self._numbers[line] for line in self._found})


def numbered(lines: Lines) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(lines.values())))


def shares(lines: Lines, numbers: set[int]) -> dict[str, dict[str, int | str]]:
    """For each split how many lines were looked for and how many found, and the beginning of the first of these."""
    text = numbered(lines)
    found = {text[number] for number in numbers}
    return {
        name: {
            "lines": len(of_split),
            "copied": sum(line in found for line in of_split),
            "example": next((line[:SHORTEST] for line in of_split if line in found), ""),
        }
        for name, of_split in lines.items()
    }
