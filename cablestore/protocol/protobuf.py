"""Reads protobuf documents of strangers: whole small ones by the library, large ones field by field. Pure.

Two bytes of a document make the library allocate a hundred for an empty message, so a large document is walked here and
its fields are decoded one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, repeat
from typing import Final, TypeVar

from google.protobuf.message import DecodeError as ProtobufDecodeError
from google.protobuf.message import Message

from cablestore.errors import ArchiveError, DecodeError
from cablestore.protocol.varint import encode_varint, read_varint

M = TypeVar("M", bound=Message)

_VARINT: Final = 0
_SIZED: Final = 2


def parsed(document: type[M], data: bytes) -> M:
    """Return the document that `data` holds, or raise ArchiveError."""
    try:
        return document.FromString(data)
    except ProtobufDecodeError as error:
        raise ArchiveError(f"{len(data)} bytes are no {document.DESCRIPTOR.name}: {error}. Fetch them again") from None


def written(document: Message) -> bytes:
    """Return the bytes of a document, the same for the same content."""
    return document.SerializeToString(deterministic=True)


def repeated(field: int, documents: Iterable[bytes]) -> bytes:
    """Return a repeated field of documents that are bytes already: three times as fast as the library for many of them."""
    whole = list(documents)
    tag = encode_varint(field << 3 | _SIZED)
    return b"".join(chain.from_iterable(zip(repeat(tag), map(_size, map(len, whole)), whole, strict=False)))


@lru_cache(16_384)
def _size(size_bytes: int) -> bytes:
    return encode_varint(size_bytes)


def fields(data: bytes, what: str) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the value of each field: a number, or the bytes of a string, bytes or message.

    No document of archives has fields of other kinds at its top. `what` names the document in errors. Raises
    ArchiveError where the bytes are not well-formed.
    """
    at = 0
    try:
        while at < len(data):
            start = at
            tag, at = read_varint(data, at)
            number, kind = tag >> 3, tag & 7
            if number == 0 or kind not in (_VARINT, _SIZED):
                raise ArchiveError(f"the {what} has no field at byte {start} but {data[start : start + 4].hex()}")
            value, at = read_varint(data, at)
            if kind == _VARINT:
                yield number, value
                continue
            if value > len(data) - at:
                raise ArchiveError(f"field {number} of the {what} claims {value} bytes, {len(data) - at} are left")
            yield number, data[at : at + value]
            at += value
    except DecodeError as error:
        raise ArchiveError(f"the {what} is not well-formed: {error}") from None
