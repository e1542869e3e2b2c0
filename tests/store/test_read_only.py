"""A store that is open for reading only: every read works, and nothing is written to its folder."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from disks import as_nobody, foreign_copy, full_disk, read_only_disk, snapshot
from people import ANN, BOB, raws

from cablestore import CableStore
from cablestore.backup import backup, restore
from cablestore.errors import (
    CorruptStoreError,
    IdentityError,
    OpenError,
    StorageError,
    StoreClosedError,
    StoreLockedError,
)
from cablestore.store import ClosedStore

TEXTS = 60


def make_store(path: Path) -> str:
    """Create a store with posts, a name, an action, a draft and a search index. Returns its digest."""
    with CableStore.open(path, identity=None) as store:
        store.ingest(raws(*(ANN.text("default", f"word {i}") for i in range(TEXTS - 1))))
        hidden = BOB.text("default", "word hidden")
        store.ingest(raws(hidden))
        store.set_name("Own")
        store.moderation.hide(posts=[hidden.hash])
        store.local.set_draft("default", "a draft")
        assert len(store.search("word", limit=100).hits) == TEXTS - 1
    with CableStore.open(path) as store:
        return store.dump_digest()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    path = tmp_path_factory.mktemp("template") / "store"
    return path, make_store(path)


@pytest.fixture
def made(template: tuple[Path, str], tmp_path: Path) -> tuple[Path, str]:
    return shutil.copytree(template[0], tmp_path / "store"), template[1]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files. It must be empty after each test."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    yield path
    assert [*path.iterdir()] == []


def test_a_store_can_be_closed_twice(made: tuple[Path, str]) -> None:
    with CableStore.open(made[0], read_only=True) as store:
        store.close()
    with pytest.raises(StoreClosedError):
        store.messages("default")


def assert_reads(path: Path, digest: str, scratch: Path) -> None:
    """Read everything from a store that cannot be written, export it and back it up."""
    before = snapshot(path)
    with CableStore.open(path, read_only=True) as store:
        assert store.is_read_only
        assert store.dump_digest() == digest
        assert store.check().is_clean
        messages = store.messages("default", 100, hidden="mark").messages
        assert [message.hidden_by is None for message in messages] == [False, *([True] * (TEXTS - 1))]
        assert store.local.draft("default") == "a draft"
        assert len(store.search("word", limit=100).hits) == TEXTS - 1
        with store.snapshot() as state:
            assert state.user(ANN.key).public_key == ANN.key
        store.export(scratch / "export")
        assert backup(store, scratch / "backup").posts == sum(store.stats().posts.values())
        assert not backup(store, scratch / "backup").is_full
    closed = ClosedStore(path, read_only=True)
    assert closed.check(processes=2).is_clean
    closed.export(scratch / "again")
    assert [each.is_live for each in closed.generations()] == [True]
    assert not backup(path, scratch / "backup", read_only=True).is_full
    assert snapshot(path) == before
    restore(scratch / "backup", scratch / "restored")
    with CableStore.open(scratch / "restored") as store:
        assert store.dump_digest() == digest


def test_a_store_on_a_read_only_disk_can_be_read(made: tuple[Path, str], tmp_path: Path) -> None:
    with read_only_disk(made[0], tmp_path / "disk") as disk:
        assert_reads(disk, made[1], tmp_path)
        with pytest.raises(StorageError, match=r"Read-only file system\. .* --read-only"):
            CableStore.open(disk)
        with pytest.raises(StorageError, match="--read-only"):
            ClosedStore(disk).rebuild()


def test_a_store_on_a_full_disk_can_be_read(
    made: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporary files are created elsewhere if TMPDIR is on the full disk."""
    with full_disk(made[0], tmp_path / "disk") as disk:
        monkeypatch.setenv("TMPDIR", str(disk.parent))
        assert_reads(disk, made[1], tmp_path)
        with pytest.raises(StorageError, match=r"No space left.*--read-only"):
            CableStore.open(disk)


def test_a_store_of_a_killed_process_is_read_without_changes(made: tuple[Path, str], tmp_path: Path) -> None:
    """LevelDB's log has rows that are not in a table yet, and opening the store must not write a table."""
    code = f"""
        import os, signal
        from cablestore import CableStore
        store = CableStore.open({str(made[0])!r})
        store.post("default", "the last word")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = subprocess.run([sys.executable, "-c", "\n".join(map(str.strip, code.splitlines()))], check=False)
    assert killed.returncode == -signal.SIGKILL
    before = snapshot(made[0])
    with CableStore.open(made[0], read_only=True) as store:
        assert store.messages("default", 1).messages[0].text == "the last word"
        assert store.check().is_clean
        with pytest.raises(StorageError, match="lacks about 2 posts"):
            store.search("word")
    assert snapshot(made[0]) == before
    assert backup(made[0], tmp_path / "backup", read_only=True).is_full
    assert snapshot(made[0]) == before


def test_a_store_of_another_user_can_be_read(made: tuple[Path, str]) -> None:
    """The key file is private, so the moderation of the last writer's key applies. The reader cannot write."""
    with foreign_copy(made[0]) as path:
        before = snapshot(path)
        code = f"""
            from cablestore import CableStore
            with CableStore.open({str(path)!r}, read_only=True) as store:
                messages = store.messages("default", 100, hidden="mark").messages
                print(len(messages), sum(message.hidden_by is not None for message in messages), store.public_key)
                print(len(store.search("word", limit=100).hits), store.check().is_clean)
                try:
                    store.identity
                except Exception as error:
                    print(type(error).__name__)
        """
        child = [sys.executable, "-c", "\n".join(line[12:] for line in code.splitlines())]
        found = subprocess.run(as_nobody(*child), capture_output=True, text=True, check=False)
        assert found.stdout.splitlines() == [f"{TEXTS} 1 None", f"{TEXTS - 1} True", "IdentityError"], found.stderr
        assert snapshot(path) == before


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.post("default", "more"),
        lambda store: store.ingest(raws(ANN.text("default", "more"))),
        lambda store: store.delete([bytes(32)]),
        lambda store: store.discard([bytes(32)]),
        lambda store: store.prune(keep_newest=0),
        lambda store: store.mark_read("default"),
        lambda store: store.find_mentions(),
        lambda store: store.local.put("name", "key", b"value"),
        lambda store: store.local.mute("default"),
        lambda store: store.moderation.hide(users=[BOB.key]),
        lambda store: store.moderation.sweep(),
        lambda store: store.compact(),
        lambda store: store.rebuild(),
    ],
)
def test_every_write_is_rejected(made: tuple[Path, str], write: Callable[[CableStore], object]) -> None:
    before = snapshot(made[0])
    with CableStore.open(made[0], read_only=True) as store:
        with pytest.raises(StorageError, match="open read-only"):
            write(store)
        assert store.dump_digest() == made[1]
    assert snapshot(made[0]) == before


def test_no_key_is_created(tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "store") as store:
        store.ingest(raws(ANN.text("default", "word")))
    with CableStore.open(tmp_path / "store", read_only=True) as store:
        assert store.public_key is None
        with pytest.raises(IdentityError, match="no readable key"):
            _ = store.identity
        with pytest.raises(StorageError, match="open read-only"):
            store.import_identity(ANN.identity)
    assert not (tmp_path / "store" / "identity").exists()


def test_a_key_file_of_a_disk_without_modes_is_read(made: tuple[Path, str]) -> None:
    (made[0] / "identity").chmod(0o777)
    with CableStore.open(made[0], read_only=True) as store:
        assert store.public_key is not None


def test_many_readers_can_open_a_store_and_exclude_writers(made: tuple[Path, str]) -> None:
    with CableStore.open(made[0], read_only=True), CableStore.open(made[0], read_only=True) as store:
        with pytest.raises(StoreLockedError, match="open read-only"):
            CableStore.open(made[0])
        with pytest.raises(StoreLockedError, match="open read-only"):
            ClosedStore(made[0]).rebuild()
        assert store.dump_digest() == made[1]
    with CableStore.open(made[0]), pytest.raises(StoreLockedError, match="open in this process"):
        CableStore.open(made[0], read_only=True)
    (made[0] / "lock").unlink()  # as in a copy without the lock file
    with CableStore.open(made[0], read_only=True) as store:
        assert store.dump_digest() == made[1]
    assert not (made[0] / "lock").exists()


def test_a_missing_store_is_not_created(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("missing", "empty"):
        with pytest.raises(OpenError, match="no store found at"):
            CableStore.open(tmp_path / name, read_only=True)
    assert not (tmp_path / "missing").exists()
    assert [*(tmp_path / "empty").iterdir()] == []


def test_a_lost_database_is_reported(made: tuple[Path, str]) -> None:
    (generation,) = made[0].glob("generation-*")
    for file in generation.iterdir():
        file.unlink()
    with pytest.raises(CorruptStoreError, match="does not contain a database"):
        CableStore.open(made[0], read_only=True)


def test_temporary_files_are_removed_even_after_a_kill(made: tuple[Path, str], temporary: Path) -> None:
    code = f"""
import os, signal
from cablestore import CableStore
store = CableStore.open({str(made[0])!r}, read_only=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    foreign = temporary / "cablestore-reading-not-ours"
    foreign.write_text("a file, no folder")
    command = [sys.executable, "-c", code]
    subprocess.run(command, check=False)
    assert len([*temporary.iterdir()]) == 2
    script = code.replace(
        "os.kill(os.getpid(), signal.SIGKILL)", "print(len(os.listdir(os.environ['TMPDIR'])))\nstore.close()"
    )
    found = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "2\n"
    assert [*temporary.iterdir()] == [foreign]
    foreign.unlink()


def test_reading_merges_no_tables(tmp_path: Path, temporary: Path) -> None:
    """LevelDB merges tables that are read often. For a large read-only store, this would fill the temporary folder."""
    path = tmp_path / "store"
    for turn in range(6):  # each closing writes a separate table with the same range of keys
        with CableStore.open(path) as store:
            store.ingest(raws(*(ANN.text("default", f"{turn} {i} {'x' * 1000}") for i in range(200))), verify=False)
    with CableStore.open(path, read_only=True) as store:
        expected = {post.hash for post in store.posts_by(ANN.key)}
        for _ in range(20):
            assert {post.hash for post in store.posts_by(ANN.key)} == expected
            assert all(store.get(digest) is not None for digest in expected)
        assert len(expected) == 1200
        written = [file for file in temporary.rglob("*.ldb") if file.is_file() and not file.is_symlink()]
        assert len(written) <= 1  # a merge that started when the store was opened
    assert [*temporary.iterdir()] == []
