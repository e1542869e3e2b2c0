"""Helpers of the benchmarks: timing, data, and the lines that they print."""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from pathlib import Path

from cablestore import LEGACY, Body, CableStoreError, Identity, Info, Join, Text, Topic, encode_post

WORDS = ["lorem", "ipsum", "dolor", "sit", "amet", "consectetur", "adipiscing", "elit", "sed", "do", "eiusmod", "tempor", "incididunt", "ut", "labore", "et", "dolore", "magna", "aliqua", "enim", "ad", "minim", "veniam", "quis", "nostrud", "exercitation", "ullamco", "laboris", "nisi", "aliquip", "ex", "ea", "commodo", "consequat"]  # fmt: skip
START_MS = 1_600_000_000_000
IS_TINY = os.environ.get("CABLESTORE_BENCH") == "tiny"
"""True if this run only tests that the benchmarks work. Its figures are meaningless."""


class TerminatedError(KeyboardInterrupt):
    """SIGTERM, which ends a script like Ctrl-C: it removes its temporary files."""


def _terminate(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise TerminatedError


if parent_process() is None:  # a script ends its worker processes
    signal.signal(signal.SIGTERM, _terminate)


def size(number: int, *, tiny: int) -> int:
    """Return the size to measure, or a small one if the run is tiny."""
    return tiny if IS_TINY else number


def size_given(number: int, *, tiny: int) -> int:
    """Return the first argument of the command, or `size`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("number", type=int, nargs="?", default=size(number, tiny=tiny), help="how much is measured")
    return int(parser.parse_args().number)


@contextmanager
def refusing() -> Iterator[None]:
    """End the script with one line if the body rejects its arguments."""
    try:
        yield
    except (CableStoreError, OSError, ValueError) as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(2)


def seconds(work: Callable[[], object]) -> float:
    """Return the duration of `work` in seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def median(work: Callable[[], object], repeats: int) -> float:
    """Return the median of several runs, in seconds."""
    return statistics.median(seconds(work) for _ in range(repeats))


def print_result(name: str, value: str, target: str, reached: bool | None = None) -> None:
    """Print one result beside its target."""
    mark = "" if reached is None else " ok" if reached else " MISSED"
    print(f"{name:<58} {value:>24}   {target}{mark}", flush=True)


def known_posts(name: str) -> list[bytes] | None:
    """Return the posts of a file in the data folder, None if it does not exist.

    The file consists of records: the length as little-endian u32, and the post.
    """
    path = Path(os.environ.get("CABLESTORE_DATA", "data")) / "posts" / name
    if not path.exists():
        return None
    data, at, posts = path.read_bytes(), 0, []
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        posts.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return posts


def authors(number: int) -> list[Identity]:
    """Return `number` identities, always the same ones."""
    return [Identity.derive("bench", str(i)) for i in range(number)]


def signed(body: Body, who: Identity, timestamp_ms: int, links: tuple[bytes, ...] = ()) -> tuple[bytes, bytes]:
    """Return an encoded post and its hash."""
    post = encode_post(body, links=links, timestamp_ms=timestamp_ms, identity=who, dialect=LEGACY)
    return post.raw, post.hash


def sentence(rng: random.Random, size_bytes: int) -> str:
    """Return words with this total size."""
    words = ""
    while len(words) < size_bytes:
        words += rng.choice(WORDS) + f"{rng.randrange(1000)} "
    return words[:size_bytes]


def chat(
    number: int,
    *,
    text_size_bytes: int = 224,
    channels: int = 50,
    people: int = 1000,
    seed: int = 1,
    start_ms: int = START_MS,
    every_ms: int = 1000,
) -> Iterator[bytes]:
    """Return a history of texts: few busy and many quiet channels and people, every post linked to the previous one."""
    rng = random.Random(seed)
    who = authors(people)
    last: dict[int, tuple[bytes, ...]] = {}
    for i in range(number):
        channel = min(int(rng.paretovariate(1.0)) - 1, channels - 1)
        author = who[min(int(rng.paretovariate(0.7)) - 1, people - 1)]
        body = Text(f"channel-{channel}", sentence(rng, text_size_bytes))
        raw, digest = signed(body, author, start_ms + every_ms * i, last.get(channel, ()))
        last[channel] = (digest,)
        yield raw


def chain10k() -> list[bytes]:
    """Return 10,000 texts in one channel by 20 authors, each linked to the previous one: from a file, or similar ones."""
    known = known_posts("text10k_chain.bin")
    if known is not None and not IS_TINY:
        return known
    who, posts = authors(20), []
    rng = random.Random(1)
    links: tuple[bytes, ...] = ()
    for i in range(size(10_000, tiny=200)):
        raw, digest = signed(Text("bench", sentence(rng, 90)), who[i % 20], START_MS + 1000 * i, links)
        posts.append(raw)
        links = (digest,)
    return posts


def state1k() -> list[bytes]:
    """Return a channel with 1,000 members, each joined and named, and a topic: from a file, or a similar one."""
    known = known_posts("state1k.bin")
    if known is not None and not IS_TINY:
        return known
    posts = [signed(Topic("bench", "topic"), authors(1)[0], START_MS)[0]]
    for i, who in enumerate(authors(size(1000, tiny=20))):
        posts += [signed(Join("bench"), who, START_MS + i)[0], signed(Info.of(name=f"user{i}"), who, START_MS + i)[0]]
    return posts


def resident_mb(process: int | str = "self") -> tuple[float, float]:
    """Return the resident memory of a process in MB: in total, and without mapped files."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines() if ":" in line
    )
    return int(fields["VmRSS"].split()[0]) / 1000, int(fields["RssAnon"].split()[0]) / 1000


if sys.platform != "linux":
    sys.exit("the benchmarks read /proc: run them on Linux")
