"""What a sentencepiece model file says, read without the protobuf package.

The file is one protobuf message: a row of fields, each a number, a wire type and a value. What the numbers mean is in
``sentencepiece_model.proto``.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Kinds of piece."""

COMPOSING_RULE = "nmt_nfkc"
"""sentencepiece's usual rule of normalisation, one of those that compose characters."""

ALGORITHMS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types


@dataclass(frozen=True)
class Piece:
    """An entry of the vocabulary; its id is its place in it."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class SentencePieceModel:
    """The parts of a model that decide how text becomes pieces.

    rule: name of the normalisation rule.
    charsmap: that rule, compiled; empty: text is left as it is.
    """

    pieces: tuple[Piece, ...]
    algorithm: str
    byte_fallback: bool
    space_is_suffix: bool
    rule: str
    charsmap: bytes
    adds_space_in_front: bool
    collapses_spaces: bool
    marks_spaces: bool

    @classmethod
    def read(cls, data: bytes) -> "SentencePieceModel":
        """Parse the content of a ``.model`` file that sentencepiece accepts."""
        pieces, trainer, normalizer = [], _Message({}), _Message({})
        for number, value in protobuf_fields(data):
            if number == 1:
                fields = _Message(dict(protobuf_fields(value)))
                pieces.append(Piece(fields.text(1), fields.real(2), fields.number(3, default=NORMAL)))
            elif number == 2:
                trainer = _Message(dict(protobuf_fields(value)))
            elif number == 3:
                normalizer = _Message(dict(protobuf_fields(value)))
        return cls(
            pieces=tuple(pieces),
            algorithm=ALGORITHMS[trainer.number(3, default=1)],
            byte_fallback=bool(trainer.number(35, default=0)),
            space_is_suffix=bool(trainer.number(24, default=0)),
            rule=normalizer.text(1),
            charsmap=normalizer.values.get(2, b""),
            adds_space_in_front=bool(normalizer.number(3, default=1)),
            collapses_spaces=bool(normalizer.number(4, default=1)),
            marks_spaces=bool(normalizer.number(5, default=1)),
        )


@dataclass(frozen=True)
class _Message:
    """The last value of each field, which is the one that counts where a field is not repeated."""

    values: dict[int, Any]

    def text(self, number: int) -> str:
        return bytes(self.values.get(number, b"")).decode("utf-8")

    def number(self, number: int, *, default: int) -> int:
        return int(self.values.get(number, default))

    def real(self, number: int) -> float:
        return float(struct.unpack("<f", self.values.get(number, b"\0\0\0\0"))[0])


def protobuf_fields(data: bytes) -> Iterator[tuple[int, Any]]:
    place = 0
    while place < len(data):
        key, place = varint(data, place)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, place = varint(data, place)
            yield number, value
            continue
        if wire == _BYTES:
            size, place = varint(data, place)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}[wire]
        yield number, data[place : place + size]
        place += size


def varint(data: bytes, place: int) -> tuple[int, int]:
    """An integer of seven bits per byte, the lowest first, and the place after it."""
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, place


def written(
    pieces: Sequence[Piece], *, charsmap: bytes, rule: str, adds_space_in_front: bool, collapses_spaces: bool
) -> bytes:
    """A unigram ``.model`` file of these pieces, with a compiled normalisation rule, its name, and that for spaces."""
    unk = next((number for number, piece in enumerate(pieces) if piece.kind == UNKNOWN), 0)
    ids = {piece.text: number for number, piece in enumerate(pieces)}
    model = b"".join(
        _field(1, _field(1, piece.text.encode()) + _real(2, piece.score) + _number(3, piece.kind)) for piece in pieces
    )
    numbers = {3: 1, 4: len(pieces), 40: unk, 41: ids.get("<s>", -1), 42: ids.get("</s>", -1), 43: -1}
    trainer = b"".join(_number(number, value) for number, value in numbers.items())
    normalizer = _field(1, rule.encode()) + _field(2, charsmap)
    normalizer += _number(3, adds_space_in_front) + _number(4, collapses_spaces)
    return model + _field(2, trainer) + _field(3, normalizer)


def _field(number: int, content: bytes) -> bytes:
    return _encoded(number << 3 | _BYTES) + _encoded(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _encoded(number << 3 | _VARINT) + _encoded(value & (1 << 64) - 1)


def _real(number: int, value: float) -> bytes:
    return _encoded(number << 3 | _FIXED32) + struct.pack("<f", value)


def _encoded(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
