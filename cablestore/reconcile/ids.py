"""SyncIDs, which identify posts in an order that all peers share, and ranges of them (WAKU-SYNC, "SyncID").

A range is limited by bounds. A bound is a time and the first bytes of a hash, as on the wire. It is before all ids of
its time whose hash begins with these bytes or is greater. Ids and bounds are tuples that can be compared with each
other.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.reconcile.errors import ReconcileError
from cablestore.reprs import hex_repr

END_NS: Final = 2**63 - 1
"""Last time that deployed peers accept, in nanoseconds since 1970 (in the year 2262). All ids are earlier."""

_PREFIX_SIZE_BYTES: Final = 8
"""Size of a hash prefix that is unique among the ids of one time, unless somebody prepared a collision."""


class SyncID(NamedTuple):
    """Id of one post: its time in nanoseconds since 1970 and a hash of 32 bytes. Both sides must use the same hash."""

    timestamp_ns: int
    hash: bytes

    def __repr__(self) -> str:
        return hex_repr(self)


class Bound(NamedTuple):
    """A cut in the order of ids: a time in nanoseconds and 0 to 32 bytes of a hash, without trailing zeros."""

    timestamp_ns: int
    prefix: bytes = b""


class Range(NamedTuple):
    """A range of ids from `lower`, inclusive, to `upper`, exclusive."""

    lower: Bound
    upper: Bound

    def within(self, other: Range) -> Range | None:
        """Return the intersection of both ranges, or None if it is empty."""
        if other.lower <= self.lower and self.upper <= other.upper:
            return self
        lower, upper = max(self.lower, other.lower), min(self.upper, other.upper)
        return Range(lower, upper) if lower < upper else None


EVERYTHING: Final = Range(Bound(0), Bound(END_NS))
"""The range of all ids."""


def of_times(from_ns: int, until_ns: int) -> Range:
    """Return the range of all ids from one time, inclusive, to another, exclusive.

    Raises ReconcileError if it is empty.
    """
    if not 0 <= from_ns < until_ns <= END_NS:
        raise ReconcileError(
            f"invalid time range from {from_ns} to {until_ns} ns: expected times from 0 to {END_NS} ns, the first "
            "before the second"
        )
    return Range(Bound(from_ns), Bound(until_ns))


def checked(sync_id: SyncID) -> SyncID:
    """Return the id unchanged. Raises ReconcileError if its time is out of range, or its hash has another size."""
    if not 0 <= sync_id.timestamp_ns < END_NS or len(sync_id.hash) != HASH_SIZE_BYTES:
        raise ReconcileError(
            f"invalid id with the time {sync_id.timestamp_ns} ns and {len(sync_id.hash)} bytes of hash: expected a "
            f"time from 0 to {END_NS - 1} ns and {HASH_SIZE_BYTES} bytes of hash"
        )
    return sync_id


def range_around(sync_id: SyncID) -> Range:
    """Return a range that contains this id and almost certainly no other id."""
    beginning = sync_id.hash[:_PREFIX_SIZE_BYTES]
    number = int.from_bytes(beginning, "big") + 1
    after = Bound(sync_id.timestamp_ns + 1)
    if number < 256**_PREFIX_SIZE_BYTES:
        after = Bound(sync_id.timestamp_ns, number.to_bytes(_PREFIX_SIZE_BYTES, "big").rstrip(b"\x00"))
    return Range(Bound(sync_id.timestamp_ns, beginning.rstrip(b"\x00")), after)


def key_of(place: SyncID | Bound) -> bytes:
    """Return bytes that compare like ids and bounds: the time in eight bytes, then the hash or its first bytes."""
    return place[0].to_bytes(8, "big") + place[1]


def id_of(key: bytes) -> SyncID:
    """Return the id with this key."""
    return SyncID(int.from_bytes(key[:8], "big"), key[8:])


def bound_between(before: SyncID, at: SyncID) -> Bound:
    """Return the shortest bound above the id `before` and not above the greater id `at`."""
    if before.timestamp_ns < at.timestamp_ns:
        return Bound(at.timestamp_ns)
    size_bytes = 1
    while at.hash[:size_bytes] == before.hash[:size_bytes]:
        size_bytes += 1
    return Bound(at.timestamp_ns, at.hash[:size_bytes])
