"""Folders that come about whole or not at all: they are built beside their place and renamed."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from xltrain.errors import UsageError, XltrainError


def check_output(output: Path, *, overwrite: bool, what: str, files: set[str], mark: str, recognised: bool) -> None:
    """Refuse to write where something else lies.

    Args:
        output: the folder to be written.
        overwrite: whether an earlier result may be replaced.
        what: "an export", "an import", as sentences name it.
        files: every name that such a folder may hold.
        mark: the file by which it is known again.
        recognised: whether that file is there and says so.

    Raises:
        UsageError: if ``output`` is a file, or holds anything that may not be replaced.
    """
    if output.exists() and not output.is_dir():
        raise UsageError(f"{output} is a file; OUTPUT_DIR is a folder to be written, choose another name")
    if not output.is_dir() or not any(output.iterdir()):
        return
    others = sorted(path.name for path in output.iterdir() if path.name not in files or path.is_dir())
    if others or not recognised:
        listed = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
        why = f"it holds {listed}" if others else f"no {mark} in it says so"
        raise UsageError(
            f"{output} is not {what} of xltrain ({why}), so --overwrite will not delete it; "
            "choose another OUTPUT_DIR, or remove the folder yourself"
            if overwrite
            else f"{output} already exists and is not {what} of xltrain ({why}); choose another OUTPUT_DIR"
        )
    if not overwrite:
        raise UsageError(
            f"{output} already exists and is not empty; --overwrite replaces {what.replace('an ', 'an earlier ')}, "
            "or choose another OUTPUT_DIR"
        )


@contextmanager
def replacing(output: Path, *, what: str) -> Iterator[Path]:
    """A new folder that becomes ``output`` if all goes well, and is gone otherwise.

    Args:
        output: the folder to be written; what it holds is replaced.
        what: "the export", "the import", as the sentence of a failure names it.

    Raises:
        XltrainError: if the disk refuses.
    """
    target = output.resolve()
    # A parent that does not exist yet is made at the very end, so that a failure leaves no trace of it either.
    beside = next(folder for folder in target.parents if folder.exists())
    building = beside / f".{target.name}.writing-{os.getpid()}"
    aside = beside / f".{target.name}.replaced-{os.getpid()}"
    try:
        building.mkdir()
        yield building
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            target.rename(aside)
        try:
            building.rename(target)
        except OSError:
            if aside.exists():
                aside.rename(target)
            raise
    except (OSError, SafetensorError) as error:
        raise XltrainError(f"{output}: {what} could not be written: {error}") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    shutil.rmtree(aside, ignore_errors=True)
