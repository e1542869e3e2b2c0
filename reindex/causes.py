"""The cause of a failure of Spark, from the output of Java and Python, and the setting or variable to check.

The last lines of a log contain stack frames or a usage text. The cause is in the line of a known failure, or in the
first exception and its root cause.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from typing import Final, NamedTuple

from cablestore.errors import CableStoreError, ReindexError, StorageError

_OF_JAVA: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")
_OF_ADDRESSES: Final = ("SPARK_LOCAL_HOSTNAME", "SPARK_LOCAL_IP")
_OF_PYTHON: Final = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
_OF_FOLDERS: Final = ("SPARK_LOCAL_DIRS", "SPARK_EXECUTOR_DIRS", "LOCAL_DIRS")
_OF_VERSIONS: Final = ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH", "JAVA_HOME")
_OF_HADOOP: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


class SparkError(ReindexError):
    """Spark, its Java process or one of its workers does not start, fails or ends. The message contains the cause."""

    exit_status = 1


class KnownFailure(NamedTuple):
    """A known failure: a `sign` (pattern) in a line of output, `advice`, and environment `variables` that cause it."""

    sign: str
    advice: str
    variables: tuple[str, ...] = ()
    error: type[CableStoreError] = SparkError


KNOWN: Final = (
    KnownFailure(
        r"No space left on device|Disk quota exceeded",
        "Free space on the disk of the work folder, or choose another folder with --work",
        error=StorageError,
    ),
    KnownFailure(
        r"unable to create (new )?native thread|Resource temporarily unavailable",
        "Raise the limit of processes (ulimit -u, TasksMax), or use fewer --cores",
    ),
    KnownFailure(
        r"Could not reserve enough space|[Ii]nvalid maximum heap size|insufficient memory for the Java Runtime",
        "Set --driver-memory to less than the memory of this machine",
        _OF_JAVA,
    ),
    KnownFailure(r"OutOfMemoryError", "Give Java more memory with --driver-memory", _OF_JAVA),
    KnownFailure(
        r"Unrecognized VM option|Unrecognized option: -[^-]|Improperly specified VM option|not allowed in environment var"
        r"|initialization of VM\n",
        "Remove this Java option",
        _OF_JAVA,
    ),
    KnownFailure(
        r"Missing application resource|Unrecognized option: --|Error: Unrecognized argument",
        "End the options for spark-submit with pyspark-shell",
        ("PYSPARK_SUBMIT_ARGS",),
    ),
    KnownFailure(
        r"Failed to create (any |a )?(local )?dir",
        "Pass a writable local folder with --work, or configure one on the workers",
        _OF_FOLDERS,
    ),
    KnownFailure(
        r"UnknownHostException|BindException|UnresolvedAddressException|[Cc]an't assign requested address",
        "Set a name and an address of this machine for the driver",
        _OF_ADDRESSES,
    ),
    KnownFailure(
        r"PYTHON_VERSION_MISMATCH",
        "Use the same minor version of Python on workers and driver",
        _OF_PYTHON,
    ),
    KnownFailure(r'Cannot run program "[^"]*python', "Install this program on all workers", _OF_PYTHON),
    KnownFailure(
        r"Failed to find Spark jars directory|does not exist in the JVM|UnsupportedClassVersionError|NoSuchMethodError"
        r"|'JavaPackage' object is not callable|Could not find or load main class",
        "Use compatible versions of Spark, PySpark and Java",
        _OF_VERSIONS,
    ),
    KnownFailure(r"invalid null input: name", "Give the user id a name in /etc/passwd of this machine or image"),
    KnownFailure(r"core-site\.xml|hdfs-site\.xml|yarn-site\.xml", "Correct this Hadoop configuration file", _OF_HADOOP),
    KnownFailure(
        r"Python worker exited unexpectedly|Python worker.* crashed",
        "A Python worker was killed, most often because memory ran out. Use fewer --cores, or close other programs",
    ),
    KnownFailure(r"All masters are unresponsive", "Check the address of --master, and that a Spark master runs there"),
)
"""Known failures. The first whose sign is in the text applies."""

_EXCEPTION: Final = re.compile(
    r'^(?:Exception in thread "[^"]*" )?((?:[\w$]+\.)+[\w$]*(?:Exception|Error)\b.*|(?:Error|ERROR)\b.+)$', re.MULTILINE
)
_CAUSED_BY: Final = re.compile(r"^\s*Caused by: (.+)$", re.MULTILINE)
_NO_CAUSE: Final = re.compile(r"\s+(at |\.\.\. )|\S*/bin/spark-class: line |(NOTE: )?Picked up |WARNING: ")
"""Lines that never contain the cause: stack frames, consequential errors, and what Java prints at every start."""
_LOGGED: Final = re.compile(r"^\d{4}-\d\d-\d\dT\S+ (?:TRACE|DEBUG|INFO|WARN)\b.*\n?", re.MULTILINE)


class Cause(NamedTuple):
    """The cause of a failure: a sentence without its full stop, possibly with advice, and the type of error."""

    text: str
    error: type[CableStoreError]


def cause_of_log(said: str, environ: Mapping[str, str] = os.environ) -> Cause:
    """Return the cause in `said`, the output of a Java process that ended."""
    text = _LOGGED.sub("", said)
    return _cause(text, _first_exception(text), environ)


def cause_of_query(error: Exception, environ: Mapping[str, str] = os.environ) -> Cause:
    """Return the cause of an error of PySpark.

    It is a known failure, the end of a worker's traceback, or the first line with the root cause.
    """
    text = re.split("\n\tat |\n\nJVM stacktrace:", str(error))[0]
    noise = ("An error occurred while calling", " SQLSTATE:")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(noise)]
    # A Java exception without a message has its name only in its stack, which is not public.
    lines = lines or str(getattr(error, "_stackTrace", "")).splitlines()[:1] or [repr(error)]
    if "Traceback (most recent call last)" in text:
        after_code = 1 + max((number for number, line in enumerate(lines) if line[0].isspace()), default=-1)
        summary = "\n".join(lines[after_code:])
    else:
        summary = _with_root(lines[0].removeprefix(": "), str(error))
    return _cause(summary, summary, environ)


def _cause(text: str, summary: str, environ: Mapping[str, str]) -> Cause:
    """Return the first known failure whose sign is in `text`. If there is none, return `summary`."""
    for known in KNOWN:
        found = re.search(f"^.*(?:{known.sign}).*$", text, re.MULTILINE)
        if found:
            named = [name for name in known.variables if environ.get(name)]
            look = f". Check {' and '.join(named)} in the environment" if named else ""
            return Cause(f"{_shortened(found[0])}. {known.advice}{look}", known.error)
    return Cause(summary, SparkError)


def _first_exception(said: str) -> str:
    """Return the first exception in a text and its root cause. If the text has no exception, return the last line."""
    first = _EXCEPTION.search(said)
    if first:
        following = said[first.end() :]
        other = _EXCEPTION.search(following)
        return _with_root(_shortened(first[1]), following[: other.start() if other else None])
    lines = [line for line in said.splitlines() if line.strip() and not _NO_CAUSE.match(line)]
    return _shortened(lines[-1]) if lines else "it printed nothing"


def _with_root(line: str, stack: str) -> str:
    """Return the line of an exception with its root cause, which is the last cause in its stack."""
    causes = _CAUSED_BY.findall(stack)
    root = _shortened(causes[-1]) if causes else ""
    return f"{line}, caused by {root}" if root and root not in line else line


def ending(status: int) -> str:
    """Return how a Java process ended, as a predicate such as "was ended by SIGTERM", given its return code."""
    number = -status if status < 0 else status - 128
    if number == signal.SIGKILL:
        return (
            "was killed (SIGKILL), most often by the system because memory ran out. Use fewer --cores or less "
            "--driver-memory, or close other programs"
        )
    with_name = number in {each.value for each in signal.Signals}
    return f"was ended by {signal.Signals(number).name}" if with_name else f"ended with status {status}"


def _shortened(line: str) -> str:
    """Return a line without the prefix of Spark's log, and without the full stop."""
    without_time = re.sub(r"^\d{4}-\d\d-\d\dT\S+ \w+ \S+: ", "", line.strip())
    return without_time.replace("\n", ": ").removesuffix(".").strip()
