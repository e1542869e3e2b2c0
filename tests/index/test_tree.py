"""Trees: a batch leaves the rows that all posts together have. The sum of any range is the sum of its posts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from operator import xor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from people import ANN

from cablestore import CableStore, StoreOptions
from cablestore.errors import CorruptStoreError
from cablestore.index.batches import merged
from cablestore.index.database import Row
from cablestore.index.memory import MemoryDB
from cablestore.index.reader import Reader
from cablestore.index.tree import (
    LAST_LEVEL,
    LENGTHS,
    SUM_MODULUS,
    changed,
    decode_parts,
    items_in,
    split_root,
    tree_rows,
    with_tail,
)
from cablestore.index.view import Catalog, Tree
from cablestore.protocol.body import Text
from cablestore.protocol.dialect import LEGACY
from cablestore.protocol.keys import SORT_TIME_SIZE_BYTES, after_prefix, sort_time
from cablestore.views import CATALOG
from cablestore.views.sync import ID_PREFIX, LAST_MS, SUM_PREFIX, TREE

SMALL = replace(TREE, leaf_rows=2)
SETS = (b"", b'"', b"default")


def all_items(reader: Reader, tree: Tree) -> Iterator[Row]:
    """Yield all items of all sets in order."""
    return merged(items_in(reader.blocks(prefix, after_prefix(prefix)), prefix) for prefix in tree.sources)


hashes = st.one_of(
    st.binary(min_size=32, max_size=32),
    st.integers(0, 40).map(lambda n: n.to_bytes(2, "big") + bytes(30)),  # many with one prefix
    st.integers(0, 40).map(lambda n: bytes(15) + n.to_bytes(1, "big") + bytes(16)),  # down to the last levels
)
times_ms = st.one_of(st.integers(0, LAST_MS), st.integers(1_600_000_000_000, 1_600_000_000_050), st.just(5))
items = st.tuples(st.sampled_from(SETS), times_ms, hashes).map(
    lambda drawn: (drawn[0] + b"!" + sort_time(drawn[1], drawn[2].hex().encode()), drawn[2])
)
item_sets = st.lists(items, max_size=60, unique_by=lambda item: item[0])


class Kept:
    """Tree in a database, and its items."""

    def __init__(self) -> None:
        self.database = MemoryDB()
        self.items: dict[bytes, bytes] = {}

    def apply(self, added: list[Row], removed: list[Row]) -> None:
        moves = [(key, digest, 1) for key, digest in added] + [(key, digest, -1) for key, digest in removed]
        with self.database.snapshot() as state:
            changes = list(changed(Reader(state, LEGACY), SMALL, moves))
            for key, before, _ in changes:
                assert state.get(key) == before
        assert len({key for key, _, _ in changes}) == len(changes)
        rows: dict[bytes, bytes | None] = {key: after for key, _, after in changes}
        for key, digest in added:
            self.items[key] = rows[ID_PREFIX + key] = digest
        for key, _ in removed:
            del self.items[key]
            rows[ID_PREFIX + key] = None
        self.database.write(rows, sync=False)

    def rows(self) -> list[Row]:
        with self.database.snapshot() as state:
            return list(Reader(state, LEGACY).prefix(SUM_PREFIX))

    def built(self) -> list[Row]:
        with self.database.snapshot() as state:
            found = list(all_items(Reader(state, LEGACY), SMALL))
        assert found == sorted(self.items.items())
        return list(tree_rows(SMALL, found))


@pytest.mark.thorough
@settings(max_examples=150)
@given(batches=st.lists(st.tuples(item_sets, st.randoms(use_true_random=False)), max_size=6))
def test_batches_leave_the_rows_of_all_items(batches: list[tuple[list[Row], object]]) -> None:
    """Rule 2 for trees: after any additions and removals, in any batches, the rows are those of the remaining items."""
    kept = Kept()
    for drawn, chance in batches:
        present = list(kept.items.items())
        removed = [item for item in present if chance.random() < 0.4]  # type: ignore[attr-defined]  # a Random
        kept.apply([item for item in drawn if item[0] not in kept.items], removed)
        assert kept.rows() == kept.built()
    kept.apply([], list(kept.items.items()))
    assert kept.rows() == []


@given(found=item_sets)
def test_rows_are_in_order_and_have_the_sums_of_their_ranges(found: list[Row]) -> None:
    rows = list(tree_rows(SMALL, sorted(found)))
    assert rows == sorted(rows)
    nodes = {key[len(SUM_PREFIX) : -1] for key, _ in rows}
    roots = {key[len(SUM_PREFIX) : -1]: split_root(value) for key, value in rows if key.endswith(b"!~")}
    for head, (tail, _) in roots.items():
        newest = max(name for name, _ in found if name.startswith(head))
        assert newest.startswith(head + tail.label)
        assert tail.posts <= SMALL.leaf_rows or len(tail.label) == LENGTHS[LAST_LEVEL]
        above = len(head) + LENGTHS[LENGTHS.index(len(tail.label)) - 1]
        assert above == len(head) or sum(name.startswith(newest[:above]) for name, _ in found) > SMALL.leaf_rows
    for key, value in rows:
        node = key[len(SUM_PREFIX) : -1]
        head = node[: node.rindex(b"!") + 1]
        level = LENGTHS.index(len(node) - len(head))
        assert level < LAST_LEVEL
        within = [digest for name, digest in found if name.startswith(node)]
        assert len(within) > (SMALL.leaf_rows if level else 0)
        tail, of_root = roots[head]
        parts = decode_parts(with_tail(of_root if node == head else value, node[len(head) :], tail), level)
        assert sum(part.posts for part in parts) == len(within)
        for part in parts:
            numbers = [int.from_bytes(d, "big") for name, d in found if name.startswith(node + part.label)]
            expected = (len(numbers), reduce(xor, numbers), sum(numbers) % SUM_MODULUS)
            assert (part.posts, part.xor, part.sum) == expected
            is_node = part.posts > SMALL.leaf_rows and level + 1 < LAST_LEVEL
            assert (node + part.label in nodes) == is_node


def test_an_item_added_and_removed_in_one_batch_changes_nothing() -> None:
    key = b"!" + sort_time(5, bytes(32).hex().encode())
    assert len(key) == SORT_TIME_SIZE_BYTES + 1
    with MemoryDB().snapshot() as state:
        reader = Reader(state, LEGACY)
        assert list(changed(reader, SMALL, [(key, bytes(32), 1), (key, bytes(32), -1)])) == []


def test_a_missing_or_damaged_row_raises_an_error_with_advice() -> None:
    kept = Kept()
    kept.apply([(b"!" + sort_time(at, bytes(32).hex().encode()), bytes(32)) for at in range(9)], [])
    more = (b"!" + sort_time(9, bytes(32).hex().encode()), bytes(32))
    for damage in (None, b"short"):
        below = kept.rows()[0][0]
        kept.database.write({below: damage}, sync=False)
        with pytest.raises(CorruptStoreError, match="cablestore rebuild"):
            kept.apply([more], [])


@pytest.fixture
def small_store() -> Iterator[CableStore]:
    """Yield a store in memory whose trees have rows for every third post."""
    views = tuple(replace(view, tree=SMALL) if view.tree is TREE else view for view in CATALOG.views)
    with CableStore.in_memory(options=StoreOptions(catalog=Catalog(views))) as store:
        yield store


def test_trees_are_correct_after_any_change_of_posts(small_store: CableStore) -> None:
    posts = [ANN.post(Text("default", f"{n}"), at=1_600_000_000_000 + n // 3 * 10**n % 10**11) for n in range(60)]
    store = small_store
    store.ingest([post.raw for post in posts])
    store.discard([posts[7].hash])
    store.ingest([ANN.delete(*posts[20:40]).raw])
    assert store.check().is_clean
    before = list(store.dump())
    assert sum(key.startswith(SUM_PREFIX) for key, _ in before) > 10
    store.rebuild()
    assert list(store.dump()) == before


def test_posts_in_order_mostly_change_one_row() -> None:
    """Each changed row costs as much as a new row. The test has three hundred posts, a second apart."""
    tree = replace(TREE, leaf_rows=16)
    database = MemoryDB()
    rows_changed = 0
    for number in range(300):
        at = 1_600_000_000_000 + 1000 * number
        digest = ANN.text("default", f"{number}", at=at).hash
        key = b"!" + sort_time(at, digest.hex().encode())
        with database.snapshot() as state:
            changes = list(changed(Reader(state, LEGACY), tree, [(key, digest, 1)]))
        rows_changed += sum(before != after for _, before, after in changes)
        rows: dict[bytes, bytes | None] = {key: after for key, _, after in changes}
        database.write({**rows, ID_PREFIX + key: digest}, sync=False)
    assert rows_changed < 2 * 300
    with database.snapshot() as state:
        reader = Reader(state, LEGACY)
        assert list(reader.prefix(SUM_PREFIX)) == list(tree_rows(tree, all_items(reader, tree)))
        assert len(list(reader.prefix(SUM_PREFIX))) > 3
