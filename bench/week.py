"""A week of two servers in an hour: `week.py [MINUTES] [--json FILE] [--posts N]`, by default 60 and 100,000.

Two `cablestore serve` sync with each other. Clients come and go, visitors sync, hostile peers attack, backups and
archives are created, and posts are removed when they are too old. One server is upgraded, one disk is full for a while,
and the servers are killed at random moments. At the end, the script verifies both stores. It is reproducible except for
the timing of processes. Exit status 1 if a promise is broken.

The posts are spread over eight weeks. A day takes a seventh of the run, and the clients write as many posts as become
too old.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from common import chat, print_result, refusing, size
from week_load import CHANNELS, KEY, Client, Crowd, Hostile, Visitor, sync
from week_servers import ROOT, TIMEOUT_S, UPGRADED, Server, copied_package, fill, small_disk

from cablestore import CableStore, connect
from cablestore.errors import CableStoreError

DAY_MS: Final = 86_400_000
DAYS: Final = 7
HISTORY_DAYS: Final = 56
KEPT_DAYS: Final = 49
"""Age in days at which posts are removed at the start. Each day of the run, it is a day less."""
KILLS: Final = size(20, tiny=2)
SAMPLE_EVERY_S: Final = size(3, tiny=1)
CLIENTS: Final = 2
"""Clients of each server."""
MOST_GROWTH: Final = 1.25
"""Largest ratio of the median in the last quarter of the run to that in the second quarter."""
WARM_UP_S: Final = 45.0
"""Time after each start in which memory is not judged: a process begins with empty caches."""
LONG_MINUTES: Final = 10.0
"""Duration from which a run is judged by what needs time: memory, disk, visitors and a full disk."""
SEED: Final = 7


# --- the week -------------------------------------------------------------------------------------


class Event(NamedTuple):
    """Something that happens at a time of the run, a fraction from 0 to 1."""

    at: float
    name: str
    act: Callable[[], object]


class Requests:
    """Requests of all processes of the load, from their logs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read_bytes: Counter[Path] = Counter()
        self.hashes: dict[str, set[bytes]] = {
            kind: set() for kind in ("acknowledged", "missing", "deleting", "deleted")
        }
        self.counts: Counter[str] = Counter()
        """Number of requests of each kind: visits by their status, failures by their error, attacks by their name."""

    def read_new(self) -> list[float]:
        """Read the lines since the last call. Return the durations of their requests in ms."""
        taken_ms = []
        for path in self._folder.iterdir():
            with path.open("rb") as file:
                file.seek(self._read_bytes[path])
                lines, _, _ = file.read().rpartition(b"\n")
            self._read_bytes[path] += len(lines) + 1 if lines else 0
            for line in map(json.loads, lines.splitlines()):
                kind = line["kind"]
                more = line.get("status", line.get("error", line.get("name", "")))
                self.counts[f"{kind} {more}".rstrip()] += 1
                if kind in self.hashes:
                    self.hashes[kind].add(bytes.fromhex(line["hash"]))
                if "took_ms" in line:
                    taken_ms.append(line["took_ms"])
        return taken_ms


class Week:
    """Servers, load and events of a run, and what was observed."""

    def __init__(self, folder: Path, disk: Path | None, minutes: float, posts: int) -> None:
        self._folder = folder
        self._disk = disk
        self.has_full_disk = disk is not None
        self.is_long = minutes >= LONG_MINUTES
        self.duration_s = 60 * minutes
        self._posts = posts
        self._rng = random.Random(SEED)
        host = f"{os.getpid() // 250 % 250 + 1}.{os.getpid() % 250 + 1}"  # several runs do not share addresses
        self.servers = {
            "a": Server("a", folder, f"127.1.{host}", folder),
            "b": Server("b", folder, f"127.2.{host}", disk or folder),
        }
        a, b = self.servers.values()
        a.peer, b.peer = b.address, a.address
        self.crowd = Crowd(SEED)
        self.samples: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.faults: list[str] = []
        (folder / "logs").mkdir()
        self.requests = Requests(folder / "logs")
        self._archiving: list[subprocess.Popen[bytes]] = []
        self._began_s = 0.0

    def prepare(self) -> None:
        """Create the stores, each with half of the history, and their settings."""
        start_ms = time.time_ns() // 10**6 - HISTORY_DAYS * DAY_MS
        history = list(
            chat(self._posts, channels=10, people=100, start_ms=start_ms, every_ms=HISTORY_DAYS * DAY_MS // self._posts)
        )
        for number, server in enumerate(self.servers.values()):
            with CableStore.open(server.store) as store:
                store.ingest(history[number::2], verify=False, sync=False)
        self._set_day(0)

    def _set_day(self, day: int) -> None:
        """Let the servers remove what is too old on a day."""
        for server in self.servers.values():
            server.write_settings(KEPT_DAYS - day, max(1.0, self.duration_s / DAYS / 2))
            server.send(signal.SIGHUP)

    # --- load and events -----------------------------------------------------------------------

    def _invite(self) -> None:
        """Start clients, visitors and hostile peers."""
        written_a_day = self._posts / HISTORY_DAYS
        every_s = len(self.servers) * CLIENTS * self.duration_s / DAYS / written_a_day
        for server in self.servers.values():
            for _ in range(CLIENTS):
                self.crowd.add(partial(self._client, server, every_s))
            self.crowd.add(partial(self._visitor, server))
            self.crowd.add(partial(self._hostile, server))

    def _client(self, server: Server, every_s: float, seed: int) -> Client:
        [other] = [each for each in self.servers.values() if each is not server]
        return Client(server.store, other.store, self._log(seed), seed, self._lifetime_s(), every_s)

    def _visitor(self, server: Server, seed: int) -> Visitor:
        return Visitor(server.address, self._folder, self._log(seed), seed, self._lifetime_s())

    def _hostile(self, server: Server, seed: int) -> Hostile:
        return Hostile(server.address, self._folder, self._log(seed), seed, self._lifetime_s())

    def _log(self, seed: int) -> Path:
        return self._folder / "logs" / f"{seed}.jsonl"

    def _lifetime_s(self) -> float:
        return self.duration_s * self._rng.uniform(0.05, 0.2)

    def _plan(self) -> list[Event]:
        """Return the events in order."""
        a, b = self.servers.values()
        found = [Event(day / DAYS, f"day {day}", partial(self._set_day, day)) for day in range(1, DAYS)]
        found += [
            Event((day + 0.5) / DAYS, "archives", partial(self._archive, server))
            for day, server in enumerate([a, b, a, b, a, b])
        ]
        found.append(Event(0.45, "upgrade", partial(self._upgrade, a)))
        if self._disk is not None:
            found += [Event(0.6, "disk full", self._fill_disk), Event(0.63, "disk has space", self._free_disk)]
        quiet = [(0.44, 0.47), (0.59, 0.66)]  # a kill would hide what the upgrade or the full disk does
        for number in range(KILLS):
            at, server = 0.05 + 0.9 * (number + self._rng.random()) / KILLS, (a, b)[number % 2]
            at = next((end for begin, end in quiet if begin < at < end), at)
            found.append(Event(at, f"kill {server.name}", partial(self._kill, server)))
        return sorted(found, key=lambda event: event.at)

    def _kill(self, server: Server) -> None:
        server.end(signal.SIGKILL)
        server.start()

    def _archive(self, server: Server) -> None:
        command = [
            sys.executable,
            "-m",
            "cablestore",
            "archive",
            "create",
            str(self._folder / f"archives-{server.name}"),
        ]
        log = (self._folder / "archives.log").open("a")
        with log:
            self._archiving.append(
                subprocess.Popen([*command, "--public", "-s", str(server.store)], cwd=ROOT, stdout=log, stderr=log)
            )

    def _upgrade(self, server: Server) -> None:
        """Stop a server, replace its package by a copy with another version, and start it."""
        status = server.end()
        if status:
            self.faults.append(f"server {server.name} stopped with status {status}")
        server.code = copied_package(self._folder / "upgrade")
        server.start()
        if server.version() != UPGRADED:
            self.faults.append(f"server {server.name} runs version {server.version()} after the upgrade")

    def _fill_disk(self) -> None:
        assert self._disk is not None
        fill(self._disk)

    def _free_disk(self) -> None:
        """Free the space, and wait until the server stores posts again."""
        assert self._disk is not None
        (self._disk / "ballast").unlink()
        until_s = time.monotonic() + TIMEOUT_S
        while (reason := self._post_to("b")) and time.monotonic() < until_s:
            time.sleep(SAMPLE_EVERY_S)
        if reason:
            self.faults.append(f"server b stores nothing after its disk was full: {reason}")

    def _post_to(self, name: str) -> str:
        """Post to a server. Returns the error, "" if it was stored."""
        try:
            with connect(self.servers[name].store) as store:
                store.post(CHANNELS[0], "the disk has space again")
        except CableStoreError as error:
            return str(error)
        return ""

    # --- running -------------------------------------------------------------------------------

    def run(self) -> None:
        """Run all events, and observe the servers meanwhile."""
        for server in self.servers.values():
            server.start()
        self._invite()
        events = self._plan()
        self._began_s = time.monotonic()
        sampled = 0
        while (passed_s := time.monotonic() - self._began_s) < self.duration_s or events:  # starts may take long
            self.crowd.tend()
            while events and events[0].at * self.duration_s <= passed_s:
                event = events.pop(0)
                self.events.append({"at_s": round(passed_s, 1), "name": event.name})
                try:
                    event.act()
                except CableStoreError as error:
                    self.faults.append(f"{event.name}: {error}")
            if passed_s >= sampled * SAMPLE_EVERY_S:
                sampled = int(passed_s / SAMPLE_EVERY_S) + 1
                self._sample(passed_s)
            time.sleep(0.1)
        self.crowd.end()
        self._finish_archives()

    def _sample(self, passed_s: float) -> None:
        taken_ms = self.requests.read_new()
        found: dict[str, Any] = {"at_s": round(passed_s, 1), "requests": len(taken_ms)}
        if len(taken_ms) > 1:
            cuts = statistics.quantiles(taken_ms, n=100, method="inclusive")
            found |= {"p50_ms": round(cuts[49], 2), "p99_ms": round(cuts[98], 2)}
        for server in self.servers.values():
            try:
                found[server.name] = {name: round(value, 1) for name, value in server.sample().items()}
            except CableStoreError as error:
                self.faults.append(f"server {server.name} does not answer after {passed_s:.0f} s: {error}")
        self.samples.append(found)

    def _finish_archives(self) -> None:
        """Wait for the commands. One that meets a kill or the full disk reports it with status 2 or 3."""
        statuses = [process.wait(TIMEOUT_S) for process in self._archiving]
        if 0 not in statuses or not set(statuses) <= {0, 2, 3}:
            self.faults.append(f"archive create ended with the statuses {statuses}")

    def close(self) -> None:
        """Kill all processes."""
        self.crowd.end()
        for server in self.servers.values():
            server.end(signal.SIGKILL)
        for process in self._archiving:
            process.kill()
            process.wait()


# --- results --------------------------------------------------------------------------------------


class Result(NamedTuple):
    """Promise, what was found, and whether it holds. None if it was not measured."""

    name: str
    found: str
    is_kept: bool | None


def results(week: Week, folder: Path) -> Iterator[Result]:
    """Yield the result of each promise. The servers must run."""
    week.requests.read_new()
    a, b = week.servers.values()
    statuses = [server.end() for server in (a, b)]
    yield Result("servers stop with status 0", f"{statuses}", statuses == [0, 0])
    yield Result("unexpected errors", "; ".join(week.faults) or "none", not week.faults)
    logs = [server.name for server in (a, b) if server.has_traceback()]
    yield Result("servers with tracebacks in their logs", ", ".join(logs) or "none", not logs)
    counts = week.requests.counts
    visits = counts["visit 0"], sum(counts[name] for name in counts if name.startswith("visit"))
    yield Result("visitors that synced", f"{visits[0]} of {visits[1]}", visits[0] > 0 if week.is_long else None)
    if week.has_full_disk:
        rejected = counts["failed StorageError"]
        yield Result("requests rejected while the disk was full", f"{rejected}", rejected > 0 if week.is_long else None)
    damaged = counts["failed CorruptStoreError"]
    yield Result("requests that found damage", f"{damaged}", damaged == 0)
    yield last_sync(a, b)
    yield from comparison(week, a, b)
    yield from (restored(server, folder) for server in (a, b))
    for server in (a, b):
        for name, what in (
            ("private_mb", "private memory"),
            ("memory_mb", "memory with mapped files"),
            ("disk_mb", "smallest disk"),
        ):
            yield growth(week.samples, server.name, name, what, is_judged=week.is_long and name != "memory_mb")


def last_sync(a: Server, b: Server) -> Result:
    """Remove what is too old from both stores, at one time, then sync one with the other."""
    before = time.strftime("%Y-%m-%d", time.gmtime(time.time() - 86_400 * (KEPT_DAYS - DAYS)))
    for server in (a, b):
        server.write_settings(10 * HISTORY_DAYS, 86_400)
        command = [sys.executable, "-m", "cablestore", "prune", "--before", before, "-s", str(server.store)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    a.start()
    status = sync(b.store, a.address, KEY)
    a.end()
    return Result("the last sync", f"status {status}", status == 0)


def comparison(week: Week, a: Server, b: Server) -> Iterator[Result]:
    """Compare both stores with each other and with what clients know."""
    hashes = week.requests.hashes
    expected = hashes["acknowledged"] - hashes["deleting"]
    dumps: list[set[tuple[bytes, bytes]]] = []
    for server in (a, b):
        with CableStore.open(server.store) as store:
            report = store.check()
            found = "; ".join(map(str, report.problems[:3])) or "clean"
            yield Result(f"check of {server.name}", found, report.is_clean)
            lost = sum(store.get(digest) is None for digest in expected)
            yield Result(f"acknowledged posts lost by {server.name}", f"{lost} of {len(expected)}", lost == 0)
            left = sum(store.get(digest) is not None for digest in hashes["deleted"])
            yield Result(f"deleted posts kept by {server.name}", f"{left} of {len(hashes['deleted'])}", left == 0)
            dumps.append(set(store.dump()))
    missing = len(hashes["missing"])
    yield Result("posts that their client did not find afterwards", f"{missing}", missing == 0)
    only = [dumps[0] - dumps[1], dumps[1] - dumps[0]]
    keys = b" ".join(key[:20] for key, _ in sorted(only[0] | only[1])[:3])
    found = f"{len(dumps[0]):,} rows" if not keys else f"{len(only[0])} only in a, {len(only[1])} in b: {keys!r}"
    yield Result("both dumps are equal", found, dumps[0] == dumps[1])


def restored(server: Server, folder: Path) -> Result:
    """Restore the last regular backup."""
    path = folder / f"restored-{server.name}"
    command = [sys.executable, "-m", "cablestore", "restore", str(server.backup), "-s", str(path)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    found = "clean" if done.returncode == 0 else " ".join(done.stderr.split())[-100:]
    if done.returncode == 0:
        with CableStore.open(path) as store:
            found = f"{sum(store.stats().posts.values()):,} posts" if store.check().is_clean else "damaged"
    return Result(f"restore of the last backup of {server.name}", found, found.endswith("posts"))


def growth(samples: list[dict[str, Any]], server: str, name: str, what: str, *, is_judged: bool) -> Result:
    """Compare the second and the last quarter of the run.

    Memory is compared by the medians, without those of a process that just started. Disk is compared by the smallest
    values, because it grows between two compactions.
    """
    of_disk = name == "disk_mb"
    least_s = 0.0 if of_disk else WARM_UP_S
    values = [each[name] for sample in samples if (each := sample.get(server)) and each["up_s"] >= least_s]
    quarter = len(values) // 4
    before, after = (
        min(part, default=0.0) if of_disk else statistics.median(part or [0.0])
        for part in (values[quarter : 2 * quarter], values[3 * quarter :])
    )
    is_kept = after <= MOST_GROWTH * before if is_judged else None
    return Result(f"{what} of {server}, second and last quarter", f"{before:.0f}, {after:.0f} MB", is_kept)


def report(week: Week, found: list[Result]) -> None:
    """Print the results, and what happened."""
    for result in found:
        print_result(result.name, result.found, "", result.is_kept)
    samples = [sample for sample in week.samples if "p99_ms" in sample]
    if samples:
        medians = [statistics.median(sample[name] for sample in samples) for name in ("p50_ms", "p99_ms")]
        print_result("p50 and p99 of a request, median of all samples", f"{medians[0]:.1f}, {medians[1]:.1f} ms", "")
    starts_s = [start_s for server in week.servers.values() for start_s in server.starts_s]
    print_result("longest start of a server", f"{max(starts_s):.1f} s", f"{len(starts_s)} starts")
    for name, number in sorted(week.requests.counts.items()):
        print_result(f"number of: {name}", f"{number:,}", "")


def figures(week: Week, found: list[Result]) -> dict[str, Any]:
    """Return what was observed, for `docs/img/served_week.py`."""
    return {
        "duration_s": week.duration_s,
        "samples": week.samples,
        "events": week.events,
        "results": [result._asdict() for result in found],
    }


def main() -> int:
    """Run the week, and verify it. Returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "minutes", type=float, nargs="?", default=size(6_000, tiny=20) / 100, help="duration of the run"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write samples, events and results to this file")
    parser.add_argument("--posts", type=int, default=size(100_000, tiny=560), help="posts in the stores at the start")
    given = parser.parse_args()
    with refusing():
        if not 0 < given.minutes < 10_000:
            raise ValueError(f"invalid number of minutes {given.minutes:g}: expected more than 0")
        if given.posts < HISTORY_DAYS:
            raise ValueError(f"invalid --posts {given.posts}: expected at least {HISTORY_DAYS}, one for each day")
        if given.json is not None:
            given.json.touch()
    print(f"# a week in {given.minutes:g} minutes: {given.posts:,} posts, {KILLS} kills, {os.cpu_count()} cores")
    with refusing(), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        disk = stack.enter_context(small_disk(folder / "disk", max(64, given.posts // 100)))
        if disk is None:
            print_result("full disk", "skipped", "only root can mount a disk")
        week = Week(folder, disk, given.minutes, given.posts)
        stack.callback(week.close)
        week.prepare()
        week.run()
        found = list(results(week, folder))
    report(week, found)
    if given.json is not None:
        given.json.write_text(json.dumps(figures(week, found), indent=1) + "\n", encoding="utf-8")
    return int(any(result.is_kept is False for result in found))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("week.py: interrupted")
