"""An error of Spark has its cause and a remedy, its status is 1, and the log that it names exists."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pytest
from people import ANN
from reindexing import conversation, digest_of, digest_of_all, export_of, kill, processes_of, start_job, with_driver
from waiting import LIMIT_S, wait_until

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from cablestore import CableStore
from cablestore.errors import StorageError
from cablestore.reindex.causes import SparkError, cause_of_log

CLUSTER = "spark://127.0.0.1:1"
"""Master that does not answer. A job for a cluster uses the environment."""

JAVA = """\
#!/bin/sh
case "$*" in
*-version*) echo '    java.version = 17.0.1'; echo '    java.home = {home}' ;;
*) {end} ;;
esac
"""
"""Program that reports a version. Then it ends."""
KILLED = r"printf '\0\nsh\0-c\0kill -9 $$\0'"
"""The launcher of Spark is a Java program that prints the command of the driver."""


@dataclass(frozen=True)
class Fault:
    """A fault, and the text of its error."""

    said: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    environ: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    master: str | None = None
    memory: str = "600m"
    end: str = "echo 'it was out of order' >&2; exit 7"
    """How the Java process of JAVA_HOME ends."""


FAULTS = {
    "memory that the machine lacks": Fault(("object heap", "--driver-memory"), memory="900000g"),
    "an option of Java": Fault(
        ("initialization of VM: Multiple garbage collectors",),
        {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:+UseParallelGC"},
    ),
    "deploy mode": Fault(("Cluster deploy mode is not compatible",), {"spark.submit.deployMode": "cluster"}),
    "a master that is none": Fault(("Master must",), master="nonsense"),
    "a folder that cannot be made": Fault(("status 53", "/proc/nowhere"), {"spark.local.dir": "/proc/nowhere"}),
    "an address of another machine": Fault(
        ("BindException", "an address of this machine"),
        {"spark.driver.bindAddress": "203.0.113.7", "spark.port.maxRetries": "1"},
    ),
    "a host name": Fault(
        ("UnresolvedAddressException", "SPARK_LOCAL_HOSTNAME"),
        {},
        {"SPARK_LOCAL_HOSTNAME": "no-such-host.invalid"},
        CLUSTER,
    ),
    "arguments of submit": Fault(
        ("Missing application resource", "PYSPARK_SUBMIT_ARGS"), {}, {"PYSPARK_SUBMIT_ARGS": "--master yarn"}, CLUSTER
    ),
    "arguments with which Java ends with status 0": Fault(
        ("ended with status 0",), {}, {"PYSPARK_SUBMIT_ARGS": "--version pyspark-shell"}, CLUSTER
    ),
    "options of every Java": Fault(
        ("Unrecognized option: -Xfoo", "JAVA_TOOL_OPTIONS"), {}, {"JAVA_TOOL_OPTIONS": "-Xfoo"}, CLUSTER
    ),
    "settings of Hadoop": Fault(("core-site.xml", "HADOOP_CONF_DIR"), {}, {"HADOOP_CONF_DIR": "hadoop"}, CLUSTER),
    "a Java that ends when it should begin": Fault(
        ("ended with status 1", "it was out of order", "Java of JAVA_HOME"), {}, {"JAVA_HOME": "FOLDER/java"}
    ),
    "a Java that is killed": Fault(
        ("Java was killed (SIGKILL)", "memory", "--cores"), {}, {"JAVA_HOME": "FOLDER/java"}, end=KILLED
    ),
}


@pytest.mark.thorough(
    "a folder that cannot be made",
    "a host name",
    "a master that is none",
    "an address of another machine",
    "arguments of submit",
    "arguments with which Java ends with status 0",
    "deploy mode",
    "settings of Hadoop",
)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_start_that_fails_names_its_cause(fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hadoop").mkdir()
    (tmp_path / "hadoop" / "core-site.xml").write_text("<configuration><broken")
    for name, value in fault.environ.items():
        monkeypatch.setenv(name, value.replace("FOLDER", str(tmp_path)))
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(JAVA.format(home=tmp_path / "java", end=fault.end))
    java.chmod(0o755)
    log = tmp_path / "spark.log"
    log.write_text("OutOfMemoryError of an earlier run\n")
    with pytest.raises(SparkError) as error:
        with_driver(
            lambda _: None,
            tmp_path,
            master=fault.master,
            cores=1,
            driver_memory=fault.memory,
            options=dict(fault.options),
        )
    message = str(error.value)
    for part in fault.said:
        assert part in message
    assert re.search(r"\n\s+at ", message) is None
    assert "earlier run" not in message
    assert error.value.exit_status == 1


@pytest.mark.thorough
def test_an_error_of_exhausted_java_memory_suggests_an_option(tmp_path: Path) -> None:
    def fill(spark: SparkSession) -> None:
        spark.sql("SELECT collect_list(repeat(id, 200000)) FROM range(5000)").collect()

    with pytest.raises(SparkError, match=r"OutOfMemoryError.*--driver-memory"):
        with_driver(fill, tmp_path, cores=1, driver_memory="512m")


@pytest.mark.thorough
def test_a_killed_python_worker_is_named_in_the_error(tmp_path: Path) -> None:
    def end(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield from batches

    with pytest.raises(SparkError, match=r"Python worker.*A Python worker was killed.*--cores"):
        with_driver(lambda spark: spark.range(1).mapInArrow(end, "id long").collect(), tmp_path, cores=1)


def test_a_full_disk_raises_a_storage_error() -> None:
    said = "java.io.IOException: No space left on device\n\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native)\n"
    assert cause_of_log(said).error is StorageError


def test_an_unknown_failure_is_reported_by_its_first_exception_and_root_cause() -> None:
    said = """\
2026-01-01T00:00:00.000 WARN Utils: a remark
2026-01-01T00:00:00.000 ERROR SparkContext: Error initializing SparkContext.
org.apache.spark.SparkException: it cannot be
\tat org.apache.spark.SparkContext.<init>(SparkContext.scala:1)
Caused by: java.io.IOException: between
\t... 3 more
Caused by: java.lang.IllegalStateException: the root
\t... 4 more
"""
    assert cause_of_log(said).text == (
        "org.apache.spark.SparkException: it cannot be, caused by java.lang.IllegalStateException: the root"
    )


# --- end of Java during a job ----------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_kill_of_java_is_reported_and_the_next_job_continues(tmp_path: Path) -> None:
    posts = conversation(700)
    export, store, script = tmp_path / "export", tmp_path / "store", tmp_path / "job.py"
    export_of(posts, export)
    work = tmp_path / "store.reindex"
    job = start_job(script, export, "--out", store)
    wait_until(lambda: (work / "job.json").exists() or job.poll() is not None, "no job")
    kill(*[pid for pid, line in processes_of(script).items() if "SparkSubmit" in line])
    _, errors = job.communicate(timeout=LIMIT_S)
    wait_until(lambda: not processes_of(script), "a process outlives the job")
    assert job.returncode == 1, errors
    assert re.fullmatch(
        r"cablestore: Java was killed \(SIGKILL\).*memory.*--cores.*\. Run the same command again to continue\. "
        rf"The log of Spark is {work}/spark\.log\n",
        errors,
    )
    assert (work / "spark.log").exists()
    assert not store.exists()
    job = start_job(script, export, "--out", store)
    _, errors = job.communicate(timeout=LIMIT_S)
    assert job.returncode == 0, errors
    assert digest_of(store) == digest_of_all(posts)


@pytest.mark.thorough("command0")
@pytest.mark.parametrize("command", [["tables", "export", "--out", "tables"], ["reindex", "--verify", "store"]])
def test_the_log_that_an_error_names_exists(command: list[str], tmp_path: Path) -> None:

    with CableStore.open(tmp_path / "store") as store:
        store.ingest([ANN.join("default").raw])
        store.export(tmp_path / "export")
    program = [sys.executable, "-m", "cablestore", *command, "--conf", "spark.driver.extraJavaOptions=-Xms9000g"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1, done.stderr
    log = re.search(r"The log of Spark is (/\S+)\n", done.stderr)
    assert log, done.stderr
    assert "Initial heap size" in Path(log[1]).read_text()
    assert {path.name for path in Path(log[1]).parent.iterdir()} == {"cablestore-work", "spark.log"}
