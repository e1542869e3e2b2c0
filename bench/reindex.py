"""The reindex job: its cost from exports to a checked store, compared with a rebuild in process.

`reindex.py [POSTS ...]`, by default 100,000 and 1,000,000. The creation of the exports is not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from common import IS_TINY, print_result, refusing, seconds
from make_export import export_folders, make_exports

from cablestore.export.manifest import MANIFEST
from cablestore.store import ClosedStore
from cablestore.views import CATALOG

END_TO_END: Final = (2_000_000, 20_000)
"""Target in posts per second for a reindexing, by number of posts."""
IN_PROCESS: Final = (1_000_000, 30_000)
"""Target in posts per second for a rebuild without Spark, by number of posts."""
LOADED_ROWS: Final = 200_000
"""Target of the loader in rows per second."""
SCALING: Final = 1.6
"""Target speed-up of two cores over one."""

SPARK_STAGES: Final = ("derive", "build")

_SAMPLE_S: Final = 0.2

Found = dict[str, Any]


# --- memory of a tree of processes -----------------------------------------------------------------


@dataclass(slots=True)
class Memory:
    """Highest memory in MB of this process and its children, by part: python, java, workers, others.

    `peak` is the resident memory of the largest process of a part, as the kernel records it; `own` is that of all
    processes of a part at one time, without mapped files.
    """

    peak: dict[str, float] = field(default_factory=dict)
    own: dict[str, float] = field(default_factory=dict)
    cpu_s: dict[str, dict[int, float]] = field(default_factory=dict)
    """Processor time of each process, by part. It depends less on other work on the machine than elapsed time."""

    def sample(self) -> None:
        """Take one sample."""
        processes = dict(_processes())
        own: dict[str, float] = {}
        for pid, fields in processes.items():
            part = _part(pid, processes)
            if part is not None:
                self.cpu_s.setdefault(part, {})[pid] = _cpu_s(pid) or self.cpu_s.get(part, {}).get(pid, 0)
                own[part] = own.get(part, 0) + _mb(fields, "RssAnon")
                self.peak[part] = max(self.peak.get(part, 0), _mb(fields, "VmHWM"))
        for part, size_mb in own.items():
            self.own[part] = max(self.own.get(part, 0), size_mb)


def _processes() -> Iterator[tuple[int, dict[str, str]]]:
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        yield int(path.parent.name), dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def _part(pid: int, processes: Mapping[int, Mapping[str, str]]) -> str | None:
    """Return the part of the job that a process belongs to, None for other processes."""
    if pid == os.getpid():
        return "python"
    is_java = processes[pid]["Name"] == "java"
    has_java_above = False
    while pid in processes:
        pid = int(processes[pid]["PPid"])
        if pid == os.getpid():
            return "java" if is_java else "workers" if has_java_above else "others"
        has_java_above |= pid in processes and processes[pid]["Name"] == "java"
    return None


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process in seconds, 0 if it has just ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _mb(fields: Mapping[str, str], name: str) -> float:
    return int(fields.get(name, "0 kB").split()[0]) / 1000


@contextmanager
def watched() -> Iterator[Memory]:
    """Measure memory during the body."""
    memory, done = Memory(), Event()

    def watch() -> None:
        while not done.wait(_SAMPLE_S):
            memory.sample()

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield memory
    finally:
        done.set()
        watcher.join()
        memory.sample()


# --- measurements, each in its own process ------------------------------------------------------------


def apart(work: Callable[..., Found], *arguments: object) -> Found:
    """Run in a new process, so that memory and imports of other measurements do not count."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def measure_reindex(exports: Sequence[Path], store: Path, work: Path) -> Found:
    """Reindex into a new store."""
    from cablestore.reindex import reindex  # noqa: PLC0415 - needs the extra cablestore[reindex]

    started = time.perf_counter()
    with watched() as memory:
        report = reindex(exports, store, work=work, keep_work=True)
    elapsed = time.perf_counter() - started
    return {
        "seconds": elapsed,
        "stages": report.seconds,
        "tasks": report.derived.task_seconds,
        "live_posts": sum(report.derived.posts.values()),
        "counts": dict(report.derived.counts),
        "rows": report.rows,
        "peak_mb": memory.peak,
        "own_mb": memory.own,
        "cpu_s": {part: sum(found.values()) for part, found in memory.cpu_s.items()},
        "files": sum(1 for path in work.rglob("*") if path.is_file()),
        "work_size_bytes": size_bytes(work),
        "store_size_bytes": size_bytes(store),
    }


def measure_stages(exports: Sequence[Path], work: Path, cores: int) -> Found:
    """Run only the stages on Spark, on this many cores."""
    from cablestore.reindex.stages import SparkOptions, derive_rows  # noqa: PLC0415 - as above

    return dict(derive_rows(exports, work, CATALOG, spark=SparkOptions(cores=cores)).seconds)


def measure_rebuild(store: Path) -> Found:
    """Rebuild a store in process."""
    started = time.perf_counter()
    with watched() as memory:
        report = ClosedStore(store).rebuild()
    elapsed = time.perf_counter() - started
    assert not report.damaged, report.damaged
    return {"seconds": elapsed, "posts": report.posts, "peak_mb": memory.peak, "own_mb": memory.own}


def measure_check(store: Path) -> Found:
    """Check a store."""
    started = time.perf_counter()
    report = ClosedStore(store).check()
    elapsed = time.perf_counter() - started
    assert report.is_clean, [str(problem) for problem in report.problems]
    return {"seconds": elapsed, "posts": report.posts, "rows": report.rows}


def size_bytes(folder: Path) -> int:
    """Return the size of the files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# --- output ---------------------------------------------------------------------------------------


def print_rate(name: str, posts: int, elapsed: float, target: tuple[int, int] | None) -> None:
    """Print posts per second. A target is for a number of posts; with fewer it is only shown."""
    rate = posts / elapsed
    if target is None:
        print_result(name, f"{rate:,.0f} posts/s", "")
        return
    size, wanted = target
    print_result(name, f"{rate:,.0f} posts/s", f"{wanted:,} at {size:,}", rate >= wanted if posts >= size else None)


def print_memory(found: Found, names: Mapping[str, str]) -> None:
    """Print the memory of each part that ran."""
    for part, name in names.items():
        if part in found["peak_mb"]:
            own_mb = found["own_mb"][part]
            print_result(
                f"  memory of {name}", f"{found['peak_mb'][part]:,.0f} MB", f"without mapped files {own_mb:,.0f} MB"
            )


def print_reindex(posts: int, found: Found) -> None:
    """Print the cost of reindexing."""
    print_rate(f"reindex of {posts:,} posts, all in all", posts, found["seconds"], END_TO_END)
    for stage, elapsed in found["stages"].items():
        print_result(f"  {stage}", f"{elapsed:.1f} s", f"{posts / elapsed:,.0f} posts/s" if elapsed >= 1 else "")
    rest = found["seconds"] - sum(found["stages"].values())
    print_result("  the rest: starting and ending Spark, samples", f"{rest:.1f} s", "")
    rate = found["rows"] / found["stages"]["load"]
    print_result(f"  loader, {found['rows']:,} rows", f"{rate:,.0f} rows/s", f"{LOADED_ROWS:,}", rate >= LOADED_ROWS)
    for stage, tasks in found["tasks"].items():
        longest, median = max(tasks), statistics.median(tasks)
        figures = f"{longest:.2f}, {median:.2f}, {sum(tasks):.2f} s"
        print_result(
            f"  {stage}, {len(tasks)} tasks: longest, median, sum",
            figures,
            f"longest / median {_ratio(longest, median)}",
        )
    names = {
        "python": "the driver",
        "java": "its Java",
        "workers": "Spark's workers",
        "others": "what loads and checks",
    }
    print_memory(found, names)
    for part, elapsed in found["cpu_s"].items():
        print_result(f"  processor time of {names[part]}", f"{elapsed:.1f} s", f"{1e6 * elapsed / posts:.1f} us a post")
    print_result("  work folder at the end", f"{found['work_size_bytes'] / 1e6:,.0f} MB", f"{found['files']:,} files")
    per_post = found["store_size_bytes"] / found["live_posts"]
    print_result("  store", f"{found['store_size_bytes'] / 1e6:,.0f} MB", f"{per_post:,.0f} bytes a post")


def _ratio(one: float, other: float) -> str:
    return f"{one / other:.2f}" if other else "-"


def print_in_process(rebuilt: Found, checked: Found) -> None:
    """Print the cost without Spark."""
    print_rate("rebuild of the same store in process", rebuilt["posts"], rebuilt["seconds"], IN_PROCESS)
    print_memory(rebuilt, {"python": "the process"})
    print_rate("check of the rebuilt store", checked["posts"], checked["seconds"], None)


def print_scaling(one: Mapping[str, float], two: Mapping[str, float]) -> float:
    """Print the stages on Spark on one core and on two. Return the speed-up of two."""
    for stage in SPARK_STAGES:
        print_result(
            f"{stage} on 1 core, on 2",
            f"{one[stage]:.1f}, {two[stage]:.1f} s",
            f"{_ratio(one[stage], two[stage])} times",
        )
    ratio = sum(one[stage] for stage in SPARK_STAGES) / sum(two[stage] for stage in SPARK_STAGES)
    print_result("both stages, 2 cores against 1", f"{ratio:.2f} times", f"{SCALING}", ratio >= SCALING)
    return ratio


# --- the whole ----------------------------------------------------------------------------------------


def exports_of(folder: Path, posts: int, exports: int, *, is_hot: bool) -> list[Path]:
    """Return exports in a folder, and create missing ones."""
    out = folder / f"exports-{posts}-{exports}{'-hot' if is_hot else ''}"
    folders = export_folders(out, exports)
    missing = [path for path in folders if not (path / MANIFEST).exists()]
    if missing:
        elapsed = seconds(lambda: make_exports(out, posts, exports=exports, is_hot=is_hot))
        print_rate(f"{posts:,} posts made and signed", posts, elapsed, None)
    return folders


def run(posts: int, exports: Sequence[Path], scratch: Path, *, is_scaling: bool) -> Found:
    """Measure everything at one size."""
    found: Found = {"posts": posts, "exports": len(exports)}
    if is_scaling:
        one, two = (apart(measure_stages, exports, scratch / f"work-{cores}", cores) for cores in (1, 2))
        return found | {"stages_on_1": one, "stages_on_2": two, "ratio": print_scaling(one, two)}
    store = scratch / "store"
    found["reindex"] = apart(measure_reindex, exports, store, scratch / "work")
    print_reindex(posts, found["reindex"])
    found["rebuild"] = apart(measure_rebuild, store)
    found["check"] = apart(measure_check, store)
    print_in_process(found["rebuild"], found["check"])
    return found


def main() -> None:
    """Measure at every size."""
    parser = argparse.ArgumentParser(description="Measure the reindex job.")
    parser.add_argument("posts", type=int, nargs="*", default=[300] if IS_TINY else [100_000, 1_000_000])
    parser.add_argument("--exports", type=int, default=1, help="split the history into this many overlapping exports")
    parser.add_argument("--folder", type=Path, help="keep exports there, and use those that exist; made if missing")
    parser.add_argument("--scaling", action="store_true", help="only the stages on Spark, on one core and on two")
    parser.add_argument("--hot", action="store_true", help="one channel has half of all posts, one author a third")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    with refusing():  # before hours of work
        for needed in (arguments.folder, arguments.json and arguments.json.parent):
            if needed is not None:
                needed.mkdir(parents=True, exist_ok=True)
    figures = []
    for posts in arguments.posts:
        with tempfile.TemporaryDirectory(prefix="cablestore-bench-", dir=arguments.folder) as scratch:
            folder = arguments.folder or Path(scratch)
            print(
                f"# reindex: {posts:,} posts, {arguments.exports} exports{', hot' if arguments.hot else ''}", flush=True
            )
            exports = exports_of(folder, posts, arguments.exports, is_hot=arguments.hot)
            found = run(posts, exports, Path(scratch), is_scaling=arguments.scaling)
            figures.append(found | {"is_hot": arguments.hot})
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
