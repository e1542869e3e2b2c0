"""The set of ids in a store: fingerprints and ranks of any range equal those of a list, with few reads."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from operator import xor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from people import ANN, BOB

from cablestore import CableStore
from cablestore.errors import CorruptStoreError
from cablestore.index.database import Row
from cablestore.index.memory import MemoryDB
from cablestore.index.reader import Reader
from cablestore.index.tree import SUM_MODULUS, tree_rows
from cablestore.protocol.body import LOCAL_ONLY, Block
from cablestore.protocol.dialect import LEGACY
from cablestore.protocol.keys import sort_time
from cablestore.reconcile.ids import END_NS, EVERYTHING, Bound, Range, SyncID
from cablestore.reconcile.sets import Fingerprint, MemorySet
from cablestore.reconcile.stored_set import StoredSet, stored_set
from cablestore.views.sync import ID_PREFIX, LAST_MS, SUM_PREFIX, TREE, items

NS_PER_MS = 1_000_000
NAMES = (b"", b'"', b"one", b"other")
START_MS = 1_600_000_000_000

hashes = st.one_of(
    st.binary(min_size=32, max_size=32),
    st.integers(0, 300).map(lambda n: bytes(30) + n.to_bytes(2, "big")),  # with equal hash prefixes in <mono-ts>
    st.integers(0, 300).map(lambda n: n.to_bytes(2, "big") + bytes(30)),
)
times_ms = st.one_of(st.integers(0, LAST_MS), st.integers(START_MS, START_MS + 90), st.just(START_MS))
posts = st.tuples(st.sampled_from(NAMES), times_ms, hashes)
bounds = st.builds(
    lambda at, prefix: Bound(at, prefix.rstrip(b"\0")),
    st.one_of(times_ms.map(lambda at: at * NS_PER_MS), st.integers(0, END_NS)),
    st.one_of(st.binary(max_size=3), hashes),
)
ranges = st.lists(bounds, min_size=2, max_size=2, unique=True).map(lambda pair: Range(*sorted(pair)))


def set_of(found: list[tuple[bytes, int, bytes]], names: list[bytes], leaf_rows: int) -> StoredSet:
    """Return the set of these names in a database with these posts."""
    tree = replace(TREE, leaf_rows=leaf_rows)
    rows: dict[bytes, bytes | None] = {
        ID_PREFIX + name + b"!" + sort_time(at, digest.hex().encode()): digest for name, at, digest in found
    }
    placed = sorted((key[len(ID_PREFIX) :], value or b"") for key, value in rows.items())
    database = MemoryDB()
    database.write({**rows, **dict(tree_rows(tree, placed))}, sync=False)
    return StoredSet(Reader(database.snapshot(), LEGACY), names, tree)


@settings(max_examples=250)
@given(
    st.lists(posts, max_size=120, unique_by=lambda post: (post[1], post[2][:16])),  # a post has one channel
    st.lists(ranges, max_size=8),
    st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
    st.sampled_from([1, 3, 64]),
)
def test_a_stored_set_has_the_answers_of_a_sorted_list(
    found: list[tuple[bytes, int, bytes]], asked: list[Range], names: list[bytes], leaf_rows: int
) -> None:
    stored = set_of(found, names, leaf_rows)
    ids = sorted(SyncID(at * NS_PER_MS, digest) for name, at, digest in found if name in names)
    for within in [*asked, EVERYTHING]:
        expected = [each for each in ids if within.lower <= each < within.upper]
        numbers = [int.from_bytes(each.hash, "big") for each in expected]
        assert stored.items(within) == expected
        assert stored.count(within) == len(expected)
        total = Fingerprint(len(numbers), reduce(xor, numbers, 0), sum(numbers) % SUM_MODULUS)
        assert stored.fingerprint(within) == total
        assert [stored.select(within, k) for k in range(len(expected))] == expected
        for k in range(1, len(expected)):
            for slack in (0, 2, 20):
                cut = stored.cut(within, k, slack)
                assert within.lower < cut < within.upper
                assert abs(sum(each < cut for each in expected) - k) <= slack
        for k in (-1, len(expected)):
            with pytest.raises(IndexError):
                stored.select(within, k)


def test_a_post_in_two_channels_of_a_damaged_store_raises_an_error_with_advice() -> None:
    digest = bytes(32)
    damaged = set_of([(name, START_MS, digest) for name in (b"one", b"other")], list(NAMES), leaf_rows=1)
    with pytest.raises(CorruptStoreError, match="cablestore rebuild"):
        damaged.cut(EVERYTHING, 1, 0)


@pytest.mark.parametrize("gap_ms", [1_000, 0], ids=["a second apart", "all at one time"])
def test_a_small_channel_beside_a_large_one_is_added_to_its_sums(gap_ms: int) -> None:
    """The small one has no row for a node in which the large one has many posts."""
    rng = random.Random(4)
    found = [
        (b"other" if n % 150 == 0 else b"one", START_MS + n * gap_ms, bytes([n % 2]) + rng.randbytes(31))
        for n in range(1_500)
    ]
    stored = set_of(found, [b"one", b"other"], leaf_rows=16)
    ids = sorted(SyncID(at * NS_PER_MS, digest) for _, at, digest in found)
    model = MemorySet(ids).snapshot()
    for low, high in (sorted(rng.sample(ids, 2)) for _ in range(10)):
        within = Range(*(Bound(at, digest.rstrip(b"\0")) for at, digest in (low, high)))
        assert stored.fingerprint(within) == model.fingerprint(within)
        assert stored.items(within) == model.items(within)
        last = stored.count(within) - 1
        assert [stored.select(within, k) for k in (0, last)] == [low, ids[ids.index(high) - 1]]


def test_a_cut_is_at_the_start_of_the_largest_node_within_the_slack() -> None:
    """Such a cut takes the fewest reads. Here it is between two nodes of ten million seconds each."""
    times_ms = [START_MS + n * 17_000_000 for n in range(1_000)]
    stored = set_of([(b"", at, n.to_bytes(2, "big") * 16) for n, at in enumerate(times_ms)], [b""], leaf_rows=1)
    next_ms = START_MS + 10**10
    below = sum(at < next_ms for at in times_ms)
    for k in (below - 2, below, below + 2):
        assert stored.cut(EVERYTHING, k, 2) == Bound(next_ms * NS_PER_MS)
    for k in (below - 3, below + 3):
        cut = stored.cut(EVERYTHING, k, 2)
        assert cut != Bound(next_ms * NS_PER_MS)
        assert abs(stored.count(Range(EVERYTHING.lower, cut)) - k) <= 2


class Counting:
    """Source that counts the read rows."""

    def __init__(self, rows: dict[bytes, bytes | None]) -> None:
        database = MemoryDB()
        database.write(rows, sync=False)
        self._source = database.snapshot()
        self.reads = 0

    def get(self, key: bytes) -> bytes | None:
        self.reads += 1
        return self._source.get(key)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False, at_once: int = 0) -> Iterator[Row]:
        for row in self._source.scan(start, stop, reverse=reverse, at_once=at_once):
            self.reads += 1
            yield row

    def blocks(self, start: bytes, stop: bytes) -> Iterator[list[Row]]:
        return self._source.blocks(start, stop)


@pytest.mark.parametrize("gap_ms", [60_000, 1, 0], ids=["a minute apart", "a millisecond apart", "all at one time"])
def test_any_range_takes_few_reads(gap_ms: int) -> None:
    """O(log n): a first answer about 20,000 posts reads less than 700 rows, with equal or different timestamps."""
    rng = random.Random(1)
    hashes = [rng.randbytes(32) for _ in range(20_000)]
    placed = sorted((b"!" + sort_time(START_MS + n * gap_ms, h.hex().encode()), h) for n, h in enumerate(hashes))
    rows: dict[bytes, bytes | None] = {ID_PREFIX + key: digest for key, digest in placed}
    source = Counting({**rows, **dict(tree_rows(TREE, placed))})
    for _ in range(30):
        pair = sorted(rng.sample(range(20_000), 2))
        at = [
            Bound((START_MS + n * gap_ms) * NS_PER_MS, hashes[n][:4].rstrip(b"\0") if not gap_ms else b"") for n in pair
        ]
        within = Range(*sorted(at))
        fresh = StoredSet(Reader(source, LEGACY), [b""])
        for question in (fresh.count, fresh.fingerprint):
            source.reads = 0
            question(within)
            assert source.reads < 700
        source.reads = 0
        fresh.select(within, fresh.count(within) // 2)
        assert source.reads < 700


def test_a_stored_set_has_the_posts_that_may_leave_the_store() -> None:
    """A channel's set has its posts and those without a channel, but not local-only or deleted ones."""
    with CableStore.in_memory(identity=ANN.identity) as store:
        kept = [ANN.text("a", "1"), BOB.text("b!", "2"), ANN.join("a"), BOB.topic("b!", "t"), ANN.named("ann")]
        gone = ANN.text("a", "3")
        deletion = ANN.delete(gone)
        store.ingest([post.raw for post in [*kept, gone, deletion]])
        assert store.write(Block("", LOCAL_ONLY, (BOB.key,), 0, 0)).is_local_only
        with store.snapshot() as snapshot:
            for channels, expected in (
                (None, [*kept, deletion]),
                (frozenset({"a"}), [kept[0], kept[2], kept[4], deletion]),
                (frozenset({"b!", "unheard of"}), [kept[1], kept[3], kept[4], deletion]),
                (frozenset[str](), [kept[4], deletion]),
            ):
                found = stored_set(snapshot.reader, channels)
                ids = sorted(SyncID(post.timestamp_ms * NS_PER_MS, post.hash) for post in expected)
                assert found.items(EVERYTHING) == ids
                model = MemorySet(ids).snapshot()
                assert found.fingerprint(EVERYTHING) == model.fingerprint(EVERYTHING)


def test_the_number_of_cached_posts_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most N posts are in memory for any requests, and answers are correct."""
    module = sys.modules[StoredSet.__module__]
    monkeypatch.setattr(module, "_POSTS_HELD", 300)
    monkeypatch.setattr(module, "_POSTS_FORGOTTEN", 100)
    rng = random.Random(2)
    found = [(b"", START_MS + rng.randrange(10**9), rng.randbytes(32)) for _ in range(3_000)]
    stored = set_of(found, [b""], 64)
    model = MemorySet(SyncID(at * NS_PER_MS, digest) for _, at, digest in found).snapshot()
    for _ in range(200):
        low, high = sorted(rng.sample(range(START_MS, START_MS + 10**9), 2))
        within = Range(Bound(low * NS_PER_MS), Bound(high * NS_PER_MS))
        assert stored.fingerprint(within) == model.fingerprint(within)
        assert stored.select(within, stored.count(within) // 2) == model.select(within, model.count(within) // 2)
        assert stored._held_posts <= 300 + 512
    assert stored.items(EVERYTHING) == model.items(EVERYTHING)


def test_missing_sums_or_posts_raise_an_error_with_advice() -> None:
    """Any row may be lost. An answer is correct, or the error reports a damaged store."""
    whole = set_of([(b"", START_MS + n, bytes([n]) * 32) for n in range(200)], [b""], 1)
    rows = list(whole._reader.scan(b"", b"~"))
    expected = whole.fingerprint(EVERYTHING), [whole.select(EVERYTHING, k) for k in range(200)]
    refused = 0
    for lost in range(len(rows)):
        database = MemoryDB()
        database.write(dict(rows[:lost] + rows[lost + 1 :]), sync=False)
        damaged = StoredSet(Reader(database.snapshot(), LEGACY), [b""], whole._tree)
        try:
            found = damaged.fingerprint(EVERYTHING), [damaged.select(EVERYTHING, k) for k in range(200)]
        except CorruptStoreError as error:
            refused += "cablestore rebuild" in str(error)
        except IndexError:
            assert rows[lost][0] == SUM_PREFIX + b"!~"  # a set without any sums is an empty one
        else:
            assert found == expected
    assert refused >= 200


def test_items_of_a_channel_are_read_from_both_views() -> None:
    with CableStore.in_memory() as store:
        posts = [ANN.text("a", "1"), ANN.join("a"), BOB.text("a", "2"), ANN.topic("a", "t")]
        store.ingest([post.raw for post in posts])
        with store.snapshot() as snapshot:
            assert [digest for _, digest in items(snapshot.reader, b"a!", b"a!~")] == [
                post.hash for post in sorted(posts, key=lambda post: post.sort_time)
            ]
