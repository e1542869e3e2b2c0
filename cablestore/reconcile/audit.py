"""Audit of two sets after a reconciliation found no more differences, with the protocol `cablestore-audit/1`.

A reconciliation compares XORs, and among any 257 hashes some have XOR 0. An attacker who sends such posts to only one
of two peers creates a difference that neither detects. An audit compares counts and sums modulo 2**256 between random
cuts. The cuts are drawn when the audit begins, so ids cannot be prepared for them. Only the side that requests the sums
learns the result.

    request: 1 u8 | lower bound | number of upper bounds varint | upper bounds
    bound: difference to the time of the previous bound varint | size u8, that many bytes of a hash
    response: 2 u8 | number of ranges varint | each: count varint, XOR u8[32], sum u8[32]
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import reduce
from operator import xor
from typing import Final, NamedTuple

from cablestore.errors import DecodeError
from cablestore.limits import MAX_AUDIT_CUTS
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.protocol.fields import read_sized, sized
from cablestore.protocol.varint import encode_varint, read_varint
from cablestore.reconcile.errors import ReconcileError
from cablestore.reconcile.ids import END_NS, EVERYTHING, Bound, Range
from cablestore.reconcile.sets import Fingerprint, OrderedSet
from cablestore.reconcile.splitting import ranges_between

PROTOCOL: Final = "cablestore-audit/1"
_REQUEST: Final = 1
_RESPONSE: Final = 2
_CUT_PREFIX_SIZE_BYTES: Final = 8
_MIN_SEED_SIZE_BYTES: Final = 16


class AuditResult(NamedTuple):
    """Result of an audit.

    `differing` lists the ranges in which the sides have different ids. `hidden` lists the differing ranges with equal
    XOR, which fingerprints cannot find. `is_by_design` is True if such ids were prepared on purpose: there are hidden
    ranges, or some ranges differ and the XOR of all ranges together is equal. This does not happen by chance.
    """

    differing: list[Range]
    hidden: list[Range]
    is_by_design: bool


class Audit:
    """One request for sums, and the check of its response. The other side calls `answer`."""

    def __init__(self, items: OrderedSet, *ranges: Range, seed: bytes, cuts: int = 64) -> None:
        """Audit these ranges (default: everything), cut at up to `cuts` positions that `seed` determines.

        `seed` must be at least 16 new random bytes. To narrow down the differences, audit `AuditResult.differing`
        again. Raises ReconcileError if there are more than `limits.MAX_AUDIT_CUTS` bounds, or the seed is too short.
        """
        if len(seed) < _MIN_SEED_SIZE_BYTES:
            raise ReconcileError(
                f"the seed has {len(seed)} bytes, expected at least {_MIN_SEED_SIZE_BYTES} random bytes"
            )
        ranges = ranges or (EVERYTHING,)
        bounds = {bound for within in ranges for bound in within} | _drawn(items, ranges, seed, cuts)
        if len(bounds) > MAX_AUDIT_CUTS:
            raise ReconcileError(
                f"an audit has {len(bounds)} bounds, the maximum is {MAX_AUDIT_CUTS}. Audit fewer ranges"
            )
        self._items = items
        self._ranges = ranges_between(sorted(bounds))

    def request(self) -> bytes:
        """Return the request for the peer."""
        out = bytearray((_REQUEST,))
        previous_ns = 0
        for number, bound in enumerate([self._ranges[0].lower, *(within.upper for within in self._ranges)]):
            out += encode_varint(len(self._ranges)) if number == 1 else b""
            out += encode_varint(bound.timestamp_ns - previous_ns)
            out += sized(bound.prefix)
            previous_ns = bound.timestamp_ns
        return bytes(out)

    def evaluate(self, response: bytes) -> AuditResult:
        """Compare the peer's response with the local sums. Raises ReconcileError if it does not match the request."""
        theirs = _read_response(response, len(self._ranges))
        ours = [self._items.fingerprint(within) for within in self._ranges]
        xors = {
            within: here.xor ^ there.xor
            for within, here, there in zip(self._ranges, ours, theirs, strict=True)
            if here != there
        }
        hidden = [within for within, xor_ in xors.items() if not xor_]
        return AuditResult(list(xors), hidden, bool(xors) and (bool(hidden) or not reduce(xor, xors.values())))


def answer(items: OrderedSet, request: bytes) -> bytes:
    """Return the response to a peer's request. Raises ReconcileError for a malformed request or too many ranges."""
    ranges = _read_request(request)
    out = bytearray((_RESPONSE,)) + encode_varint(len(ranges))
    for within in ranges:
        found = items.fingerprint(within)
        out += encode_varint(found.ids) + found.wire + found.sum.to_bytes(HASH_SIZE_BYTES, "big")
    return bytes(out)


def _drawn(items: OrderedSet, ranges: Sequence[Range], seed: bytes, cuts: int) -> set[Bound]:
    """Return up to `cuts` bounds. Each is just below an id that `seed` selects among the ids of all ranges."""
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


def _read_request(data: bytes) -> list[Range]:
    try:
        lower, at = _read_bound(data, _begin(data, _REQUEST), 0)
        count, at = read_varint(data, at)
        if not 1 <= count < MAX_AUDIT_CUTS:
            raise ReconcileError(f"an audit requests {count} ranges, expected 1 to {MAX_AUDIT_CUTS - 1}")
        bounds = [lower]
        for _ in range(count):
            bound, at = _read_bound(data, at, bounds[-1].timestamp_ns)
            if bound <= bounds[-1]:
                raise ReconcileError(f"the ranges of an audit are out of order (at byte {at})")
            bounds.append(bound)
    except DecodeError as error:
        raise ReconcileError(f"not a {PROTOCOL} request: {error}") from None
    _check_end(data, at)
    return ranges_between(bounds)


def _read_bound(data: bytes, at: int, previous_ns: int) -> tuple[Bound, int]:
    delta_ns, at = read_varint(data, at)
    timestamp_ns = previous_ns + delta_ns
    prefix, end = read_sized(data, at, "hash of a bound")
    if timestamp_ns > END_NS or len(prefix) > HASH_SIZE_BYTES:
        raise ReconcileError(
            f"a bound of an audit must have a time up to {END_NS} ns and up to 32 bytes of a hash (at byte {at})"
        )
    return Bound(timestamp_ns, prefix.rstrip(b"\x00")), end


def _read_response(data: bytes, ranges: int) -> list[Fingerprint]:
    found = []
    try:
        count, at = read_varint(data, _begin(data, _RESPONSE))
        if count != ranges:
            raise ReconcileError(f"an audit requested {ranges} ranges, but the response has {count}")
        for _ in range(count):
            ids, at = read_varint(data, at)
            both = data[at : at + 2 * HASH_SIZE_BYTES]
            at += len(both)
            if len(both) < 2 * HASH_SIZE_BYTES:
                raise ReconcileError(f"the response to an audit is truncated (at byte {at})")
            xor_, sum_ = both[:HASH_SIZE_BYTES], both[HASH_SIZE_BYTES:]
            found.append(Fingerprint(ids, int.from_bytes(xor_, "big"), int.from_bytes(sum_, "big")))
    except DecodeError as error:
        raise ReconcileError(f"not a {PROTOCOL} response: {error}") from None
    _check_end(data, at)
    return found


def _begin(data: bytes, kind: int) -> int:
    if data[:1] != bytes((kind,)):
        raise ReconcileError(f"a {PROTOCOL} message begins with {kind}, got {data[:1].hex() or 'no byte'}")
    return 1


def _check_end(data: bytes, at: int) -> None:
    if at != len(data):
        raise ReconcileError(f"extra bytes after the end of a {PROTOCOL} message: {len(data) - at}")
