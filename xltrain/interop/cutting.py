"""What ``tokenizer.json`` does to a text before its pieces are looked for, in terms of sentencepiece.

Known are the steps that transformers writes for XLNet and for sentencepiece models, and those of exports from here, in
their order. Through any other step text would become other tokens here than there, so it is refused.
"""

import base64
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xltrain.data.cleanup import SPACE, CleanUp
from xltrain.errors import UsageError
from xltrain.interop.spiece import COMPOSING_RULE

Step = dict[str, Any]

_PRIVATE_USE = re.compile("[\U000f0000-\U000fffff]")
_MARKS = re.compile(r"\[(\\x\{[0-9a-f]+\}-\\x\{[0-9a-f]+\})+\]")
_CUT = "\ufffe"


@dataclass(frozen=True)
class Normaliser:
    """Steps that change characters.

    cleanup: what is done first.
    symbols: pieces that the rest leaves as they are.
    charsmap: the compiled replacements of sentencepiece; empty: none.
    rule: sentencepiece's name for these, as far as it matters: those that compose characters are exported otherwise.
    joins: whether several spaces become one.
    strips: whether spaces at the ends vanish.
    marks: whether spaces become marks here already.
    adds: whether a space is put in front of any text, one that begins with a space too.
    """

    cleanup: CleanUp
    symbols: frozenset[str]
    charsmap: bytes
    rule: str
    joins: bool
    strips: bool
    marks: bool
    adds: bool


class _Steps:
    """A row of steps, of which known ones are taken from the front."""

    def __init__(self, found: Any, *, inner: str) -> None:
        self.left = list(_flat(found, inner))

    def take(self, *wanted: Callable[[Step], bool] | Step) -> bool:
        """Whether the row goes on with these; then they are no part of it any more."""
        first = self.left[: len(wanted)]
        fits = len(first) == len(wanted) and all(
            step == one if isinstance(one, dict) else one(step) for step, one in zip(first, wanted, strict=True)
        )
        if fits:
            del self.left[: len(wanted)]
        return fits

    def take_kind(self, kind: str) -> Step | None:
        return self.left.pop(0) if self.left and self.left[0].get("type") == kind else None

    def require_empty(self, path: Path, *, what: str) -> None:
        if self.left:
            shown = json.dumps(self.left[0], ensure_ascii=False)
            shown = shown if len(shown) <= 120 else f"{shown[:120]}..."
            raise UsageError(
                f"{path}: its {what} has a step that xltrain has not, or has not at this place: {shown}; text would "
                "become other tokens here than the model was trained on. Take the step out of the file if it changes "
                "nothing in your text"
            )


def _flat(found: Any, inner: str) -> Iterator[Step]:
    if found is None:
        return
    if not isinstance(found["type"], str):
        raise TypeError(found)
    if found["type"] != "Sequence":
        yield found
        return
    for step in found[inner]:
        yield from _flat(step, inner)


def _replace(text: str, by: str) -> Step:
    return {"type": "Replace", "pattern": {"String": text}, "content": by}


def _replace_all(pattern: str, by: str) -> Step:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": by}


def _drops_marks(step: Step) -> bool:
    pattern = step.get("pattern", {}).get("Regex", "") if step.get("type") == "Replace" else ""
    return step.get("content") == "" and _MARKS.fullmatch(pattern) is not None


def _hides_symbol(step: Step) -> bool:
    return step.get("type") == "Replace" and _PRIVATE_USE.fullmatch(step.get("content", "")) is not None


def _shows_symbol(step: Step) -> bool:
    text = step.get("pattern", {}).get("String", "") if step.get("type") == "Replace" else ""
    return _PRIVATE_USE.fullmatch(text) is not None


def read_normaliser(content: Any, path: Path) -> Normaliser:
    """The normaliser of a ``tokenizer.json``; ``content``: that part of it.

    Raises:
        UsageError: naming the first step that has no equal here.
    """
    steps = _Steps(content, inner="normalizers")
    quotes = steps.take(_replace("``", '"'), _replace("''", '"'))
    accents = steps.take({"type": "NFKD"}, {"type": "StripAccents"}) or steps.take({"type": "NFKD"}, _drops_marks)
    cleanup = CleanUp(quotes=quotes, accents=accents, lower=steps.take({"type": "Lowercase"}))
    steps.take(_replace_all(r"\A<unk>\z", "<unk>\uffff"))
    symbols = []
    while steps.left and _hides_symbol(steps.left[0]):
        symbols.append(steps.left.pop(0)["pattern"]["String"])
    composes = steps.take({"type": "NFC"}, _replace_all(r"(?<=\S)(?=\p{M})", _CUT))
    table = steps.take_kind("Precompiled") or {}
    if composes and not steps.take(_replace(_CUT, "")):
        steps.left.insert(0, {"type": "NFC"})  # by itself it has no equal
    while steps.take(_shows_symbol):
        pass
    joins = strips = False
    ends = (_replace_all(r"\A +| +\z", ""), {"type": "Strip", "strip_left": True, "strip_right": True})
    while (one := steps.take(_replace_all(" {2,}", " "))) or any(steps.take(end) for end in ends):
        joins, strips = joins or one, strips or not one
    marks = steps.take(_replace(" ", SPACE))
    adds = steps.take({"type": "Prepend", "prepend": " "}) or steps.take(_replace_all(rf"\A{SPACE}", SPACE * 2))
    steps.require_empty(path, what="normaliser")
    return Normaliser(
        cleanup=cleanup,
        symbols=frozenset(symbols),
        charsmap=base64.b64decode(table.get("precompiled_charsmap") or ""),
        rule=COMPOSING_RULE if composes else "user_defined",
        joins=joins,
        strips=strips,
        marks=marks,
        adds=adds,
    )


@dataclass(frozen=True)
class Spaces:
    """What sentencepiece does with spaces: see :class:`xltrain.interop.spiece.SentencePieceModel`."""

    collapses: bool
    adds_in_front: bool


def read_spaces(content: Any, normaliser: Normaliser, path: Path, *, cuts: Sequence[Step]) -> Spaces:
    """What a ``tokenizer.json`` makes of spaces, before the pieces of a unigram vocabulary are looked for.

    Args:
        content: its pre-tokenizer.
        cuts: steps behind that which change no token, since sentencepiece cuts there too.

    Raises:
        UsageError: naming the first step that has no equal here.
    """
    steps = _Steps(content, inner="pretokenizers")
    splits = steps.take({"type": "WhitespaceSplit"})
    metaspace = steps.take_kind("Metaspace") or {"prepend_scheme": "never", "replacement": SPACE}
    scheme = metaspace.get("prepend_scheme", "always" if metaspace.get("add_prefix_space", True) else "never")
    if metaspace.get("replacement", SPACE) != SPACE:
        steps.left.insert(0, metaspace)  # for the refusal below
    while any(steps.take(cut) for cut in cuts):
        pass
    steps.require_empty(path, what="pre-tokenizer")
    if unlike := _unlike(normaliser, scheme, splits=splits, metaspace="type" in metaspace):
        raise UsageError(
            f"{path}: its vocabulary of pieces {unlike}, as sentencepiece would; put spiece.model beside it"
        )
    collapses = splits or normaliser.joins
    return Spaces(collapses=collapses, adds_in_front=scheme != "never" or normaliser.adds)


def _unlike(normaliser: Normaliser, scheme: str, *, splits: bool, metaspace: bool) -> str:
    """What is done with spaces that sentencepiece has no equal of; empty: nothing.

    It makes one space of several, and none at the ends, or leaves all; one is put before all text, or none.

    Args:
        scheme: before which parts of a text Metaspace puts a space.
        splits: whether WhitespaceSplit cut it into words before.
        metaspace: whether there is a Metaspace.
    """
    if not (metaspace or normaliser.marks):
        return "does not mark spaces"
    if splits and (scheme != "always" or normaliser.marks):
        return f"is for words that WhitespaceSplit cuts and Metaspace ({scheme}) does not mark one by one"
    if not splits and normaliser.joins != normaliser.strips:
        kept = "at the ends, with no Strip" if normaliser.joins else "within, with no replacement of ' {2,}'"
        return f"is for text of which some spaces vanish, but not those {kept}"
    if scheme == "first" and normaliser.strips:
        return "is for Metaspace (first), which puts no space before text of which spaces in front were stripped"
    if scheme != "never" and not (splits or normaliser.joins or normaliser.adds):
        return "keeps spaces, but puts none before one"  # where they are joined and stripped, text begins with none
    return ""
