"""Kill -9 of every process of a reindexing, and a full disk: the live store is kept, and the next run continues."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faulty_proxy import Fault as RequestFault
from faulty_proxy import FaultyProxy, faulty_proxy
from people import ANN
from reindexing import (
    LOCAL_CLUSTER,
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
from s3 import S3Server, environment_of
from waiting import LIMIT_S, wait_until

pytest.importorskip("pyspark")

from pyarrow.fs import FileSystem

from cablestore import CableStore
from cablestore.files import ObjectFolder, folder_of, remove

POSTS = conversation(700)


class Site:
    """A store with an export and later arrivals, another export, and the expected result."""

    def __init__(self, path: Path, s3: S3Server | None = None) -> None:
        self.at(path)
        self.template = self.store
        self.s3 = s3
        self.shared = folder_of(path if s3 is None else s3.uri("faults"))
        self.exports = [self.shared.child("own"), self.shared.child("other")]
        store_at(self.store, POSTS[:450])
        with CableStore.open(self.store) as store:
            store.export(self.exports[0], segment_size_bytes=60_000)
        late = [ANN.text("default", "after the export"), ANN.delete(*POSTS[200:230])]
        store_at(self.store, late)
        export_of(POSTS[350:], self.exports[1], segment_size_bytes=60_000)
        self.before = digest_of(self.store)
        self.expected = digest_of_all([*POSTS, *late])
        assert self.before != self.expected

    def at(self, path: Path) -> None:
        """Use this folder for the store and the files of jobs beside it."""
        self.store, self.beside, self.loading = path / "store", path / "store.reindex", path / "store.loading"
        self.script = path / "job.py"

    @property
    def work(self) -> ObjectFolder:
        """The work folder: beside the store, or with the exports in an object store."""
        return folder_of(self.beside) if self.shared.is_local else self.shared.child("work")

    def start(self, *options: str, extra: str = "pass") -> subprocess.Popen[str]:
        work = () if self.shared.is_local else ("--work", self.work.uri)
        return start_job(self.script, *self.exports, "--out", self.store, "--json", *work, *options, extra=extra)

    def end(self, job: subprocess.Popen[str]) -> tuple[int, str]:
        """Wait for a job and all its processes. Return its status and its output."""
        output, errors = job.communicate(timeout=LIMIT_S)
        wait_until(lambda: not processes_of(self.script), "a process outlives the job")
        assert "Traceback" not in errors, errors
        return job.returncode, output + errors

    def finish(self) -> None:
        """Run the job to the end. Check that finished work is not repeated, and that the result is correct."""
        finished = self.finished()
        job = self.start("--keep-work")
        status, said = self.end(job)
        assert status == 0, said
        now = self.finished()
        assert {name: now.get(name) for name in finished} == finished, "finished segments were written again"
        assert digest_of(self.store) == self.expected
        assert not self.loading.exists()

    def finished(self) -> dict[str, int]:
        """Return the write time of each segment in a report."""
        work = self.work
        reports = [json.loads(work.read(name)) for name in [*work.names("derived-*.json"), *work.names("built-*.json")]]
        files = [segment["file"] for report in reports for segment in report["segments"]]
        return {file: written_ns(work, file) for file in files}

    def begin_again(self) -> None:
        """Restore the original store, and remove the files of all jobs."""
        self.work.remove_all()
        for folder in (self.store, self.beside, self.loading):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.template, self.store)

    def assert_untouched(self) -> None:
        assert digest_of(self.store) == self.before


def written_ns(folder: ObjectFolder, name: str) -> int:
    """Return when a file was written. S3 has a resolution of seconds."""
    if folder.is_local:
        return (folder.path / name).stat().st_mtime_ns
    system, root = FileSystem.from_uri(folder.uri)
    return int(system.get_file_info(f"{root}/{name}").mtime_ns)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("template"))


@pytest.fixture(scope="module")
def template_on_s3(tmp_path_factory: pytest.TempPathFactory, s3_process: S3Server) -> Iterator[Site]:
    """Yield a template with exports in an object store. Its environment is set until the end of this file."""
    with pytest.MonkeyPatch.context() as patch:
        cache = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
        for name, value in (s3_process.environment | cache).items():
            patch.setenv(name, value)
        yield Site(tmp_path_factory.mktemp("template"), s3_process)


@pytest.fixture
def site(template: Site, tmp_path: Path) -> Site:
    return copy_of(template, tmp_path)


@pytest.fixture
def site_on_s3(template_on_s3: Site, tmp_path: Path) -> Site:
    return copy_of(template_on_s3, tmp_path)


@pytest.fixture(params=["disk", "S3"])
def either_site(request: pytest.FixtureRequest) -> Site:
    found: Site = request.getfixturevalue("site" if request.param == "disk" else "site_on_s3")
    return found


def copy_of(template: Site, path: Path) -> Site:
    """Return a copy of a template that a test may damage."""
    copy = Site.__new__(Site)
    copy.__dict__.update(template.__dict__)
    copy.at(path)
    copy.begin_again()
    return copy


def kill_when(site: Site, job: subprocess.Popen[str], is_due: Callable[[], object], delay_s: float = 0) -> None:
    """Kill the job's driver at a moment, unless it ends before. All its processes end with it."""
    wait_until(lambda: is_due() or job.poll() is not None, "the instant never came")
    time.sleep(delay_s)
    job.kill()
    job.communicate(timeout=LIMIT_S)
    wait_until(lambda: not processes_of(site.script), "a process outlives the driver")


@pytest.mark.soak
def test_a_job_continues_after_a_kill_of_its_driver_at_every_stage(either_site: Site) -> None:
    """One job is killed in each of its stages, and continues each time with the finished work."""
    site = either_site
    work, loading = site.work, site.loading
    instants: list[Callable[[], object]] = [
        lambda: work.names("derived-*.json"),
        lambda: len(work.names("built-*.json")) > 3,
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
def test_a_job_continues_after_kills_of_its_driver_at_random_moments(site: Site) -> None:
    for seed in range(40):
        job = site.start()
        kill_when(site, job, lambda: True, random.Random(seed).uniform(0.5, 10))
        if job.returncode == 0:
            assert digest_of(site.store) == site.expected
            return  # the job was faster; a soak checks the number of kills
        site.assert_untouched()
    site.finish()


# --- faults of one job each -------------------------------------------------------------------


def a_driver_killed_at_a_random_instant(site: Site) -> None:
    """The moment is printed with a failure. If the job was faster, its work is undone."""
    job, delay_s = site.start(), random.uniform(0.5, 6)
    print(f"killed after {delay_s:.3f} s")
    kill_when(site, job, lambda: True, delay_s)
    if job.returncode == 0:
        assert digest_of(site.store) == site.expected
        site.begin_again()
    else:
        assert job.returncode == -signal.SIGKILL


def a_python_worker_killed(site: Site) -> None:
    """In one process Spark fails with the first failed task, but succeeds if no task was running."""
    job = site.start()
    kill_python_workers(site.work, site.script, job)
    status, said = site.end(job)
    if status == 0:
        assert digest_of(site.store) == site.expected
        site.begin_again()
    else:
        assert status == 1, said


FULL = """
import os, resource, sys
from cablestore.reindex import new_generation
load = new_generation.load
def full(*args, **options):
    sys.dont_write_bytecode = True  # Python would leave incomplete bytecode of installed packages
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
    return load(*args, **options)
new_generation.load = full
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
"""The faults are in the order of their stages, so each follows the state that the last one left."""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("place", "faults"),
    [
        pytest.param("site", tuple(each for each in FAULTS if each is not a_python_worker_killed), id="disk"),
        pytest.param("site_on_s3", (a_driver_killed_at_a_random_instant,), id="S3"),
        *(
            pytest.param(place, (fault,), id=f"{fault.__name__}-{place}", marks=pytest.mark.soak)
            for place in ("site", "site_on_s3")
            for fault in FAULTS
        ),
    ],
)
def test_the_next_job_continues_after_any_fault(
    request: pytest.FixtureRequest, place: str, faults: tuple[Fault, ...]
) -> None:
    """After any fault the live store is unchanged, and finished work is not repeated.

    On S3, `test_a_truncated_object_is_named_and_the_store_is_unchanged` kills a driver while it swaps.
    test_reindex_cluster.py kills a Python worker. The other faults affect the local disk in either case.
    """
    site: Site = request.getfixturevalue(place)
    for fault in faults:
        fault(site)
        site.assert_untouched()
    site.finish()


# --- faults of an object store --------------------------------------------------------------------


@pytest.fixture
def proxy(site_on_s3: Site) -> Iterator[FaultyProxy]:
    """Run a proxy of the object store, which jobs use while its fault is not "none"."""
    assert site_on_s3.s3 is not None
    with faulty_proxy(site_on_s3.s3.port) as proxy, pytest.MonkeyPatch.context() as patch:
        for name, value in environment_of(proxy.port).items():
            patch.setenv(name, value)
        yield proxy


@pytest.mark.thorough
def test_a_job_succeeds_with_an_object_store_that_fails_occasionally(site_on_s3: Site, proxy: FaultyProxy) -> None:
    """Requests are repeated, so that the job succeeds."""
    faults: tuple[RequestFault, ...] = ("refuse", "cut", "cut answer")
    proxy.fault = lambda method, path, number: faults[number // 20 % 3] if number % 20 == 19 else "none"
    status, said = site_on_s3.end(site_on_s3.start())
    assert status == 0, said
    assert len(proxy.requests) > 100
    assert digest_of(site_on_s3.store) == site_on_s3.expected
    assert site_on_s3.work.is_empty()


REQUESTS_OF_A_TASK = 12
"""Four attempts of this package, with three requests of pyarrow each."""
PROCESSES = 12
"""More than the Python workers of two cores, of which Spark ends idle ones. It is a third of the buckets."""


@pytest.mark.thorough
def test_a_permanent_failure_of_the_object_store_is_reported_in_one_line(site_on_s3: Site, proxy: FaultyProxy) -> None:
    """One line reports the failure, after a task in each process has tried. The next job continues."""
    for part in ("run-", "built-"):
        proxy.requests.clear()
        proxy.fault = lambda method, path, _, part=part: "refuse" if is_put(method, path, part) else "none"  # type: ignore[misc] # the argument has its default
        status, said = site_on_s3.end(site_on_s3.start())
        assert status == 3, said
        assert f"{site_on_s3.work}/{part}" in said
        site_on_s3.assert_untouched()
        refused = sum(is_put(method, path, part) for method, path in proxy.requests)
        assert REQUESTS_OF_A_TASK <= refused <= PROCESSES * REQUESTS_OF_A_TASK
    proxy.fault = lambda *_: "none"
    site_on_s3.finish()


def is_put(method: str, path: str, part: str) -> bool:
    return method == "PUT" and f"/{part}" in path


@pytest.mark.thorough
def test_a_truncated_object_is_named_and_the_store_is_unchanged(site_on_s3: Site) -> None:
    """Only another program, or an incomplete copy, can leave one. The error names it, and the store is unchanged.

    With the whole object, the next job continues.
    """
    site = site_on_s3
    a_driver_killed_while_it_swaps(site, "adopt")
    for kind in ("rows-*.seg", "derived-*.json", "run-*"):
        shutil.rmtree(site.loading, ignore_errors=True)
        name = max(site.work.names(kind))
        whole = site.work.read(name)
        site.work.write(name, whole[:-10])
        if kind == "run-*":
            remove(site.work, site.work.names("built-*.json"))
        status, said = site.end(site.start())
        assert status == 2, said
        assert f"{site.work}/{name}" in said
        site.assert_untouched()
        site.work.write(name, whole)
    site.finish()


@pytest.mark.soak
@pytest.mark.parametrize("point", ["adopt", "activate"])
def test_a_job_continues_after_a_kill_of_its_driver_during_the_swap(site: Site, point: str) -> None:
    a_driver_killed_while_it_swaps(site, point, "after")
    assert digest_of(site.store) == (site.expected if point == "activate" else site.before)
    site.finish()


@pytest.mark.soak
def test_a_job_on_a_local_cluster_survives_kills_of_an_executor_and_a_worker(site: Site) -> None:
    """Like in test_reindex_cluster.py, but all processes are children of the driver."""
    job = site.start(*LOCAL_CLUSTER)
    kill_python_workers(site.work, site.script, job)
    kill_an_executor(site.script, job)
    status, said = site.end(job)
    assert status == 0, said
    assert digest_of(site.store) == site.expected
