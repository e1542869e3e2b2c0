"""Environment of Spark's processes, and a path to their files that all of them can use.

A local job uses only the PySpark of this program, and ignores the variables of another Spark installation.
"""

from __future__ import annotations

import locale
import os
import pwd
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from cablestore.reindex.causes import SparkError
from cablestore.reindex.java import find_java
from cablestore.reindex.java_end import spark_home

_OF_ANOTHER_SPARK: Final = re.compile(
    # Spark does not set its own options in SPARK_SUBMIT_OPTS: users set other options of Java there.
    r"(PY)?SPARK_(?!SUBMIT_OPTS$)\w+|JAVA_TOOL_OPTIONS|JDK_JAVA_OPTIONS|_JAVA_OPTIONS|(HADOOP|YARN)_CONF_DIR"
)

_OF_CONNECT: Final = re.compile(r"SPARK_(REMOTE|API_MODE|CONNECT_MODE_ENABLED)")
"""Variables with which PySpark connects to a server and does not start a driver."""

_LOG_CONFIGURATION: Final = """\
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
# Spark thinks that it runs as a shell, so it logs everything at the level of this class, or at WARN without one.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = info
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""

_PLAIN: Final = re.compile(r"[A-Za-z0-9/._-]+")


def environment_for(master: str, scratch: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the complete environment of Spark's driver, its Java and its workers.

    The files that it names are written to `scratch`. Raises SparkError if Java is not found, or if SPARK_HOME contains
    another version than PySpark.
    """
    import pyspark  # noqa: PLC0415 - an extra, and half a second to import

    home = Path(pyspark.__path__[0])
    is_local, found = master.startswith("local"), _without_other_spark(master, environ)
    if locale.nl_langinfo(locale.CODESET) != "UTF-8":  # Java cannot open a file with a name outside the locale
        found["LC_ALL"] = "C.UTF-8"
    log_configuration = scratch / "log4j2.properties"
    log_configuration.write_text(_LOG_CONFIGURATION, encoding="utf-8")
    found["JAVA_HOME"] = str(find_java(scratch, found).home)
    found.setdefault("PYSPARK_PYTHON", sys.executable)
    found.setdefault("LOG4J_CONFIGURATION_FILE", log_configuration.as_uri())
    if is_local or re.match(r"spark://(127\.0\.0\.1|localhost)\b", master):
        found |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(home)}
    elif found.setdefault("SPARK_HOME", str(home)):  # otherwise Spark's scripts look for it with the python3 on PATH
        _require_version(Path(found["SPARK_HOME"]), pyspark.__version__)
    if is_local:
        # A missing folder, so that Spark uses only our settings, and the class path equals that of the class archive.
        found["SPARK_CONF_DIR"] = str(scratch / "conf")
    if master.startswith("local-cluster"):  # Spark writes to $SPARK_HOME/work, by default inside site-packages
        found["SPARK_HOME"] = str(scratch / "cluster")
        (scratch / "cluster").mkdir(exist_ok=True)
        for entry in home.iterdir():
            with suppress(FileExistsError):
                (scratch / "cluster" / entry.name).symlink_to(entry)
    if not has_name():  # Hadoop does not start without a name for the user
        found.setdefault("SPARK_USER", "cablestore")
    return found | {"SPARK_HOME": str(spark_home(scratch, found["SPARK_HOME"]))}


def _without_other_spark(master: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a master. For a local master, omit the variables of another Spark installation."""
    left_out = _OF_ANOTHER_SPARK if master.startswith("local") else _OF_CONNECT
    return {name: value for name, value in environ.items() if not left_out.fullmatch(name)}


def _require_version(home: Path, version: str) -> None:
    """Raise SparkError unless a folder contains Spark with the same minor version as PySpark."""
    if not (home / "bin" / "spark-submit").is_file():
        raise SparkError(
            f"SPARK_HOME is {home}, which does not contain Spark. Unset SPARK_HOME, or set it "
            f"to the folder of Spark {version}"
        )
    found = re.search(r"spark-core_[\d.]+-([\d.]+\d)", " ".join(path.name for path in home.glob("jars/spark-core_*")))
    if found and found[1].split(".")[:2] != version.split(".")[:2]:
        raise SparkError(
            f"SPARK_HOME contains Spark {found[1]}, but PySpark is {version}. Unset it, or set it to the folder of "
            f"Spark {version}"
        )


@contextmanager
def plain_path(folder: Path) -> Iterator[Path]:
    """Yield a path to a folder that contains only characters that Spark, Java and every locale accept.

    Spark splits a list of folders at its commas. Java cannot open a folder whose name is outside the locale. If the
    path contains other characters, the result is a link in a temporary folder, or `folder` if none is writable.
    """
    temporary = (parent for parent in (tempfile.gettempdir(), "/tmp", "/var/tmp") if _PLAIN.fullmatch(parent))  # noqa: S108 - the folder in it is private
    parent = next((parent for parent in temporary if os.access(parent, os.W_OK)), None)
    if parent is None or _PLAIN.fullmatch(str(folder)):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="cablestore-", dir=parent) as made:
        link = Path(made) / "spark"
        link.symlink_to(folder, target_is_directory=True)
        yield link


def working_directory() -> Path:
    """Return the working directory of Java: the current directory, or the root if its path is missing or not plain.

    Java does not start in a folder whose name cannot be decoded.
    """
    with suppress(FileNotFoundError):
        if _PLAIN.fullmatch(str(Path.cwd())):
            return Path.cwd()
    return Path("/")


def has_name() -> bool:
    """Return True if the user id has a name."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True
