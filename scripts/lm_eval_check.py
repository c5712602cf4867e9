"""What EleutherAI's lm-eval says of an exported folder: log-likelihood of a text file through its HFLM class.

lm-eval is no dependency of xltrain: install it first. Compare with `xltrain eval-ppl RUN --data FILE --batch-size 1`.

    python scripts/lm_eval_check.py exported text.txt
"""

import argparse
import json
from pathlib import Path

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

LONGEST = 1 << 20
"""Tokens that lm-eval hands over at once: the model cuts its segments itself, and carries memory."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", help="what export-checkpoint --format remote-code wrote")
    parser.add_argument("text", type=Path)
    given = parser.parse_args()
    text = given.text.read_text(encoding="utf-8")
    model = HFLM(
        pretrained=given.folder, trust_remote_code=True, device="cpu", dtype="float32", max_length=LONGEST, batch_size=1
    )
    request = Instance(request_type="loglikelihood_rolling", doc={}, arguments=(text,), idx=0)
    nll, tokens = -float(model.loglikelihood_rolling([request])[0]), len(model.tok_encode(text))
    print(json.dumps({"nll": nll, "tokens": tokens, "loss": nll / tokens}))


if __name__ == "__main__":
    main()
