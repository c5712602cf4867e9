"""TensorFlow checkpoints (``NAME.index`` and ``NAME.data-00000-of-00001``), read without TensorFlow.

The index is a sorted table in LevelDB's file format: a name, then a protobuf message that says the tensor's type, shape
and place. The data file holds the tensors one after the other. Both carry CRC-32C sums, which are checked. TensorFlow
writes the index uncompressed; a compressed one, and variables cut into slices, are refused. (PyPI's
``tensorflow-checkpoint-reader`` reads the same files, unchecked, and has not been kept since 2023.)
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xltrain.errors import UsageError
from xltrain.interop.spiece import protobuf_fields, varint

_MAGIC = 0xDB4775248B80FB57
_FOOTER, _TRAILER = 48, 5  # bytes

DTYPES = {
    1: torch.float32,
    2: torch.float64,
    3: torch.int32,
    9: torch.int64,
    14: torch.bfloat16,
    19: torch.float16,
}
"""TensorFlow's numbers of types; others (text, resources) are listed but not read."""


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies: its type's number, its shape, and the place in the numbered data file."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    sliced: bool


class Bundle:
    """The tensors of a checkpoint, read one by one.

    Args:
        prefix: the path without ``.index``.

    Raises:
        UsageError: if the index is missing, damaged or compressed.
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self.index = prefix.with_name(prefix.name + ".index")
        try:
            data = self.index.read_bytes()
        except OSError as error:
            raise UsageError(f"{self.index}: cannot be read ({error.strerror})") from None
        try:
            pairs = dict(_table(data))
            header = dict(protobuf_fields(pairs.pop(b"")))
            self.shards = int(header.get(1, 1))
            self.entries = {name.decode("utf-8"): _entry(value) for name, value in pairs.items()}
        except (IndexError, KeyError, ValueError, TypeError, struct.error) as error:
            why = f": {error}" if isinstance(error, _Refused) else ", or one that is damaged or was cut short"
            raise UsageError(f"{self.index}: not an index of a TensorFlow checkpoint{why}") from None
        if header.get(2, 0) != 0:
            raise UsageError(f"{self.index}: its numbers are big-endian, which is not supported")

    def read(self, name: str) -> Tensor:
        """One tensor.

        Raises:
            UsageError: if the data file is missing, cut short or damaged, or the tensor is none of ``DTYPES``.
        """
        entry = self.entries[name]
        if entry.sliced or entry.dtype not in DTYPES:
            what = "cut into slices" if entry.sliced else f"of type {entry.dtype}, which holds no numbers"
            raise UsageError(f"{self.index}: {name} is {what}; such variables are not read")
        path = self.prefix.with_name(f"{self.prefix.name}.data-{entry.shard:05d}-of-{self.shards:05d}")
        dtype = DTYPES[entry.dtype]
        if entry.size != prod(entry.shape) * dtype.itemsize:
            raise UsageError(f"{self.index}: {name} has {entry.size:,} bytes, which is not its shape {entry.shape}")
        data = bytearray()
        try:
            with path.open("rb") as file:
                # What an index says may be anything: room is made for what the file holds, not for what it should.
                if entry.offset + entry.size <= path.stat().st_size:
                    file.seek(entry.offset)
                    data = bytearray(file.read(entry.size))
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
        if len(data) != entry.size:
            raise UsageError(f"{path}: ends inside of {name}; the file was cut short, copy it again")
        if _masked(crc32c(data)) != entry.checksum:
            raise UsageError(f"{path}: {name} is damaged (its checksum differs); copy the file again")
        if not data:
            return torch.empty(entry.shape, dtype=dtype)
        return torch.frombuffer(data, dtype=dtype).view(entry.shape)


class _Refused(ValueError):
    pass


def _table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Every key and value of a LevelDB table, in order."""
    footer = data[-_FOOTER:]
    if len(footer) < _FOOTER or struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
        raise ValueError("no table")
    place = 0
    for _ in range(2):  # the index of meta blocks, which are not used
        _, place = varint(footer, place)
    offset, place = varint(footer, place)
    size, _ = varint(footer, place)
    for _, handle in _block(data, offset, size):
        start, place = varint(handle, 0)
        length, _ = varint(handle, place)
        yield from _block(data, start, length)


def _block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block; a key is what it shares with the one before, and the rest."""
    content, trailer = data[offset : offset + size], data[offset + size : offset + size + _TRAILER]
    kind, checksum = struct.unpack("<BI", trailer)
    if _masked(crc32c(content + trailer[:1])) != checksum:
        raise _Refused("its checksum differs, so it is damaged; copy the file again")
    if kind != 0:
        raise _Refused("it is compressed, which TensorFlow's own checkpoints are not")
    restarts = struct.unpack("<I", content[-4:])[0]
    end, place, key = size - 4 - 4 * restarts, 0, b""
    while place < end:
        shared, place = varint(content, place)
        added, place = varint(content, place)
        length, place = varint(content, place)
        key = key[:shared] + content[place : place + added]
        place += added
        yield key, content[place : place + length]
        place += length


def _entry(data: bytes) -> Entry:
    """A ``BundleEntryProto``."""
    values: dict[int, Any] = {}
    shape: list[int] = []
    for number, value in protobuf_fields(data):
        if number == 2:  # TensorShapeProto: its field 2 is a dimension, whose field 1 is the size
            dimensions = [dict(protobuf_fields(inner)) for field, inner in protobuf_fields(value) if field == 2]
            shape = [int(dimension.get(1, 0)) for dimension in dimensions]
        else:
            values[number] = value
    return Entry(
        dtype=int(values.get(1, 0)),
        shape=tuple(shape),
        shard=int(values.get(3, 0)),
        offset=int(values.get(4, 0)),
        size=int(values.get(5, 0)),
        checksum=struct.unpack("<I", values.get(6, b"\0\0\0\0"))[0],
        sliced=7 in values,
    )


def _masked(crc: int) -> int:
    """LevelDB stores sums of data that itself contains sums in this form."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _byte_table() -> "np.ndarray[Any, np.dtype[np.uint32]]":
    found = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        found = np.where(found & 1, (found >> 1) ^ np.uint32(0x82F63B78), found >> 1)
    return found.astype(np.uint32)


_BYTES = _byte_table()
_BITS = np.uint32(1) << np.arange(32, dtype=np.uint32)
_LANES = 1 << 15


def crc32c(data: bytes | bytearray) -> int:
    """Castagnoli's CRC.

    The data is cut into lanes that are summed at once, byte by byte; the sums are then joined two by two. A sum is
    linear in what it starts from, so the sum of A followed by B is that of B, plus that of A after as many zeros.
    """
    array = np.frombuffer(data, dtype=np.uint8)
    lanes = _LANES
    while lanes > 1 and len(array) < 64 * lanes:
        lanes //= 2
    length = len(array) // lanes
    sums = np.zeros(lanes, dtype=np.uint32)
    sums[0] = 0xFFFFFFFF
    for column in np.ascontiguousarray(array[: lanes * length].reshape(lanes, length).T):
        sums = _BYTES[sums.astype(np.uint8) ^ column] ^ (sums >> 8)
    zeros = _after_zeros(length)
    while len(sums) > 1:
        sums = _apply(zeros, sums[0::2]) ^ sums[1::2]
        zeros = _apply(zeros, zeros)
    found = int(sums[0])
    for byte in array[lanes * length :].tolist():
        found = int(_BYTES[(found ^ byte) & 0xFF]) ^ (found >> 8)
    return found ^ 0xFFFFFFFF


def _apply(operator: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """An operator, as its 32 results for single bits, on each sum."""
    found = np.zeros_like(sums)
    for bit in range(32):
        found ^= np.where((sums >> np.uint32(bit)) & 1, operator[bit], np.uint32(0))
    return found


def _after_zeros(count: int) -> np.ndarray:
    """What a sum becomes after ``count`` bytes of zero, as an operator."""
    found, power = _BITS.copy(), _BYTES[_BITS & 0xFF] ^ (_BITS >> 8)
    while count:
        if count & 1:
            found = _apply(power, found)
        power = _apply(power, power)
        count >>= 1
    return found
