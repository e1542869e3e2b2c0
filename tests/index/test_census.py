"""A census: the number of counted rows of a fold, updated by every write, so that the rows need not be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random

import pytest
from history import AUTHORS, NOW_MS, histories
from hypothesis import given
from hypothesis import strategies as st
from inside import live_database, reload
from people import ANN, BOB, CYD, Person, raws

from cablestore import CableStore, Dialect, Post, StoreOptions
from cablestore.errors import CorruptStoreError
from cablestore.index.database import Row, Source
from cablestore.index.memory import MemoryDB
from cablestore.index.reader import Reader
from cablestore.index.view import Catalog, Census, decode_number
from cablestore.store.queries import Snapshot
from cablestore.views import CATALOG, links, membership

COUNT_KEY = membership.COUNT_PREFIX + b"default"
HEADS_PREFIX = b"!heads!"


class Counting:
    """Source that counts the read rows."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.rows = 0

    def get(self, key: bytes) -> bytes | None:
        self.rows += 1
        return self._source.get(key)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False, at_once: int = 0) -> Iterator[Row]:
        for row in self._source.scan(start, stop, reverse=reverse, at_once=at_once):
            self.rows += 1
            yield row

    def blocks(self, start: bytes, stop: bytes) -> Iterator[list[Row]]:
        for block in self._source.blocks(start, stop):
            self.rows += len(block)
            yield block


def test_a_list_of_channels_reads_few_rows_per_channel_for_any_number_of_members(store: CableStore) -> None:
    people = [Person(f"census {number}") for number in range(60)]
    store.ingest(raws(*(person.join(channel) for person in people for channel in ("a", "b"))))
    with store.snapshot() as snapshot:
        source = Counting(snapshot.reader)
        counted = Snapshot(snapshot._source, snapshot.reader.over(source))
        assert [(channel.name, channel.members) for channel in counted.channels()] == [("a", 60), ("b", 60)]
        assert source.rows <= 4 * 2


def members_of(store: CableStore) -> int:
    """Return the number of members in the list of channels, which must be the number of member rows."""
    with store.snapshot() as snapshot:
        channels = list(snapshot.channels())
        assert [channel.members for channel in channels] == [len(list(snapshot.members(c.name))) for c in channels]
        assert store.check().is_clean
        return sum(channel.members for channel in channels)


def test_the_number_of_members_is_correct_after_any_change(store: CableStore) -> None:
    join, text, leave = ANN.join("default"), ANN.text("default", "x"), ANN.leave("default")
    store.ingest(raws(join))
    store.ingest(raws(text, join))
    assert members_of(store) == 1
    store.ingest(raws(leave))
    assert members_of(store) == 0
    with store.snapshot() as snapshot:
        assert snapshot.reader.get(COUNT_KEY) is None
    store.discard([leave.hash])
    assert members_of(store) == 1
    store.ingest(raws(leave, ANN.delete(leave), BOB.join("default"), BOB.leave("default"), CYD.topic("default", "t")))
    assert members_of(store) == 2
    store.discard([post.hash for post in (join, text)])
    assert members_of(store) == 1
    back = ANN.join("default")
    store.ingest(raws(back, back, ANN.leave("default"), ANN.text("default", "again")))
    assert members_of(store) == 2
    store.prune(keep_newest=0)
    before = list(store.dump())
    store.rebuild()
    assert list(store.dump()) == before


# --- a census that is new to the store -------------------------------------------------------------


def is_head(value: bytes) -> bool:
    return value in (b"\x01", b"\x05")


def with_heads_counted() -> Catalog:
    """Return the catalog with a census over the fold of heads.

    Its rows are added and removed, and tombstones have parts in it.
    """
    (fold,) = links.VIEW.folds
    counted = replace(fold, census=Census(prefix=HEADS_PREFIX, counts=is_head))
    view = replace(links.VIEW, prefixes=(*links.VIEW.prefixes, HEADS_PREFIX), folds=(counted,))
    return Catalog(tuple(view if each is links.VIEW else each for each in CATALOG.views))


COUNTED = with_heads_counted()


@contextmanager
def counting_heads(dialect: Dialect) -> Iterator[CableStore]:
    with CableStore.in_memory(
        dialect=dialect,
        identity=AUTHORS[0],
        options=StoreOptions(clock=lambda: NOW_MS + 1, catalog=COUNTED, verify_threads=1, moderated=False),
    ) as store:
        yield store


def assert_counts_heads(store: CableStore) -> None:
    with store.snapshot() as snapshot:
        rows = snapshot.reader.prefix(links.HEAD_PREFIX)
        due = Counter(key.split(b"!")[2] for key, value in rows if is_head(value))
        found = {key[len(HEADS_PREFIX) :]: decode_number(v) for key, v in snapshot.reader.prefix(HEADS_PREFIX)}
    assert found == due
    report = store.check()
    assert report.is_clean, [str(problem) for problem in report.problems]


@pytest.mark.thorough
@given(
    histories(),
    st.randoms(use_true_random=False),
    st.lists(st.integers(1, 9), max_size=6),
    st.sets(st.integers(0, 23), max_size=6),
)
def test_any_census_is_a_function_of_the_posts(
    history: tuple[Dialect, list[Post]], random: Random, cuts: list[int], gone: set[int]
) -> None:
    """Rule 2 for a census: any order, batches, duplicates, deletions and discards, and the rows of a rebuild."""
    dialect, posts = history
    discarded = [posts[index].hash for index in gone if index < len(posts)]
    with counting_heads(dialect) as straight:
        straight.ingest(raws(*posts), verify=False)
        straight.discard(discarded)
        assert_counts_heads(straight)
        expected = list(straight.dump())
    shuffled = [*posts, *random.sample(posts, len(posts) // 2)]
    random.shuffle(shuffled)
    with counting_heads(dialect) as other:
        at = 0
        for cut in [*cuts, len(shuffled)]:
            other.ingest(raws(*shuffled[at : at + cut]), verify=False)
            assert_counts_heads(other)
            at += cut
        other.discard(discarded)
        assert list(other.dump()) == expected
        other.rebuild()
        assert list(other.dump()) == expected


# --- damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "says"), [(None, "a missing number"), (b"\x00" * 7 + b"\x05", "a wrong number"), (b"x", "a wrong number")]
)
def test_a_check_finds_a_wrong_census_and_a_rebuild_repairs_it(value: bytes | None, says: str) -> None:
    with CableStore.in_memory() as store:
        store.ingest(raws(ANN.join("default"), BOB.join("default")))
        database = live_database(store)
        assert isinstance(database, MemoryDB)
        database.write({COUNT_KEY: value, membership.COUNT_PREFIX + b"nowhere": bytes(8)}, sync=False)
        problems = [str(problem) for problem in store.check().problems]
        assert any(says in each for each in problems)
        assert any("a dangling number" in each and "nowhere" in each for each in problems)
        store.rebuild()
        assert members_of(store) == 2


@pytest.mark.parametrize("value", [None, b"", b"x", bytes(9)])
def test_an_impossible_census_raises_an_error_with_advice_and_writes_nothing(value: bytes | None) -> None:
    with CableStore.in_memory() as store:
        store.ingest(raws(ANN.join("default")))
        database = live_database(store)
        assert isinstance(database, MemoryDB)
        database.write({COUNT_KEY: value}, sync=False)
        reload(store)
        before = list(store.dump())
        with pytest.raises(CorruptStoreError, match="cablestore rebuild"):
            store.ingest(raws(ANN.leave("default")))
        assert list(store.dump()) == before


def test_a_fold_with_one_part_in_its_keys_is_one_group() -> None:
    """The group's key is the prefix itself."""
    catalog = Catalog(
        tuple(
            replace(
                view,
                prefixes=(*view.prefixes, b"!names!"),
                folds=tuple(
                    replace(fold, census=Census(prefix=b"!names!", counts=lambda value: True)) for fold in view.folds
                ),
            )
            if view.name == "user_info"
            else view
            for view in CATALOG.views
        )
    )
    with CableStore.in_memory(options=StoreOptions(catalog=catalog)) as store:
        store.ingest(raws(ANN.named("ann"), ANN.named("anna"), BOB.named("bob")))
        with store.snapshot() as snapshot:
            reader: Reader = snapshot.reader
            assert decode_number(reader.get(b"!names!")) == 2
        assert store.check().is_clean
        before = list(store.dump())
        store.rebuild()
        assert list(store.dump()) == before
