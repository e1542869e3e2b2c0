"""Ctrl-C during a write: if the program continues, its state in memory matches the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ctrl_c import interrupted
from inside import live_database
from people import ANN, BOB, START_MS, raws

from cablestore import CableStore, StoreOptions
from cablestore.errors import StorageError
from cablestore.index import arrival_log
from cablestore.index.local import DECIDED


def opened(path: Path) -> CableStore:
    return CableStore.open(path, identity=ANN.identity, options=StoreOptions(clock=lambda: START_MS, verify_threads=1))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CableStore]:
    """Yield a store with a few posts. It must be consistent after the test, and after it is opened again."""
    with opened(tmp_path / "store") as store:
        store.ingest(raws(*(BOB.text("default", str(number), at=START_MS - 9 + number) for number in range(3))))
        store.post("default", "mine")
        yield store
        assert_whole(store)
    with opened(tmp_path / "store") as store:
        assert_whole(store)


def assert_whole(store: CableStore) -> None:
    report = store.check()
    assert report.is_clean, [str(problem) for problem in report.problems]
    with store.snapshot() as snapshot:
        logged = {entry.hash for entry in arrival_log.post_entries(snapshot.reader, 0)}
        assert {post.hash for post in snapshot.reader.posts()} <= logged


def fail_write(store: CableStore, error: type[BaseException], *, written: bool, after: int = 0) -> None:
    """Make the write after N others raise an error, just before or just after its rows are in the database."""
    database = live_database(store)
    write = database.write
    left = after

    def fail(rows: dict[bytes, bytes | None], *, sync: bool) -> None:
        nonlocal left
        is_due, left = not left, left - 1
        if is_due:
            database.write = write  # type: ignore[method-assign] # the next write succeeds
        if written or not is_due:
            write(rows, sync=sync)
        if is_due:
            raise error

    database.write = fail  # type: ignore[assignment,method-assign] # for this database only


@contextmanager
def failing(store: CableStore, error: type[BaseException], *, written: bool) -> Iterator[None]:
    """Make the first write in the body raise an error."""
    fail_write(store, error, written=written)
    with pytest.raises(error):
        yield


FAILURES = [(KeyboardInterrupt, True), (KeyboardInterrupt, False), (StorageError, False)]
failures = pytest.mark.parametrize(("error", "written"), FAILURES)


@failures
def test_a_text_after_an_interrupted_one_has_its_own_number_and_time(
    store: CableStore, error: type[BaseException], written: bool
) -> None:
    with failing(store, error, written=written):
        store.post("default", "interrupted")
    store.post("default", "after it")
    mine = list(store.posts_by(ANN.key))
    assert len(mine) == (4 if written else 3)  # including a post/join
    assert len({post.timestamp_ms for post in mine}) == len(mine)


def test_followers_are_notified_of_an_interrupted_write(store: CableStore) -> None:
    last = store.last_sequence
    calls: list[int] = []
    store.watch(lambda: calls.append(store.last_sequence))
    with failing(store, KeyboardInterrupt, written=True):
        store.post("default", "interrupted")
    assert [event.sequence for event in store.events(last, timeout_s=0)] == [last + 1]
    assert store.last_sequence == last + 1
    assert calls[-1] == last + 1


@failures
def test_an_interrupted_action_applies_if_it_is_stored(
    store: CableStore, error: type[BaseException], written: bool
) -> None:
    with failing(store, error, written=written):
        store.moderation.drop(users=[BOB.key])
    assert store.user(BOB.key).is_dropped == written
    store.ingest(raws(BOB.text("default", "more", at=START_MS - 1)))
    store.moderation.sweep()
    assert len(list(store.posts_by(BOB.key))) == (0 if written else 4)


def test_an_undrop_without_its_sweep_is_completed_after_the_store_is_opened_again(tmp_path: Path) -> None:
    """The undrop is written, and then the write that forgets the posts fails."""
    posts = [BOB.text("default", str(number), at=START_MS - 9 + number) for number in range(3)]
    with opened(tmp_path) as store:
        store.ingest(raws(*posts))
        store.moderation.drop(users=[BOB.key])
    with opened(tmp_path) as store:
        store.moderation.sweep()  # the first opening after the first action removes all drops again
    with opened(tmp_path) as store:
        fail_write(store, StorageError, written=False, after=1)
        store.moderation.undrop(users=[BOB.key])
        assert None not in [store.moderation.dropped_post(post.hash) for post in posts]
    with opened(tmp_path) as store:
        store.moderation.sweep()
        assert [store.moderation.dropped_post(post.hash) for post in posts] == [None] * 3


@failures
def test_a_failed_read_mark_does_not_count_as_stored(
    store: CableStore, error: type[BaseException], written: bool
) -> None:
    with failing(store, error, written=written):
        store.mark_read("default")
    assert [channel.unread for channel in store.channels()] == [0 if written else 3]
    store.mark_read("default")
    store.ingest(raws(BOB.text("default", "late", at=START_MS - 20)))
    assert [channel.unread for channel in store.channels()] == [1]


@failures
def test_mentions_are_found_after_an_interrupted_search(
    store: CableStore, error: type[BaseException], written: bool
) -> None:
    store.set_name("Ann")
    store.ingest(raws(BOB.text("default", "for @Ann", at=START_MS + 1)))
    with failing(store, error, written=written):
        store.mentions()
    assert [message.text for message in store.mentions().messages] == ["for @Ann"]


@failures
def test_moderation_applies_to_a_new_identity_after_an_interruption(
    tmp_path: Path, error: type[BaseException], written: bool
) -> None:
    with opened(tmp_path / "own") as own:
        own.ingest(raws(BOB.text("default", "dropped", at=START_MS - 1)))
        acts = own.moderation.drop(users=[BOB.key]).posts + own.moderation.drop(channel="other").posts
        public = [post for post in acts if not post.is_local_only]
    with CableStore.open(tmp_path / "store", options=StoreOptions(clock=lambda: START_MS)) as store:
        store.ingest(raws(*public, BOB.text("other", "dropped", at=START_MS - 1)))
        with failing(store, error, written=written):
            store.import_identity(ANN.identity)
        store.ingest(raws(BOB.text("other", "dropped too", at=START_MS - 2)))
        store.moderation.sweep()
        assert not list(store.posts_by(BOB.key))
        before = list(store.moderation.in_force("other"))
        assert before
    with CableStore.open(tmp_path / "store", options=StoreOptions(clock=lambda: START_MS)) as store:
        assert store.moderation.in_force("other") == before
        with store.snapshot() as snapshot:
            assert snapshot.reader.local(DECIDED, b"") == ANN.key
        assert_whole(store)


INTERRUPTED_OFTEN = """
import random, signal, sys
from cablestore import CableStore

signal.signal(signal.SIGALRM, signal.default_int_handler)
rng = random.Random(sys.argv[2])
with CableStore.open(sys.argv[1]) as store:
    for _ in range(40):
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0005, 0.02))
            while True:
                store.post("default", "x")
        except KeyboardInterrupt:
            pass
    store.post("default", "last")
    report = store.check()
    assert report.is_clean, [str(problem) for problem in report.problems]
"""


def test_a_program_that_is_interrupted_often_loses_nothing(tmp_path: Path) -> None:
    done = interrupted(INTERRUPTED_OFTEN, tmp_path / "store", "often")
    assert done.returncode == 0, done.stderr
    with CableStore.open(tmp_path / "store") as store:
        assert_whole(store)
        assert store.messages("default").messages[0].text == "last"
