"""A model whose perplexity is measured without a command, and what it lost where."""

from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import corpora
import torch
from torch import Tensor, nn

from xltrain.config.schema import Config
from xltrain.data.store import Split
from xltrain.data.tokenizer import CharTokenizer
from xltrain.evaluation.per_token import Recorder
from xltrain.evaluation.perplexity import Protocol, Result, evaluate
from xltrain.model.transformer import LanguageModel
from xltrain.objectives.plan import IGNORE, Objective
from xltrain.training.build import build_model, build_objective

CPU = torch.device("cpu")
TOKENIZER = CharTokenizer("".join(chr(ord("a") + number) for number in range(26)))
V = TOKENIZER.vocab_size
T = 16


@dataclass(frozen=True)
class Trained:
    """A model whose weights are large enough that context matters, and what it was configured with."""

    config: Config
    model: LanguageModel

    def score(self, split: Split, mode: str = "stream", *, model: nn.Module | None = None, **more: Any) -> Result:
        given = {"seq_len": T, "mem_len": T, "batch_size": 4, "stride": 1} | more
        extra = {key: given.pop(key) for key in ("unigram", "should_stop", "record") if key in given}
        objective = given.pop("objective", None)
        next_token = self.config.objective.name in ("causal", "seq2seq")
        protocol = Protocol(mode=mode, next_token=next_token, **given)
        return evaluate(
            model or self.model,
            objective or build_objective(self.config, tokenizer=TOKENIZER, seq_len=protocol.seq_len, device=CPU),
            split,
            protocol,
            new_memory=lambda rows: self.model.empty_cache(rows=rows, mem_len=protocol.mem_len),
            device=CPU,
            context=nullcontext,
            **extra,
        )


def trained(objective: str = "causal", vocab_size: int = V, **sections: dict[str, Any]) -> Trained:
    model = {"init": {"std": 0.25}, "dropout": 0.3, "attention_dropout": 0.3} | sections.pop("model", {})
    config = corpora.config_for(Path("a.txt"), Path(), objective={"name": objective}, model=model, **sections)
    return Trained(config, build_model(config, vocab_size=vocab_size, device=CPU))


def text_of(*lengths: int, seed: int = 0) -> Split:
    return corpora.split_of(lengths, name="validation", vocab_size=V, seed=seed)


class Watched(nn.Module):
    """Passes everything on to a model and keeps the loss of every target that counts, by document."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model, self.layers = model, model.layers
        self.losses: dict[int, list[float]] = defaultdict(list)
        self.targets: list[int] = []
        self.was_training: set[bool] = set()

    def forward(self, **inputs: Any) -> tuple[Tensor, Any]:
        losses, memory = self.model(**inputs)
        self.was_training.add(self.model.training)
        document, targets = inputs["document"], inputs["targets"]
        for row in range(targets.shape[0]):
            for place in (targets[row] != IGNORE).nonzero().flatten().tolist():
                number = 0 if document is None else int(document[row, place])
                self.losses[number].append(float(losses[row, place]))
                self.targets.append(int(targets[row, place]))
        return losses, memory


def by_position(found: Trained, split: Split, objective: Objective | None = None, **more: Any) -> dict[int, float]:
    """The loss of every target by its place in the text."""
    recorder = Recorder()
    found.score(split, record=recorder, objective=objective, **more)
    positions, losses = recorder.in_order()
    assert len(set(positions.tolist())) == len(positions), "each place once"
    return dict(zip(positions.tolist(), losses.tolist(), strict=True))
