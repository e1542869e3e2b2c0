"""The Spark job on clusters, and how its work is shared out: evenly, and with a driver that stays small."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from people import Person
from reindexing import SHARES, conversation, digest_of, digest_of_all, export_of, small_shares, start_job

pytest.importorskip("pyspark")

import pyspark
from standalone import standalone_cluster

from cablestore import Post
from cablestore.reindex.generation import Reindexed, reindex
from cablestore.reindex.java import find_java
from cablestore.reindex.run import SparkOptions

EXECUTORS = {"spark.executor.memory": "512m", "spark.executor.cores": "1"}


def hot_posts(count: int) -> list[Post]:
    """Half of all posts stand in one channel, and one author wrote a third."""
    people = [Person(f"person {number}") for number in range(40)]
    found = []
    for number in range(count):
        author = people[0] if number % 3 == 0 else people[1 + number % 39]
        channel = "hot" if number % 2 else f"channel {number % 97}"
        found.append(author.text(channel, f"{number} lorem ipsum dolor sit amet"))
        if number % 100 == 0:
            found.append(author.join(channel))
    return found


def tell(report: Reindexed) -> None:
    """Print how long tasks took: seen with `pytest -s`, and compared by nobody."""
    for stage, seconds in report.derived.task_seconds.items():
        print(f"{stage}: {len(seconds)} tasks, longest {max(seconds):.2f} s, sum {sum(seconds):.2f} s")
    print(report.seconds)


def test_local_cluster_with_even_shares(tmp_path: Path) -> None:
    posts = hot_posts(6000)
    exports = [
        export_of(posts[:4000], tmp_path / "one", segment_size_bytes=200_000),
        export_of(posts[2500:], tmp_path / "two", segment_size_bytes=200_000),
    ]
    work = tmp_path / "work"
    options = SparkOptions("local-cluster[2,1,1024]", settings=EXECUTORS)
    with small_shares():
        report = reindex(exports, tmp_path / "store", work=work, spark=options, keep_work=True)
    tell(report)
    assert digest_of(tmp_path / "store") == digest_of_all(posts)
    assert report.derived.counts["duplicates"] == len(set(posts[:4000]) & set(posts[2500:]))
    assert_even(work)
    assert not list(work.glob("spark"))


def assert_even(work: Path) -> None:
    """No partition and no bucket is much larger than the others, whatever is hot."""
    derived = reports(work, "derived")
    posts = [sum(report["posts"].values()) for report in derived]
    assert len(posts) > 10
    assert max(posts) < 1.5 * sum(posts) / len(posts)
    buckets = [segment for report in reports(work, "built") for segment in report["segments"]]
    size_bytes = [sum(size for _, size in segment["sizes"].values()) for segment in buckets]
    assert len(buckets) > 20
    assert max(size_bytes) < 2.5 * SHARES["MAX_BUCKET_SIZE_BYTES"]
    rows = [segment["rows"] for segment in buckets if "messages" in segment["sizes"]]
    assert len(rows) > 3, "the hot channel is in one task"
    assert max(rows) < 2.5 * sum(rows) / len(rows)
    rows = [segment["rows"] for segment in buckets if "author" in segment["sizes"]]
    assert len(rows) > 3, "the prolific author is in one task"
    assert max(rows) < 2.5 * sum(rows) / len(rows)


def reports(work: Path, stage: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(work.glob(f"{stage}-*.json"))]


def test_a_standalone_master_with_two_workers(tmp_path: Path) -> None:
    posts = conversation(1500)
    exports = [export_of(posts[:1000], tmp_path / "one"), export_of(posts[600:], tmp_path / "two")]
    with small_shares(), standalone_cluster(tmp_path / "cluster") as master:
        report = reindex(exports, tmp_path / "store", spark=SparkOptions(master, settings=EXECUTORS))
    tell(report)
    assert digest_of(tmp_path / "store") == digest_of_all(posts)
    workers = [log.read_text() for log in (tmp_path / "cluster").glob("worker-?.log")]
    assert len(workers) == 2
    assert all("Asked to launch executor" in said for said in workers)


PEAK = """
import atexit, threading, time
from pathlib import Path
from cablestore.reindex import prepare

prepare._SAMPLED_POSTS = 1000
peak_kb = 0

def watch():
    global peak_kb
    while True:
        fields = Path("/proc/self/status").read_text().split("RssAnon:")[1]  # without LevelDB's mapped files
        peak_kb = max(peak_kb, int(fields.split()[0]))
        time.sleep(0.02)

threading.Thread(target=watch, daemon=True).start()
atexit.register(lambda: print("peak", peak_kb))
"""


def test_the_driver_does_not_grow_with_the_export(tmp_path: Path) -> None:
    """Java's part of it has a fixed size; this is Python's, for eight times the posts."""
    (tmp_path / "peak.py").write_text(PEAK)
    posts = hot_posts(16_000)
    peaks_kb = []
    for count in (2000, len(posts)):
        export = export_of(posts[:count], tmp_path / f"export-{count}", segment_size_bytes=500_000)
        job = start_job(tmp_path / "job.py", export, "--out", tmp_path / f"store-{count}", extra="import peak")
        output, errors = job.communicate(timeout=240)
        assert job.returncode == 0, errors
        found = re.search(r"^peak (\d+)$", output, re.MULTILINE)
        assert found, output
        peaks_kb.append(int(found[1]))
    print(f"driver's peak: {peaks_kb} kB")
    assert peaks_kb[1] < peaks_kb[0] + 30_000


def test_spark_submit_to_a_standalone_cluster(tmp_path: Path) -> None:
    """The same job, started as clusters start theirs, with what the documents say."""
    posts = conversation(600)
    export = export_of(posts, tmp_path / "export", segment_size_bytes=60_000)
    module = [sys.executable, "-m", "cablestore.cli.submit"]
    script = subprocess.run(module, capture_output=True, text=True, check=True).stdout.strip()
    home = pyspark.__path__[0]
    environment = os.environ | {"SPARK_HOME": home, "JAVA_HOME": str(find_java(tmp_path).home)}
    settings = {
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "600m",
        **EXECUTORS,
    }
    with standalone_cluster(tmp_path / "cluster") as master:
        command = [f"{home}/bin/spark-submit", "--master", master]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        command += [script, str(export), "--out", str(tmp_path / "store"), "--work", str(tmp_path / "work"), "--json"]
        found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=200)
        assert found.returncode == 0, found.stderr
        executors = list((tmp_path / "cluster").glob("worker-*/app-*"))
    assert executors, "no worker took part"
    assert digest_of(tmp_path / "store") == digest_of_all(posts)
