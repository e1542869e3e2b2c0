"""The Spark job with exports and work in an object store: machines communicate only through it or Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from reindexing import LOCAL_CLUSTER, conversation, digest_of, digest_of_all, export_of, processes_of, start_job
from s3 import KEY, SECRET, S3Server
from waiting import LIMIT_S, wait_until

pytest.importorskip("pyspark")


@pytest.mark.thorough
def test_a_local_cluster_reindexes_an_export_on_s3(s3: S3Server, tmp_path: Path) -> None:
    """Workers do not share a disk. Exports and work are objects, and the work is removed at the end."""
    posts = conversation(150)
    export_of(posts, s3.uri("export"), segment_size_bytes=20_000)
    store = tmp_path / "store"
    places = (s3.uri("export"), "--out", store, "--work", s3.uri("work"))
    job = start_job(tmp_path / "job.py", *places, "--json", *LOCAL_CLUSTER)
    output, errors = job.communicate(timeout=LIMIT_S)
    wait_until(lambda: not processes_of(tmp_path / "job.py"), "a process outlives the job")
    assert job.returncode == 0, errors
    assert digest_of(store) == digest_of_all(posts)
    assert not s3.objects("work")
    assert {path.name for path in tmp_path.glob("store*")} == {"store"}
    assert KEY not in output + errors
    assert SECRET not in output + errors
