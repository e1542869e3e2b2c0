"""The Spark job through a Spark Connect server, whose workers do not have this package."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread, get_ident

import pytest
from reindexing import conversation, digest_of, digest_of_all, export_of, start_job
from waiting import LIMIT_S, wait_until

from cablestore.errors import ReindexError
from cablestore.reindex import spark as spark_module
from cablestore.reindex.queries import run_query
from cablestore.reindex.spark import session
from cablestore.reindex.tasks import Batches

pytest.importorskip("pyspark")
pytest.importorskip("grpc_status")

from connect_server import connect_server

NO_JAVA = "os.environ.update(JAVA_HOME='/nowhere', PATH='/nowhere')"
"""The client does not start Java."""


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(scratch: Path) -> Iterator[str]:
    with connect_server(scratch) as url:
        yield url


@pytest.mark.thorough
def test_a_job_runs_on_a_server_whose_workers_lack_the_package(server: str, tmp_path: Path) -> None:
    posts = conversation(1500)
    exports = [export_of(posts[:1000], tmp_path / "one"), export_of(posts[800:], tmp_path / "two")]
    job = start_job(
        tmp_path / "job.py", *exports, "--out", tmp_path / "store", "--remote", server, "--json",
        extra=f"import os; {NO_JAVA}",
    )  # fmt: skip
    output, errors = job.communicate(timeout=LIMIT_S)
    assert (job.returncode, errors) == (0, ""), output
    assert json.loads(output.splitlines()[-1])["counts"]["duplicates"] > 100
    assert digest_of(tmp_path / "store") == digest_of_all(posts)


@pytest.mark.thorough
def test_ctrl_c_cancels_the_query_on_the_server(server: str, tmp_path: Path) -> None:
    """The query's tasks would use all cores of the server for longer than the test. After Ctrl-C another query gets the
    cores."""

    def forever(batches: Batches) -> Batches:
        Path(tmp_path, f"started-{os.getpid()}").touch()
        time.sleep(10 * LIMIT_S)
        yield from batches

    def interrupt() -> None:
        wait_until(lambda: len(list(tmp_path.glob("started-*"))) == 2)
        signal.pthread_kill(get_ident(), signal.SIGINT)  # some systems deliver it to another thread

    reported: list[tuple[int, int]] = []
    with session(tmp_path, log=tmp_path / "spark.log", remote=server) as spark:
        table = spark.range(0, 2, 1, 2).mapInArrow(forever, "id long")
        Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            run_query(spark, "wait", table.collect, lambda done, total: reported.append((done, total)))
        assert spark.range(0, 2, 1, 2).count() == 2
    assert set(reported) <= {(0, 2)}  # a server reports only changes, and may report the first one too early


@pytest.mark.thorough
def test_an_error_is_one_line_that_names_the_server(server: str, tmp_path: Path) -> None:
    def fail(batches: Batches) -> Batches:
        raise ValueError("no such thing")

    with (
        pytest.raises(ReindexError, match=rf"^ValueError: no such thing. See the log of {server}$"),
        session(tmp_path, log=tmp_path / "spark.log", remote=server) as spark,
    ):
        run_query(spark, "fail", spark.range(1).mapInArrow(fail, "id long").collect)


def test_an_unreachable_server_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_module, "CONNECT_TIMEOUT_S", 0.2)
    url = "sc://127.0.0.1:1"
    with (
        pytest.raises(ReindexError, match=rf"^cannot connect to the Spark Connect server {url}: [^\n]*$"),
        session(tmp_path, log=tmp_path / "spark.log", remote=url),
    ):
        pytest.fail("there is a server")


NOTEBOOK = """
import os, sys
from pathlib import Path
from pyspark.sql import SparkSession
from cablestore.reindex.spark import session

theirs = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
theirs.conf.set("spark.sql.shuffle.partitions", "9")
before = theirs.conf.getAll
with session(Path("scratch"), log=Path("log"), options={"spark.sql.shuffle.partitions": "7"}) as spark:
    assert spark.conf.get("spark.sql.shuffle.partitions") == "7"
    assert spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == "16"
    assert spark.range(3).count() == 3
assert theirs.conf.getAll == before
assert theirs.range(3).count() == 3
assert not Path("log").exists()
print("ran")
"""


@pytest.mark.thorough
def test_a_session_on_a_server_that_a_notebook_has_open(server: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", NOTEBOOK, server]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert (found.returncode, found.stdout) == (0, "ran\n"), found.stderr
