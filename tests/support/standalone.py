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
"""For processes that run for seconds: optimizing their code would take a third of their time."""
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
    """Start a master and workers on free ports of 127.0.0.1 and yield the master's URL. Kill them all at the end.

    Each worker has a separate folder, `worker-0` and so on in `scratch`, where its executors work. An executor needs
    less memory than its worker has: `spark.executor.memory=512m` fits the default. `reindexing.processes_of(scratch)`
    finds all processes and their children.

    `variables` are added to the environment of all of them. Workers see an empty folder instead of `hidden`, like on a
    separate machine, and each has separate temporary files.
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
    environment.pop("PYTHONPATH", None)  # a worker has installed packages, or those that a job sends
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
    """Return the prefix of a command that runs with this folder empty."""
    namespaces = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    covered = 'mount -t tmpfs none "$1" && shift && exec "$@"'
    return ["unshare", *namespaces, "sh", "-c", covered, "sh", str(hidden)]


def can_hide(folder: Path) -> bool:
    """Return True if this machine can hide a folder from a process."""
    return (
        shutil.which("unshare") is not None and not subprocess.run([*without(folder), "true"], check=False).returncode
    )


@contextmanager
def _daemon(
    log: Path, environment: Mapping[str, str], name: str, *arguments: str, hidden: Path | None = None
) -> Iterator[None]:
    """Run one of Spark's daemons on a free port, with the folder `hidden` empty."""
    command = [f"{environment['SPARK_HOME']}/bin/spark-class", name, "--host", "127.0.0.1", "--port", "0"]
    before = [] if hidden is None else without(hidden)
    with until_killed(log, environment, [*before, *command, "--webui-port", "0", *arguments]):
        yield


@contextmanager
def until_killed(
    log: Path, environment: Mapping[str, str], command: Sequence[str], folder: Path | None = None
) -> Iterator[None]:
    """Run a command in a separate process group, which is killed at the end of the body or of this process.

    The shell around it waits for the end of its standard input, which closes when this process ends.
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
