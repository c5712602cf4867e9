"""``run.init_from``: what a configuration takes over from the checkpoint whose weights it starts from.

A model's weights fix its shapes and its vocabulary, so the ``model`` section and the tokenizer come from the
checkpoint's own configuration. Keys may be given again; where they would make another model, they are refused, all at
once. The objective comes from there too, unless another one is given: the weights serve all of them, but for the one
vector that begins the query stream of a permutation model.
"""

from pathlib import Path
from typing import Any

from xltrain.config.base import Problem
from xltrain.config.schema import Config

TOKENIZER_FILES = {
    "sentencepiece": "spiece.model",
    "char": "characters.json",
    "byte": "bytes.json",
    "word": "words.json",
}
"""Kind of tokenizer -> its file in a checkpoint; a test holds this to the tokenizers themselves."""

MAY_DIFFER = {"dropout", "attention_dropout", "attention_backend", "clamp_len", "same_length"}
"""Keys of the model section that change no weight and no shape."""

CUTS = ("kind", "vocab_size", "eos", "lower", "quotes", "strip_accents", "split_digit_commas")
"""Keys of the tokenizer section that decide, with its file, how text is cut."""

KEY = "run.init_from"

NAMES = ("latest", "best")
"""Files of a run that name one of its checkpoints."""

MARK = "complete.json"
"""The file of a checkpoint that says that it is whole."""


def checkpoint_folder(path: Path) -> Path | None:
    """The checkpoint that a path names: itself, the newest one of a run's folder, or RUN/best."""
    if path.name in NAMES and path.is_file():
        path = path.parent / path.read_text(encoding="utf-8").strip()
    if (path / MARK).is_file():
        return path
    try:
        return path / (path / "latest").read_text(encoding="utf-8").strip()
    except OSError:
        return None


def take_over(data: dict[str, Any], origin: Config, folder: Path) -> list[Problem]:
    """Fill ``data``, a configuration as written, from the checkpoint at ``folder``; returns what contradicts it."""
    problems: list[Problem] = []
    if any(not isinstance(data.get(name) or {}, dict) for name in ("tokenizer", "model", "objective")):
        return problems  # validation refuses what is no section
    tokenizer = dict(data.get("tokenizer") or {})
    file_name = TOKENIZER_FILES[origin.tokenizer.kind]
    for key in CUTS:
        wanted, given = getattr(origin.tokenizer, key), tokenizer.get(key)
        if given is not None and wanted is not None and given != wanted:
            problems.append((f"tokenizer.{key}", _differs(given, wanted, folder)))
        tokenizer[key] = wanted
    if origin.tokenizer.kind != "byte":
        path = tokenizer.get("path")
        if path is not None and not _same_bytes(Path(str(path)).expanduser(), folder / file_name):
            problems.append(
                ("tokenizer.path", f"{path} is not the tokenizer of {folder}, which {KEY} names; leave it out")
            )
        tokenizer["path"] = str(folder / file_name)
    data["tokenizer"] = tokenizer
    data["model"] = _laid_over(origin.model.model_dump(mode="json"), data.get("model") or {})
    objective = dict(data.get("objective") or {})
    objective.setdefault("name", origin.objective.name)
    data["objective"] = objective
    return problems


def contradictions(config: Config, origin: Config, folder: Path) -> list[Problem]:
    """Keys of the model section that would make another model than the weights are of."""
    now, before = _shapes(config), _shapes(origin)
    if origin.model.positions == "learned":
        now["segments.seq_len"], before["segments.seq_len"] = config.segments.seq_len, origin.segments.seq_len
    return [(key, _differs(now.get(key), wanted, folder)) for key, wanted in before.items() if now.get(key) != wanted]


def _shapes(config: Config) -> dict[str, object]:
    """What has to agree, the same for every way in which it can be written."""
    model, adaptive = config.model, config.model.adaptive
    found = {f"model.{key}": value for key, value in model.model_dump(mode="json").items() if key not in MAY_DIFFER}
    found |= {"model.head_dim": model.head_width, "model.d_inner": model.inner_width}
    found["model.adaptive"] = adaptive.cutoffs
    if adaptive.cutoffs:
        found["model.adaptive.div_val"] = adaptive.div_val
    if adaptive.cutoffs and adaptive.div_val > 1:
        found["model.adaptive.tie_projections"] = adaptive.tied_projections
    return found


def _differs(given: object, wanted: object, folder: Path) -> str:
    return f"{given!r} does not fit the weights of {folder}, which {KEY} names: there it is {wanted!r}"


def _same_bytes(one: Path, other: Path) -> bool:
    try:
        return one.read_bytes() == other.read_bytes()
    except OSError:
        return False


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Keys of ``above`` where given, of ``below`` elsewhere."""
    found = dict(below)
    for key, value in above.items():
        inner = below.get(key)
        found[key] = _laid_over(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return found
