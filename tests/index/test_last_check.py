"""The time and result of the last check: who records it, and what a store without a record shows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from disks import snapshot
from people import ANN, BOB, raws

from cablestore import CableStore
from cablestore.errors import CorruptStoreError
from cablestore.index.last_check import LAST_CHECK, LastCheck, last_check
from cablestore.index.leveldb import LevelDB
from cablestore.index.reader import DATA_PREFIX
from cablestore.protocol.keys import after_prefix
from cablestore.store import ClosedStore
from cablestore.store.options import system_clock_ms


@dataclass
class Made:
    """A closed store with two posts, and when it was created."""

    path: Path
    began_ms: int

    def remove_posts(self, number: int) -> None:
        """Remove rows of posts, whose rows in other views remain."""
        database = LevelDB(self.path / "generation-000001")
        with database.snapshot() as state:
            keys = [key for key, _ in state.scan(DATA_PREFIX, after_prefix(DATA_PREFIX))]
        database.write(dict.fromkeys(keys[:number]), sync=True)
        database.close()

    def recorded(self) -> LastCheck:
        """Return the record, whose time is between the creation of the store and now."""
        found = last_check(self.path)
        assert found is not None
        assert self.began_ms <= found.at_ms <= system_clock_ms()
        return found


@pytest.fixture
def made(tmp_path: Path) -> Made:
    path, began_ms = tmp_path / "store", system_clock_ms()
    with CableStore.open(path) as store:
        store.ingest(raws(ANN.text("default", "one"), BOB.text("default", "two")))
    assert last_check(path) is None
    return Made(path, began_ms)


def test_a_check_of_an_open_store_is_recorded(made: Made) -> None:
    with CableStore.open(made.path) as store:
        store.check()
        found = made.recorded()
        assert (found.posts, found.problems, found.signatures) == (2, 0, False)
        store.check(signatures=True)
    assert made.recorded().signatures


def test_a_check_of_a_closed_store_records_its_problems(made: Made) -> None:
    closed = ClosedStore(made.path)
    assert closed.check(signatures=True).is_clean
    assert (made.recorded().problems, made.recorded().signatures) == (0, True)
    made.remove_posts(1)
    report = closed.check()
    assert report.problem_count > 0
    found = made.recorded()
    assert (found.posts, found.problems, found.signatures) == (1, report.problem_count, False)
    closed.rebuild()
    assert made.recorded() == found


def test_a_read_only_check_does_not_change_the_record(made: Made) -> None:
    before = snapshot(made.path)
    assert ClosedStore(made.path, read_only=True).check().is_clean
    with CableStore.open(made.path, read_only=True) as store:
        assert store.check().is_clean
    assert snapshot(made.path) == before
    ClosedStore(made.path).check()
    found = made.recorded()
    assert ClosedStore(made.path, read_only=True).check(signatures=True).is_clean
    assert made.recorded() == found


def test_a_failed_check_does_not_change_the_record(made: Made) -> None:
    ClosedStore(made.path).check()
    found = made.recorded()
    for table in (made.path / "generation-000001").glob("MANIFEST-*"):
        table.write_bytes(b"")
    with pytest.raises(CorruptStoreError):
        ClosedStore(made.path).check()
    assert made.recorded() == found


def test_a_store_in_memory_can_be_checked() -> None:
    with CableStore.in_memory() as store:
        assert store.check().is_clean


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"format": 2, "at_ms": 1, "posts": 1, "problems": 0, "signatures": false}', b'{"format": 1}'],
)
def test_a_damaged_record_counts_as_missing_and_is_replaced(made: Made, content: bytes) -> None:
    (made.path / LAST_CHECK).write_bytes(content)
    assert last_check(made.path) is None
    assert ClosedStore(made.path).check().is_clean
    assert made.recorded().posts == 2
