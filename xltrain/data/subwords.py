"""Training of sentencepiece vocabularies: the sample they are trained on, and what they lack of it."""

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from xltrain import console
from xltrain.data.cleanup import CleanUp
from xltrain.data.sampling import Sample, draw
from xltrain.data.tokenizer import SPECIALS, SentencePieceTokenizer, left_out
from xltrain.errors import UsageError

_LONGEST_SENTENCE = 4000  # bytes; sentencepiece leaves longer ones out of its training, above 4,192
_AVERAGE_SENTENCE = 40  # characters; bounds the memory that a large sample takes
_SMALL_SAMPLE = 1_000_000  # sentences; up to these, as many characters are taken as these may have
_LISTED = 10  # characters that are named in a message


def train_sentencepiece(
    lines: Iterable[str],
    *,
    vocab_size: int,
    model_type: str,
    character_coverage: float,
    normalization: str,
    user_defined_symbols: Sequence[str],
    max_sentences: int,
    cleanup: CleanUp | None = None,
) -> SentencePieceTokenizer:
    """Train a model whose first nine pieces are :data:`SPECIALS`.

    Long lines are cut into sentences of at most 4,000 bytes first, at spaces where there are any: sentencepiece would
    leave them out. At most ``max_sentences`` of these are drawn at random, the same whatever the seed of a run; fewer
    where they have more than 40 million characters, or 40 times ``max_sentences``. Training takes about 25 bytes of
    memory per character.

    Raises:
        UsageError: if the text cannot give ``vocab_size`` pieces; it says how many are possible.
    """
    import sentencepiece

    cut = _Cut(keeps_spaces=normalization == "identity")
    sentences = cut.sentences(lines if cleanup is None else map(cleanup, lines))
    most_characters = _AVERAGE_SENTENCE * max(max_sentences, _SMALL_SAMPLE)
    sample = draw(sentences, most=max_sentences, most_characters=most_characters)
    taken = len(sample.sentences)
    written = io.BytesIO()
    failures: list[BaseException] = []
    counts: Counter[str] = Counter()
    spelled = [0]  # sentences with <unk> in them
    try:
        with console.busy(_announcement(sample, cut.parts, vocab_size)):
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_watched(sample.consumed(), failures, counts, spelled),
                model_writer=written,
                vocab_size=vocab_size,
                model_type=model_type,
                character_coverage=character_coverage,
                normalization_rule_name=normalization,
                remove_extra_whitespaces=normalization != "identity",
                control_symbols=list(SPECIALS[3:8]),
                user_defined_symbols=list(user_defined_symbols),
                unk_id=0,
                bos_id=1,
                eos_id=2,
                pad_id=-1,
                minloglevel=2,
            )
    except (RuntimeError, SystemError) as error:
        # What was raised while sentencepiece ran (by a signal) comes back as one of these two, or not at all.
        cause = failures[0] if failures else error.__cause__
        if cause is not None:
            raise cause from None
        if isinstance(error, SystemError):
            raise
        raise UsageError(_explain_training(str(error), vocab_size)) from None
    if failures:
        raise failures[0]
    tokenizer = SentencePieceTokenizer(written.getvalue(), cleanup=cleanup)
    tokenizer.training = {
        "sentences": taken,
        "available_sentences": sample.seen,
        **_uncovered(tokenizer, counts, coverage=character_coverage, spells_unknown=spelled[0] > 0),
    }
    return tokenizer


def _announcement(sample: Sample, parts: int, vocab_size: int) -> str:
    used = f"{len(sample.sentences):,} of {sample.seen:,} lines"
    if not sample.is_whole:
        used += ", drawn at random (tokenizer.max_sentences allows more)"
    if parts:
        used += f"; {parts:,} of these are parts of lines that are longer than {_LONGEST_SENTENCE:,} bytes"
    return f"training a sentencepiece vocabulary of {vocab_size:,} pieces on {used}"


def _uncovered(
    tokenizer: SentencePieceTokenizer, counts: Counter[str], *, coverage: float, spells_unknown: bool
) -> dict[str, int]:
    """Counts of the characters that the vocabulary lacks; says which, as far as they are few."""
    del counts[" "]
    known = [character for character in counts if tokenizer.unk not in tokenizer.processor.encode(character)]
    found = left_out("characters", counts, known)
    if found["dropped_characters"]:
        lacking = sorted(counts.keys() - set(known), key=lambda character: (-counts[character], character))
        named = " ".join(lacking[:_LISTED]) + (" ..." if len(lacking) > _LISTED else "")
        if spells_unknown and not {"<", ">"}.isdisjoint(lacking):
            named += (
                "; the text spells <unk>, from which sentencepiece learns nothing: to keep < and >, add them to "
                "tokenizer.user_defined_symbols"
            )
        console.say(
            f"tokenizer.character_coverage {coverage:g} drops {len(lacking):,} of the {len(counts):,} characters of "
            f"the training text, {found['dropped_occurrences'] / found['occurrences']:.3%} of its occurrences, which "
            f"become <unk>: {named}"
        )
    return found


def _watched(
    items: Iterable[str], failures: list[BaseException], counts: Counter[str], spelled: list[int]
) -> Iterator[str]:
    """Yield ``items``, count their characters and those that spell <unk>, and keep what is raised on the way."""
    try:
        for item in items:
            counts.update(item)
            spelled[0] += "<unk>" in item
            yield item
    except GeneratorExit:
        raise
    except BaseException as error:
        failures.append(error)
        raise


def _explain_training(message: str, vocab_size: int) -> str:
    if found := re.search(r"value <= (\d+)", message):
        return (
            f"tokenizer.vocab_size: {vocab_size:,} is more than this text allows: at most {int(found[1]):,}; "
            "lower it, or add text"
        )
    if found := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return (
            f"tokenizer.vocab_size: {vocab_size:,} is too small for the characters of this text: at least "
            f"{int(found[1]):,}; raise it, or lower tokenizer.character_coverage"
        )
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return "corpus.train contains no text"
    return f"sentencepiece could not train the vocabulary: {' '.join(message.split())}"


@dataclass
class _Cut:
    """Cuts lines that are too long.

    keeps_spaces: whether white space around a line is part of it.
    parts: how many sentences come from such lines.
    """

    keeps_spaces: bool = False
    parts: int = 0

    def sentences(self, lines: Iterable[str]) -> Iterator[str]:
        """Lines that are not empty, cut at spaces where there are any."""
        for line in lines:
            text = line.rstrip("\n") if self.keeps_spaces else line.strip()
            if 0 < len(text) <= _LONGEST_SENTENCE // 4:  # too short to need a look at its bytes
                yield text
                continue
            start = 0
            while start < len(text):
                # Only the next few characters are looked at, so that a very long line takes time in proportion.
                head = text[start : start + _LONGEST_SENTENCE].encode("utf-8")[:_LONGEST_SENTENCE]
                piece = head.decode("utf-8", errors="ignore")
                self.parts += start > 0 or len(piece) < len(text)
                if start + len(piece) < len(text) and (space := piece.rfind(" ", len(piece) // 2)) > 0:
                    piece = piece[:space]
                start += len(piece)
                if found := piece if self.keeps_spaces else piece.strip():
                    yield found
