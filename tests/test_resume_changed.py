"""What may be another in a configuration when a run is resumed, and what may not."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import config_of

from xltrain.errors import UsageError
from xltrain.training.checkpoint import newest_checkpoint
from xltrain.training.loop import pretrain


def test_a_changed_architecture_is_refused_with_both_values(text: Path, tmp_path: Path) -> None:
    pretrain(config_of(text, tmp_path, steps=3))
    with pytest.raises(UsageError, match=r"model\.d_model was 16 and is now 32"):
        pretrain(config_of(text, tmp_path, steps=6, model__d_model=32), resume=True)
    with pytest.raises(UsageError, match=r"segments\.seq_len was 16 and is now 8"):
        pretrain(config_of(text, tmp_path, steps=6, segments__seq_len=8), resume=True)


def test_another_corpus_is_refused_before_anything_is_prepared(text: Path, tmp_path: Path) -> None:
    """Under another path, or other bytes under the same one; the same bytes elsewhere go on, also without a store."""
    moved = tmp_path / "moved.txt"
    shutil.copy(text / "train.txt", moved)
    own: Any = {"corpus__cache_dir": str(tmp_path / "cache")}
    config = config_of(text, tmp_path, steps=3, **own)
    pretrain(config)
    cache = Path(config.corpus.cache_dir)
    stores = sorted(cache.iterdir())
    (tmp_path / "other.txt").write_text("lo ra mi tu ken sol dar vi pa ne.\n\n" * 40)
    other = config_of(text, tmp_path, steps=6, **own, corpus__train=[str(tmp_path / "other.txt")])
    with pytest.raises(UsageError, match=f"^{tmp_path}: this run was trained on another corpus or tokenizer"):
        pretrain(other, resume=True)
    assert sorted(cache.iterdir()) == stores
    for store in stores:
        shutil.rmtree(store)
    with pytest.raises(UsageError, match="another corpus or tokenizer"):
        pretrain(other, resume=True)
    assert list(cache.iterdir()) == []
    pretrain(config_of(text, tmp_path, steps=4, **own, corpus__train=[str(moved)]), resume=True)
    assert sorted(cache.iterdir()) == stores
    moved.write_text("lo ra mi tu ken sol dar vi pa ne.\n\n" * 40)
    with pytest.raises(UsageError, match="another corpus or tokenizer"):
        pretrain(config_of(text, tmp_path, steps=6, **own, corpus__train=[str(moved)]), resume=True)
    assert sorted(cache.iterdir()) == stores


def test_another_validation_text_may_be_used_on_resume(text: Path, tmp_path: Path) -> None:
    pretrain(config_of(text, tmp_path, steps=3))
    (text / "valid2.txt").write_text("lo ra mi tu ken.\n\n" * 9)
    pretrain(config_of(text, tmp_path, steps=5, corpus__validation=[str(text / "valid2.txt")]), resume=True)
    assert newest_checkpoint(tmp_path).step == 5  # type: ignore[union-attr]
