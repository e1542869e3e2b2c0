"""The set of ids in memory: fingerprints and ranks of any range equal those of a list, and states do not change."""

from __future__ import annotations

import random
from functools import reduce
from itertools import pairwise
from operator import xor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reconciling import NOW_NS, Pair, an_id, sets, spread
from steps import steps_of

from cablestore.index.tree import SUM_MODULUS
from cablestore.reconcile.errors import ReconcileError
from cablestore.reconcile.ids import (
    END_NS,
    EVERYTHING,
    Bound,
    Range,
    SyncID,
    bound_between,
    id_of,
    key_of,
    of_times,
    range_around,
)
from cablestore.reconcile.sets import Fingerprint, MemorySet

times = st.one_of(st.integers(0, 5), st.integers(END_NS - 5, END_NS - 1), st.integers(0, END_NS - 1))
hashes = st.one_of(st.binary(min_size=32, max_size=32), st.sampled_from([bytes(32), b"\xff" * 32, bytes(31) + b"\x01"]))
ids = st.builds(SyncID, times, hashes)
bounds = st.builds(lambda at, prefix: Bound(at, prefix.rstrip(b"\x00")), times, st.binary(max_size=32))
ranges = st.lists(bounds, min_size=2, max_size=2, unique=True).map(lambda pair: Range(*sorted(pair)))


def plain(known: list[SyncID], within: Range) -> list[SyncID]:
    return [sync_id for sync_id in sorted(known) if within.lower <= sync_id < within.upper]


def plain_fingerprint(known: list[SyncID]) -> Fingerprint:
    numbers = [int.from_bytes(sync_id.hash, "big") for sync_id in known]
    return Fingerprint(len(numbers), reduce(xor, numbers, 0), sum(numbers) % SUM_MODULUS)


@given(st.lists(st.tuples(ids, st.booleans()), max_size=200), st.lists(ranges, max_size=10))
def test_a_set_has_the_answers_of_a_sorted_list(changes: list[tuple[SyncID, bool]], asked: list[Range]) -> None:
    """The answers are compared after any additions and removals, one at a time."""
    changing, model = MemorySet(), set[SyncID]()
    for sync_id, adds in changes:
        if adds:
            assert changing.add(sync_id) is (sync_id not in model)
            model.add(sync_id)
        else:
            assert changing.discard(sync_id) is (sync_id in model)
            model.discard(sync_id)
    snapshot = changing.snapshot()
    for within in [*asked, EVERYTHING]:
        expected = plain(list(model), within)
        assert snapshot.items(within) == expected
        assert snapshot.count(within) == len(expected)
        assert snapshot.fingerprint(within) == plain_fingerprint(expected)
        assert [snapshot.select(within, k) for k in range(len(expected))] == expected
        for k in (-1, len(expected)):
            with pytest.raises(IndexError):
                snapshot.select(within, k)


@given(ids, st.one_of(st.just(b""), st.binary(min_size=32, max_size=32)))
def test_the_range_around_an_id_contains_it_and_no_neighbours(sync_id: SyncID, other: bytes) -> None:
    around, number = range_around(sync_id), int.from_bytes(sync_id.hash, "big")
    assert around.lower <= sync_id < around.upper <= EVERYTHING.upper
    neighbours = [SyncID(sync_id.timestamp_ns + step, sync_id.hash) for step in (-1, 1)]
    hashes_near = [number + 256**24, number - 256**24, int.from_bytes(other, "big")]
    near = [near.to_bytes(32, "big") for near in hashes_near if 0 <= near < 256**32]
    neighbours += [SyncID(sync_id.timestamp_ns, digest) for digest in near if digest[:8] != sync_id.hash[:8]]
    assert not [each for each in neighbours if around.lower <= each < around.upper]


@settings(max_examples=30)
@given(sets(most=2_000), st.randoms(use_true_random=False))
def test_a_set_filled_one_by_one_equals_a_set_filled_at_once(pair: Pair, rng: random.Random) -> None:
    here, there = pair
    changing = MemorySet(there)
    for sync_id in rng.sample(here, len(here)):
        changing.add(sync_id)
    for sync_id in set(there) - set(here):
        changing.discard(sync_id)
    grown, made = changing.snapshot(), MemorySet(here).snapshot()
    marks = sorted({rng.choice(here) for _ in range(20)}) if here else []
    for low, high in pairwise(marks):
        within = Range(Bound(*low), Bound(*high))
        assert grown.fingerprint(within) == made.fingerprint(within)
    assert grown.items(EVERYTHING) == made.items(EVERYTHING) == sorted(here)


def test_changes_do_not_affect_a_snapshot() -> None:
    known = spread(1_000)
    changing = MemorySet(known)
    before = changing.snapshot()
    fingerprint = before.fingerprint(EVERYTHING)
    for sync_id in known[::2]:
        changing.discard(sync_id)
    for sync_id in spread(1_000, seed=2):
        changing.add(sync_id)
    assert before.items(EVERYTHING) == sorted(known)
    assert before.fingerprint(EVERYTHING) == fingerprint
    assert changing.snapshot().count(EVERYTHING) == 1_500


@given(ids, ids)
def test_keys_and_tuples_have_the_same_order(one: SyncID, other: SyncID) -> None:
    assert (one < other) is (key_of(one) < key_of(other))
    assert id_of(key_of(one)) == one


@given(ids, bounds)
def test_a_bound_is_on_the_same_side_of_keys_and_tuples(sync_id: SyncID, bound: Bound) -> None:
    """A truncated hash equals itself with zeros appended."""
    whole = SyncID(bound.timestamp_ns, bound.prefix.ljust(32, b"\x00"))
    assert (bound <= sync_id) is (key_of(bound) <= key_of(sync_id)) is (whole <= sync_id)


@given(ids, ids)
def test_the_bound_between_two_ids_is_the_shortest_one(one: SyncID, other: SyncID) -> None:
    if one == other:
        return
    low, high = sorted((one, other))
    bound = bound_between(low, high)
    assert low < bound <= high
    if bound.prefix:
        assert not low < Bound(bound.timestamp_ns, bound.prefix[:-1]) <= high


@pytest.mark.parametrize("bad", [SyncID(-1, bytes(32)), SyncID(END_NS, bytes(32)), SyncID(0, b"")])
def test_invalid_ids_are_rejected(bad: SyncID) -> None:
    changing = MemorySet()
    for refuse in (changing.add, changing.discard, lambda sync_id: MemorySet([sync_id])):
        with pytest.raises(ReconcileError, match="invalid id with"):
            refuse(bad)


@pytest.mark.parametrize(("from_ns", "until_ns"), [(5, 5), (6, 5), (-1, 5), (0, END_NS + 1)])
def test_empty_or_invalid_time_ranges_are_rejected(from_ns: int, until_ns: int) -> None:
    with pytest.raises(ReconcileError, match="invalid time range from"):
        of_times(from_ns, until_ns)


def test_the_cost_of_a_fingerprint_does_not_grow_with_the_set() -> None:
    """The test uses the median of many: a scan would take ten times the steps."""
    rng = random.Random(5)

    def median_steps(number: int) -> int:
        snapshot = MemorySet(spread(number)).snapshot()
        taken = []
        for _ in range(400):
            low, high = sorted((rng.randrange(3_600 * 10**9), rng.randrange(3_600 * 10**9) + 1))
            within = of_times(NOW_NS + low, NOW_NS + high + 1)
            taken.append(steps_of(lambda within=within: snapshot.fingerprint(within)))  # type: ignore[misc]  # mypy does not see the default
        return sorted(taken)[200]

    assert median_steps(100_000) < 2 * median_steps(10_000)


def test_a_duplicate_id_is_in_a_set_once() -> None:
    one = an_id("one")
    assert MemorySet([one, one]).snapshot().fingerprint(EVERYTHING) == plain_fingerprint([one])
