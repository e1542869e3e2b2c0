"""Java process of Spark's driver: started, waited for and ended here, so that it is known how it ended.

PySpark starts Java too, but forgets the process of one that ends, and waits forever for one that ends with status 0.
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
"""Time that Spark has to end its jobs, and Java to remove its temporary files, before it is killed."""

_END_TIMEOUT_S: Final = 10
"""Time in which Java ends after it closed its connections."""

_CLOSING_TIMEOUT_S: Final = 1
"""The same where an error does not say that they closed: py4j takes some of their ends for names that are not found."""

_SIGNALS: Final = 128
"""Java adds this to a signal that it handled."""

_LOOK_S: Final = 0.05
"""How often to look for the file by which Java says that it listens. Its end is noticed at once."""


@dataclass(frozen=True, slots=True)
class JavaProcess:
    """Process of Java that writes to `log`, which has `log_start` bytes of earlier runs."""

    process: subprocess.Popen[bytes]
    environ: Mapping[str, str]
    log: Path
    log_start: int

    @property
    def inherited(self) -> dict[str, str]:
        """Variables that it got as they are in this process, where a user can change them."""
        return {name: value for name, value in self.environ.items() if os.environ.get(name) == value}

    def has_ended(self, *, is_closed: bool) -> bool:
        """Return True if the process ended, also if it does so in a moment, as when its connections closed."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_TIMEOUT_S if is_closed else _CLOSING_TIMEOUT_S)
        return self.process.returncode is not None

    def failure(self, before: str) -> CableStoreError:
        """Return the error for a process that ended by itself: `before`, how it ended, and why if it wrote that."""
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
    """Start Spark's Java with these settings, and end it with its children.

    Yields it with the variables by which PySpark finds it. All output is appended to `said`. Raises SparkError, or
    StorageError for a full disk, if it ends before it listens.
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
            stdin=subprocess.PIPE,  # it ends when this does
            stdout=said,
            stderr=said,
            start_new_session=True,  # Ctrl-C in a terminal must not reach it, and all of it is killed
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
    """Return what Java wrote, a port and a secret with its length, as the variables that PySpark reads."""
    return {
        "PYSPARK_GATEWAY_PORT": str(int.from_bytes(told[:4], "big")),
        "PYSPARK_GATEWAY_SECRET": told[8 : 8 + int.from_bytes(told[4:8], "big")].decode(),
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let Java end by itself, since it removes its files. Kill it and its children if it does not."""
    try:
        with suppress(OSError, subprocess.TimeoutExpired):
            process.communicate(timeout=STOP_TIMEOUT_S)  # closes its input
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
