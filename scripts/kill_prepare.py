"""Kill `xltrain prepare` at random moments and start it again: the store must be that of an undisturbed run.

    python scripts/kill_prepare.py [--kills 10] [--seed 0]

Prints what was left at every kill; ends with status 1 if a byte differs or anything is left over.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from xltrain.data.digests import NAME

SMALL_PIECES = """
import sys
from xltrain.data import corpus
corpus.PIECE_BYTES = 200_000
from xltrain.cli import main
if __name__ == "__main__":
    main()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    draw = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(folder / "text.txt", draw)
        program = folder / "prepare.py"
        program.write_text(SMALL_PIECES)
        begin = time.perf_counter()
        start(program, config(folder, "undisturbed")).communicate()
        whole = time.perf_counter() - begin
        print(f"undisturbed: {whole:.1f} s")
        cut_short = config(folder, "killed")
        for number in range(given.kills):
            process = start(program, cut_short)
            time.sleep(draw.uniform(0, whole))
            process.kill()
            process.communicate()
            time.sleep(0.3)  # for its processes to notice
            shards = len(list((folder / "killed").glob("building-*/*.json")))
            done = bool(list((folder / "killed").glob("store-*/manifest.json")))
            print(f"kill {number + 1}: {'the store was finished' if done else f'{shards} finished shards'}")
            if done:  # begin anew, so that every kill counts
                for store in (folder / "killed").glob("store-*"):
                    subprocess.run(["rm", "-r", str(store)], check=True)
        _, said = start(program, cut_short).communicate()
        print(said.strip())
        same = files_of(folder / "undisturbed") == files_of(folder / "killed")
    print("the same store, nothing left over" if same else "DIFFERENT")
    sys.exit(0 if same else 1)


def write_corpus(path: Path, draw: random.Random) -> None:
    words = ["".join(draw.choices("abdegiklmnoprstu", k=draw.randint(2, 8))) for _ in range(500)]
    with path.open("w") as file:
        for number in range(150_000):
            file.write(" ".join(draw.choices(words, k=8)) + "\n" * (1 + (number % 40 == 39)))


def config(folder: Path, cache: str) -> Path:
    settings = {
        "corpus": {"train": [str(folder / "text.txt")], "cache_dir": str(folder / cache), "num_workers": 2},
        "tokenizer": {"vocab_size": 300, "max_sentences": 20_000},
    }
    path = folder / f"{cache}.yaml"
    path.write_text(json.dumps(settings))
    return path


def start(program: Path, config: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, str(program), "prepare", str(config)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def files_of(folder: Path) -> dict[str, bytes]:
    """All but what is remembered of the corpus, which depends on when it was read."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != NAME]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


if __name__ == "__main__":
    main()
