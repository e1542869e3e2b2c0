"""Two processes and one store: either process may be killed or stopped at any time."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path
from queue import SimpleQueue

import pytest
from people import ANN, raws
from remote_stores import child, connected, owner_of, remote_of
from serving import Served, hang
from waiting import LIMIT_S, wait_until

import cablestore
from cablestore import CableStore, Outcome
from cablestore.aio import AsyncCableStore
from cablestore.errors import ArgumentError, OpenError, OwnerGoneError, StoreClosedError, StoreLockedError
from cablestore.protocol.dialect import DRAFT8
from cablestore.remote import RemoteStore, unix_socket
from cablestore.remote.link import Link
from cablestore.remote.node import NodeState, PeerFailure, PeerState, WatchedNode
from cablestore.serving import StoreServer
from cablestore.store.changes import MessageAdded


def texts(store: CableStore) -> list[str]:
    return [message.text for message in store.messages("c", 1000, newest_first=False).messages]


@pytest.mark.thorough
def test_a_program_uses_the_store_of_another_process(tmp_path: Path) -> None:
    with owner_of(tmp_path / "s"), cablestore.connect(tmp_path / "s") as store:
        post = store.post("c", "from here")
        assert store.get(post.hash) == post
        assert store.path == tmp_path / "s"
        with pytest.raises(StoreLockedError):
            CableStore.open(tmp_path / "s")


def test_connecting_without_a_serving_process_raises_an_error(tmp_path: Path) -> None:
    CableStore.open(tmp_path / "s").close()
    with pytest.raises(OwnerGoneError, match=r"no process serves the store at .*\. Open it with CableStore\.open, or"):
        cablestore.connect(tmp_path / "s")


def test_a_store_in_memory_cannot_be_offered() -> None:
    with CableStore.in_memory() as store, pytest.raises(ArgumentError, match="a store in memory has no folder"):
        cablestore.offer(store)


def test_a_closed_store_cannot_be_offered(tmp_path: Path) -> None:
    store = CableStore.open(tmp_path / "s")
    store.close()
    with pytest.raises(StoreClosedError):
        cablestore.offer(store)


def test_a_path_longer_than_an_address_can_be_offered(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 100) / ("y" * 100)
    path.mkdir(parents=True)
    with CableStore.open(path / "s") as store, cablestore.offer(store), cablestore.connect(path / "s") as remote:
        assert remote.last_sequence == 0


@pytest.mark.thorough
def test_the_socket_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    with owner_of(tmp_path / "s") as owner:
        owner.kill()
    with pytest.raises(OwnerGoneError, match="no process serves"):
        cablestore.connect(tmp_path / "s")
    with (
        CableStore.open(tmp_path / "s") as store,
        cablestore.offer(store),
        cablestore.connect(tmp_path / "s") as remote,
    ):
        assert list(remote.channels()) == []


@pytest.mark.parametrize("delay_s", [0.02, pytest.param(0.2, marks=pytest.mark.thorough)])
def test_a_killed_owner_keeps_the_results_of_answered_calls(tmp_path: Path, delay_s: float) -> None:
    with owner_of(tmp_path / "s") as owner, cablestore.connect(tmp_path / "s") as store:
        answered: list[str] = []
        threading.Timer(delay_s, owner.kill).start()

        def write() -> None:
            while True:
                store.post("c", f"text {len(answered)}", sync=True)
                answered.append(f"text {len(answered)}")

        with pytest.raises(
            OwnerGoneError, match=r"ended before it answered\. The call (may have run|was not run)"
        ) as gone:
            write()
        wait_until(lambda: store.is_closed)
    with CableStore.open(tmp_path / "s") as reopened:
        found = texts(reopened)
    assert found[: len(answered)] == answered
    if "was not run" in str(gone.value):
        assert found == answered


def test_every_kind_of_wait_ends_with_the_owner(tmp_path: Path) -> None:
    with owner_of(tmp_path / "s") as owner, cablestore.connect(tmp_path / "s") as store:
        ended = SimpleQueue[object]()

        def until_it_ends(wait: object) -> None:
            try:
                ended.put(wait())  # type: ignore[operator] # a function
            except OwnerGoneError:
                ended.put("gone")

        cursor, latest = store.cursor, store.last_sequence
        waits = [
            lambda: next(store.changes()),
            lambda: next(store.events(latest)),
            lambda: next(store.moderation.follow()),
            lambda: store.next_changes(cursor),
            lambda: next(store.changes(local=True)),
        ]
        threads = [threading.Thread(target=until_it_ends, args=(wait,)) for wait in waits]
        for thread in threads:
            thread.start()
        store.post("other", "all are under way", sync=False)
        owner.kill()
        found = [ended.get(timeout=LIMIT_S) for _ in waits]
        for thread in threads:
            thread.join()
        assert "gone" in found


@pytest.mark.thorough
def test_a_killed_program_leaves_the_store_to_others(tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "s", identity=ANN.identity) as store, cablestore.offer(store):
        for _ in range(3):
            with child("program", tmp_path / "s") as program:
                assert next(store.events(store.last_sequence + 5, timeout_s=LIMIT_S), None)
                program.kill()
            with cablestore.connect(tmp_path / "s") as other:
                assert other.post("d", "still served")
        wait_until(lambda: sum("aio" in thread.name for thread in threading.enumerate()) == 0)


@pytest.mark.thorough
def test_a_call_to_a_stopped_owner_fails_and_is_not_run_later(tmp_path: Path) -> None:
    with owner_of(tmp_path / "s") as owner, RemoteStore(Link.reach(tmp_path / "s", timeout_s=4)) as store:
        store.post("c", "before")
        hang(owner)
        with pytest.raises(OwnerGoneError, match=rf"process {owner.pid} has the store open, but does not answer\."):
            store.post("c", "while it is stopped")
        owner.send_signal(signal.SIGCONT)
        assert wait_until(lambda: texts(store)) == ["before"]
        store.post("c", "after")
        assert texts(store) == ["before", "after"]


@pytest.mark.thorough
def test_signs_of_life_distinguish_a_stopped_owner_from_a_running_or_ended_one(tmp_path: Path) -> None:
    with owner_of(tmp_path / "s") as owner, cablestore.connect(tmp_path / "s", timeout_s=4) as store:
        wait_until(store.is_answering)
        hang(owner)
        assert not store.is_answering()
        assert not store.is_closed
        owner.send_signal(signal.SIGCONT)
        wait_until(store.is_answering)
        owner.kill()
        wait_until(lambda: not store.is_answering() and store.is_closed)


@pytest.mark.thorough
def test_a_stopped_owner_serves_no_new_program(tmp_path: Path) -> None:
    with owner_of(tmp_path / "s") as owner:
        hang(owner)
        with pytest.raises(OwnerGoneError, match="has the store open, but does not answer"):
            Link.reach(tmp_path / "s", timeout_s=0.1)


@pytest.mark.thorough
def test_ctrl_c_ends_a_wait_and_keeps_the_connection(tmp_path: Path) -> None:
    with owner_of(tmp_path / "s"):
        waiter = child("waiter", tmp_path / "s")
        waiter.send_signal(signal.SIGINT)
        out, _ = waiter.communicate(timeout=LIMIT_S)
        assert (waiter.returncode, out) == (0, "after Ctrl-C\n")


@pytest.mark.thorough
def test_a_forked_child_cannot_use_a_connection(tmp_path: Path) -> None:
    code = f"""
import os, cablestore
from cablestore.errors import CableStoreError
store = cablestore.connect({str(tmp_path / "s")!r})
items = store.users()
if (pid := os.fork()) == 0:
    try:
        store.users()
    except CableStoreError as error:
        os._exit(7 if "was opened by process" in str(error) else 8)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert store.post("c", "the parent still uses it")
store.close()
"""
    with owner_of(tmp_path / "s"):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_asyncio_opens_a_store_or_connects(tmp_path: Path) -> None:
    async def write(text: str) -> bool:
        async with AsyncCableStore.open(tmp_path / "s") as store:
            await store.post("c", text)
            return isinstance(store.blocking, RemoteStore)

    assert asyncio.run(write("opened")) is False
    with owner_of(tmp_path / "s"):
        assert asyncio.run(write("connected")) is True
    with CableStore.open(tmp_path / "s") as store:
        assert texts(store) == ["opened", "connected"]


@pytest.mark.thorough
def test_asyncio_does_not_connect_with_options_of_the_owner(tmp_path: Path) -> None:
    async def open_with(**options: object) -> None:
        async with AsyncCableStore.open(tmp_path / "s", **options):  # type: ignore[arg-type] # options of any type
            pass

    with owner_of(tmp_path / "s"):
        with pytest.raises(StoreLockedError):
            asyncio.run(open_with(identity=ANN.identity))
        with pytest.raises(OpenError, match="has the dialect legacy, not"):
            asyncio.run(open_with(dialect=DRAFT8))


@pytest.mark.thorough
def test_serve_offers_its_store(tmp_path: Path) -> None:
    CableStore.open(tmp_path / "s").close()
    served = Served(tmp_path / "s", "--listen", "127.0.0.1:0", "--cabal-key", "ab" * 32)
    try:
        served.hear("listening")
        with cablestore.connect(tmp_path / "s") as store:
            assert store.owner == "serve"
            store.post("c", "through serve")
            assert texts(store) == ["through serve"]
    finally:
        served.process.terminate()
        served.process.communicate(timeout=LIMIT_S)


def test_fifty_programs_write_and_follow(tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "s", identity=ANN.identity) as store, cablestore.offer(store):
        missing = SimpleQueue[set[str]]()

        def program(number: int) -> None:
            with cablestore.connect(tmp_path / "s") as own:
                awaited = {f"text {each}" for each in range(50)}
                following = own.changes("c", own.cursor)
                ready.wait()
                own.post("c", f"text {number}", sync=False)
                for change in following:
                    if isinstance(change, MessageAdded):
                        awaited.discard(change.message.text)
                    if not awaited:
                        break
                missing.put(awaited)

        ready = threading.Barrier(50)
        threads = [threading.Thread(target=program, args=(number,)) for number in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        assert [missing.get(timeout=1) for _ in threads] == [set()] * 50


def test_a_slow_program_does_not_block_others() -> None:
    with CableStore.in_memory(identity=ANN.identity) as store, StoreServer(store) as server:
        for number in range(1200):
            store.post("c", f"text {number}", sync=False)
        with connected(server) as slow, connected(server) as quick:
            found = slow.posts_by(ANN.identity.public_key)
            next(found)
            for number in range(50):
                quick.post("c", f"more {number}", sync=False)
            assert sum(1 for _ in quick.posts_by(ANN.identity.public_key)) == 1251
            assert sum(1 for _ in found) >= 1200


def test_long_work_reports_progress_and_stops_when_it_is_cancelled() -> None:
    with CableStore.in_memory(identity=ANN.identity) as store, remote_of(store) as remote:
        for number in range(50):
            store.post("c", f"text {number}", sync=False)
        counts: list[int] = []
        report = remote.rebuild(progress=counts.append)
        assert sum(counts) >= report.posts == 51

        def stop(_: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            remote.rebuild(progress=stop)
        assert remote.post("c", "the store is not blocked")


def test_watchers_are_called_after_writes_of_others_and_at_the_end() -> None:
    with CableStore.in_memory(identity=ANN.identity) as store, remote_of(store) as remote:
        posts, everything = SimpleQueue[int](), SimpleQueue[int]()
        end = remote.watch(lambda: posts.put(remote.last_sequence))
        remote.watch(lambda: everything.put(remote.last_sequence), local=True)
        store.local.mute("c")
        while everything.get(timeout=LIMIT_S) < store.last_sequence:
            pass
        store.post("c", "text")
        while posts.get(timeout=LIMIT_S) < store.last_sequence:
            pass
        end()
        assert list(remote.events(store.last_sequence, timeout_s=0)) == []
        remote.close()
        assert everything.get(timeout=LIMIT_S) is not None
        with pytest.raises(StoreClosedError, match="the store is closed"):
            remote.post("c", "text")


def test_the_state_of_the_node_is_reported_at_the_beginning_and_after_changes() -> None:
    node = WatchedNode(NodeState(bytes(32), ("192.0.2.7:1",)))
    with CableStore.in_memory() as store, StoreServer(store, node=node) as server, connected(server) as remote:
        remote.stats()
        assert remote.node.state == node.state
        changed = SimpleQueue[NodeState | None]()
        remote.node.watch(lambda: changed.put(remote.node.state))
        node.change(listening=("127.0.0.1:2",), peers=(PeerState("192.0.2.7:1", is_in_step=None, no_answer_s=3),))
        assert changed.get(timeout=LIMIT_S) == node.state
        node.change(listening=("127.0.0.1:2",))
        node.change(failures=(PeerFailure("192.0.2.7:1", "it does not answer"),))
        assert changed.get(timeout=LIMIT_S) == node.state
    with CableStore.in_memory() as store, remote_of(store) as remote:
        remote.stats()
        assert remote.node.state is None


def test_ingest_stores_the_batches_that_the_store_itself_stores() -> None:
    with CableStore.in_memory(identity=ANN.identity) as source:
        for number in range(300):
            source.post("c", f"text {number}", sync=False)
        posts = raws(*source.posts_by(ANN.identity.public_key))

    async def ingest(remote: RemoteStore) -> list[Outcome]:
        async with AsyncCableStore(remote) as store:
            return await store.ingest(iter(posts), batch_posts=70)

    def written(store: CableStore) -> list[int]:
        """Return a list that gets the number of the latest event after each write."""
        found: list[int] = []
        store.watch(lambda: found.append(store.last_sequence))
        return found

    with CableStore.in_memory() as plain, CableStore.in_memory() as served, CableStore.in_memory() as other:
        stores = [plain, served, other]
        writes = list(map(written, stores))
        outcomes = plain.ingest(iter(posts), batch_posts=70)
        with remote_of(served) as remote:
            assert remote.ingest(iter(posts), batch_posts=70) == outcomes
        with remote_of(other) as remote:
            assert asyncio.run(ingest(remote)) == outcomes
        assert writes == [[70, 140, 210, 280, len(posts)]] * 3
        assert len({store.dump_digest() for store in stores}) == 1


def test_a_call_after_a_cancelled_one_has_its_own_result() -> None:
    async def run(remote: RemoteStore) -> None:
        async with AsyncCableStore(remote) as store:
            for number in range(100):
                task = asyncio.create_task(store.topic(f"channel-{number % 7}"))
                await asyncio.sleep(0)
                task.cancel()
                assert await store.topic("c") == "the topic"
            waiting = asyncio.create_task(anext(store.events(store.last_sequence)))
            await asyncio.sleep(0)
            waiting.cancel()
            assert (await store.post("c", "text")).body.channel == "c"  # type: ignore[union-attr] # it is a Text

    with CableStore.in_memory(identity=ANN.identity) as store, remote_of(store) as remote:
        store.set_topic("c", "the topic")
        asyncio.run(run(remote))


def test_asyncio_follows_moderation_over_a_connection() -> None:
    async def run(remote: RemoteStore, user: bytes) -> None:
        async with AsyncCableStore(remote) as store:
            following = store.moderation.follow()
            first = asyncio.create_task(anext(following))
            while not first.done():  # an action before the other side follows is not reported
                await store.moderation.hide(users=[user])
                await store.moderation.unhide(users=[user])
            assert (await first).target == user
            assert [each async for each in store.moderation.follow(timeout_s=0)] == []

    with CableStore.in_memory(identity=ANN.identity) as store, remote_of(store) as remote:
        asyncio.run(run(remote, bytes(32)))


def test_a_program_that_disconnects_at_once_does_not_affect_others(tmp_path: Path) -> None:
    with CableStore.open(tmp_path / "s") as store, cablestore.offer(store):
        for _ in range(200):
            if (own := unix_socket.connect(tmp_path / "s")) is not None:
                own.close()
        with cablestore.connect(tmp_path / "s") as other:
            assert other.stats().channels == 0


def test_closing_a_store_ends_the_calls_of_its_programs() -> None:
    with CableStore.in_memory(identity=ANN.identity) as store, remote_of(store) as remote:
        following = remote.events(store.last_sequence)
        snapshot = remote.snapshot()
        store.close()
        assert list(following) == []
        wait_until(lambda: remote.is_closed)
        with pytest.raises(StoreClosedError, match="the store is closed"):
            remote.post("c", "text")
        with pytest.raises(StoreClosedError):
            snapshot.messages("c")
