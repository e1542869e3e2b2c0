"""A model of the deployed peer: the behaviour of nwaku's modules, including faults. The recorded transcripts verify it.

It splits by time, sends whole item sets as soon as they are short, and echoes every received one. If more ids than the
threshold are within fewer nanoseconds than it has parts, its answer lacks the range (range_processing.nim).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from cablestore.reconcile.codec import decode, encode
from cablestore.reconcile.dialects import SyncDialect, agreed
from cablestore.reconcile.ids import Bound, Range, SyncID
from cablestore.reconcile.payload import Header, ItemSet, Payload, PayloadPart
from cablestore.reconcile.session import SessionStep

LAST_HASH = b"\xff" * 32


def equal_partitioning(lower_ns: int, upper_ns: int, parts: int) -> list[tuple[int, int]]:
    """Return N slices of time, each of at least `parts` nanoseconds. The first ones get the remainder."""
    width, rest = divmod(upper_ns - lower_ns, parts)
    if width < 1:
        return []
    slices, at = [], lower_ns
    for part in range(parts):
        end = at + width + (part < rest)
        slices.append((at, end))
        at = end
    return slices


class NwakuPeer:
    """Side of a conversation that behaves like nwaku."""

    def __init__(
        self, ids: Iterable[SyncID], dialect: SyncDialect, header: Header, *, threshold: int = 100, partitions: int = 8
    ) -> None:
        self.ids = sorted(ids)
        self._dialect = dialect
        self._header = header
        self._threshold = threshold
        self._partitions = partitions
        self.is_done = False

    def initiate(self, from_ns: int, until_ns: int) -> bytes:
        found = self._xor(Range(Bound(from_ns), Bound(until_ns, LAST_HASH)))  # the hash is not sent
        within = Range(Bound(from_ns), Bound(until_ns))
        return encode(Payload(self._header, [PayloadPart(within, found)]), self._dialect)

    def receive(self, data: bytes, *, at_s: float = 0.0) -> SessionStep:
        payload = decode(data, self._dialect)
        if payload.is_final:
            self.is_done = True
            return SessionStep(None, [], [])
        assert payload.header is not None
        if agreed(self._header, payload.header) is None:
            self.is_done = True
            return SessionStep(b"", [], [])
        have: list[SyncID] = []
        need: list[SyncID] = []
        parts = self.answered(payload.parts, have, need)
        self.is_done = not parts
        return SessionStep(encode(Payload(self._header, parts), self._dialect), have, need)

    def answered(self, parts: list[PayloadPart], have: list[SyncID], need: list[SyncID]) -> list[PayloadPart]:
        """Return the answer's ranges, none if all are skipped."""
        out: list[PayloadPart] = []
        for within, content in parts:
            if content is None:
                answer = [PayloadPart(within, None)]
            elif isinstance(content, ItemSet):
                answer = [self._items(within, content, have, need)]
            else:
                answer = self._fingerprint(within, content)
            for part in answer:
                joins = out and part.content is None and out[-1].content is None
                lower = out.pop().range.lower if joins else part.range.lower
                out.append(PayloadPart(Range(lower, part.range.upper), part.content))
        return [] if all(part.content is None for part in out) else out

    def _slice(self, within: Range) -> list[SyncID]:
        """Return the ids of a range, including its upper bound."""
        return self.ids[bisect_left(self.ids, within.lower) : bisect_right(self.ids, within.upper)]

    def _xor(self, within: Range) -> bytes:
        found = 0
        for sync_id in self._slice(within):
            found ^= int.from_bytes(sync_id.hash, "big")
        return found.to_bytes(32, "big")

    def _fingerprint(self, within: Range, theirs: bytes) -> list[PayloadPart]:
        if not self.ids or within.upper < self.ids[0] or within.lower > self.ids[-1]:
            return [PayloadPart(within, ItemSet([], reconciled=True))]
        if self._xor(within) == theirs:
            return [PayloadPart(within, None)]
        ids = self._slice(within)
        if len(ids) <= self._threshold:
            return [PayloadPart(within, ItemSet(ids, reconciled=False))]
        slices = equal_partitioning(within.lower.timestamp_ns, within.upper.timestamp_ns, self._partitions)
        return [self._described(Range(Bound(lower_ns), Bound(upper_ns))) for lower_ns, upper_ns in slices]

    def _described(self, within: Range) -> PayloadPart:
        ids = self._slice(within)
        if len(ids) <= self._threshold:
            return PayloadPart(within, ItemSet(ids, reconciled=False))
        return PayloadPart(within, self._xor(within))

    def _items(self, within: Range, theirs: ItemSet, have: list[SyncID], need: list[SyncID]) -> PayloadPart:
        ids = self._slice(within)
        have += sorted(set(ids).difference(theirs.elements))
        need += sorted(set(theirs.elements).difference(ids))
        return PayloadPart(within, None if theirs.reconciled else ItemSet(ids, reconciled=True))
