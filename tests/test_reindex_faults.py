"""Kill -9 of everything that a reindexing consists of, and a full disk: the live store stays, the next run goes on."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from people import ANN
from reindexing import conversation, digest_of, digest_of_all, export_of, processes_of, start_job, store_at

pytest.importorskip("pyspark")

from cablestore import CableStore

POSTS = conversation(1500)
TIMEOUT_S = 300


class Site:
    """A store with an export and later arrivals, another export, and what the store should be afterwards."""

    def __init__(self, path: Path) -> None:
        self.store, self.work, self.loading = path / "store", path / "store.reindex", path / "store.loading"
        self.script = path / "job.py"
        self.exports = [path / "own", path / "other"]
        store_at(self.store, POSTS[:900])
        with CableStore.open(self.store) as store:
            store.export(self.exports[0], segment_size_bytes=60_000)
        late = [ANN.text("default", "after the export"), ANN.delete(*POSTS[200:230])]
        store_at(self.store, late)
        export_of(POSTS[700:], self.exports[1], segment_size_bytes=60_000)
        self.before = digest_of(self.store)
        self.expected = digest_of_all([*POSTS, *late])
        assert self.before != self.expected

    def start(self, *options: str, extra: str = "pass") -> subprocess.Popen[str]:
        return start_job(self.script, *self.exports, "--out", self.store, "--json", *options, extra=extra)

    def end(self, job: subprocess.Popen[str]) -> tuple[int, str]:
        """Wait for a job and all its processes. Returns its status and what it said."""
        output, errors = job.communicate(timeout=TIMEOUT_S)
        wait_until(lambda: not processes_of(self.script), "a process outlives the job")
        assert "Traceback" not in errors, errors
        return job.returncode, output + errors

    def finish(self) -> None:
        """Run to the end; what was finished is not made again, and what comes out is what should."""
        finished = self.finished()
        job = self.start("--keep-work")
        status, said = self.end(job)
        assert status == 0, said
        now = self.finished()
        assert {name: now.get(name) for name in finished} == finished, "finished segments were made again"
        assert digest_of(self.store) == self.expected
        assert not self.loading.exists()

    def finished(self) -> dict[str, int]:
        """When each segment that a report names was written."""
        found = {}
        for report in [*self.work.glob("derived-*.json"), *self.work.glob("built-*.json")]:
            for segment in json.loads(report.read_text())["segments"]:
                found[segment["file"]] = (self.work / segment["file"]).stat().st_mtime_ns
        return found

    def assert_untouched(self) -> None:
        assert digest_of(self.store) == self.before


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("template"))


@pytest.fixture
def site(template: Site, tmp_path: Path) -> Site:
    """A copy of the template that a test can ruin."""
    copy = Site.__new__(Site)
    copy.__dict__.update(template.__dict__)
    for name in ("store", "work", "loading", "script"):
        setattr(copy, name, tmp_path / getattr(template, name).name)
    shutil.copytree(template.store, copy.store)
    return copy


def wait_until(is_so: Callable[[], object], otherwise: str, seconds: float = 60) -> None:
    deadline_s = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline_s, otherwise
        time.sleep(0.01)


def kill_when(site: Site, job: subprocess.Popen[str], is_due: Callable[[], object], delay_s: float = 0) -> None:
    """Kill the job's driver at an instant, unless it ends before. All its processes end with it."""
    wait_until(lambda: is_due() or job.poll() is not None, "the instant never came", TIMEOUT_S)
    time.sleep(delay_s)
    job.kill()
    job.communicate(timeout=TIMEOUT_S)
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


@pytest.mark.parametrize("kills", [2, pytest.param(40, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_a_driver_that_is_killed_at_random_instants(site: Site, kills: int) -> None:
    for seed in range(kills):
        job = site.start()
        kill_when(site, job, lambda: True, random.Random(seed).uniform(0.5, 10))
        if job.returncode == 0:
            assert digest_of(site.store) == site.expected
            return  # it was faster; a soak tells by its number of kills
        site.assert_untouched()
    site.finish()


@pytest.mark.parametrize(
    ("point", "when"),
    [
        ("activate", "before"),
        pytest.param("adopt", "after", marks=pytest.mark.soak),
        pytest.param("activate", "after", marks=pytest.mark.soak),
    ],
)
def test_a_driver_that_is_killed_while_it_swaps(site: Site, point: str, when: str) -> None:
    extra = f"import dying; dying.at('{point}', '{when}')"
    (site.script.parent / "dying.py").write_text(DYING)
    status, said = site.end(site.start(extra=extra))
    assert status == -signal.SIGKILL, said
    is_swapped = (point, when) == ("activate", "after")
    assert digest_of(site.store) == (site.expected if is_swapped else site.before)
    site.finish()


DYING = """
import os, signal
from cablestore.folder import Folder

def at(name, when):
    function = getattr(Folder, name)
    def dying(*args, **options):
        if when == "after":
            function(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(Folder, name, dying)
"""


def test_a_process_of_the_loader_that_is_killed(site: Site) -> None:
    job = site.start()

    def loaders() -> list[int]:
        return [pid for pid, command in processes_of(site.script).items() if "loky.backend.popen" in command]

    wait_until(lambda: (site.loading.exists() and loaders()) or job.poll() is not None, "no loader", TIMEOUT_S)
    for pid in loaders():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    status, said = site.end(job)
    assert status in (2, 3), said
    assert "again" in said
    site.assert_untouched()
    site.finish()


def test_a_python_worker_that_is_killed(site: Site) -> None:
    """In one process Spark gives up with the first task that fails; the next run goes on."""
    job = site.start()
    kill_workers(site, job)
    status, said = site.end(job)
    if status:
        assert status == 2, said
        site.assert_untouched()
        site.finish()
    else:
        assert digest_of(site.store) == site.expected


def kill_workers(site: Site, job: subprocess.Popen[str]) -> None:
    """Kill the Python workers of Spark as soon as posts are being derived."""

    def workers() -> list[int]:
        return [pid for pid, command in processes_of(site.script).items() if "pyspark.daemon" in command]

    wait_until(lambda: (site.work / "job.json").exists() or job.poll() is not None, "no job", TIMEOUT_S)
    wait_until(lambda: len(workers()) > 1 or job.poll() is not None, "no worker", TIMEOUT_S)
    for pid in workers()[1:]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_an_executor_and_a_worker_of_a_cluster_that_are_killed(site: Site) -> None:
    """Spark runs what was lost again on what is left, and the job ends as if nothing had been."""
    job = site.start("--master", "local-cluster[2,1,1024]", "--conf", "spark.executor.memory=512m")
    kill_workers(site, job)

    def executors() -> list[int]:
        commands = processes_of(site.script)
        return [pid for pid, command in commands.items() if "CoarseGrainedExecutorBackend" in command]

    wait_until(lambda: executors() or job.poll() is not None, "no executor", TIMEOUT_S)
    assert job.poll() is None
    os.kill(executors()[0], signal.SIGKILL)
    status, said = site.end(job)
    assert status == 0, said
    assert digest_of(site.store) == site.expected


FULL = """
import resource
from cablestore.reindex import generation
load = generation.load
def full(*args, **options):
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
    return load(*args, **options)
generation.load = full
"""


def test_a_full_disk_in_the_middle_of_the_load(site: Site) -> None:
    """No file may grow beyond a limit, which the kernel says with the same kind of error as a full disk."""
    (site.script.parent / "full.py").write_text(FULL)
    status, said = site.end(site.start(extra="import full"))
    assert status == 3, said
    assert "free space" in said
    site.assert_untouched()
    site.finish()
