"""A standalone Spark cluster on this machine, from the pip package: a master and two workers that share nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

import pyspark
from waiting import wait_until

from cablestore.reindex.java import find_java

QUICK_JAVA = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {os.environ.get('SPARK_SUBMIT_OPTS', '')}"
"""For processes that live for seconds: compiling code with more care would take a third of their time."""
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"


@contextmanager
def standalone_cluster(
    scratch: Path,
    *,
    workers: int = 2,
    cores: int = 1,
    memory: str = "1g",
    variables: Mapping[str, str] = MappingProxyType({}),
    hidden: Path | None = None,
) -> Iterator[str]:
    """Start a master and workers on free ports of 127.0.0.1 and yield the master's URL; kill them all at the end.

    Each worker has a folder of its own, `worker-0` and so on below `scratch`, where its executors work. An
    executor needs less memory than its worker has: `spark.executor.memory=512m` fits the default. All processes, and
    those that they start, are found by `reindexing.processes_of(scratch)`.

    `variables` are for the environment of all of them. In the place of the folder `hidden` workers see an empty one, as
    on a machine of their own; in the place of temporary files, each its own.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "SPARK_HOME": pyspark.__path__[0],
        "JAVA_HOME": str(find_java(scratch).home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        "CABLESTORE_TEST_MARK": str(scratch),
        **variables,
    }
    environment.pop("PYTHONPATH", None)  # a worker has what is installed, or what a job sends
    with ExitStack() as stack:
        log = scratch / "master.log"
        stack.enter_context(_daemon(log, environment, MASTER))
        url = _wait_for(log, r"Starting Spark master at (spark://\S+)")
        logs = []
        for number in range(workers):
            folder = scratch / f"worker-{number}"
            folder.mkdir(exist_ok=True)
            logs.append(scratch / f"worker-{number}.log")
            sizes = ["--cores", str(cores), "--memory", memory, "--work-dir", str(folder)]
            own = {**environment, "SPARK_LOCAL_DIRS": str(folder), "TMPDIR": str(folder)}
            stack.enter_context(_daemon(logs[-1], own, WORKER, *sizes, url, hidden=hidden))
        for log in logs:
            _wait_for(log, r"(Successfully registered) with master")
        yield url


def without(hidden: Path) -> list[str]:
    """Return the begin of a command that runs where this folder is empty."""
    namespaces = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    covered = 'mount -t tmpfs none "$1" && shift && exec "$@"'
    return ["unshare", *namespaces, "sh", "-c", covered, "sh", str(hidden)]


def can_hide(folder: Path) -> bool:
    """Tell whether this machine lets us hide a folder from a process."""
    return (
        shutil.which("unshare") is not None and not subprocess.run([*without(folder), "true"], check=False).returncode
    )


@contextmanager
def _daemon(
    log: Path, environment: Mapping[str, str], name: str, *arguments: str, hidden: Path | None = None
) -> Iterator[None]:
    """Run one of Spark's daemons on a free port, where the folder `hidden` is empty."""
    command = [f"{environment['SPARK_HOME']}/bin/spark-class", name, "--host", "127.0.0.1", "--port", "0"]
    before = [] if hidden is None else without(hidden)
    with until_killed(log, environment, [*before, *command, "--webui-port", "0", *arguments]):
        yield


@contextmanager
def until_killed(
    log: Path, environment: Mapping[str, str], command: Sequence[str], folder: Path | None = None
) -> Iterator[None]:
    """Run a command in a process group of its own, which is killed when we are done or dead.

    The shell around it waits for its standard input to close, which happens whatever ends this process.
    """
    with log.open("wb") as said:
        process = subprocess.Popen(
            [
                "sh",
                "-c",
                '"$@" </dev/null & cat >/dev/null; kill -9 $!; wait; kill -9 0',
                "sh",
                *command,
            ],
            env=environment,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.communicate()  # the shell sees the end of its input and kills the daemon, executors and itself


def _wait_for(log: Path, pattern: str) -> str:
    found = wait_until(
        lambda: re.search(pattern, log.read_text()), lambda: f"no {pattern!r} in {log}:\n{log.read_text()}"
    )
    return str(found and found[1])
