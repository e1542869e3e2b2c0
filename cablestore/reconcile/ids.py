"""SyncIDs, which name posts in an order that all peers share, and ranges of them (WAKU-SYNC, "SyncID"). Pure.

A range is cut by bounds. A bound is a time and the beginning of a hash, because that is what travels: it lies before
all ids of its time whose hash begins with it or is greater. As tuples, ids and bounds compare with each other.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cablestore.errors import ReconcileError
from cablestore.protocol.crypto import HASH_SIZE_BYTES

END_NS: Final = 2**63 - 1
"""The last time that deployed peers read, in nanoseconds since 1970, in the year 2262. Ids are of earlier ones."""


class SyncID(NamedTuple):
    """One post: its time in nanoseconds since 1970, and a hash of 32 bytes. Which hash, both sides have to agree upon."""

    timestamp_ns: int
    hash: bytes


class Bound(NamedTuple):
    """A cut in the order of ids: a time in nanoseconds, and 0 to 32 bytes with which a hash begins, without zeros at the end."""

    timestamp_ns: int
    prefix: bytes = b""


class Range(NamedTuple):
    """Ids from `lower`, inclusive, to `upper`, exclusive."""

    lower: Bound
    upper: Bound

    @property
    def width_ns(self) -> int:
        """The time from one bound to the other in nanoseconds."""
        return self.upper.timestamp_ns - self.lower.timestamp_ns

    def within(self, other: Range) -> Range | None:
        """The part of this range that the other one has too, None where there is none."""
        if other.lower <= self.lower and self.upper <= other.upper:
            return self
        lower, upper = max(self.lower, other.lower), min(self.upper, other.upper)
        return Range(lower, upper) if lower < upper else None


EVERYTHING: Final = Range(Bound(0), Bound(END_NS))
"""The range of all ids."""


def of_times(from_ns: int, until_ns: int) -> Range:
    """Return the range of all ids from one time, inclusive, to another, exclusive. Raises ReconcileError where it has none."""
    if not 0 <= from_ns < until_ns <= END_NS:
        raise ReconcileError(
            f"no range goes from {from_ns} to {until_ns} ns: times are 0 to {END_NS}, the first before the second"
        )
    return Range(Bound(from_ns), Bound(until_ns))


def checked(sync_id: SyncID) -> SyncID:
    """Return the id, or raise ReconcileError where no range would hold it."""
    if not 0 <= sync_id.timestamp_ns < END_NS or len(sync_id.hash) != HASH_SIZE_BYTES:
        raise ReconcileError(
            f"no id has {sync_id.timestamp_ns} ns and {len(sync_id.hash)} bytes: times are 0 to {END_NS - 1}, "
            f"hashes have {HASH_SIZE_BYTES} bytes"
        )
    return sync_id


def key_of(place: SyncID | Bound) -> bytes:
    """Return bytes that compare as ids and bounds do: the time in eight bytes, and the hash or what there is of it."""
    return place[0].to_bytes(8, "big") + place[1]


def id_of(key: bytes) -> SyncID:
    """Return the id with this key."""
    return SyncID(int.from_bytes(key[:8], "big"), key[8:])


def bound_between(before: SyncID, at: SyncID) -> Bound:
    """Return the shortest bound that has `before` on its lower side and `at`, a greater id, on its upper one."""
    if before.timestamp_ns < at.timestamp_ns:
        return Bound(at.timestamp_ns)
    size_bytes = 1
    while at.hash[:size_bytes] == before.hash[:size_bytes]:
        size_bytes += 1
    return Bound(at.timestamp_ns, at.hash[:size_bytes])
