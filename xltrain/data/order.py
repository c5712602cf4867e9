"""The order in which an epoch reads the documents, drawn from (seed, epoch), without an array of the corpus' size.

Up to :data:`MAX_BLOCKS` documents are permuted freely. More are taken in that many blocks of neighbours: the blocks are
permuted, and the documents of each when it is reached. So a place of an epoch is found by looking at one block.
"""

from functools import lru_cache

import numpy as np

MAX_BLOCKS = 1 << 16
_CACHED_DOCUMENTS = 1 << 22


def block_size(documents: int) -> int:
    """How many neighbouring documents make a block."""
    return max(1, -(-documents // MAX_BLOCKS))


def num_blocks(documents: int) -> int:
    return -(-documents // block_size(documents))


def block_bounds(ends: np.ndarray) -> np.ndarray:
    """(blocks + 1,) where each block begins and the last one ends, from where every document ends."""
    size = block_size(len(ends))
    inner = ends[size - 1 : len(ends) - 1 : size] if len(ends) else ends
    return np.concatenate([[0], inner, ends[-1:]]).astype(np.int64)


class DocumentOrder:
    """All documents of a text, in an order of their own in each epoch."""

    def __init__(self, documents: int, *, seed: int, epoch: int) -> None:
        self.documents, self.seed, self.epoch = documents, seed, epoch
        self.size = block_size(documents)
        self.blocks = np.random.default_rng((seed, epoch)).permutation(num_blocks(documents))
        sizes = np.minimum((self.blocks + 1) * self.size, documents) - self.blocks * self.size
        self.firsts = np.concatenate([[0], np.cumsum(sizes)])  # (blocks + 1,) how many documents come before each
        self.block = lru_cache(maxsize=max(64, _CACHED_DOCUMENTS // self.size))(self._block)

    def _block(self, turn: int) -> np.ndarray:
        """Numbers of the documents of the block that comes at ``turn``, in their order."""
        block = int(self.blocks[turn])
        first = block * self.size
        count = min(self.size, self.documents - first)
        if count == 1:
            return np.array([first])
        return first + np.random.default_rng((self.seed, self.epoch, block)).permutation(count)

    def numbers(self, start: int, stop: int) -> np.ndarray:
        """(stop - start,) numbers of the documents that come at these turns; fewer at the epoch's end."""
        stop = min(stop, self.documents)
        if self.size == 1:
            return self.blocks[start:stop]
        first = int(np.searchsorted(self.firsts, start, side="right")) - 1
        last = int(np.searchsorted(self.firsts, stop, side="left"))
        found = np.concatenate([self.block(turn) for turn in range(first, last)])
        before = int(self.firsts[first])
        return found[start - before : stop - before]
