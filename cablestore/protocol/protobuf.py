"""Protobuf documents: their fields one by one, or a whole document by the table of its fields.

A field is a tag (its number and its kind), then a varint or a size and that many bytes. `fields` reads a large document
field by field, because a reader of whole documents may allocate a hundred bytes for two bytes. It rejects groups and
fields of fixed size. `Document` reads and writes small documents, with the same bytes as the protobuf library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, repeat
from struct import Struct
from typing import Any, Final

from cablestore.errors import ArchiveError, CableStoreError, DecodeError
from cablestore.protocol.varint import MAX_VARINT, MAX_VARINT_SIZE_BYTES, encode_varint, read_varint

_VARINT: Final = 0
_SIZED: Final = 2
_GROUP: Final = 3
_GROUP_END: Final = 4
_FIXED_SIZES_BYTES: Final = {1: 8, 5: 4}
_MAX_TAG: Final = 2**32 - 1
_MAX_TAG_SIZE_BYTES: Final = 5
"""Maximum number of bytes of a tag, and of a size. The library rejects more bytes, even if the last ones are zeros."""
_EMPTY: Final = b"\0"
"""The bytes after a tag for zero, empty bytes, and an empty document."""
_nine: Final = Struct("9B").pack
_MAX_DEPTH: Final = 100
"""Maximum nesting of documents and groups, the limit of the library."""


def number_field(field: int, value: int) -> bytes:
    """Return a field with a number from 0 to 2**64 - 1. Zero is written too, unlike in the library."""
    return encode_varint(field << 3 | _VARINT) + encode_varint(value)


def sized_field(field: int, value: bytes) -> bytes:
    """Return a field with bytes, a string in UTF-8, or an encoded message."""
    return encode_varint(field << 3 | _SIZED) + encode_varint(len(value)) + value


def repeated(field: int, documents: Iterable[bytes]) -> bytes:
    """Return a repeated field of encoded documents."""
    whole = list(documents)
    tag = encode_varint(field << 3 | _SIZED)
    return b"".join(chain.from_iterable(zip(repeat(tag), map(_size, map(len, whole)), whole, strict=False)))


@lru_cache(16_384)
def _size(size_bytes: int) -> bytes:
    return encode_varint(size_bytes)


def fields(
    data: bytes, what: str, *, error: Callable[[str], CableStoreError] = ArchiveError
) -> Iterator[tuple[int, int | bytes]]:
    """Yield the field number and the value of each field. A value is a number, or the bytes of a sized field.

    Error messages contain `what`. Raises `error` for groups, fields of fixed size, and malformed bytes.
    """
    for number, value in all_fields(data, what, error=error):
        if value is None:
            raise error(f"field {number} of the {what} has a fixed size, expected a number or bytes")
        yield number, value


def all_fields(
    data: bytes, what: str, *, error: Callable[[str], CableStoreError]
) -> Iterator[tuple[int, int | bytes | None]]:
    """Yield the same as `fields`, and None for a field of fixed size."""
    at = 0
    try:
        while at < len(data):
            start = at
            tag, at = read_varint(data, at)
            number, kind = tag >> 3, tag & 7
            if number and kind in _FIXED_SIZES_BYTES and at + _FIXED_SIZES_BYTES[kind] <= len(data):
                yield number, None
                at += _FIXED_SIZES_BYTES[kind]
                continue
            if number == 0 or kind not in (_VARINT, _SIZED):
                raise error(f"invalid field in the {what} at byte {start}: {data[start : start + 4].hex()}")
            value, at = read_varint(data, at)
            if kind == _VARINT:
                yield number, value
                continue
            if value > len(data) - at:
                raise error(
                    f"field {number} of the {what} is truncated: its length is {value} bytes, but only "
                    f"{len(data) - at} remain"
                )
            yield number, data[at : at + value]
            at += value
    except DecodeError as found:
        raise error(f"the {what} is malformed: {found}") from None


# --- whole documents ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value: its kind on the wire, and the value `absent` of an absent field.

    `read` converts the number or the bytes of a field. If it is None, they are the value. `write` returns the field for
    a tag and a value, or nothing for the value `absent`.
    """

    wire: int
    absent: Any
    read: Callable[[Any], Any] | None
    write: Callable[[bytes, Any], bytes]


def _write_bytes(tag: bytes, value: bytes) -> bytes:
    return tag + _size(len(value)) + value if value else b""


def _write_number(tag: bytes, value: int) -> bytes:
    if 1 << 56 <= value < 1 << 63:  # nanoseconds, which each message contains; a loop takes twice as long
        return tag + _nine(
            value & 127 | 128,
            value >> 7 & 127 | 128,
            value >> 14 & 127 | 128,
            value >> 21 & 127 | 128,
            value >> 28 & 127 | 128,
            value >> 35 & 127 | 128,
            value >> 42 & 127 | 128,
            value >> 49 & 127 | 128,
            value >> 56,
        )
    return tag + encode_varint(value) if value else b""


@lru_cache(4_096)
def _write_string(tag: bytes, value: str) -> bytes:
    """Encode a string. It is cached, because all messages of a channel have the same topic."""
    return _write_bytes(tag, value.encode())


BYTES: Final = Kind(_SIZED, b"", None, _write_bytes)
STRING: Final = Kind(_SIZED, "", bytes.decode, _write_string)
BOOL: Final = Kind(_VARINT, False, bool, _write_number)
UINT32: Final = Kind(_VARINT, 0, lambda number: number & 0xFFFF_FFFF, _write_number)
UINT64: Final = Kind(_VARINT, 0, None, _write_number)
SINT64: Final = Kind(
    _VARINT,
    0,
    lambda number: number >> 1 ^ -(number & 1),
    lambda tag, value: _write_number(tag, value << 1 ^ value >> 63),
)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a document. Its value is a value of its kind, or a list of values for a nested document.

    With `has_presence`, a field with the default value is written too, and None stands for an absent field. Both
    always apply to nested documents. The value of a field that `is_repeated` is a sequence.
    """

    number: int
    name: str
    kind: Kind | Document
    has_presence: bool = False
    is_repeated: bool = False

    @property
    def tag(self) -> int:
        """The number and the kind on the wire."""
        return self.number << 3 | (_SIZED if isinstance(self.kind, Document) else self.kind.wire)

    @property
    def absent(self) -> Any:
        """The value of an absent field."""
        if self.is_repeated:
            return ()
        return None if self.has_presence or isinstance(self.kind, Document) else self.kind.absent

    def writer(self) -> Callable[[bytes, Any], bytes]:
        """Return a function that encodes a value, given its tag."""
        write = self.kind.write
        if self.is_repeated:
            return lambda tag, values: b"".join([write(tag, value) or tag + _EMPTY for value in values])
        if self.absent is None:
            return lambda tag, value: b"" if value is None else write(tag, value) or tag + _EMPTY
        return write


class Document:
    """A kind of document, with a table of its fields. They are sorted by number, and written in this order.

    Unknown fields are skipped. The last value of a field is used. Nested documents in one field are merged.
    """

    def __init__(self, name: str, *table: Field) -> None:
        self.name = name
        self.table = table
        self._absent = [field.absent for field in table]
        self._by_tag = {field.tag: (slot, field.kind, field.is_repeated) for slot, field in enumerate(table)}
        self._writers = [(field.writer(), encode_varint(field.tag)) for field in table]

    def encode(self, *values: Any) -> bytes:
        """Return the bytes of a document with these values, in the order of its table. Trailing values can be omitted."""
        return b"".join([write(tag, value) for (write, tag), value in zip(self._writers, values, strict=False)])

    def encode_each(self, *columns: Iterable[Any]) -> Iterator[bytes]:
        """Yield the bytes of many documents, from columns of their values, which have the same length.

        This is as fast as the library.
        """
        written = [
            map(write, repeat(tag), column) for (write, tag), column in zip(self._writers, columns, strict=False)
        ]
        return map(b"".join, zip(*written, strict=True))

    def write(self, tag: bytes, values: Iterable[Any]) -> bytes:
        """Encode `values` as a nested document. Return it as a field with this tag, for an outer document."""
        return _write_bytes(tag, self.encode(*values))

    def decode(self, data: bytes) -> list[Any]:
        """Return the values in the order of the table. Raises ArchiveError if the document is malformed."""
        try:
            return self.merged(data, None, 1)
        except DecodeError as error:
            reason = error.reason
        except UnicodeDecodeError as error:
            reason = f"a string is not UTF-8: {error.reason}"
        except IndexError:
            reason = "the data ends within a field"
        raise ArchiveError(f"invalid {self.name} of {len(data)} bytes: {reason}. Fetch it again")

    def merged(self, data: bytes, known: list[Any] | None, depth: int) -> list[Any]:
        """Decode a document, nested to `depth`. Return its values: a new list, or `known` with the values merged in."""
        values = self._absent.copy() if known is None else known
        at, end = 0, len(data)
        while at < end:
            tag = data[at]
            at += 1
            if tag >= 0x80:
                tag, at = _read_tag(data, at - 1)
            field = self._by_tag.get(tag)
            if field is None:
                at = _skipped(data, at, tag, depth)
                continue
            slot, kind, is_repeated = field
            value: Any
            if tag & 7 == _VARINT:
                value, at = _read_number(data, at)
            else:
                start, at = _bounds(data, at)
                value = data[start:at]
            if isinstance(kind, Document):
                value = kind.merged(value, None if is_repeated else values[slot], depth + 1)
            elif kind.read is not None:
                value = kind.read(value)
            if not is_repeated:
                values[slot] = value
            elif values[slot]:
                values[slot].append(value)
            else:
                values[slot] = [value]
        return values


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    """Return the value of a number field, and the offset after it. Bits beyond 64 are dropped, as in the library."""
    value = data[at]
    if value < 0x80:
        return value, at + 1
    value, at = _read_up_to(MAX_VARINT_SIZE_BYTES, data, at)
    return value & MAX_VARINT, at


def _read_tag(data: bytes, at: int) -> tuple[int, int]:
    start = at
    tag, at = _read_up_to(_MAX_TAG_SIZE_BYTES, data, at)
    if tag > _MAX_TAG:
        raise DecodeError(start, f"invalid field number {tag >> 3}")
    return tag, at


def _read_up_to(most_size_bytes: int, data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for byte in data[at : at + most_size_bytes]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at + shift // 7
    if at + most_size_bytes > len(data):
        raise IndexError(at)
    raise DecodeError(at, f"a number has more than {most_size_bytes} bytes")


def _bounds(data: bytes, at: int) -> tuple[int, int]:
    """Return the offsets at which the bytes of a sized field start and end. `at` is the offset after its tag."""
    size_bytes = data[at]
    at += 1
    if size_bytes >= 0x80:
        size_bytes, at = _read_up_to(_MAX_TAG_SIZE_BYTES, data, at - 1)
    if size_bytes > len(data) - at:
        raise DecodeError(
            at, f"a field is truncated: its length is {size_bytes} bytes, but only {len(data) - at} remain"
        )
    return at, at + size_bytes


def _skipped(data: bytes, at: int, tag: int, depth: int) -> int:
    """Return the offset after an unknown field. `at` is the offset after its tag."""
    if tag < 8:
        raise DecodeError(at, "invalid field number 0")
    if tag & 7 != _GROUP:
        return _value_end(data, at, tag)
    groups = [tag >> 3]
    while groups:
        if depth + len(groups) > _MAX_DEPTH + 1:
            raise DecodeError(at, f"documents and groups are nested more than {_MAX_DEPTH} deep")
        tag, at = _read_tag(data, at)
        if tag & 7 == _GROUP:
            groups.append(tag >> 3)
        elif tag & 7 != _GROUP_END:
            at = _value_end(data, at, tag)
        elif groups.pop() != tag >> 3:
            raise DecodeError(at, f"group {tag >> 3} ends within another group")
    return at


def _value_end(data: bytes, at: int, tag: int) -> int:
    kind = tag & 7
    if kind == _VARINT:
        return _read_number(data, at)[1]
    if kind == _SIZED:
        return _bounds(data, at)[1]
    if kind not in _FIXED_SIZES_BYTES:
        raise DecodeError(at, f"field {tag >> 3} has the unknown wire type {kind}")
    at += _FIXED_SIZES_BYTES[kind]
    if at > len(data):
        raise IndexError(at)
    return at
