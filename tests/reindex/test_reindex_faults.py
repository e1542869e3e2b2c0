"""Kill -9 of every process of a reindexing, and a full disk: the live store stays, the next run goes on."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from people import ANN
from reindexing import (
    conversation,
    digest_of,
    digest_of_all,
    export_of,
    kill,
    kill_an_executor,
    kill_python_workers,
    processes_of,
    start_job,
    store_at,
)
from waiting import LIMIT_S, wait_until

pytest.importorskip("pyspark")

from cablestore import CableStore

POSTS = conversation(700)


LOCAL_CLUSTER = ("--master", "local-cluster[2,1,1024]", "--conf", "spark.executor.memory=512m")


class Site:
    """Store with an export and later arrivals, another export, and what the store should be afterwards."""

    def __init__(self, path: Path) -> None:
        self.store, self.work, self.loading = path / "store", path / "store.reindex", path / "store.loading"
        self.template = self.store
        self.script = path / "job.py"
        self.exports = [path / "own", path / "other"]
        store_at(self.store, POSTS[:450])
        with CableStore.open(self.store) as store:
            store.export(self.exports[0], segment_size_bytes=60_000)
        late = [ANN.text("default", "after the export"), ANN.delete(*POSTS[200:230])]
        store_at(self.store, late)
        export_of(POSTS[350:], self.exports[1], segment_size_bytes=60_000)
        self.before = digest_of(self.store)
        self.expected = digest_of_all([*POSTS, *late])
        assert self.before != self.expected

    def start(self, *options: str, extra: str = "pass") -> subprocess.Popen[str]:
        return start_job(self.script, *self.exports, "--out", self.store, "--json", *options, extra=extra)

    def end(self, job: subprocess.Popen[str]) -> tuple[int, str]:
        """Wait for a job and all its processes. Return its status and its output."""
        output, errors = job.communicate(timeout=LIMIT_S)
        wait_until(lambda: not processes_of(self.script), "a process outlives the job")
        assert "Traceback" not in errors, errors
        return job.returncode, output + errors

    def finish(self) -> None:
        """Run to the end. Check that what was finished is not made again, and that the result is right."""
        finished = self.finished()
        job = self.start("--keep-work")
        status, said = self.end(job)
        assert status == 0, said
        now = self.finished()
        assert {name: now.get(name) for name in finished} == finished, "finished segments were made again"
        assert digest_of(self.store) == self.expected
        assert not self.loading.exists()

    def finished(self) -> dict[str, int]:
        """Return when each segment that a report names was written."""
        found = {}
        for report in [*self.work.glob("derived-*.json"), *self.work.glob("built-*.json")]:
            for segment in json.loads(report.read_text())["segments"]:
                found[segment["file"]] = (self.work / segment["file"]).stat().st_mtime_ns
        return found

    def begin_again(self) -> None:
        """Put the store back to what it was, and leave nothing of any job."""
        for folder in (self.store, self.work, self.loading):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.template, self.store)

    def assert_untouched(self) -> None:
        assert digest_of(self.store) == self.before


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("template"))


@pytest.fixture
def site(template: Site, tmp_path: Path) -> Site:
    """Return a copy of the template that a test can ruin."""
    copy = Site.__new__(Site)
    copy.__dict__.update(template.__dict__)
    for name in ("store", "work", "loading", "script"):
        setattr(copy, name, tmp_path / getattr(template, name).name)
    copy.begin_again()
    return copy


def kill_when(site: Site, job: subprocess.Popen[str], is_due: Callable[[], object], delay_s: float = 0) -> None:
    """Kill the job's driver at an instant, unless it ends before. All its processes end with it."""
    wait_until(lambda: is_due() or job.poll() is not None, "the instant never came")
    time.sleep(delay_s)
    job.kill()
    job.communicate(timeout=LIMIT_S)
    wait_until(lambda: not processes_of(site.script), "a process outlives the driver")


@pytest.mark.soak
def test_a_driver_that_is_killed_at_every_stage(site: Site) -> None:
    """One job is killed in each of its stages, and goes on each time from what is finished."""
    work, loading = site.work, site.loading
    instants: list[Callable[[], object]] = [
        lambda: list(work.glob("derived-*.json")),
        lambda: len(list(work.glob("built-*.json"))) > 3,
        lambda: list(loading.glob("part-*")),
        (loading / "joined").exists,
    ]
    finished: dict[str, int] = {}
    for is_due in instants:
        kill_when(site, site.start(), is_due)
        now = site.finished()
        assert {name: now.get(name) for name in finished} == finished
        finished = now
        site.assert_untouched()
    assert len(finished) > 5
    site.finish()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_driver_that_is_killed_at_many_random_instants(site: Site) -> None:
    for seed in range(40):
        job = site.start()
        kill_when(site, job, lambda: True, random.Random(seed).uniform(0.5, 10))
        if job.returncode == 0:
            assert digest_of(site.store) == site.expected
            return  # it was faster; a soak checks by its number of kills
        site.assert_untouched()
    site.finish()


# --- faults, each of one job ------------------------------------------------------------------


def a_driver_killed_at_a_random_instant(site: Site) -> None:
    """Kill it before any job could be done; the instant is printed with a failure."""
    job, delay_s = site.start(), random.uniform(0.5, 6)
    print(f"killed after {delay_s:.3f} s")
    kill_when(site, job, lambda: True, delay_s)
    assert job.returncode == -signal.SIGKILL


def a_python_worker_killed(site: Site) -> None:
    """In one process Spark gives up with the first task that fails, but is done where no task was running."""
    job = site.start()
    kill_python_workers(site.work, site.script, job)
    status, said = site.end(job)
    if status == 0:
        assert digest_of(site.store) == site.expected
        site.begin_again()
    else:
        assert status == 2, said


FULL = """
import resource
from cablestore.reindex import reindex
load = reindex.load
def full(*args, **options):
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
    return load(*args, **options)
reindex.load = full
"""


def a_full_disk_in_the_middle_of_the_load(site: Site) -> None:
    """Limit the size of files: the kernel reports that with the same kind of error as a full disk."""
    (site.script.parent / "full.py").write_text(FULL)
    status, said = site.end(site.start(extra="import full"))
    assert status == 3, said
    assert "free space" in said


def a_process_of_the_loader_killed(site: Site) -> None:
    job = site.start()

    def loaders() -> list[int]:
        return [pid for pid, command in processes_of(site.script).items() if "loky.backend.popen" in command]

    wait_until(lambda: (site.loading.exists() and loaders()) or job.poll() is not None, "no loader")
    kill(*loaders())
    status, said = site.end(job)
    assert status in (2, 3), said
    assert "again" in said


DYING = """
import os, signal
from cablestore.index.folder import Folder

def at(name, when):
    function = getattr(Folder, name)
    def dying(*args, **options):
        if when == "after":
            function(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(Folder, name, dying)
"""


def a_driver_killed_while_it_swaps(site: Site, point: str = "activate", when: str = "before") -> None:
    (site.script.parent / "dying.py").write_text(DYING)
    status, said = site.end(site.start(extra=f"import dying; dying.at('{point}', '{when}')"))
    assert status == -signal.SIGKILL, said


Fault = Callable[[Site], None]
FAULTS: tuple[Fault, ...] = (
    a_driver_killed_at_a_random_instant,
    a_python_worker_killed,
    a_full_disk_in_the_middle_of_the_load,
    a_process_of_the_loader_killed,
    a_driver_killed_while_it_swaps,
)
"""The faults are in the order of the stages that they hit, so each comes after what the one before left."""


@pytest.mark.parametrize(
    "faults",
    [
        # A killed Python worker is met by test_reindex_cluster.py too.
        pytest.param(tuple(fault for fault in FAULTS if fault is not a_python_worker_killed), id="one after another"),
        *(pytest.param((fault,), id=fault.__name__, marks=pytest.mark.soak) for fault in FAULTS),
    ],
)
def test_after_faults_the_next_job_goes_on(site: Site, faults: tuple[Fault, ...]) -> None:
    """Whatever ends a job, the live store is as it was; nothing that was finished is made again."""
    for fault in faults:
        fault(site)
        site.assert_untouched()
    site.finish()


@pytest.mark.soak
@pytest.mark.parametrize("point", ["adopt", "activate"])
def test_a_driver_that_is_killed_when_a_part_of_the_swap_is_done(site: Site, point: str) -> None:
    a_driver_killed_while_it_swaps(site, point, "after")
    assert digest_of(site.store) == (site.expected if point == "activate" else site.before)
    site.finish()


def test_a_job_on_a_local_cluster(site: Site) -> None:
    """Executors and workers are processes of their own, as on a cluster."""
    status, said = site.end(site.start(*LOCAL_CLUSTER))
    assert status == 0, said
    assert digest_of(site.store) == site.expected


@pytest.mark.soak
def test_an_executor_and_a_worker_of_a_local_cluster_that_are_killed(site: Site) -> None:
    """As in test_reindex_cluster.py, where all processes are children of the driver."""
    job = site.start(*LOCAL_CLUSTER)
    kill_python_workers(site.work, site.script, job)
    kill_an_executor(site.script, job)
    status, said = site.end(job)
    assert status == 0, said
    assert digest_of(site.store) == site.expected
