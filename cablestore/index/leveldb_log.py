"""Log files of LevelDB with its latest writes, and the format of their records. Manifests use the same format.

A record is split into chunks that do not cross the boundaries of 32 KiB blocks. If less than 7 bytes of a block remain,
they are zeros.

    checksum u32 | size u16 | whole 1, first 2, middle 3 or last 4: u8 | bytes          (all little-endian)

Source: doc/log_format.md and db/log_reader.cc of LevelDB.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from cablestore.errors import DecodeError

_CHUNK: Final = struct.Struct("<IHB")
_BLOCK_SIZE_BYTES: Final = 2**15
_CRC_32C: Final = 0x82F63B78
_MASK: Final = 0xA282EAD8
_WHOLE, _FIRST, _MIDDLE, _LAST = _KINDS = 1, 2, 3, 4


def read_records(data: bytes, *, verify: bool = True) -> Iterator[bytes]:
    """Yield the records of a log file. Raises DecodeError if it is damaged. With `verify`, checksums are compared."""
    at = 0
    record = bytearray()
    while at < len(data):
        left = _BLOCK_SIZE_BYTES - at % _BLOCK_SIZE_BYTES
        if left < _CHUNK.size:
            at += left
            continue
        if at + _CHUNK.size > len(data):
            raise DecodeError(at, "the bytes end within the header of a record")
        checksum, size, kind = _CHUNK.unpack_from(data, at)
        content = data[at + _CHUNK.size : at + _CHUNK.size + size]
        if len(content) != size or (verify and _masked_crc32c(bytes((kind,)) + content) != checksum):
            raise DecodeError(at, "the checksum of a record is wrong")
        record += content
        at += _CHUNK.size + size
        if kind in {_WHOLE, _LAST}:
            yield bytes(record)
            record.clear()
    if record:
        raise DecodeError(at, "the bytes end within a record")


def recorded(record: bytes) -> bytes:
    """Return the content of a log file with only this record."""
    file = bytearray()
    at = 0
    while at < len(record) or not file:
        content = record[at : at + _BLOCK_SIZE_BYTES - _CHUNK.size]  # each chunk but the last fills a block
        ends = at + len(content) == len(record)
        kind = (_WHOLE if ends else _FIRST) if at == 0 else (_LAST if ends else _MIDDLE)
        file += _CHUNK.pack(_masked_crc32c(bytes((kind,)) + content), len(content), kind) + content
        at += len(content)
    return bytes(file)


def find_silent_end(data: bytes) -> tuple[int, bool]:
    """Return where LevelDB stops reading a log without an error, and True if later records are lost.

    An incomplete record at the end is normal: the process was killed while it wrote, and had not acknowledged it.
    Records are lost if LevelDB skips a block because of zeros. They are also lost if a record claims to be longer than
    the file, and complete records follow it. Damage that LevelDB reports is ignored.
    """
    at = 0
    while at + _CHUNK.size <= len(data):
        left = _BLOCK_SIZE_BYTES - at % _BLOCK_SIZE_BYTES
        if left < _CHUNK.size:
            at += left
            continue
        _, size, kind = _CHUNK.unpack_from(data, at)
        if size == 0 and kind == 0:
            return at, True
        following = at + _CHUNK.size + size
        if following > len(data):
            return at, _has_whole_chunk(data, at + 1)
        at = following
    return min(at, len(data)), False


def _has_whole_chunk(data: bytes, start: int) -> bool:
    """Return True if a chunk with the right checksum begins anywhere after `start`."""
    for at in range(start, len(data) - _CHUNK.size):
        checksum, size, kind = _CHUNK.unpack_from(data, at)
        content = data[at + _CHUNK.size : at + _CHUNK.size + size]
        if kind in _KINDS and 0 < size == len(content) and _masked_crc32c(bytes((kind,)) + content) == checksum:
            return True
    return False


def _crc_table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [value >> 1 ^ (_CRC_32C if value & 1 else 0) for value in table]
    return table


_CRC_TABLE: Final = _crc_table()


def _masked_crc32c(data: bytes) -> int:
    """Return the CRC-32C of bytes (RFC 3720, B.4), rotated and shifted as LevelDB stores it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF
