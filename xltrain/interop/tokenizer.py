"""Our tokenizers as the files that transformers loads, built with the ``tokenizers`` library alone.

``tokenizer_class`` is ``PreTrainedTokenizerFast``, which takes tokenizer.json as it is: transformers' XLNetTokenizer
would put its own normaliser in front (quotes replaced, accents stripped), which no text was trained with.
"""

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xltrain.data.cleanup import CleanUp
from xltrain.data.tokenizer import SPECIALS, CharTokenizer, SentencePieceTokenizer, Tokenizer
from xltrain.data.words import ByteTokenizer, WordTokenizer
from xltrain.interop import spiece
from xltrain.interop.spiece import Piece, SentencePieceModel

if TYPE_CHECKING:
    import tokenizers

ROLES = {
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "<sep>",
    "pad_token": "<pad>",
    "cls_token": "<cls>",
    "mask_token": "<mask>",
}
"""transformers' name for each special piece; ``<eod>`` is one without a role."""

PADDING = ("<pad>", "<eod>", "</s>", "<eos>", "<unk>", "<UNK>")
"""What fills up the shorter texts of a batch, the first that a vocabulary has: nothing ever sees it."""

WORD_ROLES = {"unk_token": ("<unk>", "<UNK>"), "eos_token": ("<eos>",)}
"""The same for word vocabularies, which have no others."""

FILES = ("tokenizer.json", "tokenizer_config.json", SentencePieceTokenizer.file_name)
"""Everything that :func:`tokenizer_files` may write."""

_SPACE = "▁"
_NEVER, _CUT = "\uffff", "\ufffe"  # code points that are no characters, so they do not occur in text
_PRIVATE = 0xF0000  # first of the code points that Unicode leaves to programs
_COMPOSING_RULES = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf")


def reasons_against(tokenizer: Tokenizer) -> list[str]:
    """Everything in a tokenizer that cannot be expressed; empty: it can be exported."""
    if not isinstance(tokenizer, SentencePieceTokenizer):
        return []
    model = SentencePieceModel.read(tokenizer.model)
    kinds = {piece.kind for piece in model.pieces}
    checks = (
        (model.algorithm not in ("unigram", "bpe"), f"is of type {model.algorithm}, not unigram or bpe"),
        (model.byte_fallback or spiece.BYTE in kinds, "spells unknown characters in bytes (byte_fallback)"),
        (model.space_is_suffix, "marks spaces at the end of words (treat_whitespace_as_suffix)"),
        (not model.marks_spaces, "does not mark spaces (escape_whitespaces)"),
        (spiece.UNUSED in kinds, "has pieces marked as unused"),
    )
    cleanup = tokenizer.cleanup
    knows_sigma = any("σ" in piece.text or "ς" in piece.text for piece in model.pieces)
    refused = [
        f"the sentencepiece model {reason}: the export does not know how to say that" for yes, reason in checks if yes
    ]
    if cleanup.digit_commas:
        refused.append("tokenizer.split_digit_commas changes pieces after they are found, which the export cannot")
    if cleanup.lower and knows_sigma:
        refused.append("tokenizer.lower makes two letters of the Greek capital sigma, and the export only one")
    return refused


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Id of each special piece that the vocabulary has, by its spelling."""
    wanted = {*ROLES.values(), "<eod>"}
    pieces = (tokenizer.piece(number) for number in range(tokenizer.vocab_size))
    return {piece: number for number, piece in enumerate(pieces) if piece in wanted}


def tokenizer_files(tokenizer: Tokenizer, *, ends_text: bool = True) -> dict[str, bytes]:
    """Name and content of each file, for a tokenizer that :func:`reasons_against` has nothing against.

    ``ends_text``: whether a text is ended as XLNet's are, ``A <sep> <cls>`` or ``A <sep> B <sep> <cls>``; not where it
    is to be continued.
    """
    specials = special_ids(tokenizer)
    if isinstance(tokenizer, CharTokenizer):
        built = _symbols([tokenizer.piece(number) for number in range(tokenizer.vocab_size)], bytewise=False)
        _add_specials(built, specials, mask_takes_space=False, ends_text=ends_text)
    elif isinstance(tokenizer, ByteTokenizer):
        built = _symbols([*SPECIALS, *byte_names()], bytewise=True)
        _add_specials(built, specials, mask_takes_space=False, ends_text=ends_text)
    elif isinstance(tokenizer, SentencePieceTokenizer):
        built = _pieces(SentencePieceModel.read(tokenizer.model), tokenizer.cleanup)
        _add_specials(built, specials, mask_takes_space=True, ends_text=ends_text)
    elif isinstance(tokenizer, WordTokenizer):
        built, specials = _words(tokenizer), _special_words(tokenizer)
    else:
        raise TypeError(f"{type(tokenizer).__name__} cannot be expressed")
    return {
        "tokenizer.json": built.to_str(pretty=True).encode("utf-8"),
        "tokenizer_config.json": json.dumps(_settings(specials), indent=2).encode("utf-8"),
        **({tokenizer.file_name: tokenizer.model} if isinstance(tokenizer, SentencePieceTokenizer) else {}),
    }


def _settings(specials: Mapping[str, int]) -> dict[str, Any]:
    padding = [piece for piece in PADDING if piece in specials]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{role: piece for role, piece in ROLES.items() if piece in specials},
        **{role: piece for role, pieces in WORD_ROLES.items() for piece in pieces if piece in specials},
        **({"pad_token": padding[0]} if padding else {}),
        "additional_special_tokens": ["<eod>"] if "<eod>" in specials else [],
        "padding_side": "left",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }


def _symbols(pieces: Sequence[str], *, bytewise: bool) -> "tokenizers.Tokenizer":
    """A vocabulary of single characters, or of single bytes, which tokenizers writes as other characters."""
    import tokenizers
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

    steps: list[Any] = [pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")]
    if bytewise:
        steps.insert(0, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    built = tokenizers.Tokenizer(
        models.WordLevel({piece: number for number, piece in enumerate(pieces)}, unk_token="<unk>")
    )
    built.normalizer = normalizers.Sequence([_spell_unk()])
    built.pre_tokenizer = pre_tokenizers.Sequence(steps)
    joined: Any = decoders.ByteLevel() if bytewise else decoders.Fuse()
    built.decoder = decoders.Sequence([decoders.Replace(_NEVER, ""), joined])
    return built


def _special_words(tokenizer: WordTokenizer) -> dict[str, int]:
    wanted = {piece for pieces in WORD_ROLES.values() for piece in pieces}
    return {word: number for number, word in enumerate(tokenizer.words) if word in wanted}


def _words(tokenizer: WordTokenizer) -> "tokenizers.Tokenizer":
    """Words between white space, a line's end as ``<eos>``."""
    import tokenizers
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

    unk = tokenizer.words[tokenizer.unk] if tokenizer.unk >= 0 else "<unk>"
    built = tokenizers.Tokenizer(models.WordLevel({word: i for i, word in enumerate(tokenizer.words)}, unk_token=unk))
    steps: list[Any] = [normalizers.Lowercase()] if tokenizer.lower else []
    steps += [normalizers.Replace("\n", " <eos> ")] if tokenizer.eos else []
    built.normalizer = normalizers.Sequence(steps)
    # What Python's str.split takes for white space: Unicode's, and four separators of ASCII.
    built.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\x1c-\x1f]+"), "removed")
    spaced = [decoders.Replace(Regex(r"\A"), " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ends = [decoders.Replace(Regex(" ?<eos> ?"), "\n")] if tokenizer.eos else []
    built.decoder = decoders.Sequence(spaced + ends)
    return built


def byte_names() -> list[str]:
    """The characters that stand for the bytes 0 to 255 in byte-level vocabularies (GPT-2's choice).

    Bytes that are visible characters of Latin-1 stand for themselves, the others for code points from 256 on.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(256, 512))
    return [chr(byte if byte in visible else next(hidden)) for byte in range(256)]


def _pieces(model: SentencePieceModel, cleanup: CleanUp) -> "tokenizers.Tokenizer":
    import tokenizers
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

    unk = next(number for number, piece in enumerate(model.pieces) if piece.kind == spiece.UNKNOWN)
    whole = [piece.text for piece in model.pieces if piece.kind == spiece.USER_DEFINED]
    if model.algorithm == "unigram":
        built = tokenizers.Tokenizer(models.Unigram(_scores(model.pieces), unk_id=unk, byte_fallback=False))
    else:
        built = tokenizers.Tokenizer(
            models.BPE(
                vocab={piece.text: number for number, piece in enumerate(model.pieces)},
                merges=_merges(model.pieces),
                unk_token=model.pieces[unk].text,
                fuse_unk=True,
                ignore_merges=True,  # a user-defined symbol stands alone by now, and is no product of merges
            )
        )
    built.normalizer = normalizers.Sequence([*_cleaning(cleanup), _spell_unk(), *_normalizers(model, whole)])
    # Metaspace adds no space where one is already, which is right only where sentencepiece has removed that.
    scheme: Any = "always" if model.adds_space_in_front and model.collapses_spaces else "never"
    steps: list[Any] = [pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme, split=False)]
    if whole and model.algorithm == "bpe":
        steps.append(pre_tokenizers.Split(Regex("|".join(map(re.escape, _longest_first(whole)))), "isolated"))
    steps.append(pre_tokenizers.Split(Regex(cuts_in_symbols(model.pieces)), "merged_with_previous"))
    built.pre_tokenizer = pre_tokenizers.Sequence(steps)
    spaces: list[Any] = [decoders.Metaspace(replacement=_SPACE, prepend_scheme=scheme, split=False)]
    if model.adds_space_in_front and not model.collapses_spaces:
        spaces = [decoders.Replace(_SPACE, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    built.decoder = decoders.Sequence([decoders.Replace(_NEVER, ""), *spaces])
    return built


def cuts_in_symbols(pieces: Sequence[Piece]) -> str:
    """Where text is cut that spells a control symbol, which is no such symbol: after its first character."""
    spelled = [piece.text for piece in pieces if piece.kind in (spiece.CONTROL, spiece.UNKNOWN)]
    return "|".join(f"{re.escape(text[0])}(?={re.escape(text[1:])})" for text in spelled)


def _cleaning(cleanup: CleanUp) -> list[Any]:
    """The clean-up that text goes through before sentencepiece."""
    from tokenizers import Regex, normalizers

    steps: list[Any] = []
    if cleanup.quotes:
        steps += [normalizers.Replace(marks, '"') for marks in ("``", "''")]
    if cleanup.accents:
        marks = "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in _combining())
        steps += [normalizers.NFKD(), normalizers.Replace(Regex(f"[{marks}]"), "")]
    if cleanup.lower:
        steps.append(normalizers.Lowercase())
    return steps


def _combining() -> list[tuple[int, int]]:
    """Ranges of the code points that combine with the one before, as ``unicodedata.combining`` says."""
    ranges: list[tuple[int, int]] = []
    for point in filter(lambda point: unicodedata.combining(chr(point)), range(0x110000)):
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1] = (ranges[-1][0], point)
        else:
            ranges.append((point, point))
    return ranges


def _scores(pieces: Sequence[Piece]) -> list[tuple[str, float]]:
    """Piece and score, with sentencepiece's bonus for user-defined symbols, which it adds when it encodes."""
    best = max((piece.score for piece in pieces if piece.kind == spiece.NORMAL), default=0.0)
    return [
        (
            piece.text,
            len(piece.text.encode("utf-8")) * best - 0.1 if piece.kind == spiece.USER_DEFINED else piece.score,
        )
        for piece in pieces
    ]


def _merges(pieces: Sequence[Piece]) -> list[tuple[str, str]]:
    """sentencepiece joins any two neighbours that make a piece, the piece of the highest score first."""
    normal = {piece.text for piece in pieces if piece.kind == spiece.NORMAL}
    ordered = sorted((piece for piece in pieces if piece.kind == spiece.NORMAL), key=lambda piece: -piece.score)
    return [
        (piece.text[:cut], piece.text[cut:])
        for piece in ordered
        for cut in range(1, len(piece.text))
        if piece.text[:cut] in normal and piece.text[cut:] in normal
    ]


def _normalizers(model: SentencePieceModel, whole: Sequence[str]) -> list[Any]:
    """sentencepiece's normalisation: its table of replacements, then the rule for spaces."""
    from tokenizers import Regex, normalizers

    steps: list[Any] = []
    if model.charsmap:
        steps = _replacements(model)
        # User-defined symbols are exempt from normalisation: those that it would change step aside for it.
        changed = [symbol for symbol in whole if normalizers.Sequence(steps).normalize_str(symbol) != symbol]
        places = {symbol: chr(_PRIVATE + number) for number, symbol in enumerate(_longest_first(changed))}
        steps = [normalizers.Replace(symbol, place) for symbol, place in places.items()] + steps
        steps += [normalizers.Replace(place, symbol) for symbol, place in places.items()]
    if model.collapses_spaces:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(r"\A +| +\z"), "")]
    elif model.adds_space_in_front:
        steps.append(normalizers.Prepend(" "))
    return steps


def _replacements(model: SentencePieceModel) -> list[Any]:
    """``Precompiled`` reads sentencepiece's table, but grapheme by grapheme, of each the first entry that fits.

    So it would compose a letter and one accent, but not two, and drop an accent after a character that it replaces.
    It is therefore handed single characters: composed first (NFC), then cut before each accent that is left. NFC would
    reorder the vowel marks of Hebrew and Arabic, which sentencepiece leaves as typed: a vocabulary that spells these
    goes without.
    """
    from tokenizers import Regex, normalizers

    table = normalizers.Precompiled(model.charsmap)
    if model.rule not in _COMPOSING_RULES or _spells_ordered_marks(model.pieces):
        return [table]
    cut = normalizers.Replace(Regex(r"(?<=\S)(?=\p{M})"), _CUT)
    return [normalizers.NFC(), cut, table, normalizers.Replace(_CUT, "")]


def _spells_ordered_marks(pieces: Sequence[Piece]) -> bool:
    # Classes 10 to 35 are the marks of Hebrew, Arabic and Syriac: each has a place of its own in canonical order.
    return any(10 <= unicodedata.combining(character) <= 35 for piece in pieces for character in piece.text)


def _longest_first(symbols: Sequence[str]) -> list[str]:
    return sorted(symbols, key=lambda symbol: (-len(symbol), symbol))


def _spell_unk() -> Any:
    """``<unk>`` is a word of some texts (WikiText), and is spelled in pieces there, as any other.

    transformers insists that text be searched for it; so it is searched for after normalisation, where a text that is
    nothing but ``<unk>``, and so what is searched for, gets a mark that never occurs. Decoding removes the mark.
    """
    from tokenizers import Regex, normalizers

    return normalizers.Replace(Regex(r"\A<unk>\z"), f"<unk>{_NEVER}")


def _add_specials(
    built: "tokenizers.Tokenizer", specials: Mapping[str, int], *, mask_takes_space: bool, ends_text: bool
) -> None:
    """Name the special pieces, and say how a text ends.

    ``mask_takes_space``: ``<mask>`` stands for a word and the space before it, where pieces hold that space.
    """
    from tokenizers import AddedToken, processors

    for piece in specials:
        built.add_special_tokens(
            [AddedToken(piece, lstrip=piece == "<mask>" and mask_takes_space, normalized=piece == "<unk>")]
        )
    if ends_text and "<sep>" in specials and "<cls>" in specials:
        built.post_processor = processors.TemplateProcessing(
            single="$A:0 <sep>:0 <cls>:2",
            pair="$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2",
            special_tokens=[("<sep>", specials["<sep>"]), ("<cls>", specials["<cls>"])],
        )
