"""Tokens as text, one after the other: only whole characters come out, as soon as they are whole."""

import codecs

from xltrain.data.tokenizer import CONTROLS, SPECIALS, SentencePieceTokenizer, Tokenizer
from xltrain.data.words import ByteTokenizer, WordTokenizer

WORD_START = "▁"


class Speller:
    """Spells tokens that continue a text.

    A character of several bytes may come from several tokens; its text is held back until the last of them.

    Args:
        tokenizer: of the tokens.
        before: the text that is continued; a first word has no space before it where a line begins, or where the text
            ends with white space that is no part of its tokens.
        end: the token that ends documents, and how that is written; None where there is none.
    """

    def __init__(self, tokenizer: Tokenizer, *, before: str = "", end: tuple[int, str] | None = None) -> None:
        self.tokenizer, self.end = tokenizer, end
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        line = before.rpartition("\n")[2]
        self._begins = not line or (line[-1].isspace() and not _keeps_end(tokenizer, line))

    def add(self, token: int) -> str:
        """The text that is whole with one more token; often that of the token, sometimes none."""
        if self.end is not None and token == self.end[0]:
            self._begins = True
            return self._decoder.decode(b"", final=True) + self.end[1]
        if isinstance(self.tokenizer, WordTokenizer):
            return self._word(token)
        text = self._decoder.decode(self._bytes(token))
        if self._begins and text:
            self._begins = False
            if isinstance(self.tokenizer, SentencePieceTokenizer):
                return text.removeprefix(" ")
        return text

    def finish(self) -> str:
        """What is left: a replacement character where the last one never became whole."""
        return self._decoder.decode(b"", final=True)

    def _word(self, token: int) -> str:
        piece = self.tokenizer.piece(token)
        if piece == "<eos>":
            self._begins = True
            return "\n"
        space = "" if self._begins else " "
        self._begins = False
        return space + piece

    def _bytes(self, token: int) -> bytes:
        if isinstance(self.tokenizer, SentencePieceTokenizer):
            processor = self.tokenizer.processor
            if processor.is_byte(token):
                return bytes([int(processor.id_to_piece(token)[1:-1], 16)])  # <0xE4>
            if processor.is_control(token):
                return b""
            piece = " ⁇ " if processor.is_unknown(token) else processor.id_to_piece(token).replace(WORD_START, " ")
            return piece.encode()
        if isinstance(self.tokenizer, ByteTokenizer) and token >= len(SPECIALS):
            return bytes([token - len(SPECIALS)])
        piece = self.tokenizer.piece(token)
        return b"" if piece in CONTROLS else piece.encode()


def _keeps_end(tokenizer: Tokenizer, line: str) -> bool:
    """Whether the white space at a line's end is in its tokens: it is, where sentencepiece normalises nothing."""
    if not isinstance(tokenizer, SentencePieceTokenizer):
        return False
    whole, stripped = tokenizer.encode([line, line.rstrip()])
    return whole != stripped
