"""Queries of Spark: run them with a name, progress and Ctrl-C, and describe errors of Spark in one line.

The functions work with the classic client and with Spark Connect.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from importlib import import_module
from threading import Event
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from cablestore.interruptible import ThreadResult, awaited, in_thread
from cablestore.reindex.causes import SparkError, cause_of_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.shell.progress import ProgressHandler

CANCEL_TIMEOUT_S: Final = 5
"""Timeout for cancelling a query. It takes less than a second, unless a server does not answer."""

_POLL_S: Final = 0.5
_CANCEL_AGAIN_S: Final = 0.1
_STOPPED: Final = re.compile(
    r'SparkContext was shut down|stopped SparkContext|SparkContext\.\w+\(\)" is null|^An error occurred while calling \S+$'
)

T = TypeVar("T")


def run_query(
    spark: SparkSession, name: str, query: Callable[[], T], progress: Callable[[int, int], None] = lambda *_: None
) -> T:
    """Return the result of `query`. Ctrl-C cancels its jobs.

    Spark's UI shows its jobs as "cablestore: NAME". The UI of a Connect server shows their tag. `progress` is called
    with the numbers of finished tasks and of all tasks of each running stage.

    The query runs in a separate thread. So Ctrl-C does not interrupt a response of Spark, which would make the
    connection unusable. Tags and names of the caller's thread do not change.
    """
    tag = f"cablestore-{name.replace(' ', '-')}-{uuid.uuid4().hex}"
    begun, cancelled, ended = Event(), Event(), Event()

    def tagged() -> T:
        begun.set()
        try:
            if cancelled.is_set():
                raise KeyboardInterrupt
            if is_connect(spark):  # the server names jobs after their plans
                spark.addTag(tag)
            else:
                spark.sparkContext.setJobGroup(tag, f"cablestore: {name}", interruptOnCancel=True)
            return query()
        finally:
            ended.set()

    def cancel() -> None:
        # Spark cancels only jobs that it already runs. The query may just prepare a job, so it is cancelled again.
        while not ended.is_set():
            if is_connect(spark):
                spark.interruptTag(tag)
            else:  # the classic client's tags belong to one thread, so a job group is used
                spark.sparkContext.cancelJobGroup(tag)
            ended.wait(_CANCEL_AGAIN_S)

    with _watching(spark, tag, progress):
        try:
            return awaited(in_thread(tagged))
        except BaseException:
            cancelled.set()
            if begun.is_set():  # otherwise the thread, if it starts at all, does not run the query
                with suppress(Exception):
                    in_thread(cancel).result(CANCEL_TIMEOUT_S)
            raise


def is_connect(spark: SparkSession) -> bool:
    """Return True if this is a session of Spark Connect."""
    return not hasattr(spark, "sparkContext")


@contextmanager
def _watching(spark: SparkSession, tag: str, progress: Callable[[int, int], None]) -> Iterator[None]:
    """Report progress during the body: from events of a Connect server, or by polling the classic client."""
    if is_connect(spark):

        def report_tasks(
            stages: Iterable[Any] | None,
            inflight_tasks: int,  # noqa: ARG001 - the arguments are PySpark's
            operation_id: str | None,  # noqa: ARG001 - as above
            done: bool,  # noqa: ARG001 - as above
        ) -> None:
            for stage in stages or ():
                if not stage.done:
                    progress(stage.num_completed_tasks, stage.num_tasks)

        handler = cast("ProgressHandler", report_tasks)  # PySpark declares a class, but accepts any function
        spark.registerProgressHandler(handler)
        try:
            yield
        finally:
            spark.removeProgressHandler(handler)
        return
    done = Event()
    watcher: ThreadResult[None] | None = None
    try:
        watcher = in_thread(lambda: _watch(spark, tag, progress, done))
        yield
    finally:
        done.set()
        if watcher is not None:  # None if Ctrl-C arrived while the thread started
            wait([watcher], CANCEL_TIMEOUT_S)


def _watch(spark: SparkSession, group: str, progress: Callable[[int, int], None], done: Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not done.wait(_POLL_S):
        # Spark may forget a job or end between two of these calls. Progress is not worth an error.
        with suppress(Exception):
            active = tracker.getActiveStageIds()
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
            for number in sorted({number for job in jobs if job for number in job.stageIds if number in active}):
                stage = tracker.getStageInfo(number)
                if stage:
                    progress(stage.numCompletedTasks, stage.numTasks)


# --- errors -----------------------------------------------------------------------------------


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Replace errors of Spark by errors of this package that name the cause. They end with the sentence `where`."""
    try:
        yield
    except (*spark_errors(), *disconnected()) as error:
        if is_of_ctrl_c(error):
            raise KeyboardInterrupt from None
        if is_disconnected(error):
            raise SparkError(
                f"the Java process of this session ended, or PYSPARK_GATEWAY_PORT is not its port. {where}"
            ) from None
        cause = cause_of_query(error)
        raise cause.error(f"{cause.text}. {where}") from None


def spark_errors() -> tuple[type[Exception], ...]:
    """Return the types of errors that PySpark raises: its own errors, and errors of the connection to Java."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - needs the extra cablestore[reindex]

    with suppress(ModuleNotFoundError):  # the package pyspark-client has no Java
        return PySparkException, import_module("py4j.protocol").Py4JError  # a module without types
    return (PySparkException,)


def disconnected() -> tuple[type[Exception], ...]:
    """Return the types of errors that PySpark raises after Java ended."""
    with suppress(ModuleNotFoundError):  # as above
        return ConnectionRefusedError, ConnectionResetError, EOFError, import_module("py4j.protocol").Py4JNetworkError
    return ()


def is_disconnected(error: Exception) -> bool:
    """Return True if `error` shows that Java ended, or is about to end, as after an OutOfMemoryError."""
    try:
        return isinstance(error, disconnected()) or _STOPPED.search(str(error)) is not None
    except disconnected():  # py4j requests the text from Java
        return True


def is_of_ctrl_c(error: BaseException) -> bool:
    """Return True if Ctrl-C caused an error: it closes the connection, and failing calls of PySpark hide it."""
    context = error.__context__
    return context is not None and (isinstance(context, KeyboardInterrupt) or is_of_ctrl_c(context))
