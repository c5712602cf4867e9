"""What a sentencepiece model file says, read without the protobuf package.

The file is one protobuf message: a row of fields, each a number, a wire type and a value. What the numbers mean is in
``sentencepiece_model.proto``.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Kinds of piece."""

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
        for number, value in _fields(data):
            if number == 1:
                fields = _Message(dict(_fields(value)))
                pieces.append(Piece(fields.text(1), fields.real(2), fields.number(3, default=NORMAL)))
            elif number == 2:
                trainer = _Message(dict(_fields(value)))
            elif number == 3:
                normalizer = _Message(dict(_fields(value)))
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


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, place = _varint(data, place)
            yield number, value
            continue
        if wire == _BYTES:
            size, place = _varint(data, place)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}[wire]
        yield number, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """An integer of seven bits per byte, the lowest first, and the place after it."""
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, place
