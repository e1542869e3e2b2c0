"""The end of Java is known from the status that a script writes to a pipe. Other programs end in place of Java."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cablestore.reindex.causes import SparkError
from cablestore.reindex.java_end import JavaEnd, make_pipe, spark_home, wait_for_end


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[int]:
    with open(make_pipe(tmp_path), "rb") as opened:  # noqa: PTH123 - a descriptor
        yield opened.fileno()


def end_of(scratch: Path, inherited: Mapping[str, str]) -> JavaEnd:
    log = scratch / "spark.log"
    log.write_text("OutOfMemoryError of an earlier run\n")
    return JavaEnd(scratch, log, inherited)


def submit(scratch: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run the script of PySpark, with a program in place of the script of Spark."""
    program = scratch / "it's Spark" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    home = spark_home(scratch, str(program.parents[1]))
    return subprocess.run([home / "bin" / "spark-submit", "two words"], capture_output=True, text=True, check=False)


def test_the_script_reports_the_status_and_ends_with_1(tmp_path: Path, pipe: int) -> None:
    java = end_of(tmp_path, {})
    done = submit(tmp_path, 'echo "$1 $SPARK_HOME"; exit 7')
    assert (done.returncode, done.stdout) == (1, f"two words {tmp_path}/it's Spark\n")
    assert java.has_ended(is_closed=True)
    with java.log.open("a") as log:
        log.write("Error: it was out of order\n")
    error = java.failure("Spark does not start: ")
    assert type(error) is SparkError
    assert str(error) == (
        "Spark does not start: Java ended with status 7: Error: it was out of order. "
        f"The log of Spark is {tmp_path}/spark.log"
    )


@pytest.mark.parametrize(
    ("status", "inherited", "message"),
    [
        (
            "128",
            {"JAVA_HOME": "/opt/java"},
            r"Java ended with status 128: .* It is the Java of JAVA_HOME, /opt/java\. ",
        ),
        ("129", {"JAVA_HOME": "/opt/java"}, r"Java was ended by SIGHUP\. Run the same command again to continue\. "),
    ],
)
def test_an_end_by_a_signal_is_not_explained_by_the_log(
    status: str, inherited: Mapping[str, str], message: str, tmp_path: Path, pipe: int
) -> None:
    java = end_of(tmp_path, inherited)
    submit(tmp_path, f"exit {status}")
    assert java.has_ended(is_closed=True)
    with pytest.raises(SparkError, match=f"^{message}The log of Spark is {tmp_path}/spark.log$"):
        raise java.failure("")


def test_a_wait_ends_with_the_timeout_while_java_runs(tmp_path: Path, pipe: int) -> None:
    again = make_pipe(tmp_path)  # the folder of an earlier run
    writer = os.open(tmp_path / "java-end", os.O_WRONLY)
    os.write(writer, b"1\n")
    wait_for_end(again, 0)
    os.close(writer)
    wait_for_end(again, 60)
    os.close(again)
    assert os.read(pipe, 1) == b""
