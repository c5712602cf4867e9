"""A small model as a command loads it, and what one forward of it says."""

from pathlib import Path
from typing import Any

import corpora
import torch

from xltrain.data.tokenizer import CharTokenizer
from xltrain.distributed import Place
from xltrain.evaluation.loading import Loaded
from xltrain.training.build import build_model
from xltrain.training.checkpoint import Checkpoint

CPU = torch.device("cpu")
TOKENIZER = CharTokenizer("abcdefgh")
V, T = TOKENIZER.vocab_size, 16


def loaded(objective: str = "causal", **sections: dict[str, Any]) -> Loaded:
    model = {"init": {"std": 0.25}, "dropout": 0.3} | sections.pop("model", {})
    config = corpora.config_for(Path("a.txt"), Path(), objective={"name": objective}, model=model, **sections)
    built = build_model(config, vocab_size=V, device=CPU).eval()
    return Loaded(Checkpoint(Path("runs/one/checkpoints/step-1")), config, config, TOKENIZER, built, Place(CPU))


def next_log_probs(model: Loaded, before: list[int], *, source: int = 0) -> list[float]:
    """Log-probabilities after some tokens, from one forward over all of them."""
    query = model.config.objective.name == "permutation"
    tokens = torch.tensor([[*before, 0]] if query else [before])
    order = (torch.arange(tokens.shape[1])[None] - source + 1).clamp(min=0)
    with torch.no_grad():
        hidden, _ = model.model.hidden(
            tokens,
            order,
            model.model.empty_memory(rows=1, mem_len=0),
            stream="query" if query else "content",
            predict=torch.tensor([[tokens.shape[1] - 1]]),
        )
        return model.model.softmax.log_probs(hidden)[0, 0].tolist()
