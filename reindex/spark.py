"""Spark sessions for jobs: an open one, one on a Spark Connect server, or a new one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from cablestore.errors import ReindexError
from cablestore.extras import naming_extras
from cablestore.index.cores import usable_cores
from cablestore.interruptible import in_thread
from cablestore.reindex.driver import driver
from cablestore.reindex.java_process import STOP_TIMEOUT_S
from cablestore.reindex.queries import disconnected, explained, spark_errors
from cablestore.reindex.shipping import send_package

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT_TIMEOUT_S: Final = 30
"""Timeout for the connection to a Spark Connect server."""

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

    * With `remote`, such as "sc://HOST:PORT", the session is on that Spark Connect server.
    * An open session of a notebook or spark-submit is used and stays open. Its settings are restored at the end.
    * Otherwise Spark is started here, and stopped with all its processes. Without a `master` it runs in one process on
      `cores` cores, by default all. All its files are in `scratch`. Its output and that of its Python workers are
      appended to `log`. `driver_memory` has Java's notation: "900m", "4g".

    `options` are settings of Spark and override `SQL_OPTIONS`. An open or remote session uses only those that can be
    set while Spark runs.

    Raises ReindexError if PySpark is not installed, SparkError if Java is not found or Spark does not start. An error
    of Spark in the body is replaced by a SparkError with its cause, or by a StorageError for a full disk.
    """
    with naming_extras("Spark jobs need", ReindexError):
        import pyspark  # noqa: F401, PLC0415 - an extra, and half a second to import: only where it is used
    with ExitStack() as stack:
        is_open = _is_open()
        if not is_open and not master:
            remote = remote or os.environ.get("SPARK_REMOTE")
        if remote:
            server = remote.partition(";")[0].rstrip("/")  # without a token
            stack.enter_context(explained(f"Its log is that of {server}"))
            spark = stack.enter_context(_remote_session(remote, server))
        elif is_open:
            stack.enter_context(explained("Spark's log has the rest"))
            spark = stack.enter_context(_open_session())
        else:
            said = stack.enter_context(log.absolute().open("a", encoding="utf-8", buffering=1))
            master = master or f"local[{cores or usable_cores()}]"
            options = {**SQL_OPTIONS, **options}
            spark = stack.enter_context(driver(scratch.absolute(), master, driver_memory, options, said))
        stack.enter_context(_options_set(spark, options))
        send_package(spark)
        yield spark


# --- a session that is open, or remote --------------------------------------------------------


@contextmanager
def _remote_session(remote: str, server: str) -> Iterator[SparkSession]:
    with naming_extras("Spark Connect needs", ReindexError):
        import grpc  # noqa: PLC0415 - an extra
        import grpc_status  # noqa: F401, PLC0415 - as above
    from pyspark.sql.connect.client import DefaultChannelBuilder  # noqa: PLC0415 - as above
    from pyspark.sql.connect.session import SparkSession  # noqa: PLC0415 - as above

    with DefaultChannelBuilder(remote).toChannel() as channel:  # PySpark would retry for ten minutes
        try:
            grpc.channel_ready_future(channel).result(CONNECT_TIMEOUT_S)
        except grpc.FutureTimeoutError:
            raise ReindexError(
                f"no Spark Connect server found at {server}: nothing answered for {CONNECT_TIMEOUT_S} s"
            ) from None
    spark = SparkSession.builder.remote(remote).create()
    try:
        yield spark  # type: ignore[misc] # PySpark has no type that is both
    finally:
        in_thread(spark.stop).exception(STOP_TIMEOUT_S)


def _is_open() -> bool:
    """Return True if this process is already a client of Spark."""
    from pyspark.sql import SparkSession, is_remote  # noqa: PLC0415 - as above

    if is_remote():  # also in a program that a notebook starts, which inherits only a variable
        return SparkSession.getActiveSession() is not None
    from pyspark import SparkContext  # noqa: PLC0415 - as above

    # PySpark keeps Java after `stop()`, and does not start another. The public API does not report this.
    return "PYSPARK_GATEWAY_PORT" in os.environ or SparkContext._gateway is not None  # noqa: SLF001 - the comment above


@contextmanager
def _open_session() -> Iterator[SparkSession]:
    """Yield the session of this process. Stop it only if it begins here, as under spark-submit."""
    from pyspark.sql import SparkSession, is_remote  # noqa: PLC0415 - as above

    if is_remote():
        yield SparkSession.active()
        return
    from pyspark import SparkContext  # noqa: PLC0415 - as above

    # A program may have a context without a session. Public calls return sessions, or create a context.
    is_theirs = SparkContext._active_spark_context is not None  # noqa: SLF001 - the comment above
    builder = SparkSession.builder if is_theirs else SparkSession.builder.appName("cablestore")
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        if not is_theirs:
            spark.stop()


@contextmanager
def _options_set(spark: SparkSession, options: Mapping[str, str]) -> Iterator[None]:
    """Set options of this package during the body, unless the session sets them."""
    before = spark.conf.getAll
    wanted = {**{name: value for name, value in SQL_OPTIONS.items() if name not in before}, **options}
    changed = [name for name in wanted if wanted[name] != before.get(name) and spark.conf.isModifiable(name)]
    for name in changed:
        spark.conf.set(name, wanted[name])
    try:
        yield
    finally:
        with suppress(*spark_errors(), *disconnected()):  # the server or Java may have ended
            for name in changed:
                if name in before:
                    spark.conf.set(name, before[name])
                else:
                    spark.conf.unset(name)
