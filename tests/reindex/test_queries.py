"""Queries with the classic client and with Spark Connect, in place of which the tests have sessions without Java."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark import SparkFiles
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from spark_here import Frame, SparkHere
from waiting import LIMIT_S

import cablestore
from cablestore.errors import StorageError
from cablestore.reindex.causes import SparkError, cause_of_query
from cablestore.reindex.queries import explained, is_disconnected, is_of_ctrl_c, run_query
from cablestore.reindex.shipping import send_package
from cablestore.reindex.shuffle import to_partitions
from cablestore.reindex.spark import SQL_OPTIONS, session, starts_driver
from cablestore.reindex.workers import in_worker


class Connected:
    """Session on a server: it has tags, and reports the progress of `stages` to handlers while a query runs."""

    def __init__(self, *stages: SimpleNamespace) -> None:
        self.stages = stages
        self.tags: list[str] = []
        self.handlers: list[Callable[..., None]] = []
        self.cancelled = Event()

    def addTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        self.tags.append(tag)
        for handler in self.handlers:
            handler(None, 0, None, done=False)
            handler(self.stages, 1, "id", done=False)

    def interruptTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        assert tag in self.tags
        self.cancelled.set()

    def registerProgressHandler(self, handler: Callable[..., None]) -> None:  # noqa: N802 - Spark's name
        self.handlers.append(handler)

    def removeProgressHandler(self, handler: Callable[..., None]) -> None:  # noqa: N802 - Spark's name
        self.handlers.remove(handler)


def stage(done: int, total: int, *, is_done: bool = False) -> SimpleNamespace:
    return SimpleNamespace(num_completed_tasks=done, num_tasks=total, done=is_done)


def test_a_query_on_a_server_has_a_tag_and_the_progress_of_running_stages() -> None:
    spark: Any = Connected(stage(4, 4, is_done=True), stage(1, 3))
    seen: list[tuple[int, int]] = []
    assert run_query(spark, "add up", lambda: 7, lambda *numbers: seen.append(numbers)) == 7
    assert seen == [(1, 3)]
    [tag] = spark.tags
    assert tag.startswith("cablestore-add-up-")
    assert spark.handlers == []
    with pytest.raises(ValueError, match="no such thing"):
        run_query(spark, "fail", lambda: int("no such thing"))
    assert (spark.handlers, spark.cancelled.is_set()) == ([], False)


@pytest.mark.parametrize("kind", [SparkHere, Connected])
def test_ctrl_c_cancels_a_query(kind: type[Any]) -> None:
    """The query ends when it is cancelled. Ctrl-C may arrive before its thread has started completely."""
    spark = kind()

    def wait() -> bool:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        found: bool = spark.cancelled.wait(LIMIT_S)
        return found

    with pytest.raises(KeyboardInterrupt):
        run_query(spark, "wait", wait)
    assert spark.cancelled.is_set()


class Tracked(SparkHere):
    """Session that knows one job with two stages. Only one of them runs, and only once it is asked for is the job done."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = Event()

    def statusTracker(self) -> Any:  # noqa: N802 - Spark's name
        def stage_info(number: int) -> SimpleNamespace:
            self.asked.set()
            return SimpleNamespace(numCompletedTasks=number, numTasks=9)

        return SimpleNamespace(
            getActiveStageIds=lambda: [5],
            getJobIdsForGroup=lambda _: [1, 2],
            getJobInfo={1: SimpleNamespace(stageIds=[4, 5]), 2: None}.get,
            getStageInfo=stage_info,
        )


def test_the_progress_of_a_classic_query_is_polled() -> None:
    spark: Any = Tracked()
    seen: list[tuple[int, int]] = []
    assert run_query(spark, "build", lambda: spark.asked.wait(LIMIT_S), lambda *numbers: seen.append(numbers))
    assert seen == [(5, 9)]
    assert spark.groups == ["build"]


# --- errors ------------------------------------------------------------------------------------------


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


# --- workers -----------------------------------------------------------------------------------------


def test_only_workers_with_this_version_are_not_sent_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: str(tmp_path))
    spark: Any = SparkHere()
    assert send_package(spark) is False
    monkeypatch.setattr(cablestore, "__version__", "0.0.1")  # not that of the workers
    assert send_package(spark) is True
    assert [Path(path).parents[1] for path in spark.sent] == [tmp_path]
    assert Path(spark.sent[0]).is_file()
    spark.groups.clear()
    spark.master = "local[2]"
    assert send_package(spark) is False
    assert spark.groups == []


def test_a_worker_yields_all_that_its_task_yields() -> None:
    batches = [pa.record_batch({"id": [number]}) for number in range(3)]
    assert list(in_worker(lambda found: (batch for batch in found if batch is not batches[1]))(iter(batches))) == [
        batches[0], batches[2]
    ]  # fmt: skip


def test_rows_move_with_the_function_of_spark_if_it_has_one() -> None:
    table: Any = Frame.of(pa.table({"partition": pa.array([2, 0, 2], pa.int32()), "id": [1, 2, 3]}))
    moved: Any = to_partitions(table, 3)
    found = [[row["id"] for batch in partition for row in batch.to_pylist()] for partition in moved.partitions()]
    assert found == [[2], [], [1, 3]]


# --- an open session ---------------------------------------------------------------------------------


class Conf:
    """Settings of a session. One of them cannot change while Spark runs."""

    def __init__(self, **settings: str) -> None:
        self.getAll = settings

    def isModifiable(self, name: str) -> bool:  # noqa: N802 - Spark's name
        return name != "spark.fixed"

    def set(self, name: str, value: str) -> None:
        assert self.isModifiable(name)
        self.getAll = self.getAll | {name: value}

    def unset(self, name: str) -> None:
        self.getAll = {each: value for each, value in self.getAll.items() if each != name}


def test_an_open_session_is_used_with_the_options_and_gets_its_own_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A default is set only if the program did not set it."""
    records = "spark.sql.execution.arrow.maxRecordsPerBatch"
    theirs: Any = SparkHere()
    theirs.master = "local[2]"
    theirs.conf = Conf(**{records: "5", "spark.sql.shuffle.partitions": "9", "spark.fixed": "a"})
    before = theirs.conf.getAll
    monkeypatch.setattr(SparkSession, "active", lambda: theirs)
    options = {"spark.sql.shuffle.partitions": "7", "spark.fixed": "b", "spark.new": "1"}
    assert not starts_driver(None, None)
    with session(tmp_path, log=tmp_path / "log", options=options) as spark:
        assert spark is theirs
        assert theirs.conf.getAll == {**SQL_OPTIONS, **before, **options, "spark.fixed": "a"}
    assert theirs.conf.getAll == before
    failing = session(tmp_path, log=tmp_path / "log", options=options)
    with pytest.raises(SparkError, match=r"^it cannot be\. See the log of Spark$"), failing:
        raise PySparkException("it cannot be")
    assert theirs.conf.getAll == before
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere")
    assert not starts_driver(None, None)


def test_a_driver_is_started_without_an_open_session_or_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise PySparkException("no session is open")

    monkeypatch.setattr(SparkSession, "active", none)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert starts_driver(None, None)
    assert not starts_driver(None, "sc://host")
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    assert not starts_driver(None, None)
    assert starts_driver("local[1]", None)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert not starts_driver("local[1]", None)
