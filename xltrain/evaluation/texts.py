"""Texts that a person gives, as tokens that the model knows from its training text."""

from dataclasses import dataclass

from xltrain.config.schema import Config
from xltrain.config.text import CorpusConfig
from xltrain.data.corpus import cleaned_text
from xltrain.data.kinds import column_separator
from xltrain.data.sources import named_as_records
from xltrain.data.tokenizer import Tokenizer, find_piece
from xltrain.data.words import WordTokenizer
from xltrain.errors import UsageError


@dataclass(frozen=True)
class Given:
    """A text after a context, both as ids.

    context: what is given, the start mark included.
    text: what is asked for.
    joined: whether a piece reaches over the border; it counts as the text's.
    """

    context: list[int]
    text: list[int]
    joined: bool = False


@dataclass(frozen=True)
class Encoder:
    """Encodes as the run's corpus was encoded.

    separator: what ends documents within a text; ``record``: nothing does.
    start: put before every text; None: nothing.
    end: closes a text; None: nothing does.
    between: closes the source of a pair, for runs on two-column text; None: such runs mark it otherwise.
    apart: documents do not see one another.
    """

    tokenizer: Tokenizer
    separator: str
    start: int | None
    end: int | None
    pairs: bool
    between: int | None
    apart: bool

    @classmethod
    def of(cls, config: Config, tokenizer: Tokenizer, *, start: bool | None = None) -> "Encoder":
        """For a run's texts. ``start``: whether they begin with a start mark; None: if the model will know it.

        Raises:
            UsageError: if a start mark is asked for and there is none.
        """
        mark = start_mark(config, tokenizer)
        if start and mark is None:
            raise UsageError(
                "--start: nothing stands before a text of this run (its documents are kept apart, or it has no mark "
                "for their ends); leave it out"
            )
        if start is None:  # documents that are whole files may be so few that their ends were hardly ever seen
            start = config.corpus.document_separator != "file" or isinstance(tokenizer, WordTokenizer)
        pairs = config.two_columns
        return cls(
            tokenizer=tokenizer,
            separator="record" if of_records(config.corpus) else config.corpus.document_separator,
            start=mark if start else None,
            end=end_mark(tokenizer),
            pairs=pairs,
            between=column_separator(tokenizer) if pairs else None,
            apart=not config.segments.cross_documents,
        )

    def begin(self) -> list[int]:
        return [] if self.start is None else [self.start]

    def ids(self, text: str) -> list[int]:
        """Ids of a text whose last line goes on: it has no end, of the line or of the document.

        As in the corpus, carriage returns, NULs and byte-order marks are removed, lines are encoded one by one, and
        where lines or blank lines end documents, the end mark stands there.
        """
        found: list[int] = []
        *whole, last = cleaned_text(text).split("\n")
        for line in whole:
            ends_document, blank = self.separator == "line", not line.strip()
            if not blank or self.separator not in ("line", "blank_line"):
                found += self._line(line if ends_document else line + "\n", finished=True)
            ends_document |= blank and self.separator == "blank_line"
            if ends_document and found and self.end is not None and found[-1] != self.end:
                found.append(self.end)  # once: a document without any text is none, and <eos> ends words' lines already
        return found + (self._line(last, finished=False) if last else [])

    def _line(self, line: str, *, finished: bool) -> list[int]:
        [ids] = self.tokenizer.encode([line])
        if isinstance(self.tokenizer, WordTokenizer) and self.tokenizer.eos and not finished:
            return ids[:-1]
        return ids

    def prompt(self, text: str) -> list[int]:
        """What stands before a text that goes on with this one, or before its target."""
        if self.pairs:
            return self.source(text)
        ids = self.begin() + self.ids(text)
        if self.apart and self.tokenizer.eod in ids:  # what comes next sees nothing of the documents before
            ids = ids[len(ids) - ids[::-1].index(self.tokenizer.eod) :]
        return ids

    def source(self, text: str) -> list[int]:
        """The source of a pair, with what stands between it and its target."""
        if self.between is None:
            return self._line(cleaned_text(text), finished=True)
        return [*self._line(cleaned_text(text), finished=True), self.between]

    def continued(self, context: str, text: str) -> Given:
        """A text after a context.

        Both are encoded as one text. The pieces that do not depend on what follows the context are the context's, all
        others the text's: white space at the border goes where the tokenizer puts it, and a piece that reaches over
        the border counts whole as the text's. Source and target of a pair are encoded apart, as in training.
        """
        if self.pairs:
            return Given(self.source(context), self._line(cleaned_text(text), finished=False))
        alone, both = self.ids(context), self.ids(context + text)
        common = next(
            (place for place, (one, other) in enumerate(zip(alone, both, strict=False)) if one != other),
            min(len(alone), len(both)),
        )
        return Given(self.begin() + both[:common], both[common:], joined=common < len(alone))


def spelled_unknown(tokenizer: Tokenizer, text: str) -> int:
    """How often a text itself spells the word that stands for all unknown ones, as published corpora do.

    Other vocabularies than those of words spell ``<unk>`` like any other text.
    """
    if not isinstance(tokenizer, WordTokenizer) or tokenizer.unk < 0:
        return 0
    return (text.lower() if tokenizer.lower else text).split().count(tokenizer.piece(tokenizer.unk))


def of_records(corpus: CorpusConfig) -> bool:
    """Whether, by all that the configuration says, the training text is records, in which blank lines end nothing."""
    if corpus.document_separator != "blank_line":
        return corpus.document_separator == "record"
    names: list[str] = []
    for source in corpus.train:
        if isinstance(source, str):
            names.append(source)
        elif source.dataset is None and source.format is None:
            names += source.files
        elif source.format == "text":
            return False
    return all(map(named_as_records, names))


def start_mark(config: Config, tokenizer: Tokenizer) -> int | None:
    """What stands before a document in training and may be seen from it: the end mark of the one before.

    None where documents are kept apart, since nothing is seen from a document's first token then, and for pairs.
    """
    if not config.segments.cross_documents or config.two_columns:
        return None
    return end_mark(tokenizer)


def end_mark(tokenizer: Tokenizer) -> int | None:
    """<eod>, or the <eos> of words; None where the vocabulary has neither."""
    if tokenizer.eod is not None:
        return tokenizer.eod
    return find_piece(tokenizer, "<eos>") if isinstance(tokenizer, WordTokenizer) and tokenizer.eos else None


def line_end(tokenizer: Tokenizer) -> int | None:
    """The token that ends a line; None for sentencepiece, which has none."""
    if isinstance(tokenizer, WordTokenizer):
        return end_mark(tokenizer)
    return find_piece(tokenizer, "<0x0A>" if tokenizer.kind == "byte" else "\n")
