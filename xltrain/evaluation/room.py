"""How much a trained model is made to remember: no more than a text has, and no more than the machine holds."""

from contextlib import suppress
from pathlib import Path

from xltrain import console
from xltrain.model.cache import Cache
from xltrain.model.transformer import LanguageModel

_LIMITS = (("/proc/meminfo", "MemAvailable:", 1024), ("/sys/fs/cgroup/memory.max", "", 1))
"""Files of Linux that say how much may be taken: the word before the number, and its unit."""


def useful(option: str, given: int | None, *, usual: int, most: int, where: str) -> int:
    """A length that an option gives, the run's ``usual`` one by default, and no more than there is to see.

    ``usual`` may be more than that: it stays, so that figures are those of the run's own validation to the last digit.

    Args:
        most: tokens that can be seen at once ``where``, such as "the text".
    """
    if given is None:
        return usual
    enough = max(usual, most)
    if given <= enough:
        return given
    console.say(f"note: {option}: {given:,} is more than the {most:,} tokens of {where}; {enough:,} is taken for it")
    return enough


def empty_cache(model: LanguageModel, *, rows: int, mem_len: int) -> Cache:
    """An empty cache; to be called where forwards run.

    Raises:
        MemoryError: if the machine has no room for it. Linux promises memory that is not there, and kills who uses it.
    """
    one = model.empty_cache(rows=1, mem_len=1).buffer.keys_values  # (L, 2, 1, N, 1, H)
    if one.device.type == "cpu":
        # Twice, so that there is room to write new ones in; and a key for every distance, which all rows share.
        needed = (2 * rows * one.nbytes + one.nbytes // 2) * mem_len
        free = _available()
        if free is not None and needed > free:
            raise MemoryError(
                f"to remember {mem_len:,} positions in {rows:,} row{'' if rows == 1 else 's'} takes "
                f"{needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free"
            )
    return model.empty_cache(rows=rows, mem_len=mem_len)


def _available() -> int | None:
    """Bytes that this process may still take; None where nothing says so."""
    found = []
    for path, word, unit in _LIMITS:
        with suppress(OSError, ValueError, IndexError):
            text = Path(path).read_text(encoding="ascii")
            found.append(int(text[text.index(word) + len(word) :].split()[0]) * unit)
    return min(found, default=None)
