"""A Spark Connect server on this machine, from the pip package. Its workers have a Python without this package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from standalone import QUICK_JAVA, until_killed
from waiting import wait_until

from cablestore.reindex.java import find_java

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def connect_server(scratch: Path, *, cores: int = 2, **settings: str) -> Iterator[str]:
    """Start a server on a free port of 127.0.0.1 and yield its URL. Kill it and its workers at the end.

    Its log is `server.log` in `scratch`, where it works. `reindexing.processes_of(scratch)` finds its processes.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "SPARK_HOME": pyspark.__path__[0],
        "JAVA_HOME": str(find_java(scratch).home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(python_without_cablestore(scratch / "python")),
        "CABLESTORE_TEST_MARK": str(scratch),
    }
    options = {
        "spark.connect.grpc.binding.port": "0",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.memory": "600m",
        # A killed server leaves files there: files of clients, and native libraries.
        "spark.driver.defaultJavaOptions": f'"-Djava.io.tmpdir={scratch}" {QUICK_JAVA}',
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.log.level": "INFO",
        **settings,
    }
    command = [f"{pyspark.__path__[0]}/bin/spark-submit", "--master", f"local[{cores}]", "--class", SERVER]
    for name, value in options.items():
        command += ["--conf", f"{name}={value}"]
    log = scratch / "server.log"
    with until_killed(log, environment, [*command, "spark-internal"], folder=scratch):
        found = wait_until(
            lambda: re.search(r"Spark Connect server started at: \S*?:(\d+)", log.read_text()), log.read_text
        )
        yield f"sc://127.0.0.1:{found and found[1]}"


def python_without_cablestore(folder: Path) -> Path:
    """Create a Python that has all installed packages of this one, except this package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))  # the .pth files there are not read
    python = folder / "bin" / "python"
    lacks = subprocess.run(
        [python, "-E", "-c", "import msgpack, cablestore"], cwd=folder, capture_output=True, check=False
    )
    assert b"No module named 'cablestore'" in lacks.stderr, lacks.stderr
    return python
