"""Lost posts: if rows with counts may be lost too, a rebuild does not report an exact number, and ends with 1."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from disks import snapshot
from folders import SUPPORT
from people import ANN, BOB, raws

from cablestore import CableStore, StoreOptions
from cablestore.errors import CorruptStoreError, StorageError
from cablestore.index.leveldb import LevelDB
from cablestore.protocol.body import DELETE
from cablestore.store import Tuning
from cablestore.store.closed import ClosedStore

Run = Callable[..., tuple[int, str, str]]
LIVE = "generation-000001"

TEXTS = [ANN.text("default", f"{i} " + "x" * 200) for i in range(300)]

WRITER = """
import os, signal, sys
from cablestore import CableStore
from people import ANN, raws
store = CableStore.open(sys.argv[1])
for i in range(60):
    store.ingest(raws(ANN.text("default", f"{i} " + "x" * int(sys.argv[2]))), sync=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def killed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kill_writer(tmp_path_factory.mktemp("killed") / "store")


@pytest.fixture
def killed(killed_once: Path, tmp_path: Path) -> Path:
    """Return a store of a killed process: 60 synced posts are in LevelDB's log, in several blocks."""
    return shutil.copytree(killed_once, tmp_path / "store")


def kill_writer(folder: Path, size_bytes: int = 1000) -> Path:
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(folder), str(size_bytes)],
        env=os.environ | {"PYTHONPATH": str(SUPPORT)},
        check=False,
        capture_output=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return folder


@pytest.fixture(scope="module")
def closed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("closed") / "store"
    posts = [ANN.text("default", f"{i} " + "x" * 200) for i in range(4000)]
    with CableStore.open(folder, options=StoreOptions(tuning=Tuning(write_buffer_size_bytes=400_000))) as store:
        store.ingest(raws(*posts, ANN.delete(*posts[:50])), verify=False)
    CableStore.open(folder).close()  # LevelDB converts its log to a table
    return folder


@pytest.fixture
def closed(closed_once: Path, tmp_path: Path) -> Path:
    """Return a closed store with several tables and 50 deletions."""
    return shutil.copytree(closed_once, tmp_path / "store")


def log_of(folder: Path) -> Path:
    return max((folder / LIVE).glob("*.log"), key=lambda file: file.stat().st_size)


def table_with_posts(folder: Path) -> Path:
    """Return the table with the most posts. The distribution of rows depends on the time of LevelDB's compactions."""
    return max((folder / LIVE).glob("*.ldb"), key=lambda table: table.read_bytes().count(b"!data!"))


def posts_of(folder: Path) -> set[bytes]:
    with CableStore.open(folder) as store:
        return {post.hash for key in (ANN.key, BOB.key) for post in store.posts_by(key)}


def overwrite(file: Path, at: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        opened.write(data)


def zero_end(folder: Path) -> None:
    overwrite(log_of(folder), -3000, bytes(3000))


def zero_middle(folder: Path) -> None:
    """Write zeros before the end of a block: LevelDB skips the block and reads the next one."""
    overwrite(log_of(folder), 20_000, bytes(2**15 - 20_000))


def lengthen(folder: Path) -> None:
    """Append zeros, as after a file system crash that kept the size of the file but lost its data."""
    with log_of(folder).open("ab") as log:
        log.write(bytes(5000))


def claim_longer_record(folder: Path) -> None:
    """Set the length of a record in the last block beyond the end of the file, which LevelDB takes for the end."""
    log = log_of(folder)
    data, at = log.read_bytes(), 0
    last_block = (len(data) - 1) // 2**15 * 2**15
    while at <= last_block:
        size = int.from_bytes(data[at + 4 : at + 6], "little")
        at += 7 + size
        if 2**15 - at % 2**15 < 7:
            at += 2**15 - at % 2**15
    overwrite(log, at + 4, b"\xff\xff")


def remove_log(folder: Path) -> None:
    log_of(folder).unlink()


SILENT_LOSSES = [lengthen, claim_longer_record, remove_log]
"""LevelDB opens the database nevertheless."""
LOG_LOSSES = [zero_end, zero_middle, *SILENT_LOSSES]


@pytest.mark.parametrize("lose", LOG_LOSSES)
def test_the_number_of_lost_posts_is_unknown_if_the_log_lost_writes(
    run: Run, killed: Path, lose: Callable[[Path], None]
) -> None:
    lose(killed)
    status, said, _ = run("rebuild", "--json", "-s", killed)
    found = json.loads(said.splitlines()[-1])
    assert (status, found["lost_posts"], found["posts_before"]) == (1, None, None)
    assert found["may_lack_deletions"] is True
    assert (killed / "damaged-000001").is_dir()
    assert run("check", "-s", killed)[0] == 0
    assert run("rebuild", "-s", killed)[0] == 0


@pytest.mark.parametrize("lose", SILENT_LOSSES)
def test_opening_the_store_first_does_not_hide_the_loss(run: Run, killed: Path, lose: Callable[[Path], None]) -> None:
    """LevelDB converts the readable part of the log to a table when it opens the database, and removes the log."""
    lose(killed)
    with CableStore.open(killed) as store:
        store.post("default", "after the power failure")
    CableStore.open(killed).close()
    status, said, err = run("rebuild", "-s", killed)
    assert status == 1
    assert "the number of lost posts is unknown" in said
    assert "lost 0 posts" not in said
    assert "deletions may be lost" in said + err
    assert run("rebuild", "-s", killed)[0] == 0


@pytest.mark.parametrize("lose", [zero_end, remove_log])
def test_an_upgrade_does_not_change_a_store_that_lost_writes(killed: Path, lose: Callable[[Path], None]) -> None:
    lose(killed)
    for _ in range(2):
        with pytest.raises(CorruptStoreError, match="cablestore rebuild"):
            ClosedStore(killed).rebuild(only_whole=True)
    assert ClosedStore(killed).rebuild().lost_posts is None
    assert ClosedStore(killed).rebuild().has_all_posts


@pytest.mark.parametrize("lose", [lengthen, remove_log])
def test_recovering_a_database_reports_lost_writes(run: Run, killed: Path, lose: Callable[[Path], None]) -> None:
    lose(killed)
    (killed / "STORE").unlink()
    status, said, _ = run("generations", "--recover", LIVE, "-s", killed)
    assert status == 1
    assert "the number of lost posts is unknown" in said


@pytest.mark.parametrize("cut_bytes", [0, 1, 3, 6, 7, 8, 500, 1400, 2**15 + 5])
def test_a_torn_end_of_the_log_is_normal(run: Run, killed: Path, cut_bytes: int) -> None:
    """A killed process leaves the beginning of a record, which it never acknowledged."""
    log = log_of(killed)
    os.truncate(log, log.stat().st_size - cut_bytes)
    status, said, _ = run("rebuild", "-s", killed)
    assert (status, "lost" in said) == (0, False), said


def test_killed_processes_lose_nothing(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    for size_bytes in (10, 3000):
        kill_writer(folder, size_bytes)
        assert run("rebuild", "--json", "-s", folder)[0] == 0
    with CableStore.open(folder) as store:
        assert store.stats().posts["text"] == 120


def test_a_truncated_log_before_a_newer_log_is_a_loss(run: Run, killed: Path) -> None:
    """LevelDB begins a new log only after the last one is complete."""
    log = log_of(killed)
    newer = log.with_name(f"{int(log.stem) + 1:06d}.log")
    shutil.copyfile(log, newer)
    os.truncate(log, log.stat().st_size - 100)
    assert run("rebuild", "-s", killed)[0] == 1


# --- lost tables ----------------------------------------------------------------------------------


def test_tables_that_a_shortened_list_lacks_are_not_removed(run: Run, closed: Path, tmp_path: Path) -> None:
    """LevelDB removes the tables that are not in its list. The list is truncated between two edits."""
    with CableStore.open(closed) as store:
        store.ingest(raws(*(ANN.text("other", f"{i} " + "y" * 300) for i in range(40))), verify=False)
        posts = sum(store.stats().posts.values())
    [manifest] = (closed / LIVE).glob("MANIFEST-*")
    data, borders, at = manifest.read_bytes(), [], 0
    while at < len(data):
        borders.append(at)
        at += 7 + int.from_bytes(data[at + 4 : at + 6], "little")
    refused = 0
    for border in borders[1:]:
        folder = shutil.copytree(closed, tmp_path / str(border))
        tables = sorted(file.name for file in (folder / LIVE).glob("*.ldb"))
        os.truncate(folder / LIVE / manifest.name, border)
        try:
            CableStore.open(folder).close()
        except CorruptStoreError:
            refused += 1
            assert sorted(file.name for file in (folder / LIVE).glob("*.ldb")) == tables
            assert run("rebuild", "-s", folder)[0] == 1
        with CableStore.open(folder) as store:
            assert sum(store.stats().posts.values()) == posts, border
    assert refused


@pytest.mark.parametrize("has_second_copy", [True, False])
def test_a_lost_table_is_reported_as_a_loss(run: Run, closed: Path, has_second_copy: bool) -> None:
    if not has_second_copy:  # as in stores of earlier versions
        (closed / "counts").unlink()
    table_with_posts(closed).unlink()
    status, said, _ = run("rebuild", "--json", "-s", closed)
    found = json.loads(said.splitlines()[-1])
    assert (status, found["lost_posts"], found["posts_before"], found["may_lack_deletions"]) == (1, None, None, True)
    if has_second_copy:  # 3,951 posts; restored deleted ones hide some of the losses
        assert found["lost_posts_at_least"] == 3951 - found["posts"]
        assert found["lost_posts_at_least"] > 0


def test_each_lost_table_is_reported(run: Run, closed: Path, tmp_path: Path) -> None:
    for number, table in enumerate(sorted((closed / LIVE).glob("*.ldb"))):
        if table.stat().st_size < 1000:
            continue  # the meta row
        copy = tmp_path / str(number)
        shutil.copytree(closed, copy)
        (copy / LIVE / table.name).unlink()
        status, said, _ = run("rebuild", "-s", copy)
        assert status == 1, (table.name, said)
        assert "lost 0 posts" not in said


def test_an_older_copy_of_the_database_is_noticed(run: Run, killed: Path, tmp_path: Path) -> None:
    CableStore.open(killed).close()
    shutil.copytree(killed / LIVE, tmp_path / "older")
    with CableStore.open(killed) as store:
        store.ingest(raws(*(ANN.text("default", f"later {i}") for i in range(7))))
    shutil.rmtree(killed / LIVE)
    shutil.copytree(tmp_path / "older", killed / LIVE)
    status, said, _ = run("rebuild", "-s", killed)
    assert status == 1
    assert "the number of lost posts is unknown: at least 7" in said


@pytest.mark.parametrize("later", [0, 20], ids=["shorter", "longer than before"])
def test_an_older_copy_that_was_used_since_is_noticed(run: Run, killed: Path, tmp_path: Path, later: int) -> None:
    """Each clean close writes the second copy of the counts, which must not hide that the log was longer."""
    CableStore.open(killed).close()
    shutil.copytree(killed / LIVE, tmp_path / "older")
    with CableStore.open(killed) as store:
        store.ingest(raws(*(ANN.text("default", f"lost {i}") for i in range(7))))
    shutil.rmtree(killed / LIVE)
    shutil.copytree(tmp_path / "older", killed / LIVE)
    for number in range(2):
        with CableStore.open(killed) as store:
            store.ingest(raws(*(ANN.text("default", f"{number} later {i}") for i in range(later))))
    assert run("check", "-s", killed)[0] == 1
    status, said, _ = run("rebuild", "-s", killed)
    assert status == 1
    assert "the number of lost posts is unknown" in said
    assert run("check", "-s", killed)[0] == 0


@pytest.mark.parametrize("lose", SILENT_LOSSES)
@pytest.mark.parametrize("options", [(), ("--read-only",)])
def test_a_check_reports_writes_that_a_log_lost(
    run: Run, killed: Path, lose: Callable[[Path], None], options: tuple[str, ...]
) -> None:
    """Each check reports it, not only the first one: LevelDB removes the log."""
    lose(killed)
    for _ in range(2):
        status, said, _ = run("check", *options, "-s", killed)
        assert status == 1
        assert "lost writes" in said
    with CableStore.open(killed) as store:
        assert [problem.view for problem in store.check().problems] == ["arrival log"]
    assert run("rebuild", "-s", killed)[0] == 1
    assert run("check", *options, "-s", killed)[0] == 0


@pytest.mark.parametrize("lose", SILENT_LOSSES)
def test_a_check_in_a_program_does_not_hide_the_loss(killed: Path, lose: Callable[[Path], None]) -> None:
    lose(killed)
    assert not ClosedStore(killed).check().is_clean
    assert ClosedStore(killed).rebuild().lost_posts is None


@pytest.mark.parametrize(
    "change",
    [lambda store: store.rebuild(), lambda store: store.remove("kept"), lambda store: store.recover(LIVE)],
    ids=["rebuild", "remove", "recover"],
)
def test_a_read_only_store_is_not_changed(killed: Path, change: Callable[[ClosedStore], object]) -> None:
    zero_end(killed)
    before = snapshot(killed)
    with pytest.raises(StorageError, match="open read-only"):
        change(ClosedStore(killed, read_only=True))
    with pytest.raises(CorruptStoreError):
        ClosedStore(killed, read_only=True).check()
    assert snapshot(killed) == before


def pruned(store: CableStore) -> None:
    store.prune(keep_newest=200)


def deleted(store: CableStore) -> None:
    store.ingest(raws(ANN.delete(*(post for post in TEXTS if post.hash[0] < 100))), verify=False)


@pytest.mark.parametrize("remove", [pruned, deleted])
def test_restored_posts_do_not_hide_lost_ones(tmp_path: Path, remove: Callable[[CableStore], None]) -> None:
    """A block of the newest table has new posts, and the removal of older ones. Without it these are restored."""
    base = tmp_path / "base"
    with CableStore.open(base) as store:
        store.ingest(raws(*TEXTS), verify=False)
        store.compact()  # so that LevelDB keeps it apart from the next table
        remove(store)
        store.ingest(raws(*(BOB.text("other", f"{i} " + "y" * 200) for i in range(60))), verify=False)
    CableStore.open(base).close()  # converts the log to a table
    held = posts_of(shutil.copytree(base, tmp_path / "whole"))
    table = max((base / LIVE).glob("*.ldb"), key=lambda file: file.stat().st_mtime_ns)
    start = table.read_bytes().index(b"!data!")
    losses = 0
    for at in range(start, start + 20_000, 4000):
        folder = shutil.copytree(base, tmp_path / f"{at}")
        overwrite(folder / LIVE / table.name, at, b"\xff" * 64)
        report = ClosedStore(folder).rebuild(processes=1)
        after = posts_of(folder)
        lost = len(held - after)
        assert report.lost_posts in {None, lost}
        assert report.lost_posts_at_least <= lost
        assert lost == 0 or not report.has_all_posts
        losses += lost
    assert losses


def test_deletions_that_are_lost_are_reported_with_status_1(run: Run, closed: Path) -> None:
    """Every row of the deletions is lost, including the post/delete. The rows that count them detect it."""
    with CableStore.open(closed) as store:
        [digest] = [post.hash_hex for post in store.posts_by(ANN.key) if post.type == DELETE]
    database = LevelDB(closed / LIVE)
    with database.snapshot() as state:
        rows = [key for key, _ in state.scan(b"!chat!deleted!", b"!chat!target~")]
    database.write(dict.fromkeys([*rows, b"!data!" + digest]), sync=True)
    database.close()
    status, said, err = run("rebuild", "-s", closed)
    assert status == 1
    assert "deletions may be lost" in said + err


@pytest.mark.parametrize("text", [b"", b"\xff\x00", b"[" * 100_000, b"{}", b'{"generation": 5}', b'{"next": 1e999}'])
def test_a_damaged_second_copy_counts_as_missing(run: Run, killed: Path, text: bytes) -> None:
    CableStore.open(killed).close()
    (killed / "counts").write_bytes(text)
    assert run("rebuild", "-s", killed)[0] == 0
    (killed / "counts").unlink()
    assert run("rebuild", "-s", killed)[0] == 0
