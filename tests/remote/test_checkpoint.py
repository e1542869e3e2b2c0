"""Checkpoints: complete copies of the present state of an open store, by links, at any moment."""

from __future__ import annotations

import errno
import random
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from backing_up import rows_of
from people import ANN, raws
from remote_stores import owner_of
from stores import database_of
from waiting import LIMIT_S

import cablestore
from cablestore import CableStore, StoreOptions
from cablestore.backup import backup, restore
from cablestore.errors import ArgumentError, StoreClosedError
from cablestore.remote.checkpoint import checkpoint
from cablestore.sds import causal_log
from cablestore.store import ClosedStore, Tuning

OPTIONS = StoreOptions(tuning=Tuning(write_buffer_size_bytes=65_536), verify_threads=1)
"""With a small buffer, LevelDB often writes, merges and removes tables."""


def checkpoints_in(path: Path) -> list[Path]:
    return list(path.glob("checkpoint-*"))


def texts_in(store: CableStore) -> list[str]:
    return [message.text for message in store.messages("default", 1000, newest_first=False).messages]


@pytest.mark.parametrize("has_links", [True, False])
def test_a_checkpoint_has_the_present_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_links: bool
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if not has_links:
        monkeypatch.setattr(Path, "hardlink_to", refuse)
    with CableStore.open(tmp_path / "store") as store:
        store.post("default", "before")
        store.local.set_draft("default", "draft")
        before = rows_of(store)
        with checkpoint(store) as copy:
            store.post("default", "after")
            assert rows_of(copy) == before
            with CableStore.open(copy, create=False) as opened:
                assert opened.identity == store.identity
                assert texts_in(opened) == ["before"]
                opened.post("default", "only in the copy")
            assert ClosedStore(copy).check(signatures=True).is_clean
        assert texts_in(store) == ["before", "after"]
        assert checkpoints_in(tmp_path / "store") == []
        assert store.check(signatures=True).is_clean
    with CableStore.open(tmp_path / "store", create=False) as store:
        assert texts_in(store) == ["before", "after"]


def test_tables_that_are_just_written_are_not_overwritten_through_a_link(tmp_path: Path) -> None:
    """LevelDB writes a table before it lists it. A checkpoint lacks it in its list, and may use its number again."""
    with CableStore.open(tmp_path / "store") as store:
        store.ingest(raws(*(ANN.text("default", f"{number}") for number in range(100))), verify=False)
        database = database_of(tmp_path / "store")
        newest = max(int(path.name.removeprefix("MANIFEST-")) for path in database.glob("MANIFEST-*"))
        written = [database / f"{number:06d}.ldb" for number in range(newest + 1, newest + 30)]
        written = [table for table in written if not table.exists()]
        for table in written:
            table.write_bytes(b"a table")
        with checkpoint(store) as copy:
            ClosedStore(copy).check()
            with CableStore.open(copy, create=False) as opened:
                opened.compact()
                assert len(texts_in(opened)) == 100
        assert {table.read_bytes() for table in written} == {b"a table"}


@pytest.mark.thorough
@pytest.mark.parametrize("has_links", [True, False])
def test_checkpoints_during_writes_and_merges_are_consistent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_links: bool
) -> None:
    """Every checkpoint has exactly the first posts, in the order in which they were stored."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if not has_links:
        monkeypatch.setattr(Path, "hardlink_to", refuse)
    rng = random.Random("checkpoints")
    posts = [ANN.text("default", f"{number} {rng.randbytes(300).hex()}") for number in range(3_000)]
    failed: list[BaseException] = []
    with CableStore.open(tmp_path / "store", options=OPTIONS) as store:

        def write() -> None:
            try:
                for start in range(0, len(posts), 20):
                    store.ingest(raws(*posts[start : start + 20]), verify=False)
                    if start % 500 == 0:
                        store.compact()
            except BaseException as error:  # noqa: BLE001 - raised in the test
                failed.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        counts = []
        while thread.is_alive():
            before = store.last_sequence
            with checkpoint(store) as copy:
                after = store.last_sequence
                with CableStore.open(copy, create=False) as opened:
                    counts.append(opened.last_sequence)
                    assert before <= opened.last_sequence <= after
                    held = {event.hash for event in opened.events(timeout_s=0)}
                    assert held == {post.hash for post in posts[: opened.last_sequence]}
                    assert opened.check().is_clean
        thread.join()
    assert failed == []
    assert len(set(counts)) > 2
    assert counts == sorted(counts)


@pytest.mark.thorough
def test_another_process_reads_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with owner_of(path), cablestore.connect(path) as store:
        store.post("default", "one")
        digest = store.dump_digest()
        with checkpoint(store) as copy, CableStore.open(copy, create=False) as opened:
            assert opened.dump_digest() == digest
            assert opened.identity.public_key == store.public_key
            store.post("default", "two")
        assert checkpoints_in(path) == []


HOLDING = """
import sys, cablestore
from cablestore.remote.checkpoint import checkpoint
with cablestore.connect(sys.argv[1]) as store, checkpoint(store) as copy:
    print(copy, flush=True)
    sys.stdin.read()
"""


@pytest.mark.thorough
def test_a_killed_process_leaves_a_checkpoint_that_the_next_one_removes(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with CableStore.open(path) as store:
        store.post("default", "one")
    with owner_of(path):
        command = [sys.executable, "-c", HOLDING, str(path)]
        holders = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
        ]
        copies = [Path(holder.stdout.readline().strip()) for holder in holders if holder.stdout is not None]
        holders[0].kill()
        assert holders[0].wait(LIMIT_S) == -signal.SIGKILL
        with cablestore.connect(path) as store, checkpoint(store):
            assert not copies[0].exists()
            assert copies[1].exists(), "another process uses it"
        holders[1].kill()
        holders[1].wait(LIMIT_S)
        for holder in holders:
            holder.communicate()
    assert checkpoints_in(path) == [copies[1]]
    CableStore.open(path).close()
    assert checkpoints_in(path) == []


def test_a_store_opened_again_keeps_a_checkpoint_in_use(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = CableStore.open(path)
    store.post("default", "one")
    with checkpoint(store) as copy:
        store.close()
        with CableStore.open(path) as again:
            again.post("default", "two")
            with CableStore.open(copy, create=False) as opened:
                assert texts_in(opened) == ["one"]
    assert checkpoints_in(path) == []


def test_files_of_a_shared_store_stay_readable_by_its_group(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with CableStore.open(path, options=OPTIONS) as store:
        store.ingest(raws(*(ANN.text("default", "x" * 4_000) for _ in range(60))), verify=False)
        store.compact()
    for each in (path, *path.glob("generation-*")):
        each.chmod(0o750)
    with CableStore.open(path) as store:
        tables = list(path.glob("generation-*/*.ldb"))
        with checkpoint(store) as copy:
            assert ClosedStore(copy).check().is_clean
            assert stat.S_IMODE((copy / "identity").stat().st_mode) == 0o600 if (copy / "identity").exists() else True
        assert {stat.S_IMODE(table.stat().st_mode) for table in tables} == {0o640}


def test_a_backup_of_a_checkpoint_has_the_causal_logs(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with CableStore.open(path) as store, causal_log(store) as log:
        store.post("default", "x")
        log.channel("room", "ann").send(b"one", 1)
    with CableStore.open(path) as store, checkpoint(store) as copy:
        report = backup(copy, tmp_path / "backup")
        key = store.identity
        assert report.is_signed
        assert backup(store, tmp_path / "backup").written == 0, "it continues from the backup of the checkpoint"
    restore(tmp_path / "backup", tmp_path / "restored", identity=key)
    with CableStore.open(tmp_path / "restored") as restored, causal_log(restored) as log:
        assert [message.content for message in log.channel("room", "ann").log()] == [b"one"]
    assert (path / "sds").is_dir()


def test_stores_in_memory_and_closed_stores_have_no_checkpoint(tmp_path: Path) -> None:
    with CableStore.in_memory() as store, pytest.raises(ArgumentError, match="a store in memory has no folder"):
        checkpoint(store).__enter__()
    store = CableStore.open(tmp_path / "store")
    store.close()
    with pytest.raises(StoreClosedError), checkpoint(store):
        pass
    assert checkpoints_in(tmp_path / "store") == []
