"""Rows that a writer caches between batches equal those in the database, regardless of other events."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest
from inside import engine_of, exchange_database, live_database, reload
from people import ANN, BOB, CYD, raws

from cablestore import CableStore, Post, limits
from cablestore.errors import CorruptStoreError, StorageError
from cablestore.index.memory import MemoryDB
from cablestore.index.reader import data_key
from cablestore.views import links


def posts() -> list[Post]:
    people = (ANN, BOB, CYD)
    found = [people[n % 3].text(("default", "a!b")[n % 2], f"{n}") for n in range(90)]
    found += [person.leave("default") for person in people]
    found += [ANN.delete(found[0], found[87]), BOB.delete(found[40]), ANN.topic("a!b", "x" * 400)]
    return found


def remembered_by(store: CableStore) -> dict[bytes, bytes | None]:
    return engine_of(store).recent._rows


def assert_right(store: CableStore) -> None:
    with store.snapshot() as snapshot:
        for key, value in remembered_by(store).items():
            assert snapshot.reader.get(key) == value


@pytest.mark.parametrize(("rows", "size_bytes"), [(4_096, 2_048), (0, 2_048), (9, 2_048), (60, 100), (4_096, 0)])
def test_the_size_of_the_cache_does_not_change_the_store(
    monkeypatch: pytest.MonkeyPatch, rows: int, size_bytes: int
) -> None:
    """At most MAX_ROWS_REMEMBERED, none above MAX_ROW_REMEMBERED_SIZE_BYTES."""
    assert (limits.MAX_ROWS_REMEMBERED, limits.MAX_ROW_REMEMBERED_SIZE_BYTES) == (4_096, 2_048)
    monkeypatch.setattr(limits, "MAX_ROWS_REMEMBERED", rows)
    monkeypatch.setattr(limits, "MAX_ROW_REMEMBERED_SIZE_BYTES", size_bytes)
    everything = posts()
    shuffled = [*everything, *everything[::7]]
    Random("however much is remembered").shuffle(shuffled)
    most = 0
    with CableStore.in_memory() as store:
        for number, post in enumerate(shuffled):
            store.ingest([post.raw])
            if number % 5 == 0:
                store.discard([shuffled[number // 2].hash])
            assert len(remembered_by(store)) <= rows
            assert all(len(value or b"") <= size_bytes for value in remembered_by(store).values())
            assert_right(store)
            most = max(most, len(remembered_by(store)))
        store.ingest(raws(*shuffled))
        assert store.check().is_clean
        found = list(store.dump())
        store.rebuild()
        assert not remembered_by(store)
        assert list(store.dump()) == found
        store.ingest(raws(ANN.text("default", "behind the rebuild")))
        assert store.check().is_clean
    with CableStore.in_memory() as straight:
        straight.ingest(raws(*everything))
        assert list(straight.dump()) == found
    assert (most > 20) == (rows > 20)  # empty values are cached for any size limit


def groups_of(store: CableStore) -> dict[bytes, dict[bytes, bytes] | None]:
    return engine_of(store).recent._groups


def assert_groups_right(store: CableStore) -> None:
    with store.snapshot() as snapshot:
        for group, rows in groups_of(store).items():
            if rows is not None:
                assert rows == dict(snapshot.reader.prefix(group))


@pytest.mark.parametrize(("groups", "rows"), [(64, 256), (1, 256), (64, 3), (64, 0)])
def test_own_posts_link_to_the_heads_for_any_size_of_the_cache(
    monkeypatch: pytest.MonkeyPatch, groups: int, rows: int
) -> None:
    """At most MAX_GROUPS_REMEMBERED channels, none with more than MAX_GROUP_ROWS_REMEMBERED rows."""
    assert (limits.MAX_GROUPS_REMEMBERED, limits.MAX_GROUP_ROWS_REMEMBERED) == (64, 256)
    monkeypatch.setattr(limits, "MAX_GROUPS_REMEMBERED", groups)
    monkeypatch.setattr(limits, "MAX_GROUP_ROWS_REMEMBERED", rows)
    random = Random("heads however much is remembered")
    others = posts()
    random.shuffle(others)
    own: list[Post] = []
    with CableStore.in_memory() as store:
        store.join("default")
        store.join("a!b")
        for number, post in enumerate(others):
            store.ingest([post.raw])
            channel = ("default", "a!b")[random.randrange(2)]
            if number % 3 == 0:
                heads = store.heads(channel)
                own.append(store.post(channel, f"{number}"))
                assert own[-1].links == tuple(heads[: limits.MAX_LINKS_WRITTEN])
                assert own[-1].hash in store.heads(channel)
            if number % 10 == 0:
                store.delete(random.choice(own).hash)
            if number % 15 == 0:
                store.discard([random.choice(others).hash])
            assert len(groups_of(store)) <= groups
            assert all(len(each or ()) <= rows for each in groups_of(store).values())
            assert_groups_right(store)
        assert groups_of(store)
        assert store.check().is_clean
        store.rebuild()
        assert not groups_of(store)
        last = store.post("default", "after the rebuild")
        assert store.heads("default") == [last.hash]
        assert_groups_right(store)


class Failing(MemoryDB):
    """Database in which some writes fail: before anything is written, or after all is."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: str | None = None

    def write(self, rows: Mapping[bytes, bytes | None], *, sync: bool) -> None:
        fails, self.fails = self.fails, None
        if fails != "before":
            super().write(rows, sync=sync)
        if fails is not None:
            raise StorageError(f"failed {fails} the write")


@pytest.mark.parametrize("fails", ["before", "after"])
def test_rows_of_a_failed_write_are_not_cached(fails: str) -> None:
    """The rows in the database are read again."""
    with CableStore.in_memory() as store:
        database = Failing()
        before = live_database(store)
        with before.snapshot() as state:
            database.write(dict(state.scan(b"", b"\xff")), sync=False)
        exchange_database(store, database)
        store.ingest(raws(ANN.text("default", "1")))
        with engine_of(store).transaction() as transaction:
            transaction.holding(links.unsettled_group("default"))
        assert remembered_by(store)
        assert groups_of(store)
        database.fails = fails
        with pytest.raises(StorageError):
            store.ingest(raws(BOB.join("default")))
        assert not remembered_by(store)
        assert not groups_of(store)
        reload(store)  # sizes and numbers, as on the next start
        store.ingest(raws(CYD.join("default"), ANN.text("default", "2")))
        assert_right(store)
        assert store.check().is_clean
        (channel,) = store.channels()
        assert channel.members == (2 if fails == "before" else 3)


def test_cached_posts_do_not_hide_damage() -> None:
    """MAX_POSTS_REMEMBERED, MAX_POST_REMEMBERED_SIZE_BYTES: all are read as they were written, in any order."""
    many = [ANN.text("default", str(number)) for number in range(limits.MAX_POSTS_REMEMBERED + 50)]
    large = [ANN.text("default", "x" * (limits.MAX_POST_REMEMBERED_SIZE_BYTES - less)) for less in (1_000, 1)]
    with CableStore.in_memory() as store:
        store.ingest(raws(*many, *large))
        for post in (*many, *many, *large, *large):
            found = store.get(post.hash)
            assert found is not None
            assert (found.raw, found.body) == (post.raw, post.body)
        database = live_database(store)
        for post in (many[-1], large[0], large[1]):
            database.write({data_key(post.hash_hex): post.raw[:-1]}, sync=False)
            with pytest.raises(CorruptStoreError, match=post.hash.hex()):
                store.get(post.hash)
