"""Common parts of the tests of the Spark job: one Spark session for a file of tests, stores and exports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from folders import SUPPORT
from people import ANN, BOB, CYD, raws
from waiting import wait_until

from cablestore import CableStore, Post, StoreOptions
from cablestore.files import Location, ObjectFolder
from cablestore.index import parallel
from cablestore.reindex import load, prepare
from cablestore.reindex.driver import Progress, in_driver
from cablestore.reindex.java import find_java
from cablestore.reindex.spark import SQL_OPTIONS, session

SHARES = {"PARTITION_POSTS": 400, "MAX_BUCKET_SIZE_BYTES": 60_000, "PART_ROWS": 2_000}
"""Limits with which some thousand posts have several partitions, buckets and parts."""

LOCAL_CLUSTER = (
    *("--master", "local-cluster[2,1,1024]"),
    *("--conf", "spark.executor.memory=512m"),
    *("--conf", "spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
)
"""Options for a job with two worker processes. They run for seconds: Java need not optimize their code."""

CHILD = """
import sys
from cablestore.cli import main
EXTRA
main(sys.argv[1:])
"""

SMALL_SHARES = f"""
from cablestore.index import parallel
from cablestore.reindex import load, prepare
parallel.PARTITION_POSTS = {SHARES["PARTITION_POSTS"]}
load.PART_ROWS = {SHARES["PART_ROWS"]}
prepare.MAX_BUCKET_SIZE_BYTES = {SHARES["MAX_BUCKET_SIZE_BYTES"]}
"""
"""Python runs it where it begins, in a module `sitecustomize`: the program and Spark's driver are two processes."""


L = TypeVar("L", bound=Location)
T = TypeVar("T")


SMALL_TABLES: Final = {
    "spark.sql.shuffle.partitions": "2",
    # Generating and compiling Java for a query, and replanning, take longer than a query about small tables.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
}
"""Settings of a program for small tables. Jobs in a session of their own, in other tests, use Spark's defaults."""


@contextmanager
def spark_session(folder: Path) -> Iterator[Any]:
    """Create the folder, and run Spark in this process, as a notebook does. Jobs in the body use it.

    PySpark keeps its Java process, so later files of tests use that of the first one.
    """
    from pyspark.sql import SparkSession

    folder.mkdir(exist_ok=True)
    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.memory": "600m",
        "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1",  # as in jobs: it runs for seconds
        "spark.local.dir": str(folder),
        "spark.log.level": "ERROR",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **SQL_OPTIONS,
        **SMALL_TABLES,
    }
    handler = signal.getsignal(signal.SIGINT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(find_java(folder).home))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
        signal.signal(signal.SIGINT, handler)
        try:
            yield spark
        finally:
            spark.stop()


def with_driver(body: Callable[[Any], T], folder: Path, **options: Any) -> T:
    """Return the result of `body` with a new session, in a separate process. The log of Spark is in the folder."""

    def job(_: Progress) -> T:
        with session(folder / "scratch", log=folder / "spark.log", **options) as spark:
            return body(spark)

    return in_driver(job, folder / "scratch", folder / "spark.log", lambda *_: None)


@contextmanager
def small_shares() -> Iterator[None]:
    """Limit the sizes, so that jobs of this process divide small histories into several shares."""
    before = {name: getattr(_owner(name), name) for name in SHARES}
    for name, value in SHARES.items():
        setattr(_owner(name), name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(_owner(name), name, value)


def _owner(name: str) -> Any:
    return {"PARTITION_POSTS": parallel, "MAX_BUCKET_SIZE_BYTES": prepare, "PART_ROWS": load}[name]


def start_job(script: Path, *arguments: Location, extra: str = "pass") -> subprocess.Popen[str]:
    """Start `cablestore reindex` in a separate process, with small shares. `extra` is a line of code at its beginning."""
    script.write_text(CHILD.replace("EXTRA", extra))
    command = [sys.executable, str(script), "reindex", "--cores", "2", "--driver-memory", "600m", *map(str, arguments)]
    begin = script.with_suffix(".begin")
    begin.mkdir(exist_ok=True)
    (begin / "sitecustomize.py").write_text(SMALL_SHARES)
    environment = os.environ | {"CABLESTORE_TEST_MARK": str(script), "PYTHONPATH": f"{begin}:{SUPPORT}"}
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def processes_of(marked: Path) -> dict[int, str]:
    """Return the command lines of all processes of a job or a cluster, including itself, by their ids.

    `marked` is the job's script or the cluster's folder.
    """
    mark = f"CABLESTORE_TEST_MARK={marked}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # the process has just ended, or is another user's
    return {pid: command for pid, command in found.items() if command}


def kill(*processes: int) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_python_workers(work: ObjectFolder, marked: Path, job: subprocess.Popen[str]) -> None:
    """Kill the Python workers of Spark as soon as they derive posts."""

    def workers() -> list[int]:
        return [pid for pid, command in processes_of(marked).items() if "pyspark.daemon" in command]

    wait_until(lambda: work.exists("job.json") or job.poll() is not None, "no job")
    wait_until(lambda: len(workers()) > 1 or job.poll() is not None, "no worker")
    kill(*workers()[1:])


def kill_an_executor(marked: Path, job: subprocess.Popen[str]) -> None:
    """Kill one of a cluster's executors while a job runs."""

    def executors() -> list[int]:
        commands = processes_of(marked)
        return [pid for pid, command in commands.items() if "CoarseGrainedExecutorBackend" in command]

    wait_until(lambda: executors() or job.poll() is not None, "no executor")
    assert job.poll() is None
    kill(executors()[0])


def conversation(posts: int) -> list[Post]:
    """Return posts of three people in four channels, with topics, joins, names, and deletions of every kind."""
    people = (ANN, BOB, CYD)
    found: list[Post] = [person.named(name) for person, name in zip(people, ("ann", "bob", "cyd"), strict=True)]
    texts: list[Post] = []
    for number in range(posts):
        person = people[number % 3]
        channel = ("default", "a!b", "日本語", "\x00")[number % 4]
        last = tuple(post.hash for post in texts[-4:-3])
        text = person.text(channel, f"{number} lorem ipsum", links=last)
        texts.append(text)
        found.append(text)
        if number % 50 == 0:
            found += [person.topic(channel, f"topic {number}"), person.join(channel)]
        if number % 20 == 19:
            own = person.delete(texts[number - 9], texts[number - 3])
            found += [own, people[(number + 1) % 3].delete(texts[number - 1]), person.delete(own)]
    return found


def store_at(path: Path, posts: Iterable[Post]) -> None:
    """Create a store of these posts, or add them to it."""
    with CableStore.open(path) as store:
        store.ingest(raws(*posts), verify=False, batch_posts=500)


def digest_of(path: Path) -> str:
    """Return the dump digest of a store, which must be valid."""
    with CableStore.open(path) as store:
        report = store.check()
        assert report.is_clean, [str(problem) for problem in report.problems]
        return store.dump_digest()


def digest_of_all(posts: Iterable[Post]) -> str:
    """Return the dump digest of a store with all these posts, stored one by one."""
    with CableStore.in_memory(options=StoreOptions(verify_threads=1)) as store:
        store.ingest(raws(*posts), verify=False, batch_posts=500)
        return store.dump_digest()


def export_of(posts: Iterable[Post], folder: L, **options: Any) -> L:
    """Export a store in memory with these posts."""
    with CableStore.in_memory(options=StoreOptions(verify_threads=1)) as store:
        store.ingest(raws(*posts), verify=False, batch_posts=500)
        store.export(folder, **options)
    return folder
