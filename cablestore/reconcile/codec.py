"""Encoding and decoding of payloads in any dialect (WAKU-SYNC, "Payload encoding"; nwaku's codec.nim).

    header | ranges
    range: upper bound | type u8 (0 Skip, 1 Fingerprint, 2 ItemSet) | nothing, XOR u8[32], or an item set
    bound: difference to the time of the previous bound varint | only if that is 0: size u8, that many bytes of the hash
    item set: count varint | each: difference to the previous time varint, hash u8[32] | reconciled u8

Decoding is linear and total: any bytes are decoded or raise ReconcileError, and numbers in them do not determine how
much memory is allocated. A bound has a hash only after a bound of the same time, so a writer cuts at that time first.
"""

from __future__ import annotations

from typing import Final

from cablestore.limits import (
    MAX_RECONCILE_FRAME_SIZE_BYTES,
    MAX_RECONCILE_ITEMS,
    MAX_RECONCILE_RANGES,
    MAX_RECONCILE_SHARDS,
    MAX_RECONCILE_TOPIC_SIZE_BYTES,
    MAX_RECONCILE_TOPICS,
)
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.protocol.varint import encode_varint
from cablestore.reconcile.dialects import SyncDialect
from cablestore.reconcile.errors import ReconcileError
from cablestore.reconcile.ids import END_NS, Bound, Range, SyncID
from cablestore.reconcile.payload import Content, Header, ItemSet, Payload, PayloadPart, Shards, Topics

_SKIP: Final = 0
_FINGERPRINT: Final = 1
_ITEM_SET: Final = 2
_MAX_VARINT_SIZE_BYTES: Final = 9  # maximum of deployed readers
_MIN_ITEM_SIZE_BYTES: Final = 1 + HASH_SIZE_BYTES


def encode(payload: Payload, dialect: SyncDialect) -> bytes:
    """Return a payload's bytes. Each lower bound except the first must equal the previous upper bound.

    Raises ReconcileError if bounds do not increase, ids are out of order, or the payload is too large. Also raises
    ReconcileError for a bound with a hash after a bound of another time, which dialects cannot express.
    """
    if not payload.parts and not dialect.cuts_hashes:
        return b"\x00"  # nwaku's payload without ranges
    out = bytearray(_header(payload.header, dialect))
    previous = _begin(out, payload, dialect)
    for (_, upper), content in payload.parts:
        delta_ns = upper.timestamp_ns - previous.timestamp_ns
        if delta_ns < 0 or (delta_ns == 0 and upper.prefix <= previous.prefix):
            raise ReconcileError(
                f"a range ends at {upper}, not after its beginning at {previous}. Put the ranges in order"
            )
        if delta_ns and upper.prefix:
            raise ReconcileError(
                f"a range ends at {upper}, after a bound of another time. Insert a range that ends at that time"
            )
        out += encode_varint(delta_ns)
        if not delta_ns:
            out.append(len(upper.prefix))
            out += upper.prefix
        _write_content(out, content)
        previous = upper
    return _checked(bytes(out))


def decode(data: bytes, dialect: SyncDialect) -> Payload:
    """Decode a payload. Raises ReconcileError, with the offset, if it is malformed or exceeds a limit.

    `data` of zero bytes or one byte is a payload without ranges, as in deployed nodes.
    """
    if len(data) <= 1:
        return Payload(None, [])
    return _PayloadReader(_checked(data), dialect).payload()


def _checked(data: bytes) -> bytes:
    """Return the bytes of a payload. Raises ReconcileError if there are too many."""
    if len(data) > MAX_RECONCILE_FRAME_SIZE_BYTES:
        raise ReconcileError(
            f"a payload has {len(data)} bytes, the maximum is {MAX_RECONCILE_FRAME_SIZE_BYTES}. Reconcile a shorter "
            "time range"
        )
    return data


def _header(header: Header | None, dialect: SyncDialect) -> bytes:
    if not isinstance(header, dialect.header):
        raise ReconcileError(
            f"a payload in {dialect.name} has a header of type {dialect.header.__name__}, got {header}"
        )
    if isinstance(header, Shards):
        return b"".join(map(encode_varint, (header.cluster, len(header.shards), *header.shards)))
    out = bytearray()
    for names in header:
        out += encode_varint(len(names))
        for name in names:
            out += encode_varint(len(name.encode())) + name.encode()
    return bytes(out)


def _begin(out: bytearray, payload: Payload, dialect: SyncDialect) -> Bound:
    """Write the lower bound of the first range and return it. `spec` writes it as a Skip range that ends there."""
    if not payload.parts:
        return Bound(0)
    first = payload.parts[0].range.lower
    if not dialect.cuts_hashes:
        out += encode_varint(first.timestamp_ns)
        return Bound(first.timestamp_ns)
    if first.timestamp_ns:
        out += encode_varint(first.timestamp_ns) + bytes((_SKIP,))
    if first.prefix:
        out += bytes((0, len(first.prefix))) + first.prefix + bytes((_SKIP,))
    return first


def _write_content(out: bytearray, content: Content) -> None:
    if content is None:
        out.append(_SKIP)
    elif isinstance(content, bytes):
        out.append(_FINGERPRINT)
        out += content
    else:
        out.append(_ITEM_SET)
        write_item_set(out, content)


def write_item_set(out: bytearray, items: ItemSet) -> None:
    """Append an item set to `out`.

    Raises ReconcileError for ids out of order or more than `limits.MAX_RECONCILE_ITEMS`.
    """
    if len(items.elements) > MAX_RECONCILE_ITEMS:
        raise ReconcileError(
            f"cannot send {len(items.elements)} ids at once: the maximum is {MAX_RECONCILE_ITEMS}. Reconcile a "
            "shorter time range"
        )
    out += encode_varint(len(items.elements))
    previous_ns = 0
    for timestamp_ns, hash_ in items.elements:
        if timestamp_ns < previous_ns:
            raise ReconcileError(
                f"ids are out of order: {timestamp_ns} ns follows {previous_ns} ns. Put the ids in order"
            )
        out += encode_varint(timestamp_ns - previous_ns)
        out += hash_
        previous_ns = timestamp_ns
    out.append(items.reconciled)


class _PayloadReader:
    """Decoder of one payload, from its first byte to its last byte."""

    def __init__(self, data: bytes, dialect: SyncDialect) -> None:
        self._data = data
        self._dialect = dialect
        self._at = 0
        self._items = 0

    def payload(self) -> Payload:
        """Decode the whole payload."""
        header = self._shards() if self._dialect.header is Shards else Topics(self._names(), self._names())
        previous = Bound(0)
        if not self._dialect.cuts_hashes and self._at < len(self._data):
            previous = Bound(self._time(0))
        parts: list[PayloadPart] = []
        while self._at < len(self._data):
            if len(parts) == MAX_RECONCILE_RANGES:
                raise self._error(f"too many ranges in the payload: the maximum is {MAX_RECONCILE_RANGES}")
            upper = self._bound(previous)
            lower = previous if self._dialect.cuts_hashes else Bound(previous.timestamp_ns)
            parts.append(PayloadPart(Range(lower, upper), self._content()))
            previous = upper
        return Payload(header, parts)

    def item_set(self) -> ItemSet:
        """Decode an item set."""
        count = self._count(MAX_RECONCILE_ITEMS - self._items, "ids", _MIN_ITEM_SIZE_BYTES)
        self._items += count
        elements = []
        timestamp_ns = 0
        for _ in range(count):
            timestamp_ns = self._time(timestamp_ns)
            elements.append(SyncID(timestamp_ns, self._bytes(HASH_SIZE_BYTES)))
        reconciled = self._byte()
        if reconciled > 1:
            raise self._error(f"the last byte of an item set is {reconciled}, expected 0 or 1")
        return ItemSet(elements, bool(reconciled))

    def _shards(self) -> Shards:
        cluster = self._varint()
        return Shards(cluster, tuple([self._varint() for _ in range(self._count(MAX_RECONCILE_SHARDS, "shards", 1))]))

    def _names(self) -> tuple[str, ...]:
        names = []
        for _ in range(self._count(MAX_RECONCILE_TOPICS, "topics", 1)):
            name = self._bytes(self._count(MAX_RECONCILE_TOPIC_SIZE_BYTES, "bytes of a topic", 1))
            try:
                names.append(name.decode())
            except UnicodeDecodeError:
                raise self._error("a topic is not UTF-8") from None
        return tuple(names)

    def _bound(self, previous: Bound) -> Bound:
        timestamp_ns = self._time(previous.timestamp_ns)
        if timestamp_ns != previous.timestamp_ns:
            return Bound(timestamp_ns)
        size_bytes = self._byte()
        if size_bytes > HASH_SIZE_BYTES:
            raise self._error(f"a bound has {size_bytes} bytes of a hash, the maximum is {HASH_SIZE_BYTES}")
        prefix = self._bytes(size_bytes).rstrip(b"\x00")
        if prefix <= previous.prefix:
            raise self._error("a range ends at or before its beginning")
        return Bound(timestamp_ns, prefix)

    def _content(self) -> Content:
        kind = self._byte()
        if kind == _SKIP:
            return None
        if kind == _FINGERPRINT:
            return self._bytes(HASH_SIZE_BYTES)
        if kind == _ITEM_SET:
            return self.item_set()
        raise self._error(f"a range has type {kind}, expected 0, 1 or 2")

    def _time(self, previous_ns: int) -> int:
        timestamp_ns = previous_ns + self._varint()
        if timestamp_ns > END_NS:
            raise self._error(f"times add up to {timestamp_ns} ns, the maximum is {END_NS}")
        return timestamp_ns

    def _count(self, most: int, what: str, each_size_bytes: int) -> int:
        """Read the number of items that follow, each of at least `each_size_bytes`.

        Raises ReconcileError if it is above `most`, or if fewer bytes remain. `what` names the items in the error.
        """
        count = self._varint()
        left = len(self._data) - self._at
        if count > most or count * each_size_bytes > left:
            raise self._error(f"the number of {what} is {count}, the maximum is {most}, and {left} bytes remain")
        return count

    def _byte(self) -> int:
        if self._at == len(self._data):
            raise self._error("the payload is truncated")
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, size_bytes: int) -> bytes:
        end = self._at + size_bytes
        if end > len(self._data):
            raise self._error(f"the payload is truncated: {size_bytes} bytes were expected")
        found = self._data[self._at : end]
        self._at = end
        return found

    def _varint(self) -> int:
        value = shift = 0
        for byte in self._data[self._at : self._at + _MAX_VARINT_SIZE_BYTES]:
            if byte < 0x80:
                if not byte and shift and self._dialect.is_strict:
                    raise self._error("a varint is not minimal")
                self._at += shift // 7 + 1
                return value | byte << shift
            value |= (byte & 0x7F) << shift
            shift += 7
        raise self._error(f"a varint is truncated, or has more than {_MAX_VARINT_SIZE_BYTES} bytes")

    def _error(self, reason: str) -> ReconcileError:
        return ReconcileError(
            f"{reason} (at byte {self._at}, in {self._dialect.name}). Check that the peer uses the same dialect"
        )
