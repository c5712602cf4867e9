"""A run does not grow."""

from pathlib import Path

import pytest


@pytest.mark.slow
def test_memory_is_flat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two thousand steps, with twenty validations and as many checkpoints."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "scripts"))
    import endurance

    early, late = endurance.resident(tmp_path)
    assert late < 1.02 * early
