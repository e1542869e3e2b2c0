"""Errors of Spark queries: their cause, and the advice for the user."""

from __future__ import annotations

from itertools import pairwise

import pytest

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


# --- an open session ---------------------------------------------------------------------------------
