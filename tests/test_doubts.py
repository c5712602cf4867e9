"""What a configuration may say and seldom means is told before a run starts, and in a dry run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import pytest
from commands import Outcome


@pytest.mark.parametrize(
    ("sections", "targets"),
    [
        ({"evaluation": {"max_tokens": 10}, "objective": {"name": "causal"}}, "10"),
        ({"evaluation": {"max_tokens": 999}, "objective": {"name": "causal"}}, "999"),
        ({"evaluation": {"max_tokens": 1000}, "objective": {"name": "causal"}}, None),
        ({"evaluation": {"max_tokens": 1600}, "objective": {"num_predict": 4}}, "400"),
        ({"evaluation": {"max_tokens": 4000}, "objective": {"num_predict": 4}}, None),
        ({"evaluation": {"max_tokens": 0}}, None),
        ({"evaluation": {"max_tokens": 10}, "corpus": {"validation": []}}, None),
    ],
)
def test_a_validation_on_a_handful_of_targets_is_told(
    tmp_path: Path, cli: Callable[..., Outcome], sections: dict[str, Any], targets: str | None
):
    text = {"corpus": {"validation": [str(corpora.write_text(tmp_path / "valid.txt", lines=20, seed=3))]}}
    train = corpora.write_text(tmp_path / "train.txt", lines=20, seed=4)
    data = corpora.over(corpora.settings(train, tmp_path, **text), sections)
    outcome = cli("pretrain", corpora.write_config(tmp_path / "c.yaml", data), "--dry-run")
    assert outcome.status == 0, outcome.err
    said = (
        f"WARNING: evaluation.max_tokens: {sections['evaluation']['max_tokens']:,} tokens have about {targets} targets"
    )
    assert (said in outcome.err) == (targets is not None)
    assert ("evaluation.max_tokens" in outcome.err) == (targets is not None)
