"""A small store with a row of every kind, its rows as a dict, and damage to single rows."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgpack
from people import ANN, BOB, CYD, START_MS, Person, raws
from stores import database_of

from cablestore import Block, CableStore, Info, Moderation, Role, StoreOptions
from cablestore.index.leveldb import LevelDB
from cablestore.index.view import Catalog
from cablestore.moderation import Action, Seed, UserRole
from cablestore.views import CATALOG
from cablestore.views.sync import TREE

DAN, EVE = Person("dan"), Person("eve")
NOW_MS = START_MS + 10**9
SMALL_TREES = Catalog(
    tuple(replace(view, tree=replace(TREE, leaf_rows=2)) if view.tree is TREE else view for view in CATALOG.views)
)
"""The catalog, with rows of sums for every third post."""


def opened(path: Path) -> CableStore:
    """Open the store as its user."""
    return CableStore.open(
        path, identity=ANN.identity, options=StoreOptions(catalog=SMALL_TREES, clock=lambda: NOW_MS, verify_threads=1)
    )


def make(path: Path) -> None:
    """Create the store."""
    times = iter(range(START_MS, START_MS + 10**6, 1000))
    with opened(path) as store:
        first = BOB.text("default", "first", at=next(times))
        gone = BOB.text("default", "gone", at=next(times), links=(first.hash,))
        last = CYD.text("default", "hi ann", at=next(times), links=(gone.hash,))
        missing = ANN.text("default", "missing", at=next(times))
        branch = BOB.text("default", "branch", at=next(times), links=(missing.hash,))
        store.ingest(raws(ANN.post(Info.of(name="ann"), at=START_MS - 1), ANN.join("default", at=START_MS - 9)))
        store.ingest(raws(BOB.named("bob", at=next(times)), BOB.leave("other", at=next(times))))
        store.ingest(raws(CYD.topic("default", "t", at=next(times)), first, gone, last, branch))
        store.ingest(raws(*(CYD.text("default", f"{n}", at=next(times)) for n in range(6))))
        store.ingest(raws(BOB.delete(gone, missing, at=next(times))))
        spare = [CYD.text("spare", f"{n}", at=next(times)) for n in range(2)]
        store.ingest(raws(*spare))
        store.discard([spare[0].hash])
        store.find_mentions()
        store.mark_read("default")
        store.ingest(raws(BOB.text("default", "late", at=START_MS + 1)))
        store.local.put("app", "key", b"value")
        store.local.set_draft("default", "draft")
        store.local.mute("spare")
        store.moderation.join_with_seed(Seed(((CYD.key, UserRole.MOD),), 100).write())
        role = Role("", 0, "", BOB.key, UserRole.MOD.in_post)
        store.ingest(raws(ANN.post(role, at=next(times))))
        # Dan's post/info, action and text are removed and remembered.
        dans = [
            DAN.post(Info.of(name="dan", accept_role=False), at=next(times)),
            DAN.post(Moderation("reason", 0, "default", (first.hash,), Action.HIDE_POST), at=next(times)),
            DAN.text("default", "dan", at=next(times), links=(first.hash,)),
        ]
        eves = [EVE.text("eve", "kept", at=next(times)), EVE.text("eve", "x", at=next(times))]
        store.ingest(raws(*dans, *eves))
        store.moderation.hide(users=[EVE.key], channel="eve")
        store.moderation.block([EVE.key])
        store.moderation.drop(users=[DAN.key], private=True)
        store.moderation.drop(channel="gone")
        store.moderation.drop(posts=[eves[1].hash])
        store.moderation.sweep()
        store.ingest(raws(DAN.text("default", "rejected", at=next(times))))
        store.ingest(raws(ANN.post(Block("", 0, (Person("fay").key,), 0, 0), at=next(times))))
    with opened(path) as store:  # determines the drops again, and records them by user
        assert store.check().is_clean
    put(path, UNFINISHED)


UNFINISHED: dict[bytes, bytes | None] = {
    b"!local!unseen!": b"5",
    b"!local!undrop!": b"0" * 64,
    b"!local!mention-search!": msgpack.packb([b"", b"", b"", b""]),
}
"""Rows of unfinished work: it continues when the store is opened or mentions are read."""


def put(path: Path, changes: dict[bytes, bytes | None]) -> None:
    """Write rows to the database of a closed store."""
    with closing(LevelDB(database_of(path))) as database:
        database.write(changes, sync=False)


def rows_of(path: Path) -> dict[bytes, bytes]:
    """Return all rows of a closed store."""
    with closing(LevelDB(database_of(path))) as database, database.snapshot() as state:
        return dict(state.scan(b"", b"\xff"))


def kind_of(key: bytes) -> str:
    """Return the beginning of a key that identifies the kind of its row."""
    prefix, _ = SMALL_TREES.range_of(key)
    if not prefix:
        parts = 4 if key.startswith(b"!local!drop!") else 3
        prefix = b"!".join(key.split(b"!")[:parts])
    return prefix.decode().strip("!")
