"""The end of Spark's Java process: its exit status, and the wait until its last process has ended.

PySpark does not report the status, and waits forever for a Java process that ends with status 0 before it listens. So
SPARK_HOME names a script for PySpark to start. The script writes Java's status to a named pipe and ends with status 1.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from concurrent.futures import TimeoutError as ResultTimeoutError
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from select import select
from typing import Final

from cablestore.errors import CableStoreError
from cablestore.interruptible import ThreadResult, in_thread
from cablestore.reindex.causes import SparkError, cause_of_log, ending

_PIPE: Final = "java-end"

_SCRIPT: Final = """\
#!/bin/sh
# Open while Java runs. For reading too: so it does not wait for a reader.
exec 9<>{pipe}
SPARK_HOME={home} {home}/bin/spark-submit "$@"
echo $? >&9
exit 1
"""

_END_TIMEOUT_S: Final = 10
"""Time for Java to end after it closed its connections."""

_CLOSING_TIMEOUT_S: Final = 1
"""Time for Java to end if the error does not report a closed connection. py4j reports some closed connections as
unknown names."""

_SIGNALS: Final = 128
"""The shell adds this to the number of the signal that ended Java. Java does the same for a handled signal."""


def make_pipe(scratch: Path) -> int:
    """Create the pipe to which the script writes Java's status, and open it for `wait_for_end`."""
    with suppress(FileExistsError):
        os.mkfifo(scratch / _PIPE)
    return os.open(scratch / _PIPE, os.O_RDONLY | os.O_NONBLOCK)


def wait_for_end(pipe: int, timeout_s: float) -> None:
    """Return when Java and its script have closed the pipe, or if they write nothing for `timeout_s`."""
    with suppress(BlockingIOError):
        while os.read(pipe, _SIGNALS):
            pass
        return
    if select([pipe], [], [], timeout_s)[0]:
        wait_for_end(pipe, timeout_s)


def spark_home(scratch: Path, home: str) -> Path:
    """Create a SPARK_HOME whose `spark-submit` is our script, which calls the `spark-submit` of the Spark at `home`."""
    script = scratch / "home" / "bin" / "spark-submit"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_SCRIPT.format(pipe=shlex.quote(str(scratch / _PIPE)), home=shlex.quote(home)))
    script.chmod(0o755)
    return script.parents[1]


@dataclass(slots=True)
class JavaEnd:
    """The end of the Java process that the script in `scratch` starts. Java writes to `log`.

    `inherited` are the variables that Java inherits unchanged from the program, so that the user can change them.
    """

    scratch: Path
    log: Path
    inherited: Mapping[str, str]
    _status: ThreadResult[int] = field(init=False)
    _log_start: int = field(init=False)

    def __post_init__(self) -> None:
        """Start a thread that waits for Java's exit status."""
        pipe = os.open(self.scratch / _PIPE, os.O_RDWR)
        self._status = in_thread(lambda: int(os.read(pipe, _SIGNALS)))
        self._log_start = self.log.stat().st_size

    def has_ended(self, *, is_closed: bool) -> bool:
        """Return True if Java ends within a timeout, which is longer if its connections are closed (`is_closed`)."""
        with suppress(ResultTimeoutError):
            self._status.result(_END_TIMEOUT_S if is_closed else _CLOSING_TIMEOUT_S)
        return self._status.done()

    def failure(self, before: str) -> CableStoreError:
        """Return the error for Java's end. It begins with `before`, and contains the status and any printed cause."""
        status, where = self._status.result(), f"The log of Spark is {self.log}"
        how = f"{before}Java {ending(status)}"
        if status > _SIGNALS:
            return SparkError(f"{how}. Run the same command again to continue. {where}")
        said = self.log.read_bytes()[self._log_start :].decode(errors="replace")
        cause = cause_of_log(said, self.inherited)
        named = f"It is the Java of JAVA_HOME, {self.inherited['JAVA_HOME']}. " if "JAVA_HOME" in self.inherited else ""
        return cause.error(f"{how}: {cause.text}. {named}{where}")
