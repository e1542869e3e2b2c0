"""The threads of a node: they get jobs in batches, their work is counted, and the loop does not wait for them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from by_hand import ALL, CABAL_KEY, ByHand, listening, offered, on_loop, post_request, texts
from peering import memory, until
from waiting import LIMIT_S

from cablestore.errors import StorageError
from cablestore.index.engine import Engine
from cablestore.index.reader import SnapshotReader
from cablestore.peers.threads import ReadThread, Stopwatch, WriteThread
from cablestore.protocol.message import PostResponse
from cablestore.store.writing import Writer


class Note:
    """Job that records its time and the state of the store."""

    def __init__(self, done: list[Note], *, fails: bool = False) -> None:
        self.cpu_s = -1.0
        self.reader: SnapshotReader | None = None
        self._done = done
        self._fails = fails

    def run(self, reader: SnapshotReader) -> None:
        assert self.reader is None, "each job must be done once"
        self.reader = reader

    def fail(self, error: Exception) -> None:
        raise error

    def done(self) -> None:
        self._done.append(self)
        if self._fails:
            raise ValueError("an error of whoever asked")


@on_loop
async def test_jobs_of_a_round_share_states_and_are_done_in_turn() -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)  # for the failing job
    with memory(posts=texts(1)) as store:
        reads = ReadThread(store, loop)
        done: list[Note] = []
        jobs = [Note(done, fails=number == 3) for number in range(200)]
        for job in jobs:
            reads.submit(job)
        assert reads.waiting == 200
        await until(lambda: len(done) == 200)
        assert done == jobs
        assert len({id(job.reader) for job in jobs}) == 4, "64 jobs at a time"
        assert all(job.cpu_s >= 0 for job in jobs)
        assert reads.waiting == 0
        late = [Note(done) for _ in range(100)]
        for job in late:
            reads.submit(job)
        reads.flush()
        reads.close()
        await asyncio.sleep(0)
        assert done[200:] == late, "waiting jobs must be done before the thread ends"


@on_loop
async def test_a_job_does_not_wait_forever_for_others() -> None:
    """Each round of the loop adds another job. They are handed over nevertheless."""
    loop = asyncio.get_running_loop()
    with memory() as store:
        reads = ReadThread(store, loop)
        done: list[Note] = []
        while len(done) < 100:
            reads.submit(Note(done))
            await asyncio.sleep(0)
        assert sum(job.reader is done[0].reader for job in done) < 20, (
            "a job must wait only a few rounds, not for a full batch"
        )
        reads.close()


@on_loop
async def test_a_cancelled_wait_for_a_write_leaves_the_others_of_its_batch() -> None:
    """The node stops while posts are stored: their tasks are cancelled."""
    loop = asyncio.get_running_loop()
    reported: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: reported.append(context))
    posts = texts(3)
    with memory() as store:
        writes = WriteThread(store, loop)
        first, second, third = (writes.submit([post.raw]) for post in posts)
        first.cancel()
        outcomes = [await second, await third]
        writes.close()
        assert [[each.hash for each in found or []] for found in outcomes] == [[post.hash] for post in posts[1:]]
        assert store.stats().posts == {"text": 3}
    assert reported == []


def test_a_stopwatch_counts_only_work() -> None:
    passed_s, worked_s = 100.0, 7.0
    watch = Stopwatch(lambda: passed_s, lambda: worked_s)
    began_s = watch.begin()
    passed_s += 0.05  # another thread runs
    assert watch.spent_s(began_s) == 0
    began_s = watch.begin()
    passed_s, worked_s = passed_s + 0.07, worked_s + 0.05
    assert watch.spent_s(began_s) == pytest.approx(0.05)
    began_s = watch.begin()
    passed_s += 0.0001  # too short for a call of the system
    assert watch.spent_s(began_s) == pytest.approx(0.0001)
    assert (real := Stopwatch()).spent_s(real.begin()) >= 0


class Gate:
    """Gate before a method of a class: calls wait until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> None:
        self._opened = threading.Event()
        self.waiting = 0
        method = getattr(kind, name)

        def gated(called: Any, *arguments: Any, **options: Any) -> Any:
            self.waiting += 1
            assert self._opened.wait(LIMIT_S)
            return method(called, *arguments, **options)

        monkeypatch.setattr(kind, name, gated)

    def open(self) -> None:
        self._opened.set()


@pytest.mark.parametrize("name", ["ingest", "reading"])
@pytest.mark.usefixtures("quick_clock")
def test_the_loop_waits_neither_for_the_disk_nor_for_signatures(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """While the store does not return, peers connect, do handshakes and leave, and a silent peer is disconnected."""
    posts = {post.hash: post for post in texts(300)}

    @on_loop
    async def scenario() -> None:
        async with listening(channels=None, cabal_key=CABAL_KEY, handshake_timeout_s=LIMIT_S) as (node, address):
            peer = await ByHand.connect(address, cabal_key=CABAL_KEY)
            await offered(peer, tuple(posts))
            request = await post_request(peer)
            gate = Gate(monkeypatch, Writer if name == "ingest" else Engine, name)
            if name == "ingest":
                peer.send(PostResponse(request.request_id, tuple(posts[digest].raw for digest in request.hashes)))
            else:
                peer.send(ALL)
            await until(lambda: gate.waiting)
            for _ in range(20):
                await (await ByHand.connect(address, cabal_key=CABAL_KEY)).close()
            silent = await ByHand.connect(address)
            link = await silent.known_to(node)
            link.began_s -= LIMIT_S
            assert await silent.is_ended()
            await until(lambda: len(node.connections) == 1)
            gate.open()
            count = len(request.hashes) if name == "ingest" else 0
            await until(lambda: node.store.last_sequence == count)
            assert len(await peer.hashes()) == count
            await peer.close()

    scenario()


def test_an_error_of_a_call_is_raised_where_it_is_awaited() -> None:
    @on_loop
    async def scenario() -> None:
        async with listening() as (reading, _):

            def refused(_: Any) -> None:
                raise StorageError("the disk refused")

            with pytest.raises(StorageError):
                await reading.parts.context.reads.call(refused)
            assert await reading.parts.context.reads.call(lambda reader: reader.dialect.name) == "legacy"

    scenario()
