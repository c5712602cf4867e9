"""``score``: lines in, one JSON object per line out, in the same order."""

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from xltrain import console
from xltrain.data.files import way_to_convert
from xltrain.data.tokenizer import Tokenizer
from xltrain.errors import UsageError
from xltrain.evaluation.loading import Loaded, load
from xltrain.evaluation.meaning import of_score
from xltrain.evaluation.reading import absolute
from xltrain.evaluation.score import Scorer
from xltrain.evaluation.texts import Encoder, Given, spelled_unknown
from xltrain.evaluation.warnings import warn_of_distances, warn_of_unknown
from xltrain.training.failures import fitting

STDIN = "-"


@dataclass(frozen=True)
class Item:
    """One line of input. ``context``: None where there is none. ``name``: its ``id``, if it has one."""

    number: int
    text: str
    context: str | None = None
    name: Any = None


def score_lines(
    source: Path,
    file: str,
    *,
    form: str,
    start: bool | None,
    end: bool,
    per_token: bool,
    mem_len: int | None,
    batch_size: int | None,
) -> Iterator[dict[str, Any]]:
    """Score lines; arguments as the command's options.

    Raises:
        UsageError: for a checkpoint that cannot be used, for input without a line, and for a line that cannot be read,
            by its number. All lines of a file are looked at before the first is scored; those of standard input as
            they come.
    """
    if form not in ("auto", "lines", "jsonl"):
        raise UsageError(f"--format: {form!r} is not allowed; choose auto, lines, jsonl")
    total = None
    if file != STDIN and not _is_piped(file):
        with _opened(file) as lines:
            total = sum(1 for _ in read_items(lines, name=file, form=form))
        _refuse_nothing(total, file)
    loaded = load(source)
    encoder = Encoder.of(loaded.config, loaded.tokenizer, start=start)
    if end and encoder.end is None:
        raise UsageError("--end: this run's vocabulary has no mark for the end of a text; leave it out")
    objective = loaded.config.objective.name
    if end and objective in ("permutation", "masked"):
        raise UsageError(
            f"--end: a {objective} model never predicts where a text ends, in training or here; leave it out"
        )
    if note := of_score(objective):
        console.say(f"note: {note}")
    report = _Report(loaded.tokenizer)
    with (
        _opened(file) as lines,
        fitting("lower --batch-size or --mem-len, or cut long lines"),
        console.counting(
            total=total, unit="line", description="scoring", delay=console.SECONDS_BEFORE_A_BAR
        ) as advanced,
    ):
        scorer = Scorer.of(loaded, mem_len=mem_len, batch_size=batch_size, advanced=advanced)
        waiting: list[tuple[Item, Given]] = []
        given = _remembered(_encoded(read_items(lines, name=file, form=form), loaded, encoder, end=end), waiting)
        for scores in scorer.score(given):
            item, text = waiting.pop(0)
            report.count(item, text)
            yield _result(item, text, scores, loaded.tokenizer, objective=objective, per_token=per_token)
        _refuse_nothing(report.lines, file)
    if mem_len is not None:
        segments, model = loaded.trained.segments, loaded.trained.model
        warn_of_distances(
            loaded.trained,
            attention_len=min(mem_len + (0 if model.same_length else segments.seq_len), report.longest),
            seq_len=segments.seq_len,
            clamp_len=model.clamp_len,
            one_sided=True,
            way=f"--mem-len {segments.mem_len}",
        )
    report.say()


def _refuse_nothing(lines: int, file: str) -> None:
    """Refuse input without a line: whatever was to write it may have failed."""
    if not lines:
        raise UsageError(f"{_place(file)}: holds no line to score; give texts, one a line")


def _is_piped(file: str) -> bool:
    """Whether this can be read only once."""
    try:
        return Path(file).exists() and not Path(file).is_file()
    except (OSError, ValueError):  # no name of a file, which opening it will say
        return False


def _place(file: str) -> str:
    return "standard input" if file == STDIN else file


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == STDIN:
        yield console.standard_input()
        return
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(Path(file).open("rb"))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            text = "; a text itself comes by standard input: echo TEXT | xltrain score RUN" if " " in file else ""
            raise UsageError(f"{file}: cannot be read ({why}); working directory {Path.cwd()}{text}") from None
        yield opened


def read_items(lines: Iterable[bytes], *, name: str, form: str) -> Iterator[Item]:
    """Plain lines, or JSON objects with ``text`` and perhaps ``context`` and ``id``, told apart by the first line.

    A blank line among JSON is skipped; among plain lines it is a text without tokens.

    Raises:
        UsageError: naming the line.
    """
    where = _place(name)
    for number, raw in enumerate(lines, start=1):
        try:
            line = raw.decode("utf-8").rstrip("\n")
        except UnicodeDecodeError as error:
            found = f"byte {error.start + 1} of the line is 0x{raw[error.start]:02x}"
            raise UsageError(f"{where}, line {number:,}: not UTF-8 text ({found}); {way_to_convert(error)}") from None
        if number == 1:
            line = line.removeprefix("\ufeff")
            if form == "auto":
                form = "jsonl" if name.endswith((".jsonl", ".ndjson")) or _is_object(line) else "lines"
        if form == "lines":
            yield Item(number, line.rstrip("\r"))
        elif line.strip():
            yield _item(line, number, place=f"{where}, line {number:,}")


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _item(line: str, number: int, *, place: str) -> Item:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place}: not JSON ({error}); plain text lines need --format lines") from None
    if not isinstance(found, dict) or not isinstance(found.get("text"), str):
        raise UsageError(f'{place}: must be an object with a string "text", as {{"context": "...", "text": "..."}}')
    context = found.get("context")
    if not isinstance(context, str | None):
        raise UsageError(f'{place}: "context" must be a string, not {json.dumps(context)}')
    try:
        (found["text"] + (context or "")).encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{place}: {error.object[error.start]!a} is half of a character; write it whole") from None
    try:
        json.dumps(found.get("id"), ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:  # numbers that JSON does not know, halves of characters
        raise UsageError(f'{place}: "id" cannot be repeated in the answer ({error})') from None
    return Item(number, found["text"], context, found.get("id"))


def _encoded(items: Iterable[Item], loaded: Loaded, encoder: Encoder, *, end: bool) -> Iterator[tuple[Item, Given]]:
    for item in items:
        try:
            given = _given(item, encoder)
        except UsageError as error:
            raise UsageError(f"line {item.number:,}: {error}") from None
        if end and encoder.end is not None:
            given = Given(given.context, [*given.text, encoder.end], given.joined)
        length, room = len(given.context) + len(given.text), loaded.config.segments.seq_len
        if encoder.pairs and absolute(loaded.config) and length > room:
            raise UsageError(
                f"line {item.number:,}: source and target have {length:,} tokens, and this run's "
                f"{loaded.config.model.positions} positions end at {room:,}; shorten them"
            )
        yield item, given


def _given(item: Item, encoder: Encoder) -> Given:
    if encoder.pairs:
        source, tab, target = (item.context, "\t", item.text) if item.context is not None else item.text.partition("\t")
        if not tab:
            raise UsageError(
                'this run was trained on pairs; give a source, a tab and a target, or JSON with "context" and "text"'
            )
        return encoder.continued(source or "", target)
    if item.context is None:
        return Given(encoder.begin(), encoder.ids(item.text))
    return encoder.continued(item.context, item.text)


def _remembered(pairs: Iterable[tuple[Item, Given]], waiting: list[tuple[Item, Given]]) -> Iterator[Given]:
    """The texts of ``pairs``; each pair is appended to ``waiting`` as it is taken."""
    for pair in pairs:
        waiting.append(pair)
        yield pair[1]


def _result(
    item: Item, given: Given, scores: np.ndarray, tokenizer: Tokenizer, *, objective: str, per_token: bool
) -> dict[str, Any]:
    scored = ~np.isnan(scores)
    found: dict[str, Any] = {"line": item.number}
    if item.name is not None:
        found["id"] = item.name
    found |= {"log_prob": float(scores[scored].sum()), "tokens": int(scored.sum()), "objective": objective}
    if given.joined:
        found["joined"] = True
    if per_token:
        found["pieces"] = [tokenizer.piece(token) for token in given.text]
        found["log_probs"] = [None if np.isnan(score) else float(score) for score in scores]
    return found


class _Report:
    """Counts what a person should know of the texts, and says it at the end."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.lines = self.tokens = self.unknown = self.spelled = self.joined = self.unspaced = 0
        self.longest = 0

    def count(self, item: Item, given: Given) -> None:
        self.lines += 1
        self.tokens += len(given.text)
        self.longest = max(self.longest, len(given.context) + len(given.text))
        unknown = given.text.count(self.tokenizer.unk)
        self.unknown += unknown
        self.spelled += min(unknown, spelled_unknown(self.tokenizer, item.text))  # a pair's source is in its line too
        self.joined += given.joined
        if item.context and item.text:
            before, after = item.context[-1], item.text[0]
            self.unspaced += all(letter.isascii() and letter.isalnum() for letter in (before, after))

    def say(self) -> None:
        what = "these log-probabilities are"
        warn_of_unknown(self.unknown, spelled=self.spelled, tokens=self.tokens, what=what)
        if self.unspaced:
            console.warn(
                f"in {_lines(self.unspaced)} the context ends and the text begins inside of a word; if these are two "
                "words, begin the text with a space"
            )
        if self.joined:
            console.warn(
                f"in {_lines(self.joined)} (marked joined) a piece reaches from the context into the text, and counts "
                "whole as the text's; end contexts where words end"
            )


def _lines(count: int) -> str:
    return f"{count:,} line{'' if count == 1 else 's'}"
