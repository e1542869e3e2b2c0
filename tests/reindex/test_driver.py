"""The driver is a process of its own: its result, progress and output reach the program, and so does its end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from cablestore.reindex.causes import SparkError
from cablestore.reindex.driver import Progress, in_driver


def test_a_result_is_returned_and_output_is_appended_to_the_log(tmp_path: Path) -> None:
    log, told = tmp_path / "spark.log", []
    log.write_text("before\n")

    def job(progress: Progress) -> tuple[int, int, bool]:
        print("said", flush=True)
        progress("derive", 1, 2)
        progress("derive", 2, 2)
        return os.getpid(), os.getpgid(0), signal.getsignal(signal.SIGINT) is not signal.SIG_IGN

    pid, group, can_interrupt = in_driver(job, tmp_path / "new" / "scratch", log, lambda *done: told.append(done))
    assert pid == group != os.getpid()
    assert can_interrupt
    assert told == [("derive", 1, 2), ("derive", 2, 2)]
    assert log.read_text() == "before\nsaid\n"


def test_an_early_end_is_reported_with_its_signal(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"

    def job(_: Progress) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SparkError, match=f"Spark's driver was ended by SIGTERM. .* The log of Spark is {log}$"):
        in_driver(job, tmp_path, log, print)
