"""A full disk, damaged and lost files: a clear error, readable remaining data, and recovery by a rebuild."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from folders import SUPPORT
from people import ANN, BOB, raws
from waiting import LIMIT_S

from cablestore import CableStore, CableStoreError, Post, StoreOptions
from cablestore.errors import CorruptStoreError, OpenError, OutdatedViewError, StorageError, StoreLockedError
from cablestore.store import ClosedStore, Tuning

# --- a full disk -----------------------------------------------------------------------------------

FILL = """
import resource, signal, sys
from cablestore import CableStore
from cablestore.errors import CorruptStoreError, StorageError
from people import ANN, raws

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = CableStore.open(sys.argv[1])
if sys.argv[2] != "mounted":
    # No file may grow beyond this, which the kernel says with the same kind of error as a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
stored = 0
try:
    while True:
        posts = [ANN.text("default", f"{stored} {i} " + "x" * 3000) for i in range(10)]
        store.ingest(raws(*posts), sync=True)
        stored += 10
        print("stored", *(post.hash.hex() for post in posts), flush=True)
except StorageError as error:
    print("error", error, flush=True)
try:
    store.ingest(raws(ANN.text("default", "after")))
except StorageError as error:
    print("again", error, flush=True)
print("read", len(store.messages("default", 20).messages), flush=True)
store.close()
print("closed", flush=True)
"""


def fill(folder: Path, how: str) -> list[list[str]]:
    environment = os.environ | {"PYTHONPATH": str(SUPPORT)}
    command = [sys.executable, "-c", FILL, str(folder), how]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=LIMIT_S)
    assert found.returncode == 0, found.stderr
    return [line.split(" ", 1) for line in found.stdout.splitlines()]


def assert_survived(folder: Path, said: list[list[str]]) -> None:
    words = [line[0] for line in said]
    assert words[-4:] == ["error", "again", "read", "closed"]
    error, again = said[-4][1], said[-3][1]
    assert "writing failed" in error
    assert "Check the free space" in error
    assert "opening the database again, which each write tries" in again
    acknowledged = {digest for word, *rest in said if word == "stored" for digest in rest[0].split()}
    assert len(acknowledged) >= 20
    with CableStore.open(folder) as store:
        assert store.check().is_clean
        here = {post.hash.hex() for post in store.posts_by(ANN.key)}
        assert acknowledged <= here
        store.post("default", "there is space again")


@pytest.mark.parametrize("limit_size_bytes", [1_000_000, 3_333_333])
def test_a_store_survives_a_limit_on_the_size_of_files(tmp_path: Path, limit_size_bytes: int) -> None:
    assert_survived(tmp_path / "store", fill(tmp_path / "store", str(limit_size_bytes)))


MEND = """
import os, resource, signal, sys
from cablestore import CableStore
from cablestore.errors import StorageError, StoreClosedError
from people import ANN, raws

def limit(size_bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))

store = CableStore.open(sys.argv[1])
here, number = [], 0
for round in range(3):
    limit(int(sys.argv[2]))
    before = store.snapshot()
    failure = ""
    while not failure:
        posts = [ANN.text("default", f"{number + i} " + "x" * 3000) for i in range(10)]
        number += 10
        try:
            store.ingest(raws(*posts), sync=True)
            here += posts
        except StorageError as error:
            failure = str(error)
    assert "writing failed" in failure, failure
    assert "writing failed" in store.write_state.failure
    assert len(list(store.posts_by(ANN.key))) == len(here)  # reads continue
    try:
        store.post("default", "refused")
    except StorageError as error:
        assert "an earlier write failed" in str(error), error
    else:
        raise AssertionError("no space, and a post is stored")
    assert store.write_state.failed_writes == 2 * round + 2
    list(before.posts_by(ANN.key))
    limit(resource.RLIM_INFINITY)
    if round == 1:
        store.retry_writes()
        assert not store.write_state.failure
    if round == 2:  # the database cannot be opened again at once
        current, = store.path.glob("*/CURRENT")
        hidden = current.rename(current.with_name("hidden"))
        store.retry_writes()
        try:
            store.get(here[0].hash)
        except StorageError as error:
            assert "cannot be opened again" in str(error), error
        else:
            raise AssertionError("a lost database is read")
        hidden.rename(current)
        assert store.get(here[0].hash) == here[0]
    own = store.post("default", f"own {round}")  # the store accepts it, without being opened again
    assert not store.write_state.failure
    assert store.get(own.hash) == own
    failed = [post for post in posts if store.get(post.hash) is not None]
    assert len(failed) in (0, 10), "half of a batch"
    here += failed
    try:
        list(before.posts_by(ANN.key))
    except StoreClosedError:
        print("snapshot ended")
    before.close()
    assert {post.hash for post in store.posts_by(ANN.key)} == {post.hash for post in here}
    assert store.check().is_clean
print("stored", *(post.hash.hex() for post in here), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("limit_size_bytes", [300_000, 1_000_000])
def test_a_store_continues_when_there_is_space_again(tmp_path: Path, limit_size_bytes: int) -> None:
    environment = os.environ | {"PYTHONPATH": str(SUPPORT)}
    command = [sys.executable, "-c", MEND, str(tmp_path / "store"), str(limit_size_bytes)]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=LIMIT_S)
    assert found.returncode == -signal.SIGKILL, found.stderr
    *ended, stored = found.stdout.splitlines()
    assert ended == ["snapshot ended"] * 3
    with CableStore.open(tmp_path / "store") as store:
        assert store.check().is_clean
        assert {post.hash.hex() for post in store.posts_by(ANN.key)} == set(stored.split()[1:])
        assert {m.text for m in store.messages("default", 9999).messages if m.text.startswith("own")} == {
            f"own {number}" for number in range(3)
        }


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of 8 MB, if this process may mount one."""
    mount = tmp_path / "disk"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(mount)], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip("no right to mount a file system here; the test above fills a disk without")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


@pytest.mark.thorough
def test_a_store_survives_a_full_file_system(small_disk: Path) -> None:
    folder = small_disk / "store"
    said = fill(folder, "mounted")
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    assert_survived(folder, said)


def test_a_rebuild_without_space_leaves_the_store_unchanged(small_disk: Path) -> None:
    folder = small_disk / "store"
    with CableStore.open(folder) as store:
        store.ingest(raws(*(ANN.text("default", "x" * 3000 + str(i)) for i in range(700))), verify=False)
        store.compact()
        (small_disk / "ballast").write_bytes(bytes(os.statvfs(small_disk).f_bavail * 4096 - 200_000))
        before = store.dump_digest()
        with pytest.raises(StorageError):
            store.rebuild()
    (small_disk / "ballast").unlink()
    with CableStore.open(folder) as store:
        assert store.dump_digest() == before
        assert store.check().is_clean
    assert len(list(folder.glob("generation-*"))) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("free_kb", [3500, 2600, 2300, 1500, 600])
def test_a_rebuild_in_processes_without_space_leaves_the_store_unchanged(small_disk: Path, free_kb: int) -> None:
    """LevelDB does not report a failed write of the end of a table. The joined database must not lack rows."""
    folder = small_disk / "store"
    with CableStore.open(folder) as store:
        store.ingest(raws(*(ANN.text("default", "x" * 3000 + str(i)) for i in range(700))), verify=False)
        store.compact()
        before = store.dump_digest()
    free_size_bytes = os.statvfs(small_disk).f_bavail * 4096
    (small_disk / "ballast").write_bytes(bytes(max(0, free_size_bytes - free_kb * 1000)))
    with contextlib.suppress(StorageError):
        ClosedStore(folder).rebuild(processes=2)
    (small_disk / "ballast").unlink()
    with CableStore.open(folder) as store:
        assert store.dump_digest() == before
        assert store.check().is_clean
    assert len(list(folder.glob("generation-*"))) == 1


# --- damaged and lost files ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def posts() -> list[Post]:
    return [(ANN, BOB)[i % 2].text(f"channel{i % 5}", f"{i} " + "lorem ipsum " * 20) for i in range(5_000)]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, posts: list[Post]) -> Path:
    """Return a closed store whose database has several tables."""
    path, tuning = tmp_path_factory.mktemp("template") / "store", Tuning(2**20, table_size_bytes=2**20)
    with CableStore.open(path, options=StoreOptions(tuning=tuning)) as store:
        store.ingest(raws(*posts), verify=False, batch_posts=500)
        store.ingest(raws(ANN.delete(posts[0])))
        store.compact()
    return path


@pytest.fixture
def folder(template: Path, tmp_path: Path) -> Path:
    """Return a copy of the store."""
    return shutil.copytree(template, tmp_path / "store")


def database_files(folder: Path, pattern: str) -> list[Path]:
    return sorted((folder / "generation-000001").glob(pattern))


def readable(store: CableStore, posts: list[Post]) -> int:
    """Return how many posts can be read one by one. Every failure must be an error of this package."""
    count = 0
    for post in posts:
        with contextlib.suppress(CorruptStoreError):
            count += store.get(post.hash) is not None
    return count


def overwrite(file: Path, place: float, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(int(file.stat().st_size * place))
        opened.write(data)


def rescued(folder: Path, posts: list[Post]) -> int:
    """Rebuild a damaged store and return how many posts it kept."""
    report = ClosedStore(folder).rebuild()
    assert report.damaged
    assert report.kept_aside is not None
    assert report.kept_aside.is_dir()
    with CableStore.open(folder) as store:
        assert store.check().is_clean
        kept = readable(store, posts)
        assert store.stats().posts.get("text", 0) == kept
        if store.stats().posts.get("delete"):
            assert store.get(posts[0].hash) is None  # deleted posts are not restored
        store.post("channel0", "after the damage")
        assert kept == report.posts - store.stats().posts.get("delete", 0)
    assert not list(folder.glob("*.readable"))
    return kept


def damage_tables(folder: Path, damage: Callable[[Path], object]) -> int:
    """Damage every table except the one with the meta row. Return the number of damaged tables."""
    count = 0
    for file in database_files(folder, "*.ldb"):
        whole = file.read_bytes()
        damage(file)
        try:
            CableStore.open(folder).close()
            count += 1
        except CorruptStoreError:
            file.write_bytes(whole)
    return count


def test_a_rebuild_rescues_most_posts_from_damaged_blocks(folder: Path, posts: list[Post]) -> None:
    assert damage_tables(folder, lambda file: overwrite(file, 0.5, b"\xa5" * 64)) > 1
    with CableStore.open(folder) as store:
        assert 0.9 * len(posts) < readable(store, posts) < len(posts)
        with pytest.raises(CorruptStoreError, match="cablestore rebuild"):
            list(store.dump())
    assert rescued(folder, posts) >= 0.9 * len(posts)


def test_a_rebuild_rescues_all_readable_posts_of_truncated_tables(folder: Path, posts: list[Post]) -> None:
    assert damage_tables(folder, lambda file: os.truncate(file, file.stat().st_size // 2)) > 1
    with CableStore.open(folder) as store:
        count = readable(store, posts)
        assert count < len(posts)
        with pytest.raises(CorruptStoreError, match="cablestore rebuild"):
            list(store.dump())
    assert rescued(folder, posts) >= count


@pytest.mark.thorough
def test_a_rebuild_rescues_posts_of_a_database_with_damaged_metadata(folder: Path, posts: list[Post]) -> None:
    for file in database_files(folder, "*.ldb"):
        overwrite(file, 0.5, b"\xa5" * 64)
        overwrite(file, 0.98, b"\xa5" * 64)
    database = next(folder.glob("generation-*"))
    (database / "CURRENT").write_bytes(b"nothing")
    with pytest.raises(StorageError, match="cablestore rebuild"):
        CableStore.open(folder)
    assert 0 < rescued(folder, posts) < len(posts)


@pytest.mark.thorough(
    "<lambda>0-CURRENT", "<lambda>0-MANIFEST-*", "<lambda>1-CURRENT", "<lambda>1-MANIFEST-*", "unlink-MANIFEST-*"
)
@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*"])
@pytest.mark.parametrize("damage", [Path.unlink, lambda f: os.truncate(f, 7), lambda f: f.write_bytes(b"\x00" * 99)])
def test_a_rebuild_restores_a_lost_or_damaged_list_of_files(
    folder: Path, posts: list[Post], pattern: str, damage: Callable[[Path], object]
) -> None:
    damage(database_files(folder, pattern)[-1])
    tables = {file.name for file in database_files(folder, "*.ldb")}
    with pytest.raises(StorageError, match=r"cablestore rebuild|Check the free space"):
        CableStore.open(folder)
    assert {file.name for file in database_files(folder, "*.ldb")} == tables
    assert rescued(folder, posts) == len(posts) - 1


@pytest.mark.thorough(".\\n", "LOG\\n", "MANIFEST-1\\x00\\n", "\\x00\\x00\\x00\\x00\\x00\\x00\\x00T-000006\\n")
@pytest.mark.parametrize("name", [b"\x00" * 7 + b"T-000006\n", b"LOG\n", b"../lock\n", b"MANIFEST-1\x00\n", b".\n"])
def test_a_current_file_that_names_another_file_is_reported_as_damage(
    folder: Path, posts: list[Post], name: bytes
) -> None:
    """LevelDB opens any file that it names, and reports a folder as a failed write."""
    database_files(folder, "CURRENT")[-1].write_bytes(name)
    with pytest.raises(CorruptStoreError, match="cablestore rebuild"):
        CableStore.open(folder)
    assert rescued(folder, posts) == len(posts) - 1


def test_a_damaged_log_is_not_silently_truncated(tmp_path: Path, posts: list[Post]) -> None:
    """By default LevelDB drops unreadable data of its log, and does not report it."""
    code = """
import os, signal, sys
from cablestore import CableStore
from people import ANN, raws
store = CableStore.open(sys.argv[1])
for i in range(40):
    store.ingest(raws(*(ANN.text("default", f"{i} {j}") for j in range(20))), verify=False, sync=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = os.environ | {"PYTHONPATH": str(SUPPORT)}
    folder = tmp_path / "store"
    killed = subprocess.run(
        [sys.executable, "-c", code, str(folder)], env=environment, check=False, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    overwrite(max(database_files(folder, "*.log"), key=lambda f: f.stat().st_size), 0.5, b"\xa5" * 64)
    with pytest.raises(CorruptStoreError, match="cablestore rebuild"):
        CableStore.open(folder)
    report = ClosedStore(folder).rebuild()
    assert report.damaged
    with CableStore.open(folder) as store:
        assert store.check().is_clean
        assert 100 < store.stats().posts["text"] < 800


@pytest.mark.thorough
def test_random_damage_never_raises_a_foreign_error(tmp_path: Path, posts: list[Post]) -> None:
    with CableStore.open(tmp_path / "whole") as store:
        store.ingest(raws(*posts[:400], ANN.delete(posts[0])), verify=False)
    for seed in range(25):
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        shutil.copytree(tmp_path / "whole", folder)
        file = rng.choice(
            [f for f in folder.rglob("*") if f.is_file() and f.stat().st_size and f.name not in ("LOG", "lock")]
        )
        overwrite(file, rng.random(), rng.randbytes(rng.choice((1, 8, 64, 4096))))
        try:
            with CableStore.open(folder) as store:
                store.check()
                readable(store, posts[:400])
                list(store.users())
                store.post("default", "x")
        except CableStoreError:
            pass
        try:
            ClosedStore(folder).rebuild()
            with CableStore.open(folder) as store:
                assert store.check().is_clean
        except (StoreLockedError, OutdatedViewError):
            raise
        except OpenError:
            assert file.name == "STORE"
        shutil.rmtree(folder)
