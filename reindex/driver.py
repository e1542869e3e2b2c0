"""Spark's driver: start it, redirect its output to the log, and stop it with its processes."""

from __future__ import annotations

import logging
import re
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from cablestore.files import make_folder
from cablestore.interruptible import awaited, in_thread
from cablestore.reindex.causes import cause_of_query
from cablestore.reindex.environment import (
    environ_as,
    environment_for,
    has_home,
    has_name,
    plain_path,
    without_other_spark,
)
from cablestore.reindex.java_process import STOP_TIMEOUT_S, JavaProcess, java_process
from cablestore.reindex.queries import disconnected, is_disconnected, is_of_ctrl_c, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OF_PYSPARK: Final = re.compile(r"[/\\](py4j|pyspark)[/\\]")


@contextmanager
def driver(
    scratch: Path, master: str, driver_memory: str, options: Mapping[str, str], said: TextIO
) -> Iterator[SparkSession]:
    """Start Java and a session with these settings, and stop both at the end. Write all output to `said`.

    Raises SparkError if Spark does not start, or if an error of Spark or the end of Java reaches the body.
    """
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - an extra, and half a second to import
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415 - as above
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    paths = list(sys.path)
    make_folder(scratch)
    try:
        with ExitStack() as stack:
            stack.enter_context(_python_side_to(said))
            plain = stack.enter_context(plain_path(scratch))
            environ = environment_for(master, plain)
            settings = {**_settings(plain, master, driver_memory), **options}
            java, connection = stack.enter_context(java_process(settings, environ, plain, said))
            with _explained_by(java, "Spark does not start: "), environ_as({**environ, **connection}):
                gateway = launch_gateway()  # type: ignore[no-untyped-call] # PySpark has no types for it
                stack.callback(_disconnect, gateway)
                _name_user(gateway)
                conf = SparkConf().setAll(list(settings.items()))
                # In another thread: in the main thread it would replace the handler of Ctrl-C.
                spark = awaited(in_thread(lambda: SparkSession(SparkContext(conf=conf, gateway=gateway))))
            # It would print a traceback when Java ends. PySpark has no public access to it.
            setattr(spark.sparkContext._accumulatorServer, "handle_error", lambda *_: None)  # noqa: B010, SLF001 - as above
            stack.callback(lambda: wait([in_thread(spark.stop)], STOP_TIMEOUT_S))
            with _explained_by(java), environ_as(without_other_spark(master)):
                yield spark
    finally:
        # PySpark would use this Java for a later session, and has no public call to reset it. A context does not stop
        # after its Java was killed, and PySpark would reject another one.
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - the comment above
        SparkContext._active_spark_context = None  # noqa: SLF001 - the comment above
        SparkSession._instantiatedSession = None  # noqa: SLF001 - the comment above
        sys.path[:] = [path for path in sys.path if path in paths]


@contextmanager
def _explained_by(java: JavaProcess, before: str = "") -> Iterator[None]:
    """Replace errors of Spark by one of this package: how Java ended, if it did, or else the cause of the error."""
    try:
        yield
    except (*spark_errors(), *disconnected()) as error:
        if is_of_ctrl_c(error):
            raise KeyboardInterrupt from None
        if java.has_ended(is_closed=is_disconnected(error)):
            raise java.failure(before) from None
        if not isinstance(error, spark_errors()):  # of another connection
            raise
        cause = cause_of_query(error, java.inherited)
        raise cause.error(f"{before}{cause.text}. The log of Spark is {java.log}") from None


def _disconnect(gateway: Any) -> None:
    with suppress(Exception):
        gateway.shutdown()


def _name_user(gateway: Any) -> None:
    """Set a user for Hadoop if the user id has no name, as in a container. Otherwise Hadoop does not start."""
    if not has_name():
        users = gateway.jvm.org.apache.hadoop.security.UserGroupInformation
        users.setLoginUser(users.createRemoteUser("cablestore"))


def _settings(scratch: Path, master: str, driver_memory: str) -> dict[str, str]:
    temporary = scratch / "tmp"
    temporary.mkdir(exist_ok=True)
    java_options = [
        f"-Djava.io.tmpdir={temporary}",  # native libraries are unpacked there
        # Java only passes blobs on. Optimizing its code more costs 2 s in every run.
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        "-XX:+ErrorFileToStderr",  # else a crash leaves a file in the working directory
    ]
    found = {
        "spark.master": master,
        "spark.submit.deployMode": "client",
        "spark.app.name": "cablestore",
        "spark.driver.memory": driver_memory,
        "spark.driver.defaultJavaOptions": shlex.join(java_options),  # the user's own extraJavaOptions follow
        "spark.local.dir": str(temporary),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if not has_home():  # Spark looks for packages there
        found["spark.jars.ivy"] = str(scratch / "ivy")
    return found


@contextmanager
def _python_side_to(said: TextIO) -> Iterator[None]:
    """Write what PySpark logs in this process to the log, and suppress its warnings."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - as above

    handler, root = logging.StreamHandler(said), logging.getLogger()

    def divert(record: logging.LogRecord) -> bool:
        """Hide from the user what py4j logs directly to the root logger, as when Java ends."""
        return not (_OF_PYSPARK.search(record.pathname) and handler.handle(record))

    with ExitStack() as stack:
        of_queries = [PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("SQL", "DataFrame")]
        for logger in logging.getLogger("py4j"), logging.getLogger("pyspark"), *of_queries:
            stack.callback(logger.__dict__.update, handlers=logger.handlers, propagate=logger.propagate)
            logger.handlers, logger.propagate = [handler], False
        if not root.handlers and logging.lastResort:  # otherwise py4j adds one that stays
            root.addHandler(logging.lastResort)
            stack.callback(root.removeHandler, logging.lastResort)
        root.addFilter(divert)
        stack.callback(root.removeFilter, divert)
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", module=r"(pyspark|py4j)\b")
        yield
