"""Rebuilds and checks in several processes equal those in one process, and handle failures of processes."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ctrl_c import INTERRUPTED, interrupted
from people import ANN, START_MS
from reindexing import conversation, digest_of, store_at
from waiting import LIMIT_S, wait_until

from cablestore import LEGACY, CableStore, encode_post, limits
from cablestore.errors import StorageError
from cablestore.index import parallel
from cablestore.index.check import CheckReport
from cablestore.index.database import Row
from cablestore.index.leveldb import LevelDB
from cablestore.index.leveldb_checkpoint import link_database
from cablestore.index.processes import can_start_processes, process_pool
from cablestore.index.rebuild import RebuildReport
from cablestore.protocol.body import LOCAL_ONLY, Block
from cablestore.store import ClosedStore
from cablestore.store.closed import locked_folder

POSTS = conversation(1500)


@pytest.fixture(autouse=True)
def _small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the sizes, so that a thousand posts have several ranges of hashes and many buckets."""
    monkeypatch.setattr(parallel, "PARTITION_POSTS", 200)
    monkeypatch.setattr(parallel, "MAX_BUCKET_SIZE_BYTES", 60_000)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a closed store with posts of every kind, including local-only ones."""
    path = tmp_path_factory.mktemp("template") / "store"
    store_at(path, POSTS)
    with CableStore.open(path) as store:
        bodies = [Block("", LOCAL_ONLY, (bytes([number]) * 32,), 0, 0) for number in range(5)]
        private = [
            encode_post(body, links=(), timestamp_ms=START_MS, identity=store.identity, dialect=LEGACY)
            for body in bodies
        ]
        store.ingest(post.raw for post in private)
    return path


@pytest.fixture
def folder(template: Path, tmp_path: Path) -> Path:
    """Return a copy of the store."""
    return shutil.copytree(template, tmp_path / "store")


def database_of(folder: Path) -> Path:
    with locked_folder(folder) as opened:
        return opened.database_path


def change(folder: Path, changes: dict[bytes, bytes | None]) -> None:
    database = LevelDB(database_of(folder))
    database.write(changes, sync=True)
    database.close()


def rows_of(folder: Path) -> list[Row]:
    """Return every row, including the arrival log and the sizes."""
    database = LevelDB(database_of(folder), create=False)
    with database.snapshot() as state:
        rows = list(state.scan(b"", b"\xff"))
    database.close()
    return rows


def rebuilt(folder: Path, in_processes: int) -> RebuildReport:
    done: list[int] = []
    report = ClosedStore(folder).rebuild(processes=in_processes, progress=done.append)
    assert sum(done) >= report.posts - report.tombstones
    return report


def checked(folder: Path, in_processes: int) -> CheckReport:
    """Check a closed store in N processes."""
    return ClosedStore(folder).check(processes=in_processes)


# --- any number of processes -----------------------------------------------------------------------


def test_a_rebuild_has_the_same_result_in_any_number_of_processes(folder: Path) -> None:
    before = rows_of(folder)
    for in_processes in (2, 3, 1):
        report = rebuilt(folder, in_processes)
        assert not report.damaged
        assert report.posts == sum(1 for key, _ in before if key.startswith((b"!data!", b"!private!")))
        assert rows_of(folder) == before
    assert not list(folder.glob("scratch-*"))


@pytest.mark.thorough
def test_a_rebuild_in_any_number_of_processes_omits_damaged_posts(folder: Path) -> None:
    rows = dict(rows_of(folder))
    stones = [key for key in rows if key.startswith(b"!chat!deleted!")]
    posts = [key for key in rows if key.startswith(b"!data!")]
    # A tombstone that its post/delete restores, an invalid post, and the bytes of another post.
    change(folder, {stones[0]: None, posts[5]: b"nothing", posts[-5]: rows[posts[7]]})
    copy = folder.with_name("copy")
    subprocess.run(["cp", "-r", folder, copy], check=True)
    reports = [rebuilt(folder, 2), rebuilt(copy, 1)]
    assert reports[0].damaged == reports[1].damaged
    assert len(reports[0].damaged) == 2
    assert reports[0].has_late_tombstones
    assert digest_of(folder) == digest_of(copy)
    assert all(report.kept_aside for report in reports)


def test_the_readable_part_of_a_damaged_database_is_rebuilt(folder: Path) -> None:
    table = max(database_of(folder).glob("*.ldb"), key=lambda path: path.stat().st_size)
    content = bytearray(table.read_bytes())
    content[content.index(b"!data!") + 200] ^= 0xFF
    table.write_bytes(content)
    report = rebuilt(folder, 2)
    assert report.damaged["unreadable part of the database"] == 1
    assert report.kept_aside is not None
    digest_of(folder)  # the rest is valid


@pytest.mark.thorough
def test_a_database_with_one_post_or_none_is_rebuilt(tmp_path: Path) -> None:
    for posts in ([], [ANN.text("default", "alone")]):
        path = tmp_path / str(len(posts))
        store_at(path, posts)
        rebuilt(path, 1)
        before = rows_of(path)
        rebuilt(path, 2)
        assert rows_of(path) == before


@pytest.mark.thorough
def test_a_rebuild_works_on_a_file_system_without_links(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows_of(folder)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    link_database(database_of(folder), tmp_path / "copy")
    assert not any(file.samefile(tmp_path / "copy" / file.name) for file in database_of(folder).glob("*.ldb"))
    rebuilt(folder, 2)
    assert rows_of(folder) == before


def test_the_requested_number_of_processes_or_the_size_decides() -> None:
    least, is_shared_out = limits.SHARED_OUT_FROM_SIZE_BYTES, parallel.is_shared_out
    assert [is_shared_out(least, 1), is_shared_out(0, 2), is_shared_out(0, 0)] == [False, True, True]
    assert [is_shared_out(least - 1, None), is_shared_out(least, None)] == [False, can_start_processes()]


def test_only_large_stores_are_rebuilt_in_several_processes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is `limits.SHARED_OUT_FROM_SIZE_BYTES`: for smaller stores the start of processes takes longer."""
    pools: list[int | None] = []

    def recording(number: int | None, *rest: Any) -> AbstractContextManager[Executor]:
        pools.append(number)
        return process_pool(number, *rest)

    monkeypatch.setattr(parallel, "process_pool", recording)
    assert limits.SHARED_OUT_FROM_SIZE_BYTES > 2**25
    ClosedStore(folder).rebuild()
    assert pools == []
    monkeypatch.setattr(parallel, "SHARED_OUT_FROM_SIZE_BYTES", 100_000)
    ClosedStore(folder).rebuild(processes=1)
    assert pools == []
    ClosedStore(folder).rebuild()
    assert pools == [None]


@pytest.mark.thorough
def test_several_processes_find_the_same_problems_as_one(folder: Path) -> None:
    assert checked(folder, 2) == checked(folder, 1)
    rows = dict(rows_of(folder))
    authors = [key for key in rows if key.startswith(b"!author!")]
    heads = [key for key in rows if key.startswith(b"!head!")]
    change(folder, {authors[3]: None, heads[0]: None, b"!author!zz": b"x", b"!unknown": b""})
    found, alone = checked(folder, 2), checked(folder, 1)
    assert found.problem_count == alone.problem_count
    assert {str(problem) for problem in found.problems} == {str(problem) for problem in alone.problems}
    assert len(found.problems) >= 4


# --- sums ------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_swapped_values_are_found(folder: Path) -> None:
    """Two rows have each other's values, so the numbers of rows and bytes, and the set of bytes, are unchanged."""
    rows = dict(rows_of(folder))
    keys = [key for key in rows if key.startswith(b"!chat!text!default!")]
    for number in range(20):  # sums of weak hashes find some and miss others
        one, other = keys[2 * number : 2 * number + 2]
        change(folder, {one: rows[other], other: rows[one]})
        report = checked(folder, 2 if number < 2 else 1)
        # Sums of ranges are over these rows, and differ if the two are in different parts.
        wrong = [problem for problem in report.problems if problem.what != "a wrong sum"]
        assert {problem.key for problem in wrong} == {one, other}
        assert all(problem.what == "a wrong row" for problem in wrong)
        change(folder, {one: rows[one], other: rows[other]})


def test_a_valid_store_is_checked_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact check, which sorts all rows, runs only if something is wrong."""
    exact: list[bool] = []
    module = sys.modules["cablestore.index.check"]
    checker = module.Checker

    def recording(*arguments: object, **options: bool) -> object:
        exact.append(options["is_exact"])
        return checker(*arguments, **options)

    monkeypatch.setattr(module, "Checker", recording)
    assert checked(folder, 1).is_clean
    assert exact == [False]
    change(folder, {b"!author!zz": b"x"})
    assert not checked(folder, 1).is_clean
    assert exact == [False, False, True]


# --- failures of processes -------------------------------------------------------------------------


def children(parent: int) -> list[int]:
    """Return the child processes of a process pool."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
            command = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue  # the process has just ended
        if int(fields[1]) == parent and b"loky.backend.popen" in command and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.thorough
def test_a_killed_process_leaves_the_store_unchanged(folder: Path) -> None:
    before = rows_of(folder)

    def kill(_: int) -> None:
        for pid in children(os.getpid())[:1]:
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(StorageError, match="was killed"):
        ClosedStore(folder).rebuild(processes=2, progress=kill)
    assert not children(os.getpid())
    assert rows_of(folder) == before
    assert len(list(folder.glob("generation-*"))) == 1
    rebuilt(folder, 2)
    assert rows_of(folder) == before


UNGUARDED = """
import sys, time
from cablestore.store import ClosedStore
ClosedStore(sys.argv[1]).rebuild(processes=2, progress=lambda _: time.sleep(float(sys.argv[2])))
print("done")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(UNGUARDED)
    return path


@pytest.mark.thorough
def test_a_script_does_not_need_a_main_guard(folder: Path, script: Path) -> None:
    """Processes of the standard library would each run the script again."""
    found = subprocess.run([sys.executable, script, folder, "0"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, "done\n", "")


@pytest.mark.thorough
def test_worker_processes_end_with_their_parent(folder: Path, script: Path) -> None:
    before = rows_of(folder)
    parent = subprocess.Popen([sys.executable, script, folder, "30"], stderr=subprocess.PIPE)
    wait_until(lambda: len(children(parent.pid)) == 2)
    pids = children(parent.pid)
    wait_until(lambda: len(list(folder.glob("scratch-*/**/copy-*"))) == 2)  # they work
    parent.kill()
    parent.communicate()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert rows_of(folder) == before
    assert not list(folder.glob("scratch-*"))


COMMAND = """
import sys
from cablestore.index import parallel
from cablestore.__main__ import main
parallel.PARTITION_POSTS = 50
parallel.SHARED_OUT_FROM_SIZE_BYTES = 1
main()
"""


@pytest.mark.thorough
def test_ctrl_c_prints_at_most_one_line_at_any_moment(folder: Path, script: Path) -> None:
    """A terminal sends it to all processes. The workers print nothing, even while they start.

    It may arrive just after the work is done, because Python takes a moment to exit.
    """
    script.write_text(COMMAND)
    before = rows_of(folder)
    said = set()
    for tenths in range(8):
        command = [sys.executable, str(script), "rebuild", "--store", str(folder)]
        job = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        wait_until(partial(has_begun, job, folder))
        time.sleep(tenths / 10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGINT)
        said.add((job.communicate(timeout=LIMIT_S)[1].strip(), job.returncode))
        assert not children(job.pid)
        assert rows_of(folder) == before
    assert INTERRUPTED in said
    assert said <= {INTERRUPTED, ("", 0)}, said


STOPPED = """
import os, warnings
from cablestore.index.processes import process_pool
warnings.simplefilter("error")
os.environ["PATH"] = ""
try:
    with process_pool(2) as pool:
        raise ValueError("the work failed")
except ValueError as error:
    print(error)
"""


def test_processes_are_killed_where_pgrep_is_not_installed() -> None:
    found = subprocess.run(
        [sys.executable, "-c", STOPPED], capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "the work failed\n", "")


WHILE_A_POOL_IS_MADE = """
import itertools, os, signal, sys
from cablestore.index import parallel
from cablestore.__main__ import main
from loky.backend import resource_tracker
parallel.PARTITION_POSTS = 50
parallel.SHARED_OUT_FROM_SIZE_BYTES = 1
at, calls = int(sys.argv.pop(1)), itertools.count()
register = resource_tracker.register
def interrupted(name, kind):
    register(name, kind)
    if next(calls) == at:
        os.kill(os.getpid(), signal.SIGINT)
resource_tracker.register = interrupted
main()
"""


@pytest.mark.thorough("1", "2", "3")
@pytest.mark.parametrize("at", range(4))
def test_ctrl_c_prints_one_line_during_the_creation_of_a_pool(folder: Path, at: int) -> None:
    """Ctrl-C arrives after a semaphore was created, which a resource tracker would report as leaked."""
    done = interrupted(WHILE_A_POOL_IS_MADE, str(at), "rebuild", "--store", folder)
    assert (done.stderr.strip(), done.returncode) == INTERRUPTED


def has_begun(job: subprocess.Popen[str], folder: Path) -> bool:
    return job.poll() is not None or bool(list(folder.glob("scratch-*")))


def test_equal_bytes_have_equal_hashes_in_all_processes_of_a_pool(tmp_path: Path) -> None:
    with process_pool(2) as pool:
        found = list(pool.map(_hash_and_pid, [tmp_path] * 2))
    assert len({pid for _, pid in found}) == 2
    assert len({digest for digest, _ in found}) == 1


def _hash_and_pid(here: Path) -> tuple[int, int]:
    (here / str(os.getpid())).touch()
    wait_until(lambda: len(list(here.iterdir())) == 2)  # the other process does the other part
    return hash((b"key", b"value")), os.getpid()
