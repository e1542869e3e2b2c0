"""A check finds every fault in the database, and a rebuild repairs it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgpack
import pytest
from people import ANN, BOB, raws

from cablestore import CableStore, CableStoreError
from cablestore.errors import CorruptStoreError
from cablestore.index.check import MAX_PROBLEMS_LISTED, CheckReport
from cablestore.index.database import Row
from cablestore.index.leveldb import LevelDB
from cablestore.index.notes import touched_keys
from cablestore.store import ClosedStore


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Yield a closed store with a row of every kind."""
    with CableStore.open(tmp_path) as store:
        first = ANN.text("default", "first")
        gone = BOB.text("default", "gone", links=(first.hash,))
        last = ANN.text("default", "last", links=(gone.hash,))
        missing = ANN.text("default", "missing")
        branch = BOB.text("default", "branch", links=(missing.hash,))
        posts = [ANN.named("ann"), ANN.join("default"), ANN.topic("default", "t"), first, gone, last, branch]
        store.ingest(raws(*posts, BOB.delete(gone, missing)))
        assert store.check().is_clean
        whole = store.dump_digest()
    yield tmp_path
    ClosedStore(tmp_path).rebuild()
    with CableStore.open(tmp_path) as store:
        report = store.check()
        assert report.is_clean, [str(problem) for problem in report.problems]
        assert (store.dump_digest() == whole) or (tmp_path / "other").exists()


def rows(folder: Path) -> list[Row]:
    database = LevelDB(next(folder.glob("generation-*")))
    with database.snapshot() as state:
        found = list(state.scan(b"", b"\xff"))
    database.close()
    return found


def change(folder: Path, **changes: bytes | None) -> None:
    database = LevelDB(folder / "generation-000001")
    database.write({key.encode("latin-1"): value for key, value in changes.items()}, sync=True)
    database.close()


def problems(folder: Path) -> list[str]:
    with CableStore.open(folder) as store:
        report = store.check()
        assert report.is_clean == (report.problem_count == 0)
        assert report.problem_count >= len(report.problems)
        return [str(problem) for problem in report.problems]


PREFIXES = [
    "!chat!text!", "!chat!deleted!", "!state!member!", "!state!topic!", "!channel!member!", "!channel!topic!",
    "!author!", "!user!info!", "!user!latest!info!", "!link!", "!head!", "!reverse!", "!activity!day!",
    "!activity!channel!", "!sizes",
]  # fmt: skip


@pytest.mark.parametrize("prefix", PREFIXES[:-1])
def test_every_dangling_row_is_found(folder: Path, prefix: str) -> None:
    key, value = next((k, v) for k, v in rows(folder) if k.startswith(prefix.encode()))
    digits = "0" if prefix.startswith("!activity") else "f"
    dangling = key[:-8] + digits.encode() * 8 if len(key) > len(prefix) + 12 else key + b"x"
    if prefix == "!activity!day!":
        dangling = b"!activity!day!000000001"
    if prefix == "!chat!deleted!":
        (folder / "other").touch()
    change(folder, **{dangling.decode("latin-1"): value})
    assert problems(folder)


def test_a_lost_post_leaves_dangling_rows(folder: Path) -> None:
    key = next(k for k, v in rows(folder) if k.startswith(b"!data!") and v.endswith(b"last"))
    change(folder, **{key.decode(): None})
    (folder / "other").touch()
    said = problems(folder)
    assert any("author: a dangling row" in problem for problem in said)
    assert any("messages: a dangling row" in problem for problem in said)


def test_the_bytes_of_another_post_are_found(folder: Path) -> None:
    key = next(k for k, _ in rows(folder) if k.startswith(b"!data!"))
    change(folder, **{key.decode(): ANN.text("default", "something else").raw})
    (folder / "other").touch()
    assert any("whose bytes do not match its hash" in problem for problem in problems(folder))
    report = ClosedStore(folder).rebuild()
    assert (report.lost_posts, report.damaged) == (1, {"post whose bytes do not match its hash": 1})


def test_a_deletion_remains_in_effect_if_its_post_is_damaged(folder: Path) -> None:
    stones = [value for key, value in rows(folder) if key.startswith(b"!chat!deleted!")]
    deleted_by: bytes = msgpack.unpackb(stones[0])[1]
    change(folder, **{f"!data!{deleted_by.hex()}": b"garbage"})
    (folder / "other").touch()
    assert any("a damaged row (the post is truncated" in problem for problem in problems(folder))
    assert ClosedStore(folder).rebuild().tombstones == len(stones)


def test_the_bytes_of_an_invalid_post_are_found(folder: Path) -> None:
    key = next(k for k, _ in rows(folder) if k.startswith(b"!data!"))
    change(folder, **{key.decode(): b"garbage"})
    (folder / "other").touch()
    assert any("a damaged row (the post is truncated" in problem for problem in problems(folder))
    report = ClosedStore(folder).rebuild()
    [(reason, number)] = report.damaged.items()
    assert (report.lost_posts, number, "does not decode" in reason) == (1, 1, True)


def test_a_row_of_an_unknown_view_is_found(folder: Path) -> None:
    change(folder, **{"!nobody!knows": b"x"})
    assert any("does not belong to a view" in problem for problem in problems(folder))


def test_a_restored_deleted_post_is_found(folder: Path) -> None:
    post = BOB.text("default", "zombie")
    with CableStore.open(folder) as store:
        store.ingest(raws(BOB.delete(post)))
        store.ingest(raws(post))
    (folder / "other").touch()
    change(folder, **{f"!data!{post.hash.hex()}": post.raw})
    assert any("a post that its author deleted" in problem for problem in problems(folder))


def test_a_reused_next_number_of_the_arrival_log_is_found(folder: Path) -> None:
    change(folder, **{"!arrival!next": b"2"})
    (folder / "other").touch()
    assert any("a stored next number that an entry already has" in problem for problem in problems(folder))


def test_a_duplicate_number_in_the_arrival_log_is_found(folder: Path) -> None:
    key, value = next(row for row in rows(folder) if row[0].startswith(b"!arrival!log!"))
    change(folder, **{key.decode(): value * 2})
    change(folder, **{key.decode()[:-1] + "2": value})
    (folder / "other").touch()
    assert any("a number that occurs twice" in problem for problem in problems(folder))


def test_all_problems_are_counted_and_at_most_a_hundred_are_reported(tmp_path: Path) -> None:
    with CableStore.open(tmp_path) as store:
        store.ingest(raws(*(ANN.text("default", str(i)) for i in range(500))), verify=False)
    lost = [key for key, _ in rows(tmp_path) if key.startswith((b"!author!", b"!chat!text!"))]
    change(tmp_path, **{key.decode("latin-1"): None for key in lost})
    with CableStore.open(tmp_path) as store:
        report = store.check()
        assert report.problem_count >= 1000
        assert len(report.problems) == 100


def test_bad_signatures_are_found_on_request(tmp_path: Path) -> None:
    forged = ANN.text("default", "x").raw[:-1] + b"y"
    with CableStore.open(tmp_path) as store:
        store.ingest([forged], verify=False)
        assert store.check().is_clean
        assert [str(p).split(":")[1] for p in store.check(signatures=True).problems] == [" a post with a bad signature"]


def test_a_check_reports_its_progress(store: CableStore) -> None:
    store.ingest(raws(*(ANN.text("default", str(i)) for i in range(20))))
    steps: list[int] = []
    report = store.check(progress=steps.append)
    assert sum(steps) == report.posts == 20
    assert report.rows == len(list(store.dump()))


READS: list[Callable[[CableStore], object]] = [
    lambda store: [list(store.members(channel.name)) for channel in store.channels()],
    lambda store: store.messages("default"),
    lambda store: store.causal_messages("default", 0),
    lambda store: store.topic("default"),
    lambda store: list(store.users()),
    lambda store: [list(store.posts_by(author)) for author in (ANN.key, BOB.key)],
    lambda store: (store.heads("default"), list(store.missing("default"))),
    lambda store: list(store.events(timeout_s=0)),
    lambda store: store.stats(),
    lambda store: store.post("default", "x"),
    lambda store: store.ingest(raws(ANN.delete(*store.posts_by(ANN.key)))),
    lambda store: store.prune(keep_newest=0),
]


LOG_ENTRY = b"\x01" + bytes(32)
TOMBSTONE = msgpack.packb([1, bytes(32), None])
SIZES: list[object] = [{"data": 5}, {"data": [1]}, {"data": ["1", 2]}, {5: [1, 2]}, []]
METAS: list[object] = [
    [],
    {},
    {"format": 1, "views": {}},
    {"dialect": 5, "views": {}},
    {"format": 1, "dialect": "legacy", "views": []},
]
DAMAGE = [
    *(("!arrival!next", value) for value in (b"x", b"", b"0", b"-5", b"9" * 5000)),
    ("!arrival!log!x", LOG_ENTRY),
    ("!arrival!log!" + "9" * 5000, LOG_ENTRY),
    *(("!sizes", msgpack.packb(sizes)) for sizes in SIZES),
    *(("!meta", msgpack.packb(meta)) for meta in METAS),
    *((f"!chat!deleted!{key}", TOMBSTONE) for key in ("zz!yy", "", "ab!cd", "0" * 64 + "!")),
    *((f"!data!{key}", b"x") for key in ("zz", "", "0g")),
    ("!local!unseen!", b"x"),
    ("!local!refused!", b"x"),
]
"""Damaged rows, while every post is valid: key, and value."""


@pytest.mark.parametrize(("key", "value"), DAMAGE, ids=lambda part: repr(part)[:30])
def test_damage_beside_valid_posts_is_reported(folder: Path, key: str, value: bytes) -> None:
    change(folder, **{key: value})
    with contextlib.suppress(CorruptStoreError):
        assert not ClosedStore(folder).check().is_clean or key.startswith("!local!")
    (folder / "other").touch()
    for read in (*READS, CableStore.check):
        with contextlib.suppress(CableStoreError), CableStore.open(folder) as store:
            read(store)


@pytest.mark.parametrize(("key", "value"), DAMAGE, ids=lambda part: repr(part)[:30])
def test_a_rebuild_repairs_damage_beside_valid_posts(folder: Path, key: str, value: bytes) -> None:
    before = dict(rows(folder))[b"!arrival!next"]
    change(folder, **{key: value})
    assert ClosedStore(folder).rebuild().lost_posts == 0 or key.startswith("!data!")
    assert dict(rows(folder))[b"!arrival!next"] == before


def test_a_rebuild_without_an_arrival_log_counts_no_arrivals(folder: Path) -> None:
    change(folder, **{key.decode(): None for key, _ in rows(folder) if key.startswith(b"!arrival!log!")})
    change(folder, **{"!arrival!next": b"x"})
    assert ClosedStore(folder).rebuild().arrivals == 0


def test_a_damaged_row_of_changes_by_discarded_posts_is_reported(folder: Path) -> None:
    change(folder, **{"!local!touched!x": msgpack.packb([b"x"])})
    with CableStore.open(folder) as store, store.snapshot() as snapshot, pytest.raises(CorruptStoreError):
        list(touched_keys(snapshot.reader, 0, 1))


@pytest.mark.parametrize(("first", "second"), [(0, 0), (99, 0), (99, 1), (99, 2), (100, 5), (0, 101), (60, 60)])
def test_reports_of_two_ranges_add_up(first: int, second: int) -> None:
    def report(start: int, count: int) -> CheckReport:
        found = CheckReport(posts=1, tombstones=2, rows=3, sizes={"view": (4, 5)}, balance=count)
        for number in range(start, start + count):
            found.note_problem("extra", "view", b"%d" % number)
        return found

    total = report(0, first)
    total.add(report(first, second))
    assert (total.posts, total.tombstones, total.rows, total.balance) == (2, 4, 6, first + second)
    assert total.sizes == {"view": (8, 10)}
    assert total.problem_count == first + second
    assert [each.key for each in total.problems] == [b"%d" % n for n in range(min(first + second, MAX_PROBLEMS_LISTED))]
