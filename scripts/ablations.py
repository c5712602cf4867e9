"""Ablations on real text at small scale: what memory, relative positions and the order of prediction are worth.

The text is the demo's. Every model has the same size and sees the same number of tokens; each row changes what its name
says. Under half an hour on two cores; results are in docs/results.md.

    python scripts/ablations.py
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from stdlib_corpus import write_corpus

BASE: dict[str, Any] = {
    "run": {"seed": 1},
    "tokenizer": {"vocab_size": 2000},
    "segments": {"seq_len": 64, "mem_len": 64, "shuffle_documents": True},
    "model": {
        "num_layers": 4,
        "d_model": 128,
        "num_heads": 4,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "norm_position": "pre",  # leaves the plateau at once, so that steps go into what is compared
        "final_norm": True,
        "init": {"std": 0.05},
    },
    "objective": {"name": "causal"},
    "optimizer": {"lr": 2e-3, "betas": [0.9, 0.98], "weight_decay": 0.1},
    "schedule": {"name": "cosine", "warmup_steps": 100, "min_lr_ratio": 0.05},
    "training": {"batch_size": 16, "max_steps": 1000},
    "evaluation": {"every": 0},
    "checkpoint": {"every": 0, "keep": 1},
    "logging": {"every": 500},
}

RUNS: dict[str, list[str]] = {
    "relative, memory 64": [],
    "relative, no memory": ["segments.mem_len=0"],
    "absolute (learned), no memory": ["segments.mem_len=0", "model.positions=learned"],
    # Scaled, or sinusoids of amplitude 1 would drown embeddings that start at 0.05.
    "absolute (sinusoid), no memory": [
        "segments.mem_len=0",
        "model.positions=sinusoid",
        "model.scale_embeddings=true",
    ],
    "no positions, no memory": ["segments.mem_len=0", "model.positions=none"],
    "permutation": ["objective.name=permutation", "objective.predict_fraction=0.25"],
    "masked": ["objective.name=masked", "objective.predict_fraction=0.25"],
}
MEMORIES = (0, 16, 32, 64, 128, 256, 512)


def xltrain(*arguments: str) -> str:
    command = [sys.executable, "-m", "xltrain", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def evaluated(run: Path, *options: str) -> dict[str, Any]:
    return json.loads(xltrain("eval-ppl", str(run), "--split", "test", "--json", *options))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=BASE["training"]["max_steps"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write_corpus(folder)
        corpus = {split: [str(path)] for split, path in files.items()} | {"cache_dir": str(folder / "cache")}
        config = folder / "base.yaml"
        config.write_text(yaml.safe_dump(BASE | {"corpus": corpus}))
        runs = {}
        for number, (title, changes) in enumerate(RUNS.items()):
            runs[title] = folder / f"run-{number}"
            sets = [*changes, f"run.output_dir={runs[title]}", f"training.max_steps={given.steps}"]
            xltrain("pretrain", str(config), *(part for change in sets for part in ("--set", change)))
        print("| model | loss per target on the test text, nats | perplexity per word |\n|---|---|---|")
        for title, run in runs.items():
            found = evaluated(run)
            per_word = "-" if found["ppl_word"] is None else f"{found['ppl_word']:.1f}"
            print(f"| {title} | {found['loss']:.3f} | {per_word} |")
        print("\n| memory at evaluation | trained with memory 64 | trained without |\n|---|---|---|")
        for mem_len in MEMORIES:
            losses = [
                evaluated(runs[title], "--mem-len", str(mem_len))["loss"]
                for title in ("relative, memory 64", "relative, no memory")
            ]
            print(f"| {mem_len} | {losses[0]:.3f} | {losses[1]:.3f} |")


if __name__ == "__main__":
    main()
