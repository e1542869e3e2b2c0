"""Spark's driver, started and ended here: it needs nothing but pip, prints nothing, and leaves no process running.

PySpark starts Java by `launch_gateway`, which lets its caller say where Java's output goes, and gives back the process.
So it can be waited for and ended.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from cablestore.errors import ReindexError
from cablestore.files import make_folder
from cablestore.interruptible import awaited, in_thread
from cablestore.reindex.java import find_java
from cablestore.reindex.queries import reason, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STOP_TIMEOUT_S: Final = 30
"""Time that Spark has to end its jobs, and Java to remove its temporary files, before it is killed."""

LOG_LINES_QUOTED: Final = 10
"""Number of last lines of the log that an error quotes."""

_LOG_CONFIGURATION: Final = """\
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
# Spark uses the level of this class for all, or WARN if it has none, because it takes itself for a shell.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = info
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""

_OF_PYSPARK: Final = re.compile(r"[/\\](py4j|pyspark)[/\\]")


@contextmanager
def driver(
    scratch: Path, master: str, driver_memory: str, options: Mapping[str, str], said: TextIO
) -> Iterator[SparkSession]:
    """Start Java and a session with these settings, and end both. All output is written to `said`."""
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - an extra, and half a second to import
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415 - as above
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    begin, paths, gateway, spark = Path(said.name).stat().st_size, list(sys.path), None, None
    conf = SparkConf().setAll(list({**_settings(scratch, master, driver_memory), **options}.items()))
    # Ctrl-C in a terminal must not reach it, and all of it is killed.
    of_process = {"stdout": said, "stderr": said, "start_new_session": True}
    try:
        with _python_side_to(said):
            try:
                with _environ(_environment(scratch, master)):
                    gateway = launch_gateway(conf, of_process)  # type: ignore[no-untyped-call] # PySpark has no types for it
                    # Not in the main thread: there it would replace the handler of Ctrl-C.
                    spark = awaited(in_thread(lambda: SparkSession(SparkContext(conf=conf, gateway=gateway))))
            except spark_errors() as error:
                end = Path(said.name).read_bytes()[begin:].decode(errors="replace").strip().splitlines()
                quoted = "\n".join([f"The end of {said.name}:", *end[-LOG_LINES_QUOTED:]])
                raise ReindexError(f"Spark does not start: {reason(error)}\n{quoted}") from None
            try:
                yield spark
            finally:
                wait([in_thread(spark.stop)], STOP_TIMEOUT_S)
    finally:
        if gateway:
            _end(gateway)
        # PySpark would use this Java, which is gone, for a later session, and has no call to forget it.
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - the comment above
        sys.path[:] = [path for path in sys.path if path in paths]


def _end(gateway: Any) -> None:
    """Let Java end by itself, since it removes its files. Kill it and its children if it does not."""
    with suppress(Exception):
        gateway.shutdown()
    try:
        with suppress(OSError, subprocess.TimeoutExpired):
            gateway.proc.communicate(timeout=STOP_TIMEOUT_S)  # it ends when its input does
    finally:
        with suppress(ProcessLookupError):
            os.killpg(gateway.proc.pid, signal.SIGKILL)
        gateway.proc.wait()


def _settings(scratch: Path, master: str, driver_memory: str) -> dict[str, str]:
    temporary = scratch / "tmp"
    make_folder(scratch)
    temporary.mkdir(parents=True, exist_ok=True)
    return {
        "spark.master": master,
        "spark.app.name": "cablestore",
        "spark.driver.memory": driver_memory,
        # Native libraries are unpacked there. Java only passes blobs on, and a better compilation of its code costs 2 s
        # in every run. The user's own extraJavaOptions follow.
        "spark.driver.defaultJavaOptions": f'"-Djava.io.tmpdir={temporary}" -XX:-UsePerfData -XX:TieredStopAtLevel=1',
        "spark.local.dir": str(temporary),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _environment(scratch: Path, master: str) -> dict[str, str]:
    """Return the environment variables that Spark's process and its workers need in addition."""
    import pyspark  # noqa: PLC0415 - as above

    log_configuration = scratch / "log4j2.properties"
    log_configuration.write_text(_LOG_CONFIGURATION)
    wanted = {
        "JAVA_HOME": str(find_java(scratch).home),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON") or sys.executable,
        "LOG4J_CONFIGURATION_FILE": os.environ.get("LOG4J_CONFIGURATION_FILE") or log_configuration.as_uri(),
        # Spark's scripts would otherwise look for it with the python3 on PATH.
        "SPARK_HOME": os.environ.get("SPARK_HOME") or pyspark.__path__[0],
    }
    if master.startswith("local") or re.match(r"spark://(127\.0\.0\.1|localhost)\b", master):
        wanted |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": pyspark.__path__[0]}
    if master.startswith("local-cluster"):  # it writes to $SPARK_HOME/work, which would be inside site-packages
        wanted["SPARK_HOME"] = str(scratch / "home")
        (scratch / "home").mkdir(exist_ok=True)
        for entry in Path(pyspark.__path__[0]).iterdir():
            with suppress(FileExistsError):
                (scratch / "home" / entry.name).symlink_to(entry)
    return wanted


@contextmanager
def _environ(added: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables during the body. Afterwards remove them, and those that PySpark sets."""
    before = dict(os.environ)
    os.environ.update(added)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def _python_side_to(said: TextIO) -> Iterator[None]:
    """Write what PySpark logs in this process to the log, and leave out its warnings."""
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
        if not root.handlers and logging.lastResort:  # else it would get one as soon as py4j uses it, and keep it
            root.addHandler(logging.lastResort)
            stack.callback(root.removeHandler, logging.lastResort)
        root.addFilter(divert)
        stack.callback(root.removeFilter, divert)
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", module=r"(pyspark|py4j)\b")
        yield
