"""Java process of Spark's driver: start it, wait for it and stop it, so that its exit status is known.

PySpark starts Java too, but loses the process if it ends. It waits forever for one that ends with status 0.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from cablestore.errors import CableStoreError
from cablestore.reindex.causes import SparkError, cause_of_log, ending
from cablestore.reindex.environment import working_directory

STOP_TIMEOUT_S: Final = 30
"""Time for Spark to end its jobs, and for Java to remove its temporary files, before Java is killed."""

_END_TIMEOUT_S: Final = 10
"""Time in which Java ends after it closed its connections."""

_CLOSING_TIMEOUT_S: Final = 1
"""The same for errors that do not report a closed connection: py4j reports some of these as names that are not found.
"""

_SIGNALS: Final = 128
"""Java adds this to the number of a signal that it handled."""

_LOOK_S: Final = 0.05
"""Interval of checks for the file that Java writes when it listens. The end of the process is noticed immediately."""


@dataclass(frozen=True, slots=True)
class JavaProcess:
    """A process of Java that writes to `log`, which has `log_start` bytes of earlier runs."""

    process: subprocess.Popen[bytes]
    environ: Mapping[str, str]
    log: Path
    log_start: int

    @property
    def inherited(self) -> dict[str, str]:
        """Variables with the same values as in this process, where a user can change them."""
        return {name: value for name, value in self.environ.items() if os.environ.get(name) == value}

    def has_ended(self, *, is_closed: bool) -> bool:
        """Return True if the process ended, or ends within a timeout. `is_closed` means that its connections closed."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_TIMEOUT_S if is_closed else _CLOSING_TIMEOUT_S)
        return self.process.returncode is not None

    def failure(self, before: str) -> CableStoreError:
        """Return the error for a process that ended by itself.

        Its text is `before`, the exit status, and the cause if the log has one.
        """
        status, where = self.process.returncode, f"The log of Spark is {self.log}"
        how = f"{before}Java {ending(status)}"
        if status < 0 or status > _SIGNALS:
            return SparkError(f"{how}. Run the same command again to continue. {where}")
        said = self.log.read_bytes()[self.log_start :].decode(errors="replace")
        cause = cause_of_log(said, self.inherited)
        named = f"It is the Java of JAVA_HOME, {self.environ['JAVA_HOME']}. " if "JAVA_HOME" in self.inherited else ""
        return cause.error(f"{how}: {cause.text}. {named}{where}")


@contextmanager
def java_process(
    settings: Mapping[str, str], environ: Mapping[str, str], scratch: Path, said: TextIO
) -> Iterator[tuple[JavaProcess, dict[str, str]]]:
    """Start Spark's Java with these settings, and stop it with its children.

    Yields the process and the variables by which PySpark finds it. All output is appended to `said`. Raises SparkError,
    or StorageError for a full disk, if Java ends before it listens.
    """
    submit_arguments = shlex.split(environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    command = [f"{environ['SPARK_HOME']}/bin/spark-submit"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    log = Path(said.name)
    begin = log.stat().st_size
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        listening = Path(folder) / "listening"
        process = subprocess.Popen(  # noqa: S603 - Spark's own script
            [*command, *submit_arguments],
            env={**environ, "SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(listening)},
            cwd=working_directory(),
            stdin=subprocess.PIPE,  # Java ends when this is closed
            stdout=said,
            stderr=said,
            start_new_session=True,  # so that Ctrl-C does not reach it, and its children can be killed
        )
        java = JavaProcess(process, environ, log, begin)
        try:
            while not listening.exists() and process.returncode is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_S)
            if not listening.exists():
                raise java.failure("Spark does not start: ")
            yield java, _connection(listening.read_bytes())
        finally:
            _end(process)


def _connection(told: bytes) -> dict[str, str]:
    """Return the file that Java wrote as variables of PySpark. It contains a port, and a secret with its length."""
    return {
        "PYSPARK_GATEWAY_PORT": str(int.from_bytes(told[:4], "big")),
        "PYSPARK_GATEWAY_SECRET": told[8 : 8 + int.from_bytes(told[4:8], "big")].decode(),
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of Java, which removes its files. Kill it and its children after the timeout."""
    try:
        with suppress(OSError, subprocess.TimeoutExpired):
            process.communicate(timeout=STOP_TIMEOUT_S)  # closes its input
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
