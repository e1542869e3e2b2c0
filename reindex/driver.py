"""Spark's driver in a separate process. It writes only to the log, and ends with all its child processes.

PySpark keeps one Java process with its settings until the Python process ends, even if Java was killed. So every job
gets a new process. The calling program keeps its standard output, its environment and its own Spark.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar

from cablestore.files import make_folder
from cablestore.interruptible import in_thread
from cablestore.reindex.causes import SparkError, ending
from cablestore.reindex.environment import working_directory
from cablestore.reindex.java_end import make_pipe, wait_for_end

STOP_TIMEOUT_S: Final = 30
"""Time for Spark to end its jobs and for Java to remove its temporary files, before they are killed."""

_POLL_S: Final = 0.5
"""Interval at which a wait for the driver checks for Ctrl-C, which another thread may receive."""

_BEGIN: Final = (
    "import sys; from multiprocessing.connection import Connection; program = Connection(int(sys.argv[1])); "
    "sys.path[:] = program.recv(); program.recv()(program)"
)

Progress = Callable[[str, int, int], None]
"""Callback for progress: name of the stage, tasks or rows done, and their total."""

T = TypeVar("T")


def in_driver(job: Callable[[Progress], T], scratch: Path, log: Path, progress: Progress) -> T:
    """Run `job` in a new process and return its result. Ctrl-C interrupts the job.

    The output of the process is appended to `log`, and its files are in `scratch`. The job and its result are pickled;
    functions of the main module are pickled by value. Raises the error of the job, or SparkError if the process ends
    early.
    """
    from pyspark.cloudpickle import dumps  # noqa: PLC0415 - an extra, and half a second to import

    make_folder(scratch)
    java_end = make_pipe(scratch)
    ours, theirs = Pipe()
    with ours, open(java_end, "rb"), log.open("ab") as said:  # noqa: PTH123 - the pipe is closed at the end
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - this Python
                [sys.executable, "-c", _BEGIN, str(theirs.fileno())],
                cwd=working_directory(),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,  # keeps Ctrl-C away from the driver, and lets us kill its group
            )
        try:
            with suppress(ConnectionError):  # the driver ended
                ours.send(sys.path)
                ours.send(_serve)
                ours.send_bytes(dumps(job))  # type: ignore[no-untyped-call] # PySpark has no types for it
            kind, value = _next_message(ours)
            while kind == "progress":
                progress(*value)
                kind, value = _next_message(ours)
        except BaseException:
            process.send_signal(signal.SIGINT)
            raise
        finally:
            _end(process, java_end)
    if kind == "end":
        raise SparkError(
            f"Spark's driver {ending(process.returncode)}. Run the same command again to continue. The log of Spark "
            f"is {log}"
        )
    if kind == "error":
        raise value
    found: T = value
    return found


def _next_message(driver: Connection) -> tuple[str, Any]:
    """Return the next message: its kind and value. The kind is "end" if the process ended."""
    while not driver.poll(_POLL_S):
        pass
    try:
        found: tuple[str, Any] = driver.recv()
    except (EOFError, ConnectionError):
        return "end", None
    return found


def _end(process: subprocess.Popen[bytes], java_end: int) -> None:
    """Wait until the driver ends, and then Java, which removes its files.

    After a timeout, kill both and their children.
    """
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
            wait_for_end(java_end, STOP_TIMEOUT_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        wait_for_end(java_end, STOP_TIMEOUT_S)


# --- in the driver ----------------------------------------------------------------------------


def _serve(program: Connection) -> None:
    """Run the job that the program sends, and send back its progress and its result."""
    from pyspark.cloudpickle import dumps, loads  # noqa: PLC0415 - as above

    signal.signal(signal.SIGINT, signal.default_int_handler)  # even if the calling program ignores Ctrl-C
    os.set_inheritable(program.fileno(), False)
    sending = Lock()

    def send(kind: str, value: object) -> None:
        data = dumps((kind, value))  # type: ignore[no-untyped-call] # as above
        with sending:
            program.send_bytes(data)

    job = loads(program.recv_bytes())
    in_thread(lambda: _end_with(program))
    try:
        message = "result", job(lambda *done: send("progress", done))
    except Exception as error:  # noqa: BLE001 - the program raises it
        traceback.print_exc()
        message = "error", error
    send(*message)


def _end_with(program: Connection) -> None:
    """Kill this process and Java when the program ends, because a later run uses the same folders."""
    with suppress(EOFError, ConnectionError):
        program.recv_bytes()
    os.killpg(0, signal.SIGKILL)
