"""All kinds of tokenizer: found again from their files, and made as a configuration asks."""

from collections.abc import Iterable
from pathlib import Path

from xltrain import console
from xltrain.config.text import TokenizerConfig
from xltrain.data.cleanup import CleanUp
from xltrain.data.subwords import train_sentencepiece
from xltrain.data.tokenizer import (
    CONTROLS,
    SPECIALS,
    CharTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    find_piece,
    train_characters,
)
from xltrain.data.words import ByteTokenizer, WordTokenizer, train_words
from xltrain.errors import UsageError

DEFAULT_PIECES = 8000
"""Vocabulary of a trained sentencepiece model when ``tokenizer.vocab_size`` is not given."""


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer whose file lies in ``folder``."""
    kinds = (SentencePieceTokenizer, CharTokenizer, ByteTokenizer, WordTokenizer)
    for kind in kinds:
        if (folder / kind.file_name).is_file():
            beside = folder / SentencePieceTokenizer.cleanup_name
            cleanup = CleanUp.from_file(beside.read_bytes(), source=str(beside)) if beside.is_file() else CleanUp()
            return read_tokenizer(folder / kind.file_name, kind=kind.kind, cleanup=cleanup)
    raise UsageError(f"{folder}: holds no tokenizer ({', '.join(kind.file_name for kind in kinds)})")


def cleanup_of(wanted: TokenizerConfig) -> CleanUp:
    """The clean-up that a configuration asks for; other kinds than sentencepiece have none."""
    if wanted.kind != "sentencepiece":
        return CleanUp()
    return CleanUp(
        quotes=wanted.quotes,
        accents=wanted.strip_accents,
        lower=wanted.lower,
        digit_commas=wanted.split_digit_commas,
    )


def read_tokenizer(
    path: Path, *, kind: str, cleanup: CleanUp | None = None, eos: bool = True, lower: bool = False
) -> Tokenizer:
    """A tokenizer of the given kind from its file; ``cleanup``: what a sentencepiece model's text goes through first;
    ``eos`` and ``lower``: of a list of words, which does not say itself.

    Raises:
        UsageError: if the file is missing, or of another kind.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"tokenizer.path: {path} cannot be read ({error.strerror})") from None
    if kind == "sentencepiece":
        return SentencePieceTokenizer(data, source=str(path), cleanup=cleanup)
    if kind == "char":
        return CharTokenizer.from_file(data, source=str(path))
    if kind == "word":
        return WordTokenizer.from_file(data, source=str(path), eos=eos, lower=lower)
    return ByteTokenizer()


def check_special_pieces(tokenizer: Tokenizer, *, source: str) -> None:
    """Refuse a sentencepiece model whose special pieces text could spell; tell where their ids are not XLNet's.

    Raises:
        UsageError: naming the pieces.
    """
    if not isinstance(tokenizer, SentencePieceTokenizer):
        return
    model = tokenizer.processor
    ids = {piece: model.piece_to_id(piece) for piece in SPECIALS}
    found = {piece: number for piece, number in ids.items() if model.id_to_piece(number) == piece}
    ordinary = [piece for piece in CONTROLS if piece in found and not model.is_control(found[piece])]
    if ordinary:
        raise UsageError(
            f"tokenizer.path: in {source}, {', '.join(ordinary)} is no control symbol, so that text could spell it; "
            "train the model with it among control_symbols, or train one here"
        )
    other = [
        f"{piece} {found[piece]} instead of {number}" if piece in found else f"no {piece}"
        for number, piece in enumerate(SPECIALS)
        if found.get(piece) != number
    ]
    if other:
        console.say(f"note: special pieces of {source} that are not as XLNet has them: {', '.join(other)}")


def train_tokenizer(wanted: TokenizerConfig, lines: Iterable[str]) -> Tokenizer:
    """Make the tokenizer that a configuration asks for from the training text.

    Raises:
        UsageError: if the text cannot give it.
    """
    if wanted.kind == "byte":
        return ByteTokenizer()
    if wanted.kind == "char":
        return train_characters(lines, vocab_size=wanted.vocab_size)
    if wanted.kind == "word":
        return train_words(
            lines, vocab_size=wanted.vocab_size, eos=wanted.eos, lower=wanted.lower, min_count=wanted.min_count
        )
    return train_sentencepiece(
        lines,
        vocab_size=wanted.vocab_size or DEFAULT_PIECES,
        model_type=wanted.model_type,
        character_coverage=wanted.character_coverage,
        normalization=wanted.normalization,
        user_defined_symbols=wanted.user_defined_symbols,
        max_sentences=wanted.max_sentences,
        cleanup=cleanup_of(wanted),
    )


def column_separator(tokenizer: Tokenizer) -> int | None:
    """Id that stands between source and target of two-column text: <sep>, or </s> where there is none.

    None for words whose lines end with <eos>: that parts the columns already.

    Raises:
        UsageError: if the vocabulary has none of these.
    """
    if isinstance(tokenizer, WordTokenizer) and tokenizer.eos:
        return None
    for piece in ("<sep>", "</s>"):
        if (found := find_piece(tokenizer, piece)) is not None:
            return found
    raise UsageError(
        "corpus.document_separator: two_columns needs a piece between source and target, and this vocabulary has none "
        "of <sep>, </s> and <eos>; set tokenizer.eos true, or choose another tokenizer.kind"
    )


def vocabulary_before_preparation(wanted: TokenizerConfig) -> int | None:
    """V as far as the configuration alone says; None where only the text or a file does."""
    if wanted.kind == "byte":
        return ByteTokenizer().vocab_size
    if wanted.vocab_size is None and wanted.kind == "sentencepiece" and wanted.path is None:
        return DEFAULT_PIECES
    return wanted.vocab_size
