"""Unsigned LEB128 numbers in Cable's form: minimal, at most 64 bits (wire.md 3, 6.1)."""

from __future__ import annotations

from typing import Final

from cablestore.errors import DecodeError

MAX_VARINT: Final = 2**64 - 1
MAX_VARINT_SIZE_BYTES: Final = 10


def encode_varint(value: int) -> bytes:
    """Encode `value` (0 to 2**64 - 1) in 1 to 10 bytes."""
    if not 0 <= value <= MAX_VARINT:
        raise ValueError(f"a varint is 0 to {MAX_VARINT}, got {value}")
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(buffer: bytes, at: int) -> tuple[int, int]:
    """Read the number at offset `at`. Return the number and the offset after it.

    Raises DecodeError if the buffer ends too early, or if the number is not minimal or has more than 64 bits.
    """
    if at >= len(buffer):
        raise DecodeError(at, "a varint is missing at the end of the data")
    byte = buffer[at]
    if byte < 0x80:
        return byte, at + 1
    value = shift = 0
    for byte in buffer[at : at + MAX_VARINT_SIZE_BYTES]:
        if byte >= 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            continue
        if byte == 0:
            raise DecodeError(at, "the varint is not minimal")
        value |= byte << shift
        if value > MAX_VARINT:
            raise DecodeError(at, "the varint has more than 64 bits")
        return value, at + shift // 7 + 1
    if len(buffer) < at + MAX_VARINT_SIZE_BYTES:
        raise DecodeError(len(buffer), "the varint is truncated")
    raise DecodeError(at, f"the varint is longer than {MAX_VARINT_SIZE_BYTES} bytes")
