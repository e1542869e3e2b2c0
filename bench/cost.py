"""A model of the cost of a reindexing at sizes that were not run: `cost.py [RUNS.json ...]`.

Numbers of tasks, files and bytes follow from the parts of the job. Processor time and sizes per post are from a run,
whose figures `reindex.py --json` writes. With such files, the model is computed from the first run in them and compared
with all runs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from common import refusing

from cablestore.index.parallel import partitions_for
from cablestore.limits import MAX_BUCKET_SIZE_BYTES

SIZES: Final = (10_000_000, 100_000_000, 1_000_000_000)
CORES: Final = (4, 32, 256)
MACHINE_CORES: Final = 32
"""Cores of the machine with the store, which loads and reads back."""

_EDGES: Final = 25
"""Number of buckets of an empty job: each begins a view or another range of keys."""
_BUCKETED_SIZE_BYTES: Final = 920
"""Keys and values of a post's rows in buckets, before compression: all rows but the post and its reverse row."""
_READ_US: Final = 20
"""Time to open a run on a local disk and read one part of it: 11 us measured with the file in memory, and unpacking. A
request to an object store takes some hundred times as long.
"""
_FILES_OF_A_PARTITION: Final = 4
_FILES_OF_A_BUCKET: Final = 2
_REPORT_SIZE_BYTES: Final = 3_000
"""Memory of the driver for the report of a partition or bucket and its segments."""
_FIXED_CPU_S: Final = 17
"""Processor time of Java and of Python workers without posts, from the difference of runs with 200,000 and a million.
"""
_DRIVER_MB: Final = 200
"""Memory of the driver's Python without reports."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The cost of a post. Times are of one core, in microseconds."""

    job_us: float
    """Inspecting, deriving, building and adding up: Java and its Python workers, on all cores of the cluster."""
    loading_us: float
    """Loading and reading back, on the cores of one machine."""
    serial_us: float
    """Catching up, on one core."""
    fixed_s: float
    """Time by the clock to start and end Spark and its workers, and for samples."""
    shuffled_size_bytes: float
    work_size_bytes: float
    store_size_bytes: float

    @classmethod
    def of(cls, run: dict[str, Any], fixed_s: float) -> Self:
        """Return the rates of a run, given the time that does not depend on its size."""
        posts, found = run["posts"], run["reindex"]
        cpu_s, stages = found["cpu_s"], found["stages"]
        return cls(
            job_us=1e6 * max(cpu_s["workers"] + cpu_s["java"] - _FIXED_CPU_S, 0) / posts,
            loading_us=1e6 * cpu_s.get("others", 0) / posts,
            serial_us=1e6 * (stages["catch up"] + stages["swap"]) / posts,
            fixed_s=fixed_s,
            shuffled_size_bytes=SHUFFLED_SIZE_BYTES,
            work_size_bytes=found["work_size_bytes"] / posts,
            store_size_bytes=found["store_size_bytes"] / posts,
        )


SHUFFLED_SIZE_BYTES: Final = 410
"""A post of 224 bytes of text with its key, signature and links, its hash, and Spark's overhead."""

RATES: Final = Rates(52.4, 14.5, 0.5, 15, SHUFFLED_SIZE_BYTES, 1_620, 1_320)
"""Rates of a run over two million posts on two idle cores."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a job with this many posts on this many cores."""

    posts: int
    cores: int
    partitions: int
    buckets: int
    shuffle_gb: float
    work_gb: float
    store_gb: float
    driver_mb: float
    hours: float

    @property
    def tasks(self) -> int:
        """Number of Spark's tasks: reading and deriving every partition, building every bucket."""
        return 3 * self.partitions + self.buckets

    @property
    def files(self) -> int:
        """Number of files or objects in the work folder."""
        return _FILES_OF_A_PARTITION * self.partitions + _FILES_OF_A_BUCKET * self.buckets

    @property
    def reads(self) -> int:
        """Number of reads of a part of a run: every bucket reads its part of every partition."""
        return self.partitions * self.buckets


def cost(posts: int, cores: int, rates: Rates = RATES) -> Cost:
    """Return the cost of the job."""
    partitions = partitions_for(posts)
    buckets = _EDGES + posts * _BUCKETED_SIZE_BYTES // MAX_BUCKET_SIZE_BYTES
    reads_s = partitions * buckets * _READ_US / 1e6 / cores
    each_us = rates.job_us / cores + rates.loading_us / min(cores, MACHINE_CORES) + rates.serial_us
    return Cost(
        posts,
        cores,
        partitions,
        buckets,
        shuffle_gb=posts * rates.shuffled_size_bytes / 1e9,
        work_gb=posts * rates.work_size_bytes / 1e9,
        store_gb=posts * rates.store_size_bytes / 1e9,
        driver_mb=_DRIVER_MB + _REPORT_SIZE_BYTES * (partitions + buckets) / 1e6,
        hours=(rates.fixed_s + reads_s + posts * each_us / 1e6) / 3600,
    )


def table(rates: Rates = RATES) -> Iterator[str]:
    """Yield the table for the documents."""
    hours = " | ".join(f"hours on {cores} cores" for cores in CORES)
    yield f"| million posts | partitions | buckets | tasks | shuffle | files | reads of runs | work folder | store | driver | {hours} |"
    yield "|---" * (10 + len(CORES)) + "|"
    for posts in SIZES:
        found = [cost(posts, cores, rates) for cores in CORES]
        one = found[0]
        yield (
            f"| {posts // 10**6:,} | {one.partitions:,} | {one.buckets:,} | {one.tasks:,} "
            f"| {one.shuffle_gb:,.0f} GB | {one.files:,} | {one.reads:,} | {one.work_gb:,.0f} GB "
            f"| {one.store_gb:,.0f} GB | {one.driver_mb:,.0f} MB "
            + "".join(f"| {each.hours:,.2f} " for each in found)
            + "|"
        )


def compared(runs: list[dict[str, Any]], rates: Rates, cores: int) -> Iterator[str]:
    """Yield a line for each run, with the values of the model and the measured ones."""
    for run in runs:
        posts, found = run["posts"], run["reindex"]
        said = cost(posts, cores, rates)
        yield (
            f"{posts:>11,} posts: {3600 * said.hours:,.0f} s on {cores} idle cores, measured {found['seconds']:,.0f} s; "
            f"processor time {_FIXED_CPU_S + posts * (rates.job_us + rates.loading_us) / 1e6:,.0f} s, "
            f"measured {sum(found['cpu_s'].get(part, 0) for part in ('workers', 'java', 'others')):,.0f} s; "
            f"files {said.files:,}, measured {found['files']:,}"
        )


def main() -> None:
    """Print the table, and compare runs with it."""
    parser = argparse.ArgumentParser(description="Tell what reindexing costs at sizes that were not run.")
    parser.add_argument("runs", type=Path, nargs="*", help="figures that reindex.py --json wrote")
    parser.add_argument("--cores", type=int, default=2, help="cores of the machine of the runs")
    parser.add_argument("--fixed", type=float, default=RATES.fixed_s, help="seconds that do not depend on the size")
    arguments = parser.parse_args()
    with refusing():
        runs = [run for path in arguments.runs for run in json.loads(path.read_text(encoding="utf-8"))]
    rates = Rates.of(runs[0], arguments.fixed) if runs else RATES
    if runs:
        print(rates)
    for line in (*table(rates), *compared(runs, rates, arguments.cores)):
        print(line)


if __name__ == "__main__":
    main()
