"""The Spark job through a Spark Connect server, whose workers do not have this package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from reindexing import conversation, digest_of, digest_of_all, export_of, start_job
from waiting import LIMIT_S

pytest.importorskip("pyspark")
pytest.importorskip("grpc_status")

from connect_server import connect_server

NO_JAVA = "os.environ.update(JAVA_HOME='/nowhere', PATH='/nowhere')"
"""The client starts no Java."""


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(scratch: Path) -> Iterator[str]:
    with connect_server(scratch) as url:
        yield url


def test_a_job_on_a_server_whose_workers_lack_the_package(server: str, tmp_path: Path) -> None:
    posts = conversation(1500)
    exports = [export_of(posts[:1000], tmp_path / "one"), export_of(posts[800:], tmp_path / "two")]
    job = start_job(
        tmp_path / "job.py", *exports, "--out", tmp_path / "store", "--remote", server, "--json",
        extra=f"import os; {NO_JAVA}",
    )  # fmt: skip
    output, errors = job.communicate(timeout=LIMIT_S)
    assert (job.returncode, errors) == (0, ""), output
    assert json.loads(output.splitlines()[-1])["counts"]["duplicates"] == len(set(posts[:1000]) & set(posts[800:]))
    assert digest_of(tmp_path / "store") == digest_of_all(posts)
