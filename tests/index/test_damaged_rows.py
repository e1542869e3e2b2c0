"""Damage to any kind of row: reads, writes, checks and rebuilds return the correct answer or a helpful error."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgpack
import pytest
from every_row import DAN, SMALL_TREES, kind_of, make, opened, put, rows_of
from people import ANN, BOB, CYD, START_MS, raws
from stores import scratch_folder

from cablestore import CableStore, CableStoreError
from cablestore.errors import CorruptStoreError
from cablestore.index.database import Row
from cablestore.store import ClosedStore, answers

Changes = dict[bytes, bytes | None]
LATER_MS = START_MS + 10**7
ADVICE = re.compile(r"`cablestore [a-z]+`|Set the seed again|Restore the store's identity|Fetch a new page")

KINDS = [
    "activity!channel",
    "activity!day",
    "acts!action",
    "acts!block",
    "acts!consent",
    "acts!role",
    "arrival!log",
    "arrival!next",
    "author",
    "channel!member",
    "channel!members",
    "channel!topic",
    "chat!deleted",
    "chat!target",
    "chat!text",
    "data",
    "head",
    "link",
    "local!act",
    "local!consent",
    "local!draft",
    "local!drop!channel",
    "local!drop!post",
    "local!drop!user",
    "local!dropped",
    "local!dropped-head",
    "local!dropped-link",
    "local!judged",
    "local!late",
    "local!mention",
    "local!mention-in",
    "local!mention-rules",
    "local!mention-search",
    "local!mentioning",
    "local!muted",
    "local!noted",
    "local!read",
    "local!refused",
    "local!rules",
    "local!seed",
    "local!swept",
    "local!touched",
    "local!undrop",
    "local!unseen",
    "local!value",
    "local!witnessed",
    "meta",
    "moderation!about",
    "moderation!block",
    "moderation!state",
    "private",
    "reverse",
    "sizes",
    "state!member",
    "state!topic",
    "sync!id",
    "sync!sum",
    "user!info",
    "user!latest!info",
]
FORMED = [
    "local!act",
    "local!consent",
    "local!drop!channel",
    "local!drop!post",
    "local!drop!user",
    "local!dropped",
    "local!dropped-head",
    "local!dropped-link",
    "local!late",
    "local!mention",
    "local!mention-in",
    "local!read",
    "local!seed",
    "local!touched",
    "local!witnessed",
]
"""Local rows whose damage a check reports if their format is invalid."""


def damages(row: Row) -> dict[str, Changes]:
    """Return the changes of each damage to a row."""
    key, value = row
    found: dict[str, Changes] = {
        "removed": {key: None},
        "longer": {key: value + b"\0"},
        "another type": {key: msgpack.packb([1, 2, 3])},
        "longer key": {key: None, key + b"!": value},
    }
    if value:
        found |= {
            "cut": {key: value[: len(value) // 2]},
            "first bit": {key: bytes((value[0] ^ 0x80,)) + value[1:]},
            "last bit": {key: value[:-1] + bytes((value[-1] ^ 1,))},
        }
    return found


COARSE = ("removed", "another type")

KEEP_THE_FORM = ("removed", "first bit", "last bit")
"""Damages after which a local row may be a valid one."""


def answered(store: CableStore) -> list[bytes]:
    with store.snapshot() as state:
        return [
            *answers.channel_time_range(state.reader, "default", 0, 0),
            *answers.moderation_state(state.reader, []),
        ]


def linkable(store: CableStore) -> tuple[bytes, ...]:
    return tuple(post.hash for person in (BOB, CYD) for post in store.posts_by(person.key))


READS: list[Callable[[CableStore], object]] = [
    lambda store: list(store.channels(with_reserved=True)),
    lambda store: [list(store.members(channel)) for channel in ("default", "eve", "other")],
    lambda store: [store.messages(channel, hidden="show").messages for channel in ("default", "eve")],
    lambda store: store.causal_messages("default", 0),
    lambda store: list(store.users()),
    lambda store: [list(store.posts_by(person.key)) for person in (ANN, BOB, CYD, DAN)],
    lambda store: (store.heads("default"), list(store.missing("default"))),
    lambda store: (list(store.events(timeout_s=0)), store.stats()),
    lambda store: (store.mentions().messages, store.read_state("default")),
    lambda store: (store.local.get("app", "key"), list(store.local.drafts()), list(store.local.muted())),
    lambda store: (store.moderation.in_force(), store.moderation.history(), store.moderation.seed),
    answered,
]
WRITES: list[Callable[[CableStore], object]] = [
    lambda store: store.ingest(raws(CYD.text("default", "new", at=START_MS + 9), CYD.leave("default", at=LATER_MS))),
    lambda store: store.ingest(raws(BOB.topic("default", "u", at=LATER_MS), BOB.named("b", at=LATER_MS))),
    lambda store: store.post("default", "mine"),
    lambda store: store.mark_read("default"),
    lambda store: store.find_mentions(),
    lambda store: store.ingest(raws(CYD.text("default", "reply", at=LATER_MS, links=linkable(store)))),
    lambda store: (store.moderation.drop(users=[CYD.key]), store.moderation.sweep()),
    lambda store: (store.moderation.undrop(users=[DAN.key]), store.moderation.sweep()),
    lambda store: store.ingest(raws(BOB.delete(*store.posts_by(BOB.key), at=LATER_MS + 1))),
    lambda store: store.prune(keep_newest=0),
]


@pytest.fixture(scope="module")
def whole() -> Iterator[tuple[Path, dict[str, list[Row]], list[object]]]:
    """Yield a closed store, its rows by kind, and the results of its reads."""
    with scratch_folder() as folder:
        make(folder / "whole")
        rows: dict[str, list[Row]] = {}
        for row in rows_of(folder / "whole").items():
            rows.setdefault(kind_of(row[0]), []).append(row)
        shutil.copytree(folder / "whole", folder / "read")
        with opened(folder / "read") as store:
            yield folder / "whole", rows, [read(store) for read in READS]


def test_the_damaged_rows_are_of_every_kind(whole: tuple[Path, dict[str, list[Row]], list[object]]) -> None:
    assert sorted(whole[1]) == sorted(KINDS)


def require_advice(error: CableStoreError) -> None:
    assert not isinstance(error, CorruptStoreError) or ADVICE.search(str(error)), str(error)


def attempt(path: Path, works: list[Callable[[CableStore], object]], expected: list[object] | None = None) -> bool:
    """Run all works. Return True if each has the expected result or raises an error with a remedy."""
    is_right = True
    try:
        with opened(path) as store:
            for number, work in enumerate(works):
                try:
                    found = work(store)
                    is_right = is_right and (expected is None or found == expected[number])
                except CableStoreError as error:
                    require_advice(error)
    except CableStoreError as error:
        require_advice(error)
    return is_right


def is_clean(path: Path) -> bool:
    try:
        return ClosedStore(path, identity=ANN.identity, catalog=SMALL_TREES).check().is_clean
    except CableStoreError as error:
        require_advice(error)
        return False


@pytest.mark.parametrize("damage", ["another type", "longer key", "longer", "cut"])
def test_damage_of_all_formed_local_rows_at_once_is_reported_and_omitted(
    damage: str, whole: tuple[Path, dict[str, list[Row]], list[object]]
) -> None:
    path, rows, _ = whole
    changes: dict[str, Changes] = {}
    for kind in FORMED:
        found = damages(rows[kind][0])
        changes[kind] = found.get(damage, found["another type"])
    with scratch_folder() as folder:
        shutil.copytree(path, folder / "store")
        for each in changes.values():
            put(folder / "store", each)
        closed = ClosedStore(folder / "store", identity=ANN.identity, catalog=SMALL_TREES)
        reported = {problem.key for problem in closed.check().problems}
        wrong = {kind: {key for key, value in each.items() if value is not None} for kind, each in changes.items()}
        assert {kind for kind, keys in wrong.items() if not keys <= reported} == set()
        lost = closed.rebuild().damaged
        assert all(lost[f"local rows: {kind.split('!')[1]}"] >= 1 for kind in FORMED)
        assert not set().union(*wrong.values()) & rows_of(folder / "store").keys()
        assert closed.check().is_clean


@pytest.mark.thorough(*(f"{kind}-subtle" for kind in KINDS))
@pytest.mark.parametrize("is_coarse", [True, False], ids=["coarse", "subtle"])
@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_reported_and_repaired(
    kind: str, is_coarse: bool, whole: tuple[Path, dict[str, list[Row]], list[object]]
) -> None:
    path, rows, expected = whole
    every = damages(rows[kind][0])
    for name, changes in ((name, every[name]) for name in every if (name in COARSE) is is_coarse):
        with scratch_folder() as folder:
            for copy in ("read", "written", "rebuilt"):
                shutil.copytree(path, folder / copy)
                put(folder / copy, changes)
            is_reported = not is_clean(folder / "read")
            if kind in FORMED and name not in KEEP_THE_FORM:
                assert is_reported, name
            if not kind.startswith(("local!", "arrival!")):
                assert is_reported, name
            attempt(folder / "written", WRITES)
            is_right = attempt(folder / "read", READS, expected)
            assert is_right or is_reported or kind.startswith(("local!", "arrival!")), name
            ClosedStore(folder / "rebuilt", identity=ANN.identity, catalog=SMALL_TREES).rebuild()
            with opened(folder / "rebuilt") as store:
                report = store.check()
                assert report.is_clean, (name, [str(problem) for problem in report.problems])
                for read in READS:
                    read(store)
