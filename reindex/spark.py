"""Spark sessions for jobs: an open session, a session on a Spark Connect server, or a new session."""

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
from cablestore.reindex.driver import STOP_TIMEOUT_S
from cablestore.reindex.own_session import own_session
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
"""Defaults of every session. Spark ignores options that its version does not know."""


def starts_driver(master: str | None, remote: str | None) -> bool:
    """Return True if `session` would start a driver, which must be in a separate process.

    Raises ReindexError if PySpark is not installed.
    """
    with naming_extras("Spark jobs need", ReindexError):
        import pyspark  # noqa: F401, PLC0415 - an extra, and half a second to import: only where it is used
    return not _remote_of(master, remote) and not _is_open()


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

    * With `remote`, such as "sc://HOST:PORT", it is a session on that Spark Connect server.
    * A session that a notebook or spark-submit has open is used and stays open. Its settings are restored at the end.
    * Else Spark is started in this process, which `in_driver` must have started. Without a `master` it runs on `cores`
      cores, by default all. All its files are below `scratch`; this process and all that it starts write to `log`.
      Memory is in Java's notation, such as "900m" or "4g".

    `options` are settings of Spark and override `SQL_OPTIONS`. An open or remote session uses only options that can be
    set while Spark runs.

    Raises SparkError if Java is missing or Spark does not start, and ReindexError if a server does not answer. An error
    of Spark in the body becomes a SparkError too, with its cause; a full disk becomes a StorageError.
    """
    with ExitStack() as stack:
        remote = _remote_of(master, remote)
        if remote:
            server = remote.partition(";")[0].rstrip("/")  # without a token
            stack.enter_context(explained(f"See the log of {server}"))
            spark = stack.enter_context(_remote_session(remote, server))
        elif _is_open():
            stack.enter_context(explained("See the log of Spark"))
            spark = stack.enter_context(_open_session())
        else:
            master = master or f"local[{cores or usable_cores()}]"
            options = {**SQL_OPTIONS, **options}
            spark = stack.enter_context(own_session(scratch, log, master, driver_memory, options))
        stack.enter_context(_options_set(spark, options))
        send_package(spark)
        yield spark


def _remote_of(master: str | None, remote: str | None) -> str | None:
    """Return `remote`, or else SPARK_REMOTE. Return None if a master is named, a session is open, or neither is set."""
    return remote or (None if master or _is_open() else os.environ.get("SPARK_REMOTE"))


def _is_open() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ or _active() is not None  # under spark-submit, or in a notebook


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
                f"cannot connect to the Spark Connect server {server}: no answer within {CONNECT_TIMEOUT_S} s. "
                "Check the address and the server"
            ) from None
    spark = SparkSession.builder.remote(remote).create()
    try:
        yield spark  # type: ignore[misc] # PySpark has no type that is both
    finally:
        in_thread(spark.stop).exception(STOP_TIMEOUT_S)


def _active() -> SparkSession | None:
    """Return the session that this program has open, or None."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    try:
        return SparkSession.active()
    except (*spark_errors(), *disconnected()):  # no session is open, or its Java was killed
        return None


@contextmanager
def _open_session() -> Iterator[SparkSession]:
    """Use the session of this program. Under spark-submit, start and stop the session."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    theirs = _active()
    spark = theirs or SparkSession.builder.appName("cablestore").getOrCreate()
    try:
        yield spark
    finally:
        if theirs is None:
            spark.stop()


@contextmanager
def _options_set(spark: SparkSession, options: Mapping[str, str]) -> Iterator[None]:
    """During the body, set `options`, and those SQL_OPTIONS that the session does not set.

    Options that a running session cannot change are skipped.
    """
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
