"""Spark sessions for jobs: one of our own that needs nothing but pip and prints nothing, one that is open, or a remote.

PySpark starts Java for a session of our own, by its `launch_gateway`, which lets the caller say where Java's output
goes and gives back the process. So it can be waited for and ended.
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
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TextIO

from cablestore.errors import ReindexError
from cablestore.extras import naming_extras
from cablestore.reindex.java import find_java
from cablestore.reindex.queries import explained, in_thread, reason, spark_errors
from cablestore.reindex.shipping import send_package

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT_TIMEOUT_S: Final = 30
"""Timeout for the connection to a Spark Connect server."""

STOP_TIMEOUT_S: Final = 30
"""Time that Java has to remove its temporary files and end before it is killed."""

LOG_LINES_QUOTED: Final = 10
"""Number of last lines of the log that an error quotes."""

DRIVER_MEMORY: Final = "1g"
"""Java's memory, for sorting and shuffling. Records pass in small batches, and sorts spill to the disk."""

SQL_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Records are blocks of up to a megabyte, so Spark's 10,000 records per batch would be gigabytes.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "16",
        "spark.sql.execution.arrow.maxBytesPerBatch": "33554432",
        # A batch with other columns than declared is an error instead of wrong values.
        "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    }
)
"""Defaults of every session. A version of Spark that does not know one of them ignores it."""

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
def session(
    scratch: Path,
    *,
    log: Path,
    master: str | None = None,
    remote: str | None = None,
    cores: int | None = None,
    driver_memory: str = DRIVER_MEMORY,
    options: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[SparkSession]:
    """Yield a session of Spark, whose workers have this package.

    * With `remote`, as "sc://HOST:PORT", it is one on that Spark Connect server.
    * A session that a notebook or spark-submit has open is used and stays open. Its settings come back at the end.
    * Else Spark is started here, and ended with all its processes. Without a `master` it runs in one process on `cores`
      cores, by default all. All its files are below `scratch`; its output and that of its Python workers is appended to
      `log`. Memory is in Java's notation: "900m", "4g".

    `options` are settings of Spark and override `SQL_OPTIONS`. In a session that is open or remote only those have an
    effect that can be set while Spark runs.

    Raises ReindexError if PySpark is not installed, there is no Java, or Spark does not start. An error of Spark in the
    body becomes a ReindexError too, with the line that explains it.
    """
    with naming_extras("Spark jobs need", ReindexError):
        pass
    with ExitStack() as stack:
        if remote:
            stack.enter_context(explained(f"Its log is that of {remote}"))
            spark = stack.enter_context(_remote_session(remote))
        elif _is_open(master):
            stack.enter_context(explained("Spark's log has the rest"))
            spark = stack.enter_context(_open_session())
        else:
            master = master or f"local[{cores or os.cpu_count() or 1}]"
            said = stack.enter_context(log.absolute().open("a", encoding="utf-8", buffering=1))
            stack.enter_context(_python_side_to(said))
            settings = _settings(scratch.absolute(), master, driver_memory) | dict(SQL_OPTIONS) | dict(options)
            spark = stack.enter_context(_own_session(_environment(scratch.absolute(), master), settings, said))
            stack.enter_context(explained(f"The log of Spark is {said.name}"))
            options = {}
        stack.enter_context(_options_set(spark, options))
        send_package(spark)
        yield spark


# --- a session that is open, or remote --------------------------------------------------------


@contextmanager
def _remote_session(remote: str) -> Iterator[SparkSession]:
    with naming_extras("Spark Connect needs", ReindexError):
        import grpc  # noqa: PLC0415 - an extra
        import grpc_status  # noqa: F401, PLC0415 - as above
    from pyspark.sql.connect.client import DefaultChannelBuilder  # noqa: PLC0415 - as above
    from pyspark.sql.connect.session import SparkSession  # noqa: PLC0415 - as above

    with DefaultChannelBuilder(remote).toChannel() as channel:  # PySpark would try for ten minutes
        try:
            grpc.channel_ready_future(channel).result(CONNECT_TIMEOUT_S)
        except grpc.FutureTimeoutError:
            raise ReindexError(
                f"there is no Spark Connect server at {remote}: nothing answered for {CONNECT_TIMEOUT_S} s"
            ) from None
    spark = SparkSession.builder.remote(remote).create()
    try:
        yield spark  # type: ignore[misc] # PySpark has no type that is both
    finally:
        in_thread(spark.stop).exception(STOP_TIMEOUT_S)


def _is_open(master: str | None) -> bool:
    """Tell whether this process has a client of Spark, or is told by its environment to be one."""
    from pyspark.sql import is_remote  # noqa: PLC0415 - as above

    if is_remote() or ("SPARK_REMOTE" in os.environ and not master):
        return True
    from pyspark import SparkContext  # noqa: PLC0415 - as above

    # PySpark keeps Java after `stop()`, and then takes no other: nothing public says so.
    return "PYSPARK_GATEWAY_PORT" in os.environ or SparkContext._gateway is not None  # noqa: SLF001


@contextmanager
def _open_session() -> Iterator[SparkSession]:
    """Use the session of this process. End it only if it begins here, as under spark-submit."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - as above
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    with ExitStack() as stack:
        try:
            spark = SparkSession.active()
        except PySparkException:
            spark = SparkSession.builder.appName("cablestore").getOrCreate()
            stack.callback(spark.stop)
        yield spark


@contextmanager
def _options_set(spark: SparkSession, options: Mapping[str, str]) -> Iterator[None]:
    """Set our options, where the session sets none, during the body."""
    before = spark.conf.getAll
    wanted = {**{name: value for name, value in SQL_OPTIONS.items() if name not in before}, **options}
    changed = [name for name in wanted if spark.conf.isModifiable(name)]
    for name in changed:
        spark.conf.set(name, wanted[name])
    try:
        yield
    finally:
        with suppress(*spark_errors()):  # a server that is gone has no settings
            for name in changed:
                if name in before:
                    spark.conf.set(name, before[name])
                else:
                    spark.conf.unset(name)


# --- a session of our own ---------------------------------------------------------------------


def _is_on_this_machine(master: str) -> bool:
    return master.startswith("local") or re.match(r"spark://(127\.0\.0\.1|localhost)\b", master) is not None


def _environment(scratch: Path, master: str) -> dict[str, str]:
    """Return the environment variables that Spark's process and its workers need in addition."""
    import pyspark  # noqa: PLC0415 - as above

    scratch.mkdir(parents=True, exist_ok=True)
    log_configuration = scratch / "log4j2.properties"
    log_configuration.write_text(_LOG_CONFIGURATION)
    wanted = {
        "JAVA_HOME": str(find_java(scratch).home),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON") or sys.executable,
        "LOG4J_CONFIGURATION_FILE": os.environ.get("LOG4J_CONFIGURATION_FILE") or log_configuration.as_uri(),
    }
    package = Path(pyspark.__path__[0])
    if master.startswith("local-cluster"):  # it writes to $SPARK_HOME/work, which would be inside site-packages
        wanted["SPARK_HOME"] = str(scratch / "home")
        (scratch / "home").mkdir(exist_ok=True)
        for entry in package.iterdir():
            with suppress(FileExistsError):
                (scratch / "home" / entry.name).symlink_to(entry)
    elif _is_on_this_machine(master) or not os.environ.get("SPARK_HOME"):
        # Set, because Spark's scripts would otherwise look for it with the python3 on PATH.
        wanted["SPARK_HOME"] = str(package)
    if _is_on_this_machine(master):
        wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
    return wanted


def _settings(scratch: Path, master: str, driver_memory: str) -> dict[str, str]:
    temporary = scratch / "tmp"
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
        "spark.sql.catalogImplementation": "in-memory",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


@contextmanager
def _own_session(environment: Mapping[str, str], settings: Mapping[str, str], said: TextIO) -> Iterator[SparkSession]:
    """Start Java and a session; end both."""
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - as above
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415 - as above
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    begin = Path(said.name).stat().st_size
    paths, gateway, spark = list(sys.path), None, None
    try:
        with _environ(environment):
            try:
                conf = SparkConf().setAll(list(settings.items()))
                # A process group of its own: Ctrl-C in a terminal must not reach it, and we end all of it.
                started = {"stdout": said, "stderr": said, "start_new_session": True}
                gateway = launch_gateway(conf, started)  # type: ignore[no-untyped-call]
                # Not in the main thread: there it would replace the handler of Ctrl-C.
                spark = in_thread(lambda: SparkSession(SparkContext(conf=conf, gateway=gateway))).result()
            except spark_errors() as error:
                raise ReindexError(f"Spark does not start: {reason(error)}\n{_quote(said, begin)}") from None
        yield spark
    finally:
        if spark:
            wait([in_thread(spark.stop)], STOP_TIMEOUT_S)
        if gateway:
            with suppress(Exception):
                gateway.shutdown()
            _end(gateway.proc)
        # PySpark would use this Java, which is gone, for a later session, and has no call to forget it.
        SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
        sys.path[:] = [path for path in sys.path if path in paths]


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


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let Java end by itself, since it removes its files. Kill it and its children if it does not."""
    try:
        with suppress(OSError, subprocess.TimeoutExpired):
            process.communicate(timeout=STOP_TIMEOUT_S)  # it ends when its input does
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _quote(said: TextIO, begin: int) -> str:
    """Return the last lines of the log since `begin`, for an error message."""
    with Path(said.name).open("rb") as log:
        log.seek(begin)
        lines = log.read().decode(errors="replace").strip().splitlines()[-LOG_LINES_QUOTED:]
    return f"The end of {said.name}:\n" + "\n".join(lines or ["(nothing)"])


@contextmanager
def _python_side_to(said: TextIO) -> Iterator[None]:
    """Redirect logs of PySpark in this process to the log. Its warnings are left out."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - as above

    handler = logging.StreamHandler(said)
    root = logging.getLogger()

    def divert(record: logging.LogRecord) -> bool:
        """Hide from the user what py4j logs directly to the root logger, as when Java ends."""
        is_ours = not _OF_PYSPARK.search(record.pathname)
        return is_ours or not handler.handle(record)

    # Two of libraries, and two that print each error of a query as JSON.
    loggers = [logging.getLogger("py4j"), logging.getLogger("pyspark")]
    loggers += [PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("SQL", "DataFrame")]
    before = [(logger.handlers, logger.propagate) for logger in loggers]
    # Without a handler the root logger would permanently get one as soon as py4j uses it.
    spare = None if root.handlers else logging.lastResort
    if spare:
        root.addHandler(spare)
    root.addFilter(divert)
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"(pyspark|py4j)\b")
            yield
    finally:
        for logger, (handlers, propagate) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
        root.removeFilter(divert)
        if spare:
            root.removeHandler(spare)
