"""Text in, a checkpoint that transformers loads out: everything that ``make demo`` does after the set-up.

It runs the real command line on the docstrings of Python's standard library, showing each command before it runs, and
ends by asking the exported model, through transformers alone, for words that are missing in sentences it never saw.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stdlib_corpus import write_corpus

ROOT = Path(__file__).resolve().parent.parent
CONFIG = Path("configs/demo.yaml")
CORPUS, RUN, EXPORT = Path("runs/demo-corpus"), Path("runs/demo"), Path("runs/demo-export")

SENTENCES = 3
BEST = 5
SHORTEST, LONGEST = 9, 20
"""Words of a sentence that is asked about: enough around the gap to go by, and still one line."""


def main() -> None:
    os.chdir(ROOT)  # the paths of the configuration start here
    begin = time.monotonic()
    title("1  A corpus: the docstrings of Python's standard library, one document per module")
    for split, path in write_corpus(CORPUS).items():
        print(f"{split:<11} {path.stat().st_size:>9,} bytes  {path}")

    commands = Commands()
    title("2  A vocabulary, and the text as token ids on disk")
    commands.run("prepare", str(CONFIG))
    title("3  Pretraining: a small XLNet, two streams, memory from segment to segment")
    commands.run("pretrain", str(CONFIG), "--overwrite")
    print(gain(RUN / "metrics.jsonl"))
    title("4  Evaluation on the test documents, which nothing above has seen")
    commands.run("eval-ppl", str(RUN), "--split", "test")
    title("5  Export, verified against transformers")
    commands.run("export-checkpoint", str(RUN), str(EXPORT), "--verify", "--overwrite")
    title("6  The exported model in transformers: the missing word")
    show_fillings()

    title(f"Done in {time.monotonic() - begin:.0f} seconds")
    print(f"corpus             {CORPUS}/\nrun                {RUN}/ (config.yaml, metrics.jsonl, checkpoints/)")
    print(f"exported model     {EXPORT}/\nthe commands       (in {ROOT})")
    print("\n".join(f"    {line}" for line in [f"{python()} scripts/stdlib_corpus.py {CORPUS}", *commands.lines]))


class Commands:
    """Runs commands of xltrain and remembers what was run."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def run(self, *arguments: str) -> None:
        """Show the command and run it; if it fails, end with its exit status."""
        self.lines.append(f"{python()} -m xltrain {shlex.join(arguments)}")
        print(f"$ {self.lines[-1]}", flush=True)
        begin = time.monotonic()
        try:
            status = subprocess.run(
                [sys.executable, "-m", "xltrain", *arguments], env=patient(), check=False
            ).returncode
        except KeyboardInterrupt:  # the command got it too, and has said what it did about it
            sys.exit(130)
        if status:
            print(f"the demo ends here: the command above ended with status {status}", file=sys.stderr)
            sys.exit(status)
        print(f"({time.monotonic() - begin:.0f} seconds)")


def python() -> str:
    """This interpreter, as one types it in the repository."""
    path = Path(sys.executable)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def patient() -> dict[str, str]:
    """The environment of the commands.

    Threads that wait for each other go to sleep sooner. Alone on two cores that costs nothing; where something else
    wants these cores too, threads that spin would take them from the work they wait for (docs/results.md).
    """
    return {"GOMP_SPINCOUNT": "3000", **os.environ}


def title(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


def gain(metrics: Path) -> str:
    """What the last validation says, and what it would be without looking at the context."""
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    last = [line for line in lines if "validation_loss" in line][-1]
    loss, unigram = last["validation_loss"], last["unigram_loss"]
    return f"validation loss {loss:.2f} nats per target; knowing only how frequent each piece is: {unigram:.2f}"


@dataclass(frozen=True)
class Gap:
    """A sentence with one word to be guessed."""

    before: str
    word: str
    after: str


def show_fillings() -> None:
    """Print the best fillings, by nothing but transformers and the exported folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(EXPORT)
    model = AutoModelForCausalLM.from_pretrained(EXPORT).eval()
    for gap in choose_gaps(CORPUS, tokenizer):
        best = "   ".join(f"{piece} {chance:.0%}" for piece, chance in fill(model, tokenizer, gap))
        print(f"\n{gap.before} ____ {gap.after}\n    the text has: {gap.word}\n    the model:    {best}")


def fill(model: Any, tokenizer: Any, gap: Gap) -> list[tuple[str, float]]:
    """The most probable pieces for the gap, and their probabilities.

    XLNet's way: the piece in the gap is hidden from everyone (``perm_mask``), so it does not matter what stands there,
    and the query stream predicts that place (``target_mapping``) from all the others.
    """
    import torch

    ids = tokenizer.encode(f"{gap.before} {gap.word} {gap.after}", add_special_tokens=False, return_tensors="pt")
    length, place = ids.shape[1], len(tokenizer.encode(gap.before, add_special_tokens=False))
    perm_mask = torch.zeros(1, length, length)
    perm_mask[:, :, place] = 1.0
    target_mapping = torch.zeros(1, 1, length)
    target_mapping[:, :, place] = 1.0
    with torch.no_grad():
        logits = model(input_ids=ids, perm_mask=perm_mask, target_mapping=target_mapping).logits[0, 0]
    best = logits.softmax(dim=-1).topk(BEST)
    pieces = tokenizer.convert_ids_to_tokens(best.indices.tolist())
    return [(shown(piece), chance) for piece, chance in zip(pieces, best.values.tolist(), strict=True)]


def shown(piece: str) -> str:
    """A piece as a person reads it; the end of a word gets a hyphen in front."""
    if piece.startswith("▁"):
        return piece[1:] or "(space)"
    return f"-{piece}" if piece.isalpha() else piece


def choose_gaps(corpus: Path, tokenizer: Any) -> list[Gap]:
    """Sentences of three test documents, spread over all of them, each with a common word missing.

    The choice looks at the text only, never at what the model makes of it: of every document, the first sentence that
    does not occur in training and has a word that is common there, is one piece, and is not asked about yet.
    """
    train = " ".join((corpus / "train.txt").read_text(encoding="utf-8").split())
    vocabulary = tokenizer.get_vocab()
    known = {word for word in common_words(train) if f"▁{word}" in vocabulary}
    found: list[Gap] = []
    for document in (corpus / "test.txt").read_text(encoding="utf-8").split("\n\n"):
        unseen = (sentence for sentence in sentences(document) if sentence not in train)
        gaps = (gap for sentence in unseen if (gap := open_gap(sentence, known)))
        if (gap := next(gaps, None)) is not None:
            found.append(gap)
            known.discard(gap.word)
    step = max(1, len(found) // SENTENCES)
    return found[step // 2 :: step][:SENTENCES]


def common_words(text: str, *, count: int = 150) -> list[str]:
    """The most frequent words of four letters and more: shorter ones say little about what a model has learnt."""
    return [word for word, _ in Counter(re.findall(r"\b[a-z]{4,}\b", text)).most_common(count)]


def sentences(document: str) -> Iterator[str]:
    """Sentences of plain words, without names of classes and the like, of a length that fits a line."""
    for sentence in re.split(r"(?<=\.)\s+(?=[A-Z])", " ".join(document.split())):
        plain = re.fullmatch(r"[A-Z][a-z ,'-]+\.", sentence)
        if plain and SHORTEST <= len(sentence.split()) <= LONGEST:
            yield sentence


def open_gap(sentence: str, known: set[str]) -> Gap | None:
    """Take the known word nearest to the middle out of a sentence; None if it has no such word."""
    words = sentence.split()
    places = [place for place, word in enumerate(words) if 0 < place < len(words) - 1 and word in known]
    if not places:
        return None
    place = min(places, key=lambda place: abs(place - len(words) / 2))
    return Gap(before=" ".join(words[:place]), word=words[place], after=" ".join(words[place + 1 :]))


if __name__ == "__main__":
    main()
