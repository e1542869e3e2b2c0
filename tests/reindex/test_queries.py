"""Spark queries: the causes of their errors, the advice for the user, and Ctrl-C."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from waiting import LIMIT_S

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.errors import PySparkException

from cablestore.errors import StorageError
from cablestore.reindex.causes import SparkError, cause_of_query
from cablestore.reindex.queries import explained, is_disconnected, is_of_ctrl_c
from cablestore.reindex.workers import in_worker


def test_an_error_of_spark_has_its_cause_and_the_place_to_look() -> None:
    with pytest.raises(SparkError, match=r"^it cannot be\. See the log$"), explained("See the log"):
        raise PySparkException("it cannot be")
    with pytest.raises(StorageError, match=r"No space left on device.*\. See the log$"), explained("See the log"):
        raise PySparkException("java.io.IOException: No space left on device")
    with pytest.raises(SparkError, match=r"^the Java process of .* ended.*See the log$"), explained("See the log"):
        raise ConnectionRefusedError
    hiding = PySparkException("hides it")
    hiding.__context__ = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt), explained("See the log"):
        raise hiding
    with pytest.raises(ValueError, match="mine"), explained("See the log"):
        raise ValueError("mine")


@pytest.mark.parametrize(
    ("error", "is_ended"),
    [
        (ConnectionResetError(), True),
        (EOFError(), True),
        (PySparkException("SparkContext was shut down"), True),
        (PySparkException("An error occurred while calling o12.range"), True),
        (PySparkException("An error occurred while calling o12.range.\n: java.lang.Error"), False),
        (PySparkException("it cannot be"), False),
    ],
)
def test_an_error_shows_whether_java_ended(error: Exception, is_ended: bool) -> None:
    assert is_disconnected(error) is is_ended


def test_ctrl_c_is_found_behind_several_errors() -> None:
    errors: list[BaseException] = [KeyboardInterrupt(), ValueError(), OSError()]
    for before, error in pairwise(errors):
        error.__context__ = before
    assert is_of_ctrl_c(errors[2])
    assert not is_of_ctrl_c(ValueError())


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("[CODE] it failed. SQLSTATE: 0\n\nJVM stacktrace:\nat x", "[CODE] it failed. SQLSTATE: 0"),
        (
            "An error occurred while calling o1.collect.\n: java.lang.Error: it failed\n\tat x(Y.java)\nCaused by: the root\n",
            "java.lang.Error: it failed, caused by the root",
        ),
        (
            "Job aborted: Traceback (most recent call last):\n  File x\n    code\nValueError: first line\nsecond line\n",
            "ValueError: first line\nsecond line",
        ),
        ("", "PySparkException('')"),
    ],
)
def test_the_cause_of_a_query_is_its_first_line_and_root_or_the_end_of_a_traceback(text: str, cause: str) -> None:
    assert cause_of_query(PySparkException(text)).text == cause


def test_a_cause_names_the_variables_that_are_set() -> None:
    error = PySparkException("java.lang.OutOfMemoryError: Java heap space.\n\tat x")
    assert cause_of_query(
        error, {"JAVA_TOOL_OPTIONS": "-Xmx1m", "_JAVA_OPTIONS": "", "JDK_JAVA_OPTIONS": "x"}
    ).text == (
        "java.lang.OutOfMemoryError: Java heap space. Give Java more memory with --driver-memory. Check "
        "JAVA_TOOL_OPTIONS and JDK_JAVA_OPTIONS in the environment"
    )
    assert cause_of_query(error, {}).text.endswith("with --driver-memory")


def test_a_worker_yields_all_that_its_task_yields() -> None:
    batches = [pa.record_batch({"id": [number]}) for number in range(3)]
    assert list(in_worker(lambda found: (batch for batch in found if batch is not batches[1]))(iter(batches))) == [
        batches[0], batches[2]
    ]  # fmt: skip


# --- Ctrl-C ----------------------------------------------------------------------------------------

INTERRUPTED = """
import os, signal, sys, threading
from pathlib import Path
from reindexing import spark_session
from cablestore.reindex.queries import run_query

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

def interrupting(thread):
    # The signal arrives while the main thread waits until the new thread runs.
    start(thread)
    if thread.name == "cablestore-work":
        begun.append(thread)
        if len(begun) == at:
            interrupt()

def endless():
    if at == 3:
        interrupt()
    spark.range(10**15).selectExpr("sum(hash(id))").collect()

with spark_session(Path(sys.argv[1])) as spark:
    start, threading.Thread.start = threading.Thread.start, interrupting
    tracker = spark.sparkContext.statusTracker()
    for at in range(1, 5):
        begun, later = [], threading.Timer(1, interrupt)
        if at == 4:
            start(later)
        try:
            run_query(spark, "endless", endless)
        except KeyboardInterrupt:
            for thread in begun:
                thread.join(LIMIT_S)
            left = [thread.is_alive() for thread in begun]
            print(left, tracker.getActiveJobsIds(), flush=True)
            if any(left):
                os._exit(1)
            assert spark.range(7).count() == 7
"""


@pytest.mark.thorough
def test_ctrl_c_ends_a_query_and_its_jobs_at_any_moment(tmp_path: Path) -> None:
    """It arrives while the thread for the progress starts, while that for the query starts, before a job, or later."""
    code = INTERRUPTED.replace("LIMIT_S", str(LIMIT_S / 10))
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "spark")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    expected = [f"{[False] * threads} []" for threads in (1, 3, 3, 3)]
    assert (done.stdout.splitlines(), done.returncode) == (expected, 0), done.stderr
