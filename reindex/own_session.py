"""Spark session whose JVM runs as a separate process.

Use it only in the driver process, because it changes the environment variables of that process.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from concurrent.futures import wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cablestore.interruptible import awaited, in_thread
from cablestore.reindex.causes import cause_of_query
from cablestore.reindex.driver import STOP_TIMEOUT_S
from cablestore.reindex.environment import environment_for, has_name, plain_path
from cablestore.reindex.java_end import JavaEnd
from cablestore.reindex.queries import disconnected, is_disconnected, is_of_ctrl_c, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def own_session(
    scratch: Path, log: Path, master: str, driver_memory: str, options: Mapping[str, str]
) -> Iterator[SparkSession]:
    """Start Java and a session with these settings, and stop the session.

    `log` is the file with the output of this process. Changes the environment of this process. Raises SparkError if
    Spark does not start, or if an error of Spark or the end of Java interrupts the body.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra, and half a second to import

    with plain_path(scratch) as plain:
        environ = environment_for(master, plain)
        inherited = {name: value for name, value in environ.items() if os.environ.get(name) == value}
        os.environ.clear()
        os.environ.update(environ)
        java_end = JavaEnd(scratch, log, inherited)
        builder = SparkSession.builder.config(map={**_settings(plain, master, driver_memory), **options})
        with _explained_by(java_end, "Spark does not start: "):
            # In another thread: in the main thread it would replace the handler of Ctrl-C.
            spark = awaited(in_thread(builder.getOrCreate))
        try:
            with _explained_by(java_end):
                yield spark
        finally:
            wait([in_thread(spark.stop)], STOP_TIMEOUT_S)


@contextmanager
def _explained_by(java_end: JavaEnd, before: str = "") -> Iterator[None]:
    """Replace errors of Spark by errors of this package, which name the end of Java or another cause."""
    try:
        yield
    except (*spark_errors(), *disconnected()) as error:
        if is_of_ctrl_c(error):
            raise KeyboardInterrupt from None
        if java_end.has_ended(is_closed=is_disconnected(error)):
            raise java_end.failure(before) from None
        if not isinstance(error, spark_errors()):  # an error of another connection
            raise
        cause = cause_of_query(error, java_end.inherited)
        raise cause.error(f"{before}{cause.text}. The log of Spark is {java_end.log}") from None


def _settings(scratch: Path, master: str, driver_memory: str) -> dict[str, str]:
    temporary = scratch / "tmp"
    temporary.mkdir(exist_ok=True)
    java_options = [
        f"-Djava.io.tmpdir={temporary}",  # native libraries are unpacked there
        # Java only passes blobs on. Optimizing its code more costs 2 s in every run.
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        "-XX:+ErrorFileToStderr",  # otherwise a crash leaves a file in the working directory
    ]
    found = {
        "spark.master": master,
        "spark.submit.deployMode": "client",
        "spark.app.name": "cablestore",
        "spark.driver.memory": driver_memory,
        "spark.driver.defaultJavaOptions": shlex.join(java_options),  # the user's own extraJavaOptions follow
        "spark.local.dir": str(temporary),
        "spark.jars.ivy": str(scratch / "ivy"),  # the default is in the home folder, which may be missing
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if not has_name():  # the keys of Hadoop's cache contain the name of the user
        found["spark.hadoop.fs.file.impl.disable.cache"] = "true"
    return found
