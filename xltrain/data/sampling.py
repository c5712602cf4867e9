"""A random sample of a text that is too long to be held."""

import heapq
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """What was drawn, in the order of the text.

    seen, seen_characters: how much the text held.
    """

    sentences: list[str]
    seen: int
    seen_characters: int

    @property
    def is_whole(self) -> bool:
        return len(self.sentences) == self.seen

    def consumed(self) -> Iterator[str]:
        """The sentences, each forgotten once it is given out."""
        self.sentences.reverse()
        while self.sentences:
            yield self.sentences.pop()


def draw(sentences: Iterable[str], *, most: int, most_characters: int, seed: int = 0) -> Sample:
    """At most ``most`` sentences with at most ``most_characters`` in all; every sentence is as likely as any other.

    Each gets a random key, and those with the smallest keys stay, which holds no more than the sample at any time.
    """
    keys = random.Random(seed).random
    kept: list[tuple[float, int, str]] = []  # a heap, the largest key first
    size, seen, characters = 0, 0, 0
    largest = 2.0  # once something had to go: no key from this on can stay
    for sentence in sentences:
        key = keys()
        seen += 1
        characters += len(sentence)
        if key >= largest:
            continue
        heapq.heappush(kept, (-key, seen, sentence))
        size += len(sentence)
        while len(kept) > most or size > most_characters:
            gone, _, text = heapq.heappop(kept)
            size -= len(text)
            largest = -gone
    kept.sort(key=lambda item: item[1])
    return Sample([sentence for _, _, sentence in kept], seen, characters)
