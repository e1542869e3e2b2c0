"""Audits: ids that are designed to cancel in XORs are found, and the missed posts can be exchanged."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reconciling import NOW_NS, Pair, an_id, converse, reconciled, session, sets, spread

from cablestore import limits
from cablestore.protocol.fields import sized
from cablestore.protocol.varint import encode_varint
from cablestore.reconcile.audit import Audit, AuditResult, answer
from cablestore.reconcile.errors import ReconcileError
from cablestore.reconcile.ids import END_NS, EVERYTHING, Bound, Range, SyncID, of_times
from cablestore.reconcile.sets import MemorySet, OrderedSet

SEED = bytes(range(32))


def vanishing(number: int = 260, *, timestamp_ns: int | None = None) -> list[SyncID]:
    """Return ids whose hashes have XOR 0. Gaussian elimination over GF(2) finds them in 5 ms."""
    made = [an_id(f"spam {i}", NOW_NS + 10**9 * i if timestamp_ns is None else timestamp_ns) for i in range(number)]
    basis: dict[int, tuple[int, int]] = {}
    for at, sync_id in enumerate(made):
        value, members = int.from_bytes(sync_id.hash, "big"), 1 << at
        while value and value.bit_length() in basis:
            other, others = basis[value.bit_length()]
            value, members = value ^ other, members ^ others
        if not value:
            return [each for i, each in enumerate(made) if members >> i & 1]
        basis[value.bit_length()] = value, members
    raise AssertionError("among 257 vectors of 256 bits some are dependent")


def state(ids: list[SyncID]) -> OrderedSet:
    return MemorySet(ids).snapshot()


def audited(here: list[SyncID], there: list[SyncID], *ranges: Range, seed: bytes = SEED, cuts: int = 64) -> AuditResult:
    audit = Audit(state(here), *ranges, seed=seed, cuts=cuts)
    return audit.evaluate(answer(state(there), audit.request()))


@pytest.mark.parametrize("timestamp_ns", [None, NOW_NS])
@pytest.mark.parametrize("holder", ["here", "there"])
def test_a_crafted_set_that_sums_to_zero_is_found_and_exchanged(holder: str, timestamp_ns: int | None) -> None:
    """Only one side has these 132 posts, and a reconciliation never finds them.

    The audit reports that they differ, and their range.
    """
    base, hidden = spread(2_000), vanishing(timestamp_ns=timestamp_ns)
    assert 100 < len(hidden) < 170
    here, there = (base + hidden, base) if holder == "here" else (base, base + hidden)
    assert reconciled(here, there).is_exactly([], [])

    verdict = audited(here, there)
    assert verdict.is_by_design
    assert verdict.differing
    ours, theirs = session(here), session(there)
    found = converse(ours, theirs, ours.initiate(*verdict.differing, at_s=0.0, whole=True))
    assert found.is_exactly(here, there)


@settings(max_examples=60)
@given(sets(most=1_000), st.binary(min_size=16, max_size=40), st.integers(0, 200))
def test_an_ordinary_difference_is_not_reported_as_crafted(pair: Pair, seed: bytes, cuts: int) -> None:
    """Equal sets have equal sums. Sets that differ, one that grew meanwhile, also have other XORs."""
    here, there = pair
    verdict = audited(here, there, seed=seed, cuts=cuts)
    assert bool(verdict.differing) is (set(here) != set(there))
    assert not verdict.is_by_design
    only = set(here) ^ set(there)
    assert all(any(within.lower <= i < within.upper for within in verdict.differing) for i in only)


def test_each_further_audit_narrows_the_range_of_a_difference() -> None:
    """Each audit splits the ranges in which the last one found a difference."""
    here = spread(20_000)
    there = [*here[:7], *here[8:]]
    ranges, left = [EVERYTHING], [len(here)]
    for turn in range(3):
        verdict = audited(here, there, *ranges, seed=SEED + bytes((turn,)))
        ranges = verdict.differing
        assert len(ranges) == 1
        left.append(state(here).count(ranges[0]))
    assert left == sorted(left, reverse=True)
    assert left[-1] < 20


def test_cuts_depend_on_the_seed() -> None:
    known = state(spread(1_000))
    questions = {Audit(known, seed=bytes(15) + bytes((turn,))).request() for turn in range(20)}
    assert len(questions) == 20
    with pytest.raises(ReconcileError, match="at least 16 random bytes"):
        Audit(known, seed=bytes(15))


def test_audits_have_a_limit() -> None:
    """MAX_AUDIT_CUTS, for the requesting and the answering peer."""
    known = state(spread(5_000))
    with pytest.raises(ReconcileError, match="Audit fewer ranges"):
        Audit(known, seed=SEED, cuts=2 * limits.MAX_AUDIT_CUTS)
    with pytest.raises(ReconcileError, match=f"has {limits.MAX_AUDIT_CUTS + 1} bounds"):
        Audit(known, *[of_times(at, at + 1) for at in range(limits.MAX_AUDIT_CUTS)], seed=SEED, cuts=0)
    largest = Audit(known, *[of_times(2 * at, 2 * at + 1) for at in range(limits.MAX_AUDIT_CUTS // 2)], seed=SEED)
    question = largest.request()
    assert largest.evaluate(answer(known, question)) == AuditResult([], [], is_by_design=False)
    for count in (b"\x00", b"\x80\x08"):
        with pytest.raises(ReconcileError, match="expected 1 to 1023"):
            answer(known, b"\x01\x00\x00" + count + bytes(9_000))


def requested(*bounds: tuple[int, bytes]) -> bytes:
    """Return a request whose bounds have these times, each after the previous one, and hashes."""
    (first, *others), count = [encode_varint(after_ns) + sized(prefix) for after_ns, prefix in bounds], len(bounds) - 1
    return b"\x01" + first + encode_varint(count) + b"".join(others)


def test_bounds_of_a_request_are_in_order_and_within_all_ids() -> None:
    known = state(spread(50))
    whole = answer(known, requested((0, b""), (END_NS, b"\xff" * 32)))
    assert whole == answer(known, Audit(known, of_times(0, END_NS), seed=SEED, cuts=0).request())
    for bounds in (((5, b""), (0, b"")), ((5, b"\x02"), (0, b"\x01")), ((5, b""), (0, b"\x00"))):
        with pytest.raises(ReconcileError, match="out of order"):
            answer(known, requested(*bounds))
    for beyond in ((END_NS + 1, b""), (END_NS, b"\x01" * 33)):
        with pytest.raises(ReconcileError, match="a time up to"):
            answer(known, requested((0, b""), beyond))


def test_a_response_to_another_request_is_rejected() -> None:
    known = state(spread(50))
    short, long = (Audit(known, seed=SEED, cuts=cuts) for cuts in (1, 2))
    for audit, other in ((short, long), (long, short)):
        with pytest.raises(ReconcileError, match=r"an audit requested \d ranges, but the response has \d"):
            audit.evaluate(answer(known, other.request()))
    for damaged in (b"", b"\x01", short.request()):
        with pytest.raises(ReconcileError, match="begins with 2"):
            short.evaluate(damaged)


def test_bytes_after_the_end_are_rejected() -> None:
    known = state(spread(50))
    audit = Audit(known, seed=SEED, cuts=5)
    with pytest.raises(ReconcileError):
        answer(known, audit.request() + b"\0")
    with pytest.raises(ReconcileError):
        audit.evaluate(answer(known, audit.request()) + b"\0")


def test_cut_messages_and_numbers_without_an_end_are_rejected() -> None:
    known = state(spread(50))
    audit = Audit(known, seed=SEED, cuts=5)
    question, response = audit.request(), answer(known, audit.request())
    for good, use in ((question, lambda raw: answer(known, raw)), (response, audit.evaluate)):
        for raw in [*(good[:size] for size in range(len(good))), *(good[:at] + b"\xff" * 12 for at in (1, 2, 3))]:
            with pytest.raises(ReconcileError):
                use(raw)


@pytest.mark.thorough
@settings(max_examples=200)
@given(st.data())
def test_any_bytes_result_in_an_answer_or_an_error(data: st.DataObject) -> None:
    known = state(spread(50))
    audit = Audit(known, seed=SEED, cuts=5)
    for good, use in (
        (audit.request(), lambda raw: answer(known, raw)),
        (answer(known, audit.request()), audit.evaluate),
    ):
        raw = bytearray(data.draw(st.one_of(st.binary(max_size=99), st.just(good))))
        for at, byte in data.draw(st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), max_size=4)):
            raw[at : at + data.draw(st.integers(0, 2))] = bytes((byte,))
        try:
            use(bytes(raw))
        except ReconcileError as error:
            assert str(error)  # noqa: PT017 - an error is not required


def test_cuts_are_at_random_positions_of_the_set() -> None:
    """Cuts are not only by time: if most ids have one timestamp, most cuts are within it."""
    rng = random.Random(3)
    ids = [SyncID(NOW_NS, rng.randbytes(32)) for _ in range(1_000)] + spread(10)
    audit = Audit(state(ids), seed=SEED, cuts=64)
    question = audit.request()
    verdict = audit.evaluate(answer(state([i for i in ids if i != ids[5]]), question))
    assert len(verdict.differing) == 1
    assert verdict.differing[0].lower.timestamp_ns == verdict.differing[0].upper.timestamp_ns == NOW_NS
    assert verdict.differing[0].lower != Bound(NOW_NS)
