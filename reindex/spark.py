"""Spark session that needs nothing but pip, prints nothing, and leaves no process running.

Spark's Java process is started here and not by PySpark, so that its output goes to a file, its process id is known, and
waiting for it has a timeout. PySpark finds it as it finds the one of spark-submit, through two environment variables.
Under spark-submit, or if Spark already runs in this process, the existing session is used.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TextIO

from cablestore.errors import ReindexError
from cablestore.reindex.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_TIMEOUT_S: Final = 120
"""Timeout for the start of Spark's Java process, which takes two seconds, or a minute on a small machine under load."""

STOP_TIMEOUT_S: Final = 30
"""Time that it has to remove its temporary files and end before it is killed."""

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


@dataclass(frozen=True, slots=True)
class StageProgress:
    """Progress of a running stage. `name` is the description of its job if it has one."""

    name: str
    tasks_done: int
    tasks_total: int


@contextmanager
def session(
    scratch: Path,
    *,
    log: Path,
    master: str | None = None,
    cores: int | None = None,
    driver_memory: str = DRIVER_MEMORY,
    options: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[SparkSession]:
    """Start Spark, and end it with all its processes.

    Without a `master` Spark runs in one process on `cores` cores, by default all. All its files are below `scratch`;
    its output and that of its Python workers is appended to `log`. `options` are settings of Spark and override
    `SQL_OPTIONS`. Memory is in Java's notation: "900m", "4g".

    Under spark-submit the session is as spark-submit was told: only those `options` have an effect that can be set
    while Spark runs.

    Raises ReindexError if PySpark is not installed, there is no Java, or Spark does not start. An error of Spark in the
    body becomes a ReindexError too, with the line that explains it.
    """
    _require_pyspark()
    if _runs_already():
        with _given_session(options) as spark:
            yield spark
        return
    master = master or f"local[{cores or os.cpu_count() or 1}]"
    scratch, log = scratch.absolute(), log.absolute()
    scratch.mkdir(parents=True, exist_ok=True)
    environment = _environment(scratch, master)
    settings = _settings(scratch, master, driver_memory) | dict(SQL_OPTIONS) | dict(options)
    with ExitStack() as stack:
        said = stack.enter_context(log.open("a", encoding="utf-8", buffering=1))
        stack.enter_context(_python_side_to(said))
        gateway = stack.enter_context(_java_process(environment, settings, scratch, said))
        yield stack.enter_context(_own_session(environment | gateway, said))


def stage_progress(spark: SparkSession) -> list[StageProgress]:
    """Return the running stages, oldest first; none of a stopped session. May be called from any thread."""
    found = []
    # Between two of these calls Spark may forget a job or end. Progress is not worth an error.
    with suppress(Exception):
        tracker = spark.sparkContext.statusTracker()
        descriptions = _descriptions(spark)
        for stage_id in tracker.getActiveStageIds():
            stage = tracker.getStageInfo(stage_id)
            if stage is not None:
                name = descriptions.get(stage_id) or stage.name
                found.append(StageProgress(name, stage.numCompletedTasks, stage.numTasks))
    return found


def _descriptions(spark: SparkSession) -> dict[int, str]:
    """Return the descriptions of running jobs by stage. PySpark's tracker leaves them out."""
    store = spark.sparkContext._jsc.sc().statusStore()  # noqa: SLF001 - the only access to Spark's table of jobs
    tracker = spark.sparkContext.statusTracker()
    found = {}
    for job_id in tracker.getActiveJobsIds():
        description = store.job(job_id).description()
        job = tracker.getJobInfo(job_id)
        if description.isDefined() and job is not None:
            found.update(dict.fromkeys(job.stageIds, description.get()))
    return found


def _require_pyspark() -> None:
    try:
        import pyspark  # noqa: F401, PLC0415 - an extra, and half a second to import: only where it is used
    except ImportError:
        raise ReindexError("PySpark is not installed. Install it with: pip install 'cablestore[reindex]'") from None


# --- an existing session ----------------------------------------------------------------------


def _runs_already() -> bool:
    from pyspark import SparkContext  # noqa: PLC0415 - as above

    return "PYSPARK_GATEWAY_PORT" in os.environ or SparkContext._gateway is not None  # noqa: SLF001 - no other sign


@contextmanager
def _given_session(options: Mapping[str, str]) -> Iterator[SparkSession]:
    """Use the session of spark-submit or of the calling program, with our options where it sets none."""
    from pyspark import SparkContext  # noqa: PLC0415 - as above
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    is_somebodys = SparkContext._active_spark_context is not None  # noqa: SLF001 - no other sign
    spark = SparkSession.builder.appName("cablestore").getOrCreate()
    before = dict(spark.sparkContext.getConf().getAll())
    for name, value in {**SQL_OPTIONS, **options}.items():
        if (name in options or name not in before) and spark.conf.isModifiable(name):
            spark.conf.set(name, value)
    try:
        yield spark
    finally:
        if not is_somebodys:
            spark.stop()


# --- settings of Spark ------------------------------------------------------------------------


def _is_on_this_machine(master: str) -> bool:
    return master.startswith("local") or re.match(r"spark://(127\.0\.0\.1|localhost)\b", master) is not None


def _environment(scratch: Path, master: str) -> dict[str, str]:
    """Return the environment variables that Spark's process and its workers need in addition."""
    import pyspark  # noqa: PLC0415 - as above

    log_configuration = scratch / "log4j2.properties"
    log_configuration.write_text(_LOG_CONFIGURATION)
    wanted = {
        "JAVA_HOME": str(find_java(scratch).home),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON") or sys.executable,
        "LOG4J_CONFIGURATION_FILE": os.environ.get("LOG4J_CONFIGURATION_FILE") or log_configuration.as_uri(),
    }
    package = Path(pyspark.__path__[0])
    if master.startswith("local-cluster"):
        wanted["SPARK_HOME"] = str(_linked_home(package, scratch / "spark"))
    elif _is_on_this_machine(master) or not os.environ.get("SPARK_HOME"):
        # Set, because Spark's scripts would otherwise look for it with the python3 on PATH.
        wanted["SPARK_HOME"] = str(package)
    if _is_on_this_machine(master):
        wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
    return wanted


def _linked_home(package: Path, home: Path) -> Path:
    """Make a home of links: local-cluster writes to `$SPARK_HOME/work`, which would be inside site-packages."""
    home.mkdir(exist_ok=True)
    for entry in package.iterdir():
        link = home / entry.name
        if entry.name != "work" and not link.is_symlink():
            link.symlink_to(entry)
    return home


def _settings(scratch: Path, master: str, driver_memory: str) -> dict[str, str]:
    temporary = scratch / "tmp"
    temporary.mkdir(exist_ok=True)
    settings = {
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
    if _is_on_this_machine(master):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return settings


# --- the Java process -------------------------------------------------------------------------


@contextmanager
def _java_process(
    environment: Mapping[str, str], settings: Mapping[str, str], scratch: Path, said: TextIO
) -> Iterator[dict[str, str]]:
    """Start Spark's Java process and yield the two variables by which PySpark finds it; end it afterwards."""
    begin = Path(said.name).stat().st_size
    folder = Path(tempfile.mkdtemp(prefix="gateway-", dir=scratch))
    address = folder / "address"
    command = [str(Path(environment["SPARK_HOME"]) / "bin" / "spark-submit")]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    process = subprocess.Popen(  # noqa: S603 - Spark's own script, from the package
        [*command, "pyspark-shell"],
        env={**os.environ, **environment, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(address)},
        stdin=subprocess.PIPE,  # it ends when this closes, so it ends with us even if we are killed
        stdout=said,
        stderr=said,
        start_new_session=True,  # Ctrl-C in a terminal must not reach it; we end it
    )
    try:
        port, secret = _wait_for_address(process, address, said, begin)
        yield {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    finally:
        _end(process)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_address(process: subprocess.Popen[bytes], address: Path, said: TextIO, begin: int) -> tuple[int, str]:
    """Return the port and the secret that Java writes to a file when it is ready: two numbers, then the secret."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not address.is_file():
        if process.poll() is not None:
            raise ReindexError(f"Spark's Java process ended with status {process.returncode}. {_quote(said, begin)}")
        if time.monotonic() > deadline_s:
            raise ReindexError(f"Spark's Java process is not ready after {START_TIMEOUT_S} s. {_quote(said, begin)}")
        time.sleep(0.05)
    told = address.read_bytes()
    size_bytes = int.from_bytes(told[4:8])
    return int.from_bytes(told[:4]), told[8 : 8 + size_bytes].decode()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let the process end by itself, since it removes its files. Kill it and its children if it does not."""
    assert process.stdin is not None  # noqa: S101 - tells mypy that it is a pipe
    try:
        with suppress(OSError):
            process.stdin.close()
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        pass
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


# --- the session ------------------------------------------------------------------------------


@contextmanager
def _own_session(environment: Mapping[str, str], said: TextIO) -> Iterator[SparkSession]:
    """Connect PySpark to the Java process. Afterwards reset PySpark to its initial state."""
    from pyspark import SparkContext  # noqa: PLC0415 - as above
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    begin = Path(said.name).stat().st_size
    paths = list(sys.path)
    try:
        with _environ(environment), _own_interrupts():
            try:
                spark = SparkSession(SparkContext())
            except _java_errors() as error:
                raise ReindexError(f"Spark does not start: {_reason(error)}\n{_quote(said, begin)}") from None
        yield spark
    except _java_errors() as error:
        if _is_of_ctrl_c(error):
            raise KeyboardInterrupt from None
        # These errors ask Java for their text later, when Java has ended.
        raise ReindexError(f"{_reason(error)}. The log of Spark is {said.name}") from None
    finally:
        _disconnect()
        sys.path[:] = [path for path in sys.path if path in paths]


def _java_errors() -> tuple[type[Exception], ...]:
    from pyspark.errors.exceptions.captured import CapturedException  # noqa: PLC0415 - as above

    return CapturedException, import_module("py4j.protocol").Py4JError  # a module without types


def _is_of_ctrl_c(error: BaseException) -> bool:
    """Tell whether Ctrl-C caused an error: it cuts the connection, and failing calls of PySpark hide the interrupt."""
    context = error.__context__
    return context is not None and (isinstance(context, KeyboardInterrupt) or _is_of_ctrl_c(context))


def _reason(error: Exception) -> str:
    """Return the useful part: the error at the end of a Python worker's traceback, else the first line."""
    text = str(error).partition("\n\tat ")[0]  # without Java's stack
    noise = ("An error occurred while calling", " SQLSTATE:")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(noise)] or [repr(error)]
    if "Traceback (most recent call last)" not in text:
        return lines[0].removeprefix(": ")
    after_code = 1 + max((number for number, line in enumerate(lines) if line[0].isspace()), default=-1)
    return "\n".join(lines[after_code:])


@contextmanager
def _environ(added: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables during the body. Afterwards restore them and those that PySpark sets."""
    before = dict(os.environ)
    os.environ.update(added)
    try:
        yield
    finally:
        for name in {*added, "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"}:
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Remove the handler of Ctrl-C that PySpark installs: it calls Java inside the signal handler."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _disconnect() -> None:
    """Stop the session and make PySpark forget the Java process, so that a later session starts a new one."""
    from pyspark import SparkContext  # noqa: PLC0415 - as above
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    context, gateway = SparkContext._active_spark_context, SparkContext._gateway  # noqa: SLF001 - PySpark has no call
    try:
        # Java may be gone, or in the middle of an answer that Ctrl-C cut off. It is ended anyway.
        with suppress(Exception):
            if context is not None:
                context.stop()
        with suppress(Exception):
            if gateway is not None:
                gateway.shutdown()
    finally:
        SparkContext._active_spark_context = None  # noqa: SLF001 - as above
        SparkContext._gateway = None  # noqa: SLF001 - as above
        SparkContext._jvm = None  # noqa: SLF001 - as above
        SparkSession._instantiatedSession = None  # noqa: SLF001 - as above
        SparkSession._activeSession = None  # noqa: SLF001 - as above


@contextmanager
def _python_side_to(said: TextIO) -> Iterator[None]:
    """Redirect logs and warnings of PySpark in this process to the log."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,  # noqa: ARG001 - the signature is Python's
        line: Any = None,  # noqa: ARG001 - the same
    ) -> None:
        said.write(warnings.formatwarning(message, category, filename, lineno))

    handler = logging.StreamHandler(said)
    handler.setLevel(logging.INFO)

    def divert(record: logging.LogRecord) -> bool:
        """Hide from the user what py4j logs directly to the root logger, as it does after Ctrl-C."""
        if not _OF_PYSPARK.search(record.pathname):
            return True
        handler.handle(record)
        return False

    root = logging.getLogger()
    # Without a handler the root logger would permanently get one as soon as py4j uses it.
    spare = None if root.handlers else logging.lastResort
    if spare:
        root.addHandler(spare)
    root.addFilter(divert)
    loggers = _loggers()
    before = [(logger.handlers, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("default", module=r"(pyspark|py4j)\b")
            warnings.showwarning = show
            yield
    finally:
        for logger, (handlers, propagate) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
        root.removeFilter(divert)
        if spare:
            root.removeHandler(spare)


def _loggers() -> list[logging.Logger]:
    """Return the loggers of PySpark: two of libraries, and two that print each error of a query as JSON."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - as above

    of_queries = [PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("SQL", "DataFrame")]
    return [logging.getLogger("py4j"), logging.getLogger("pyspark"), *of_queries]
