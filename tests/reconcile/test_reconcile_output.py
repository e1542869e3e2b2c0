"""Output of `cablestore reconcile` in this process, with a node in a thread as the other side."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from people import ANN, BOB, START_MS, raws
from waiting import LIMIT_S

from cablestore import CableStore, Post
from cablestore.peers import Address, Node, NodeSettings

Run = Callable[..., tuple[int, str, str]]

POSTS = [(ANN, BOB)[number % 2].text("default", str(number), at=START_MS + number) for number in range(30)]


def stored(path: Path, posts: list[Post]) -> Path:
    with CableStore.open(path) as store:
        store.ingest(raws(*posts), verify=False)
    return path


@contextmanager
def answering(path: Path) -> Iterator[str]:
    """Run a node on a store in another thread during the body. Yield the address of its reconciliation port."""
    started: list[Address] = []
    is_started, loop = threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def answer() -> None:
        with CableStore.open(path) as store:
            async with Node(store, NodeSettings()) as node:
                started.append(await node.reconcile_port.listen(Address("127.0.0.1", 0)))
                is_started.set()
                await stop.wait()

    def work() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(answer())

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert is_started.wait(LIMIT_S)
        yield str(started[0])
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(LIMIT_S)


def test_the_output_counts_what_both_stores_received(run: Run, tmp_path: Path) -> None:
    here, there = stored(tmp_path / "here", POSTS[:25]), stored(tmp_path / "there", POSTS[5:])
    with answering(there) as address:
        status, audited, _ = run("reconcile", address, "--audit", "--json", "-s", here)
        audit = json.loads(audited)
        assert (status, audit["here_only"], audit["there_only"]) == (0, 5, 5)
        assert (audit["differing_ranges"], audit["by_design"]) == (0, False)
        status, output, errors = run("reconcile", address, "--json", "-s", here)
        assert status == 0, errors
        found = json.loads(output)
        assert (found["posts_received"], found["posts_sent"]) == (5, 5)
        assert (found["refused"], found["missing"], found["unasked"]) == (0, 0, 0)
        assert found["rounds"] > 0
        assert {"talks", "unstored", "differing_ms", "is_by_design"}.isdisjoint(found)
        status, output, _ = run("reconcile", address, "-s", here)
        assert (status, output.startswith("received 0 new posts, sent 0 in ")) == (0, True)
        assert ": 1 round, " in output
        assert "rejected" not in output
        status, output, _ = run("reconcile", address, "--audit", "-s", here)
        assert (status, output) == (
            0,
            "found 0 posts only in this store, 0 only in the other store; reconciliation finds every difference\n",
        )
        run("reconcile", address, "--create", "--after", "2100-01-01", "--json", "-s", tmp_path / "new")
        with CableStore.open(tmp_path / "new") as store:
            assert not any(store.stats().posts.values())
    with CableStore.open(here) as one, CableStore.open(there) as other:
        assert {post.hash for post in one.posts_by(ANN.key)} == {post.hash for post in other.posts_by(ANN.key)}
