"""The Spark job on clusters: its work is distributed evenly, and the driver stays small."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from folders import SUPPORT
from people import Person
from reindexing import (
    SHARES,
    conversation,
    digest_of,
    digest_of_all,
    export_of,
    kill_an_executor,
    kill_python_workers,
    start_job,
    with_driver,
)
from s3 import S3Server
from waiting import LIMIT_S

pytest.importorskip("pyspark")

import pyspark
from connect_server import python_without_cablestore
from standalone import QUICK_JAVA, can_hide, standalone_cluster

from cablestore import Post
from cablestore.files import ObjectFolder, folder_of
from cablestore.reindex.java import find_java
from cablestore.reindex.tasks import Batches

EXECUTORS = [
    *("--conf", "spark.executor.memory=512m"),
    *("--conf", "spark.executor.cores=1"),
    *("--conf", f"spark.executor.extraJavaOptions={QUICK_JAVA}"),
]

SENT = r"cablestore-[0-9a-f]{16}\.zip"
"""The file by which workers get this package."""


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the cluster."""
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def master(scratch: Path) -> Iterator[str]:
    """Run a standalone master with two workers, for all jobs of this file."""
    with standalone_cluster(scratch) as url:
        yield url


@dataclass(frozen=True)
class Site:
    """A cluster, and the location that its machines and the driver share. `folder` is the driver's only."""

    master: str
    scratch: Path
    folder: Path
    shared: ObjectFolder


@pytest.fixture(params=["a disk", "S3"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    """Return a cluster that shares a disk with the driver, or one that shares only an object store."""
    if request.param == "a disk":
        cluster = request.getfixturevalue("master"), request.getfixturevalue("scratch")
        return Site(*cluster, tmp_path, folder_of(tmp_path / "shared"))
    s3: S3Server = request.getfixturevalue("s3")
    apart: tuple[str, Path, Path] = request.getfixturevalue("apart")
    return Site(*apart, folder_of(s3.uri("cluster")))


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory, s3_process: S3Server) -> Iterator[tuple[str, Path, Path]]:
    """Run a cluster whose workers cannot access the driver's folder. Return its URL, its folder and the driver's."""
    scratch, driver = tmp_path_factory.mktemp("apart"), tmp_path_factory.mktemp("driver")
    if not can_hide(driver):
        pytest.skip("this machine does not let us hide a folder from a process")
    with standalone_cluster(scratch, variables=s3_process.environment, hidden=driver) as url:
        yield url, scratch, driver


def executors_of(scratch: Path) -> set[Path]:
    """Return the folders of all executors so far of the cluster's workers."""
    return set(scratch.glob("worker-*/app-*/*"))


def outputs_of(executors: set[Path]) -> list[str]:
    return [(folder / "stderr").read_text() for folder in executors]


def hot_posts(count: int) -> list[Post]:
    """Return posts, half of them in one channel and a third by one author."""
    people = [Person(f"person {number}") for number in range(40)]
    found = []
    for number in range(count):
        author = people[0] if number % 3 == 0 else people[1 + number % 39]
        channel = "hot" if number % 2 else f"channel {number % 97}"
        found.append(author.text(channel, f"{number} lorem ipsum dolor sit amet"))
        if number % 100 == 0:
            found.append(author.join(channel))
    return found


@pytest.mark.thorough
def test_a_job_on_a_standalone_cluster_survives_kills_of_its_processes(site: Site) -> None:
    """Spark repeats lost tasks on the remaining processes.

    The job ends normally, with even shares.
    """
    scratch, work = site.scratch, site.shared.child("work")
    posts = hot_posts(4000)
    exports = [
        export_of(posts[:2700], site.shared.child("one"), segment_size_bytes=200_000),
        export_of(posts[1700:], site.shared.child("two"), segment_size_bytes=200_000),
    ]
    options: list[str | Path] = [
        "--out",
        site.folder / "store",
        "--work",
        work.uri,
        "--keep-work",
        "--json",
        "--master",
        site.master,
        *EXECUTORS,
    ]
    job = start_job(site.folder / "job.py", *exports, *options)
    kill_python_workers(work, scratch, job)
    kill_an_executor(scratch, job)
    output, errors = job.communicate(timeout=LIMIT_S)
    assert job.returncode == 0, errors
    assert {folder.parts[-3] for folder in executors_of(scratch)} == {"worker-0", "worker-1"}
    assert digest_of(site.folder / "store") == digest_of_all(posts)
    printed = json.loads(output.splitlines()[-1])
    assert printed["counts"]["duplicates"] == len(set(posts[:2700]) & set(posts[1700:]))
    print(printed["seconds"])
    assert_even(work)
    assert not list(site.folder.glob("**/spark"))


def assert_even(work: ObjectFolder) -> None:
    """Check that no partition or bucket is much larger than the others, even with hot authors and channels."""
    derived = reports(work, "derived")
    posts = [sum(report["posts"].values()) for report in derived]
    assert len(posts) > 10
    assert max(posts) < 1.5 * sum(posts) / len(posts)
    buckets = [segment for report in reports(work, "built") for segment in report["segments"]]
    size_bytes = [sum(size for _, size in segment["sizes"].values()) for segment in buckets]
    assert len(buckets) > 20
    assert max(size_bytes) < 2.5 * SHARES["MAX_BUCKET_SIZE_BYTES"]
    rows = [segment["rows"] for segment in buckets if "messages" in segment["sizes"]]
    assert len(rows) > 3, "the hot channel is in one task"
    assert max(rows) < 2.5 * sum(rows) / len(rows)
    rows = [segment["rows"] for segment in buckets if "author" in segment["sizes"]]
    assert len(rows) > 3, "the prolific author is in one task"
    assert max(rows) < 2.5 * sum(rows) / len(rows)


def reports(work: ObjectFolder, stage: str) -> list[dict[str, Any]]:
    return [json.loads(work.read(name)) for name in work.names(f"{stage}-*.json")]


@pytest.mark.thorough
def test_a_work_folder_that_workers_cannot_see_is_rejected(apart: tuple[str, Path, Path], s3: S3Server) -> None:
    """The name alone is not sufficient, because each machine may have a folder of that name."""
    master, _, folder = apart
    export = export_of(conversation(20), folder_of(s3.uri("refused")))
    places = ("--out", folder / "refused", "--work", folder / "work")
    job = start_job(folder / "job.py", export, *places, "--master", master, *EXECUTORS)
    _, errors = job.communicate(timeout=LIMIT_S)
    assert job.returncode == 2, errors
    assert "does not see the files that the worker on" in errors
    assert not (folder / "refused").exists()


PEAKS = """
import sys, threading, time
from pathlib import Path
from reindexing import spark_session
from cablestore.index import parallel
from cablestore.reindex import load, prepare
from cablestore.reindex import reindex

prepare._SAMPLED_POSTS = 1000
parallel.PARTITION_POSTS, prepare.MAX_BUCKET_SIZE_BYTES, load.PART_ROWS = 1000, 200_000, 5000
peak_kb = 0

def watch():
    global peak_kb
    while True:
        fields = Path("/proc/self/status").read_text().split("RssAnon:")[1]  # without LevelDB's mapped files
        peak_kb = max(peak_kb, int(fields.split()[0]))
        time.sleep(0.02)

threading.Thread(target=watch, daemon=True).start()
with spark_session(Path(sys.argv[1])):
    for number, export in enumerate(map(Path, sys.argv[2:])):
        reindex([export], export.with_suffix(f".{number}"))
        print(peak_kb)
"""


@pytest.mark.thorough
def test_the_memory_of_the_driver_does_not_grow_with_the_export(tmp_path: Path) -> None:
    """Java's memory has a fixed size. The test measures Python's, for four times the posts, in a separate process."""
    posts = hot_posts(4000)
    small, large = (export_of(posts[:n], tmp_path / str(n), segment_size_bytes=500_000) for n in (1000, len(posts)))
    command = [sys.executable, "-c", PEAKS, str(tmp_path), str(small), str(small), str(large)]
    environment = os.environ | {"PYTHONPATH": str(SUPPORT)}
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=LIMIT_S)
    assert found.returncode == 0, found.stderr
    _, small_kb, large_kb = peaks_kb = [int(peak) for peak in found.stdout.split()]
    print(f"driver's peaks: {peaks_kb} kB")
    assert large_kb < small_kb + 8000


@pytest.mark.thorough
def test_workers_without_the_package_receive_it(
    master: str, scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def origins(batches: Batches) -> Batches:
        import pyarrow as pa

        from cablestore.reindex import tasks  # which imports much of the package and its dependencies

        for batch in batches:
            yield pa.record_batch({"origin": [tasks.__file__] * batch.num_rows})

    before = executors_of(scratch)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python_without_cablestore(tmp_path / "python")))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    settings = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": QUICK_JAVA}
    found = with_driver(
        lambda spark: spark.range(0, 4, 1, 4).mapInArrow(origins, "origin string").collect(),
        tmp_path,
        master=master,
        driver_memory="600m",
        options=settings,
    )
    [sent] = {Path(row.origin).parents[2].name for row in found}
    assert re.fullmatch(SENT, sent)
    assert all(re.search(SENT, said) for said in outputs_of(executors_of(scratch) - before))


@pytest.mark.thorough
def test_spark_submit_runs_the_job_on_a_standalone_cluster(master: str, scratch: Path, tmp_path: Path) -> None:
    """The same job is started as on clusters, with the command in the documentation."""
    posts = conversation(300)
    export = export_of(posts, tmp_path / "export", segment_size_bytes=60_000)
    module = [sys.executable, "-m", "cablestore.cli.submit"]
    script = subprocess.run(module, capture_output=True, text=True, check=True).stdout.strip()
    home = pyspark.__path__[0]
    environment = os.environ | {"SPARK_HOME": home, "JAVA_HOME": str(find_java(tmp_path).home)}
    settings = {
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "600m",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.cores.max": "1",
    }
    command = [f"{home}/bin/spark-submit", "--master", master, *EXECUTORS]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    command += [script, str(export), "--out", str(tmp_path / "store"), "--work", str(tmp_path / "work"), "--json"]
    before = executors_of(scratch)
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=LIMIT_S)
    assert found.returncode == 0, found.stderr
    [*said] = outputs_of(executors_of(scratch) - before)
    assert said, "no worker took part"
    assert not any(re.search(SENT, text) for text in said), "workers have the package already"
    assert digest_of(tmp_path / "store") == digest_of_all(posts)
