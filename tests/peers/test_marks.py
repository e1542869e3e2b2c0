"""Marks of peers are invalid as soon as the store may lack posts that they cover, and only then."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from by_hand import on_loop, on_standing_loop
from hypothesis import given, settings
from hypothesis import strategies as st
from peering import QUICK, memory, paired, run, until, visit
from people import ANN, BOB, START_MS, raws
from serving import HERE, Served, cablestore
from stores import scratch_folder

from cablestore import CableStore
from cablestore.backup import backup, restore
from cablestore.index.log_position import LogPosition
from cablestore.peers import Node
from cablestore.peers.mark_saver import MarkSaver
from cablestore.peers.sync_state import SyncMark, SyncState
from cablestore.store.closed import ClosedStore, locked_folder
from cablestore.store.options import system_clock_ms

POSTS = 100
FIRST = "generation-000001"
TEXTS = [ANN.text("default", f"{number}", at=START_MS + number) for number in range(POSTS)]


def damage(folder: Path) -> None:
    """Overwrite parts of the largest table."""
    table = max(folder.glob("generation-*/*.ldb"), key=lambda path: path.stat().st_size)
    data = bytearray(table.read_bytes())
    for at in range(len(data) // 10, len(data) // 2, 1_000):
        data[at : at + 32] = b"\xff" * 32
    table.write_bytes(data)


def rebuilt_with_losses(folder: Path, _: Path) -> None:
    damage(folder)
    assert ClosedStore(folder).rebuild().lost_posts


def older_database(folder: Path, earlier: Path) -> None:
    """Replace the database by an earlier state, as after a power failure that loses LevelDB's log."""
    shutil.rmtree(folder / FIRST)
    shutil.copytree(earlier / FIRST, folder / FIRST)


def recovered(folder: Path, earlier: Path) -> None:
    shutil.copytree(earlier / FIRST, folder / "generation-000002")
    (folder / "STORE").unlink()
    ClosedStore(folder).recover("generation-000002")


def restored(folder: Path, earlier: Path) -> None:
    """Restore a backup, and add the newer file of marks."""
    kept = (folder / "peers.json").read_bytes()
    backup(earlier, folder.with_name("backup"))
    shutil.rmtree(folder)
    restore(folder.with_name("backup"), folder)
    (folder / "peers.json").write_bytes(kept)


def older_folder(folder: Path, earlier: Path) -> None:
    """Copy an older folder over the newer one, and keep files that only the newer one has."""
    shutil.rmtree(folder / FIRST)
    shutil.copytree(earlier, folder, dirs_exist_ok=True)


def older_database_that_grew(folder: Path, earlier: Path) -> None:
    """Replace the database by an earlier state, and add other posts with the numbers of the lost entries."""
    older_database(folder, earlier)
    with CableStore.open(folder) as store:
        store.ingest(raws(*(BOB.text("default", f"{number}") for number in range(POSTS + 10))))


def discarded(folder: Path, _: Path) -> None:
    with CableStore.open(folder) as store:
        store.discard([post.hash for post in TEXTS[:40]])
        store.post("other", "after that")


def pruned(folder: Path, _: Path) -> None:
    with CableStore.open(folder) as store:
        assert store.prune(keep_newest=10)


LOSSES = [rebuilt_with_losses, older_database, recovered, restored, older_folder, older_database_that_grew, discarded]
LOSSES += [pruned]


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: str(lose.__name__))
def test_the_next_sync_fetches_lost_posts(tmp_path: Path, lose: Callable[[Path, Path], None]) -> None:
    folder, earlier = tmp_path / "store", tmp_path / "earlier"
    CableStore.open(folder, identity=BOB.identity).close()
    shutil.copytree(folder, earlier)
    source = memory("a", clock=system_clock_ms, posts=TEXTS)
    assert run(paired(folder, source, visit, is_complete=False)).posts == POSTS
    lose(folder, earlier)
    with CableStore.open(folder) as store:
        lost = sum(store.get(post.hash) is None for post in TEXTS)
    assert lost
    assert run(paired(folder, source, visit, is_complete=False)).posts == lost
    with CableStore.open(folder) as store:
        assert all(store.get(post.hash) for post in TEXTS)
        # An older database is reported until a rebuild, even after its posts were fetched again.
        assert all(problem.what.startswith("lost writes") for problem in store.check().problems)
    assert run(paired(folder, source, visit, is_complete=False)).received_size_bytes < 32 * POSTS
    source.close()


def goes_back(folder: Path) -> None:
    with locked_folder(folder) as opened:
        shutil.copytree(opened.database_path, folder.with_name("copy"))
        opened.activate(opened.adopt(folder.with_name("copy")), keep=True)
    ClosedStore(folder).roll_back(FIRST)
    ClosedStore(folder).roll_back("generation-000002")


def test_another_generation_causes_one_full_pass(tmp_path: Path) -> None:
    source, folder = memory("a", clock=system_clock_ms, posts=TEXTS), tmp_path / "store"
    run(paired(folder, source, visit))
    goes_back(folder)
    again = run(paired(folder, source, visit))
    assert again.posts == 0
    assert again.received_size_bytes > 32 * POSTS
    assert run(paired(folder, source, visit)).received_size_bytes < 32 * POSTS
    source.close()


@on_loop
async def test_a_pass_during_which_posts_are_lost_leaves_no_mark(tmp_path: Path) -> None:
    """The posts arrive before a rebuild, and the pass ends after it."""
    with CableStore.open(tmp_path) as store:
        async with Node(store, QUICK) as node:
            marks = await node.parts.context.current_marks()
            begun = marks.epoch
            store.ingest(raws(*TEXTS))
            await asyncio.to_thread(store.rebuild)
            assert (await node.parts.context.current_marks()).epoch != begun


@on_standing_loop
async def test_changed_marks_are_saved_when_a_pause_has_ended(tmp_path: Path) -> None:
    with CableStore.open(tmp_path) as store:
        async with Node(store, QUICK) as node:
            marks, loop = node.parts.context.marks, asyncio.get_running_loop()
            saver = MarkSaver(node.parts.context)

            def saved() -> SyncMark | None:
                return SyncState(tmp_path).get("peer", "default")

            marks.put("peer", "default", SyncMark(0, 1, 1))
            saver.check(loop.time())
            await until(lambda: saved() == SyncMark(0, 1, 1))
            marks.put("peer", "default", SyncMark(0, 2, 2))
            saver.check(loop.time() - 1)
            await asyncio.to_thread(lambda: None)
            assert saved() == SyncMark(0, 1, 1)

            def is_saved() -> bool:
                saver.check(loop.time())
                return saved() == SyncMark(0, 2, 2)

            await until(is_saved)


# --- any history -------------------------------------------------------------------------------

ACTS = ["write", "draft", "delete", "discard", "reopen", "rebuild", "copy", "go back", "mark"]


class History:
    """A store in a folder, and its posts at the time of a peer's mark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "store"
        self.copy = folder / "copy"
        self.number = 0
        self.covered: set[bytes] | None = None
        self.store = CableStore.open(self.folder)
        self.marks = SyncState(self.folder, self.store.sync)

    def hashes(self) -> set[bytes]:
        return {message.hash for message in self.store.messages("default").messages}

    async def follow(self) -> None:
        async def read(look: Any) -> Any:
            with self.store.snapshot() as state:
                return look(state.reader)

        await self.marks.follow(read)

    def reopen(self, between: Callable[[], object] = lambda: None) -> None:
        self.marks.save()
        self.store.close()
        between()
        self.store = CableStore.open(self.folder)
        self.marks = SyncState(self.folder, self.store.sync)

    def go_back(self) -> None:
        """Replace the database by the copied one. The file of marks is kept."""
        if self.copy.exists():
            marks = self.folder / "peers.json"
            kept = marks.read_bytes() if marks.exists() else None
            shutil.rmtree(self.folder)
            shutil.copytree(self.copy, self.folder)
            if kept is not None:
                marks.write_bytes(kept)

    def act(self, name: str) -> None:
        own = [message.hash for message in self.store.messages("default").messages]
        match name:
            case "write":
                self.store.post("default", f"{self.number}", sync=False)
            case "draft":
                self.store.local.set_draft("default", f"{self.number}")
            case "delete" if own:
                self.store.delete(own[0])
                self.covered = None if self.covered is None else self.covered - {own[0]}
            case "discard" if own:
                self.store.discard([own[0]])
            case "reopen":
                self.reopen()
            case "rebuild":
                self.store.rebuild()
            case "copy":
                shutil.rmtree(self.copy, ignore_errors=True)
                self.reopen(lambda: shutil.copytree(self.folder, self.copy))
            case "go back":
                self.reopen(self.go_back)
            case "mark":
                asyncio.run(self.follow())
                self.marks.put("peer", "default", SyncMark(0, 1, 1))
                self.covered = self.hashes()
        self.number += 1


@settings(deadline=None)
@given(st.lists(st.sampled_from(ACTS), max_size=14))
def test_a_mark_never_covers_a_missing_post(acts: list[str]) -> None:
    """The histories have writes, deletions, losses and restarts in any order."""
    with scratch_folder() as folder:
        history = History(folder)
        try:
            for act in acts:
                history.act(act)
                asyncio.run(history.follow())
                if history.marks.get("peer", "default") is not None:
                    assert history.covered is not None
                    assert history.covered <= history.hashes()
        finally:
            history.store.close()


@given(st.lists(st.sampled_from(["write", "draft", "delete", "reopen", "mark"]), max_size=14))
def test_a_mark_stays_while_nothing_is_lost(acts: list[str]) -> None:
    with scratch_folder() as folder:
        history = History(folder)
        try:
            for act in ["mark", *acts]:
                history.act(act)
                asyncio.run(history.follow())
                assert history.marks.get("peer", "default") is not None
        finally:
            history.store.close()


def test_a_position_is_read_as_it_was_written() -> None:
    with CableStore.in_memory() as store:
        for _ in range(2):
            assert LogPosition.read(store.parts.engine.place.fields()) == store.parts.engine.place
            with store.snapshot() as state:
                assert LogPosition.of(state.reader) == store.parts.engine.place
            store.post("default", "x")
    for malformed in ({}, None, {**store.parts.engine.place.fields(), "sequence": True, "entry": 1}):
        with pytest.raises((ValueError, TypeError, KeyError)):
            LogPosition.read(malformed)


# --- by commands -------------------------------------------------------------------------------


@pytest.mark.thorough("rebuild", "power failure")
@pytest.mark.parametrize("lose", [rebuilt_with_losses, older_database], ids=["rebuild", "power failure"])
def test_the_sync_command_fetches_lost_posts(
    tmp_path: Path, serving: Callable[..., Served], lose: Callable[[Path, Path], None]
) -> None:
    there, here, earlier = tmp_path / "there", tmp_path / "here", tmp_path / "earlier"
    with CableStore.open(there) as store:
        store.ingest(raws(*TEXTS))
    CableStore.open(here).close()
    shutil.copytree(here, earlier)
    address = serving(there, "--listen", HERE).address
    assert f"{POSTS} new posts" in cablestore("sync", address, store=here).stdout
    lose(here, earlier)
    assert " 0 new posts" not in f" {cablestore('sync', address, store=here).stdout}"
    with CableStore.open(here) as store:
        assert all(store.get(post.hash) for post in TEXTS)
    assert cablestore("sync", address, store=here).stdout.startswith("fetched 0 new posts")
