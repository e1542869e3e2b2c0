"""Rows that a writer remembers from batch to batch are what the database holds, whatever happens in between."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest
from people import ANN, BOB, CYD, raws

from cablestore import CableStore, Post, limits
from cablestore.errors import StorageError
from cablestore.index.memory import MemoryDB


def posts() -> list[Post]:
    people = (ANN, BOB, CYD)
    found = [people[n % 3].text(("default", "a!b")[n % 2], f"{n}") for n in range(90)]
    found += [person.leave("default") for person in people]
    found += [ANN.delete(found[0], found[87]), BOB.delete(found[40]), ANN.topic("a!b", "x" * 400)]
    return found


def remembered_by(store: CableStore) -> dict[bytes, bytes | None]:
    return store._engine.recent._rows


def assert_right(store: CableStore) -> None:
    with store.snapshot() as snapshot:
        for key, value in remembered_by(store).items():
            assert snapshot.reader.get(key) == value


@pytest.mark.parametrize(("rows", "size_bytes"), [(4_096, 2_048), (0, 2_048), (9, 2_048), (60, 100), (4_096, 0)])
def test_a_store_is_the_same_however_much_is_remembered(
    monkeypatch: pytest.MonkeyPatch, rows: int, size_bytes: int
) -> None:
    """No more than MAX_ROWS_REMEMBERED, none above MAX_ROW_REMEMBERED_SIZE_BYTES."""
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
    assert (most > 20) == (rows > 20)  # empty values are kept whatever the size allows


class Failing(MemoryDB):
    """Database that fails at some writes: before anything is written, or after all is."""

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
def test_nothing_is_remembered_of_a_write_that_failed(fails: str) -> None:
    """The rows that the database holds then are read."""
    with CableStore.in_memory() as store:
        database = Failing()
        before = store._engine._database
        with before.snapshot() as state:
            database.write(dict(state.scan(b"", b"\xff")), sync=False)
        store._engine._database = database
        store.ingest(raws(ANN.text("default", "1")))
        assert remembered_by(store)
        database.fails = fails
        with pytest.raises(StorageError):
            store.ingest(raws(BOB.join("default")))
        assert not remembered_by(store)
        store._engine._load()  # sizes and numbers, as the next start reads them
        store.ingest(raws(CYD.join("default"), ANN.text("default", "2")))
        assert_right(store)
        assert store.check().is_clean
        (channel,) = store.channels()
        assert channel.members == (2 if fails == "before" else 3)
