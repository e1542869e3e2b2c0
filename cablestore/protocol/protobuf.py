"""Fields of protobuf documents, written and read without the library of protobuf. Pure.

A field is a tag (its number and its kind), then a varint or a size and that many bytes. Documents of strangers are read
field by field: two bytes of a document make the library allocate a hundred for an empty message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, repeat
from typing import Final

from cablestore.errors import ArchiveError, CableStoreError, DecodeError
from cablestore.protocol.varint import encode_varint, read_varint

_VARINT: Final = 0
_SIZED: Final = 2
_FIXED_SIZES_BYTES: Final = {1: 8, 5: 4}


def number_field(field: int, value: int) -> bytes:
    """Return a field of a number from 0 to 2**64 - 1. Zero is written too, which the library leaves out."""
    return encode_varint(field << 3 | _VARINT) + encode_varint(value)


def sized_field(field: int, value: bytes) -> bytes:
    """Return a field of bytes, of a string in UTF-8, or of a message that is encoded already."""
    return encode_varint(field << 3 | _SIZED) + encode_varint(len(value)) + value


def repeated(field: int, documents: Iterable[bytes]) -> bytes:
    """Return a repeated field of documents that are bytes already. This is three times as fast as the library."""
    whole = list(documents)
    tag = encode_varint(field << 3 | _SIZED)
    return b"".join(chain.from_iterable(zip(repeat(tag), map(_size, map(len, whole)), whole, strict=False)))


@lru_cache(16_384)
def _size(size_bytes: int) -> bytes:
    return encode_varint(size_bytes)


def fields(
    data: bytes, what: str, *, error: type[CableStoreError] = ArchiveError, skips_fixed: bool = False
) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the value of each field: a number, or the bytes of a string, bytes or message.

    `what` names the document in errors. With `skips_fixed`, fields of fixed size are left out. Raises `error` for them
    otherwise, for groups, and where the bytes are not well-formed.
    """
    at = 0
    try:
        while at < len(data):
            start = at
            tag, at = read_varint(data, at)
            number, kind = tag >> 3, tag & 7
            if number and skips_fixed and kind in _FIXED_SIZES_BYTES and at + _FIXED_SIZES_BYTES[kind] <= len(data):
                at += _FIXED_SIZES_BYTES[kind]
                continue
            if number == 0 or kind not in (_VARINT, _SIZED):
                raise error(f"the {what} has no field at byte {start} but {data[start : start + 4].hex()}")
            value, at = read_varint(data, at)
            if kind == _VARINT:
                yield number, value
                continue
            if value > len(data) - at:
                raise error(f"field {number} of the {what} claims {value} bytes, {len(data) - at} are left")
            yield number, data[at : at + value]
            at += value
    except DecodeError as found:
        raise error(f"the {what} is not well-formed: {found}") from None
