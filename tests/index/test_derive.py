"""The rows that are derived at once, in any pieces, equal those of storing posts one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from history import histories
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import engine_of
from people import ANN, BOB
from stores import scratch_folder, store_of

from cablestore import LEGACY, CableStoreError, Delete, Dialect, Post
from cablestore.index.batches import batches
from cablestore.index.check import CheckReport, check
from cablestore.index.database import Row
from cablestore.index.derive import Derivation, combine
from cablestore.index.header import FORMAT
from cablestore.index.memory import MemoryDB
from cablestore.index.meta import META_KEY, meta_row
from cablestore.index.reader import Reader, data_key, tombstone_key
from cablestore.index.rebuild import rebuild
from cablestore.index.runs import Sorter, choose_boundaries, into_buckets
from cablestore.views import CATALOG


@contextmanager
def small_runs(run_size_bytes: int, bucket_size_bytes: int, most: int) -> Iterator[None]:
    """Reduce the sizes, so that a history of a few posts needs several runs and buckets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sorter, "run_size_bytes", run_size_bytes)
        patch.setattr(Sorter, "bucket_size_bytes", bucket_size_bytes)
        for module in (rebuild, check):
            patch.setattr(f"{module.__module__}.batches", partial(batches, most=most))
        yield


run_sizes = st.tuples(st.sampled_from((1, 700, 3000)), st.sampled_from((150, 1000, 10_000)), st.integers(1, 9))


# --- in pieces, in one process ---------------------------------------------------------------------


@pytest.mark.thorough
@settings(max_examples=settings().max_examples // 2)
@given(histories(), run_sizes)
def test_a_database_that_is_rebuilt_in_pieces_equals_the_original(
    history: tuple[Dialect, list[Post]], sizes: tuple[int, int, int]
) -> None:
    dialect, posts = history
    with store_of(dialect, posts) as store, scratch_folder() as scratch, small_runs(*sizes):
        target = MemoryDB()
        reader = engine_of(store).reading()
        report = rebuild(reader, target, CATALOG, meta_row(CATALOG, dialect, FORMAT), scratch, lambda _: None)
        assert not report.damaged
        assert report.posts == sum(store.stats().posts.values())
        with target.snapshot() as rebuilt:
            assert list(rebuilt.scan(b"", b"\xff")) == list(reader.scan(b"", b"\xff"))
            found = check(reader.over(rebuilt), CATALOG, scratch)
        assert found.is_clean, [str(problem) for problem in found.problems]
        assert found.posts == report.posts
        assert found.rows == len(list(store.dump()))


@pytest.mark.parametrize("bucket_size_bytes", [1, 1_000, 10**9])
def test_a_few_posts_are_rebuilt_and_checked_in_pieces(bucket_size_bytes: int) -> None:
    """A fixed small case of the tests with any history, with a tombstone whose target is unknown at each end."""
    people = (ANN, BOB)
    posts = [people[number % 2].text(f"room {number % 3}", f"{number}") for number in range(12)]
    posts += [ANN.topic("room 0", "t"), BOB.named("bob"), ANN.delete(posts[0], posts[2]), BOB.leave("room 1")]
    posts += [ANN.post(Delete((bytes(32), b"\xff" * 32)))]
    with store_of(LEGACY, posts) as store, scratch_folder() as scratch, small_runs(1, bucket_size_bytes, 4):
        target = MemoryDB()
        reader = engine_of(store).reading()
        report = rebuild(reader, target, CATALOG, meta_row(CATALOG, LEGACY, FORMAT), scratch, lambda _: None)
        assert (report.posts, report.tombstones, report.damaged) == (len(posts) - 2, 4, {})
        assert len(list(scratch.iterdir())) > 3
        with target.snapshot() as rebuilt:
            assert list(rebuilt.scan(b"", b"\xff")) == list(reader.scan(b"", b"\xff"))
            found = check(reader.over(rebuilt), CATALOG, scratch)
        assert found.is_clean, [str(problem) for problem in found.problems]
        assert (found.posts, found.tombstones, found.rows) == (len(posts) - 2, 4, len(list(store.dump())))


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("has_deletion", [True, False])
def test_a_rebuild_restores_a_lost_tombstone_from_its_deletion(number: int, has_deletion: bool) -> None:
    """The target is then unknown, so that its deletion does not count as confirmed. The other deletion is intact."""
    posts = [ANN.text("default", "one"), ANN.text("default", "two")]
    deletions = [ANN.delete(post) for post in posts]
    database, target = MemoryDB(), MemoryDB()
    with store_of(LEGACY, [*posts, *deletions]) as store:
        database.write(dict(engine_of(store).reading().scan(b"", b"\xff")), sync=False)
    lost: dict[bytes, bytes | None] = {tombstone_key(posts[number].hash_hex, posts[number].author_hex): None}
    if not has_deletion:
        lost[data_key(deletions[number].hash_hex)] = None
    database.write(lost, sync=False)
    rebuild(Reader(database.live(), LEGACY), target, CATALOG, meta_row(CATALOG, LEGACY, FORMAT), None, lambda _: None)
    reader = Reader(target.live(), LEGACY)
    found = check(reader, CATALOG, None)
    assert found.is_clean, [str(problem) for problem in found.problems]
    others = [each != number for each in (0, 1)]
    assert [reader.tombstone(post.hash, ANN.key) is not None for post in posts] == [
        each or has_deletion for each in others
    ]
    assert [reader.is_buried(post.hash_hex, ANN.key) for post in posts] == others
    assert [reader.is_deletion_confirmed(post.hash) for post in posts] == others


@dataclass(frozen=True)
class Damage:
    """Damage to one row, chosen by number. With `copied`, a copy beside it is damaged."""

    row: int
    value: bytes | None
    copied: bool


damages = st.lists(
    st.builds(
        Damage,
        row=st.integers(0, 10_000),
        value=st.sampled_from((None, None, b"", b"x", b"\x01", bytes(32), b"\x91\x01", b"\xff" * 50)),
        copied=st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


def damaged(rows: dict[bytes, bytes], damage: Damage) -> dict[bytes, bytes | None]:
    """Return the changes of a damage."""
    keys = [key for key in rows if key != META_KEY and not key.startswith(b"!arrival!")]
    key = keys[damage.row % len(keys)]
    if damage.copied:
        beside = key[:-1] + bytes([key[-1] ^ 1])
        return {beside: rows[key] if damage.value is None else damage.value}
    return {key: damage.value}


def problems(reader: Reader, scratch: Path | None) -> tuple[int, list[str]] | str:
    """Return the problems that a check finds, in any order."""
    try:
        report: CheckReport = check(reader, CATALOG, scratch)
    except CableStoreError as error:
        return type(error).__name__
    assert report.is_clean == (report.problem_count == 0)
    return report.problem_count, sorted(map(str, report.problems))


@pytest.mark.thorough
@settings(max_examples=settings().max_examples // 2)
@given(histories(), run_sizes, damages)
def test_a_check_finds_the_same_with_and_without_runs(
    history: tuple[Dialect, list[Post]], sizes: tuple[int, int, int], damage: list[Damage]
) -> None:
    dialect, posts = history
    with store_of(dialect, posts) as store:
        reader = engine_of(store).reading()
        rows = dict(reader.scan(b"", b"\xff"))
        if len(rows) < 4:
            return
        database = MemoryDB()
        changed: dict[bytes, bytes | None] = {}
        for each in damage:
            changed |= damaged(rows, each)
        database.write(rows, sync=False)
        database.write(changed, sync=False)
        is_changed = any(rows.get(key) != value for key, value in changed.items())
        with database.snapshot() as state, scratch_folder() as scratch:
            at_once = problems(reader.over(state), None)
            with small_runs(*sizes):
                assert problems(reader.over(state), scratch) == at_once
    assert is_changed or at_once == (0, [])
    if is_changed and not any(
        key.startswith((b"!data!", b"!private!", b"!chat!deleted!", b"!local!")) for key in changed
    ):
        # Rows that are derived from posts and tombstones can only be wrong. These two, and local rows, may be valid.
        assert at_once != (0, [])


def test_the_number_of_boundaries_is_at_most_the_number_of_keys() -> None:
    """A peer may delete hashes of its choice, all of them small. The estimate must not be a billion buckets."""
    sample = [(b"%04d" % number, b"x" * 100) for number in range(500)]
    assert len(choose_boundaries(sample, 2 * 10**9)) <= len(sample)
    assert choose_boundaries([], 9) == []
    assert choose_boundaries([], 9, [b"b", b"a"]) == [b"a", b"b"]
    assert choose_boundaries([(b"", b"")], 9) == []
    even = choose_boundaries(sample, 5)
    assert len(even) == 4
    assert [len(part) for part in into_buckets(sample, even)] == [99, 100, 100, 100, 101]


def test_pieces_of_any_size_combine_to_the_same_rows() -> None:
    posts = sorted(
        (ANN.join("a"), ANN.leave("a"), BOB.join("a"), ANN.topic("a", "x"), ANN.named("ann")), key=lambda p: p.hash
    )

    def pieces_of(some: Sequence[Post]) -> list[Row]:
        derivation = Derivation(CATALOG)
        for post in some:
            derivation.post(post)
        return derivation.take()

    expected = combine(pieces_of(posts), CATALOG)
    for at in range(len(posts)):
        assert combine(sorted([*pieces_of(posts[at:]), *pieces_of(posts[:at])]), CATALOG) == expected
