"""An audit: do two sets hold the same, where a reconciliation found nothing more? Ours alone, `cablestore-audit/1`. Pure.

Reconciliation compares XORs, and among any 257 hashes some have XOR 0: whoever gives those to one peer and not to another
stays unseen by both. An audit compares counts and sums modulo 2**256, between cuts that are drawn by lot when it is
asked, so nobody can have made ids for them. Only the asking side learns, and the answer does not tell it what to claim.

    question: 1 u8 | lower bound | number of upper bounds varint | upper bounds
    bound: time minus the bound before's varint | size u8, so many bytes of a hash
    answer: 2 u8 | number of ranges varint | each: count varint, XOR u8[32], sum u8[32]
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from cablestore.errors import DecodeError, ReconcileError
from cablestore.limits import MAX_AUDIT_CUTS
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.protocol.varint import encode_varint, read_varint
from cablestore.reconcile.ids import END_NS, EVERYTHING, Bound, Range
from cablestore.reconcile.sets import Fingerprint, OrderedSet
from cablestore.reconcile.splitting import joined

PROTOCOL: Final = "cablestore-audit/1"
_QUESTION: Final = 1
_ANSWER: Final = 2
_CUT_PREFIX_SIZE_BYTES: Final = 8
_MIN_SEED_SIZE_BYTES: Final = 16


class AuditResult(NamedTuple):
    """What an audit found.

    `differing` are the ranges in which the sides hold other ids, `hidden` those of them whose XOR is the same, so that no
    fingerprint will ever tell. `is_by_design` is whether somebody made ids for that: there are hidden ranges, or the XOR
    of all ranges together is the same although some differ. Of itself that does not happen.
    """

    differing: list[Range]
    hidden: list[Range]
    is_by_design: bool


class Audit:
    """One question and the verdict on its answer. The side that is asked calls `answer`."""

    def __init__(self, items: OrderedSet, *ranges: Range, seed: bytes, cuts: int = 64) -> None:
        """Audit these ranges, everything when there are none, cut at `cuts` places that `seed` decides.

        `seed` has to be new random bytes, 16 at least. To come closer to what differs, audit `AuditResult.differing` again.
        Raises ReconcileError where the ranges and cuts are more than `limits.MAX_AUDIT_CUTS`, or the seed too short.
        """
        if len(seed) < _MIN_SEED_SIZE_BYTES:
            raise ReconcileError(f"the seed has {len(seed)} bytes, {_MIN_SEED_SIZE_BYTES} random ones are needed")
        ranges = ranges or (EVERYTHING,)
        bounds = {bound for within in ranges for bound in within} | _drawn(items, ranges, seed, cuts)
        if len(bounds) > MAX_AUDIT_CUTS:
            raise ReconcileError(f"an audit has {len(bounds)} bounds, allowed are {MAX_AUDIT_CUTS}: audit fewer ranges")
        self._items = items
        self._ranges = joined(sorted(bounds))

    def question(self) -> bytes:
        """Return what to ask the peer."""
        out = bytearray((_QUESTION,))
        previous_ns = 0
        for number, bound in enumerate([self._ranges[0].lower, *(within.upper for within in self._ranges)]):
            out += encode_varint(len(self._ranges)) if number == 1 else b""
            out += encode_varint(bound.timestamp_ns - previous_ns)
            out += bytes((len(bound.prefix),)) + bound.prefix
            previous_ns = bound.timestamp_ns
        return bytes(out)

    def judge(self, answer: bytes) -> AuditResult:
        """Compare the peer's answer with what is here. Raises ReconcileError for what is no answer to the question."""
        theirs = _read_answer(answer, len(self._ranges))
        ours = [self._items.fingerprint(within) for within in self._ranges]
        pairs = list(zip(self._ranges, ours, theirs, strict=True))
        differing = [within for within, here, there in pairs if here != there]
        hidden = [within for within, here, there in pairs if here != there and here.xor == there.xor]
        left = 0
        for here, there in zip(ours, theirs, strict=True):
            left ^= here.xor ^ there.xor
        return AuditResult(differing, hidden, bool(differing) and (bool(hidden) or not left))


def answer(items: OrderedSet, question: bytes) -> bytes:
    """Return the answer to a peer's question. Raises ReconcileError for what is none, or asks for too many ranges."""
    ranges = _read_question(question)
    out = bytearray((_ANSWER,)) + encode_varint(len(ranges))
    for within in ranges:
        found = items.fingerprint(within)
        out += encode_varint(found.ids) + found.wire + found.sum.to_bytes(HASH_SIZE_BYTES, "big")
    return bytes(out)


def _drawn(items: OrderedSet, ranges: Sequence[Range], seed: bytes, cuts: int) -> set[Bound]:
    """Bounds beside ids that the seed draws from all of the ranges."""
    counts = [items.count(within) for within in ranges]
    total = sum(counts)
    if not total:
        return set()
    stream = hashlib.shake_256(seed).digest(8 * cuts)
    drawn = set()
    for at in range(0, len(stream), 8):
        k = int.from_bytes(stream[at : at + 8], "big") % total
        for within, count in zip(ranges, counts, strict=True):
            if k < count:
                timestamp_ns, hash_ = items.select(within, k)
                bound = Bound(timestamp_ns, hash_[:_CUT_PREFIX_SIZE_BYTES].rstrip(b"\x00"))
                drawn |= {bound} if bound > within.lower else set()
                break
            k -= count
    return drawn


def _read_question(data: bytes) -> list[Range]:
    try:
        lower, at = _read_bound(data, _begin(data, _QUESTION), 0)
        count, at = read_varint(data, at)
        if not 1 <= count < MAX_AUDIT_CUTS:
            raise ReconcileError(f"an audit asks for {count} ranges, allowed are 1 to {MAX_AUDIT_CUTS - 1}")
        bounds = [lower]
        for _ in range(count):
            bound, at = _read_bound(data, at, bounds[-1].timestamp_ns)
            if bound <= bounds[-1]:
                raise ReconcileError(f"an audit's ranges are out of order (at byte {at})")
            bounds.append(bound)
    except DecodeError as error:
        raise ReconcileError(f"this is no question of {PROTOCOL}: {error}") from None
    _check_end(data, at)
    return joined(bounds)


def _read_bound(data: bytes, at: int, previous_ns: int) -> tuple[Bound, int]:
    delta_ns, at = read_varint(data, at)
    timestamp_ns = previous_ns + delta_ns
    size_bytes = data[at] if at < len(data) else HASH_SIZE_BYTES + 1
    end = at + 1 + size_bytes
    if timestamp_ns > END_NS or size_bytes > HASH_SIZE_BYTES or end > len(data):
        raise ReconcileError(
            f"an audit's bound has a time after {END_NS} ns, or no hash of up to 32 bytes (at byte {at})"
        )
    return Bound(timestamp_ns, data[at + 1 : end].rstrip(b"\x00")), end


def _read_answer(data: bytes, ranges: int) -> list[Fingerprint]:
    found = []
    try:
        count, at = read_varint(data, _begin(data, _ANSWER))
        if count != ranges:
            raise ReconcileError(f"an audit asked for {ranges} ranges, the answer has {count}")
        for _ in range(count):
            ids, at = read_varint(data, at)
            both = data[at : at + 2 * HASH_SIZE_BYTES]
            at += len(both)
            if len(both) < 2 * HASH_SIZE_BYTES:
                raise ReconcileError(f"the answer to an audit ends too early (at byte {at})")
            xor_, sum_ = both[:HASH_SIZE_BYTES], both[HASH_SIZE_BYTES:]
            found.append(Fingerprint(ids, int.from_bytes(xor_, "big"), int.from_bytes(sum_, "big")))
    except DecodeError as error:
        raise ReconcileError(f"this is no answer of {PROTOCOL}: {error}") from None
    _check_end(data, at)
    return found


def _begin(data: bytes, kind: int) -> int:
    if data[:1] != bytes((kind,)):
        raise ReconcileError(f"a message of {PROTOCOL} begins with {kind}, not with {data[:1].hex() or 'nothing'}")
    return 1


def _check_end(data: bytes, at: int) -> None:
    if at != len(data):
        raise ReconcileError(f"{len(data) - at} bytes follow the end of a message of {PROTOCOL}")
