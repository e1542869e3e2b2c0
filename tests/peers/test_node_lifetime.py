"""A node ends when its `async with` ends, and refuses calls before, after and from other threads."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop
from peering import HOST, QUICK, Raw, memory, raw_listener, raw_peer, run, soon, until
from waiting import LIMIT_S, wait_until

from cablestore import CableStore
from cablestore.errors import NodeError
from cablestore.peers import Address, Node, NodeSettings, SyncReport
from cablestore.protocol.message import TimeRangeRequest

LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
SLOW_TO_LEAVE = replace(QUICK, grace_s=2 * LIMIT_S)
"""Settings of a node that waits for a peer with an announced post. A test in which it really waits fails."""


def sockets() -> set[str]:
    """Return the open sockets of this process."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.add(str(descriptor.readlink()))
    return {each for each in found if each.startswith("socket:")}


def threads() -> set[threading.Thread]:
    """Return the threads of this process, except those of a loop's executor, which the tests use."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith(("asyncio_", "uvloop_"))}


@asynccontextmanager
async def nothing_is_left() -> AsyncIterator[None]:
    """Check that the body does not leave a thread, task or socket."""
    await asyncio.sleep(0)
    before = threads(), asyncio.all_tasks(), sockets()
    yield
    assert threads() <= before[0]
    assert asyncio.all_tasks() <= before[1]
    await until(lambda: sockets() <= before[2])  # peers of the test close their sockets later


@contextmanager
def stored() -> Iterator[CableStore]:
    with memory("ann") as store:
        yield store
        assert store.check().is_clean


async def with_announced_post(node: Node, store: CableStore) -> Raw:
    """Connect a peer that does not request an announced post of the user. A node that stops waits for it."""
    peer: Raw = await raw_peer(await node.listen(Address(HOST, 0)))
    asked = peer.send_request(TimeRangeRequest(b"", "default", 0, 0, 0))
    await until(lambda: node.parts.serving.live.count)
    digest = store.post("default", "not asked for").hash
    await until(lambda: digest in peer.hashes(asked))
    return peer


async def leave(node_is_left: asyncio.Event, peers: list[Raw], store: CableStore, there: Address) -> None:
    """Use all functions of a node, and wait in its end until `node_is_left`."""
    async with Node(store, SLOW_TO_LEAVE) as node:
        node.keep_connected(there)
        node.keep_connected(Address("192.0.2.1", 1))  # the connection attempt is not answered
        node.reconcile_port.keep_connected(there)
        await node.reconcile_port.listen(Address(HOST, 0))
        await until(lambda: node.connections)
        peers.append(await with_announced_post(node, store))
        node_is_left.set()


async def cancelled(work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    leaving = asyncio.Event()
    task = asyncio.ensure_future(work(leaving))
    await soon(leaving.wait())
    await asyncio.sleep(0.05)
    assert not task.done()
    for _ in range(3):  # as anyio does until the end
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await soon(task)


async def timed_out(work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    leaving = asyncio.Event()

    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S) as limit:
            shortening = asyncio.ensure_future(shorten(limit))
            await work(leaving)
            await shortening

    async def shorten(limit: asyncio.Timeout) -> None:
        await leaving.wait()
        limit.reschedule(asyncio.get_running_loop().time() + 0.05)

    with pytest.raises(TimeoutError):
        await limited()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def in_a_failing_group(work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    leaving = asyncio.Event()

    async def fail() -> None:
        await leaving.wait()
        raise ZeroDivisionError

    async def stay() -> None:
        await work(leaving)

    async def grouped() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(stay())
            group.create_task(fail())

    with pytest.raises(ExceptionGroup) as raised:
        await grouped()
    assert raised.group_contains(ZeroDivisionError)


@LOOPS
@pytest.mark.parametrize("way", [cancelled, timed_out, in_a_failing_group])
def test_a_cancelled_end_leaves_no_threads_or_connections(way: Any, loop: Any) -> None:
    async def main() -> None:
        async with raw_listener(Raw) as (there, dialled), nothing_is_left():
            peers: list[Raw] = []
            with stored() as store:
                await soon(way(lambda leaving: leave(leaving, peers, store, there)))
                connections = len(dialled)
                await until(lambda: all(peer.is_over for peer in [*peers, *dialled]))
                store.post("default", "written after the node was left")
                await asyncio.sleep(0.05)
                assert len(dialled) == connections
            for peer in [*peers, *dialled]:
                await peer.close()

    run(main(), loop)


@LOOPS
def test_a_cancelled_end_stores_received_posts(loop: Any) -> None:
    async def main() -> None:
        with memory("bob") as other, stored() as store:
            for number in range(300):
                other.post("default", f"text {number}")
            async with Node(other, QUICK) as source:
                at = await source.listen(Address(HOST, 0))

                async def fetch() -> None:
                    async with Node(store, QUICK) as node:
                        node.keep_connected(at)
                        await until(lambda: store.last_sequence)

                for _ in range(3):
                    task = asyncio.ensure_future(fetch())
                    await until(lambda: store.last_sequence)
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await soon(task)
                async with Node(store, QUICK) as node:
                    node.keep_connected(at)
                    await until(lambda: store.dump_digest() == other.dump_digest())

    run(main(), loop)


@LOOPS
def test_an_error_in_the_body_leaves_no_threads_or_connections(loop: Any) -> None:
    async def main() -> None:
        async with raw_listener(Raw) as (there, dialled), nothing_is_left():
            with stored() as store:

                async def fail() -> None:
                    async with Node(store, QUICK) as node:
                        node.keep_connected(there)
                        await node.listen(Address(HOST, 0))
                        await until(lambda: dialled)
                        raise ZeroDivisionError

                with pytest.raises(ZeroDivisionError):
                    await fail()
                await until(lambda: all(peer.is_over for peer in dialled))
                for peer in dialled:
                    await peer.close()

    run(main(), loop)


def test_a_loop_that_ends_with_a_node_in_another_task_leaves_no_threads() -> None:
    """At its end, asyncio.run cancels all tasks: that of the program, and those of the node."""
    before = threads()
    with stored() as store:

        async def main() -> None:
            started = asyncio.Event()

            async def stay() -> None:
                async with Node(store, QUICK) as node:
                    await node.listen(Address(HOST, 0))
                    started.set()
                    await asyncio.sleep(LIMIT_S)

            tasks.append(asyncio.ensure_future(stay()))
            await started.wait()

        tasks: list[asyncio.Task[None]] = []
        asyncio.run(main())
        assert tasks[0].cancelled()
        assert threads() <= before


def test_an_interrupted_loop_leaves_no_threads() -> None:
    """Ctrl-C can interrupt a loop that is never run again, as in a shell. Then the coroutine is discarded."""
    before, open_before = threads(), sockets()
    with stored() as store:

        async def main() -> None:
            async with Node(store, QUICK) as node:
                await node.listen(Address(HOST, 0))
                asyncio.get_running_loop().call_soon(interrupt)
                await asyncio.sleep(LIMIT_S)

        def interrupt() -> None:
            raise KeyboardInterrupt

        loop = asyncio.new_event_loop()
        work = main()
        task = loop.create_task(work)
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(task)
        work.close()
        wait_until(lambda: threads() <= before)
        with suppress(RuntimeError):
            task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        del task, work
        gc.collect()
        assert sockets() <= open_before


@LOOPS
def test_a_cancelled_start_leaves_no_threads_or_connections(loop: Any) -> None:
    async def main() -> None:
        with stored() as store:
            for rounds in range(6):
                async with nothing_is_left():
                    node = Node(store, QUICK)
                    starting = asyncio.ensure_future(node.__aenter__())
                    for _ in range(rounds):
                        await asyncio.sleep(0)
                    if starting.cancel():
                        with pytest.raises(asyncio.CancelledError):
                            await soon(starting)
                    else:  # it started within these rounds
                        await node.__aexit__()

    run(main(), loop)


def test_a_busy_executor_of_the_program_does_not_delay_the_end() -> None:
    """All threads of the loop's executor may be busy, for example with resolving names."""

    async def main() -> None:
        loop, may_go = asyncio.get_running_loop(), threading.Event()
        busy = [loop.run_in_executor(None, may_go.wait, LIMIT_S) for _ in range(100)]
        try:
            with stored() as store:
                async with asyncio.timeout(LIMIT_S / 2):
                    async with Node(store, QUICK) as node:
                        at = await node.listen(Address(HOST, 0))
                        node.keep_connected(at._replace(host="localhost"))
        finally:
            may_go.set()
        await asyncio.gather(*busy)

    run(main())


# --- before, after, twice, elsewhere --------------------------------------------------------------


CALLS: dict[str, Callable[[Node, Address], Any]] = {
    "listen": lambda node, _: node.listen(Address(HOST, 0)),
    "connect": lambda node, at: node.connect(at),
    "keep_connected": lambda node, at: node.keep_connected(at),
    "disconnect": lambda node, at: node.disconnect(at),
    "sync_once": lambda node, at: node.sync_once(at),
    "reconcile_once": lambda node, at: node.reconcile_once(at),
    "reconcile_once over Cable": lambda node, at: node.reconcile_once(at, over_cable=True),
    "reconcile_port": lambda node, _: node.reconcile_port,
}


async def refuses(call: Callable[[], Any]) -> None:
    async def made() -> None:
        found = call()
        if asyncio.iscoroutine(found):
            await soon(found)

    with pytest.raises(NodeError):
        await made()


@pytest.mark.parametrize("name", CALLS)
def test_a_call_before_and_after_is_rejected(name: str) -> None:
    async def main() -> None:
        async with raw_listener(Raw) as (there, dialled):
            with stored() as store:
                node = Node(store, QUICK)
                await refuses(lambda: CALLS[name](node, there))
                async with node:
                    port = node.reconcile_port
                await refuses(lambda: CALLS[name](node, there))
                await refuses(lambda: port.connect(there))
                await refuses(lambda: port.listen(Address(HOST, 0)))
                await refuses(lambda: port.keep_connected(there))
                await asyncio.sleep(0.05)
                assert not dialled

    run(main())


def test_reads_of_a_node_work_before_and_after_it_runs() -> None:
    async def main() -> None:
        with stored() as store:
            node = Node(store, QUICK)
            early = node.peer_events()
            for _ in range(2):
                assert (node.peers(), node.connections, node.load().peers) == ([], set(), 0)
                node.change_settings(replace(QUICK, max_peers=node.settings.max_peers + 1))
                async with node:
                    await node.connect(await node.listen(Address(HOST, 0)))
                    with pytest.raises(NodeError, match="only limits, intervals and ages"):
                        node.change_settings(replace(QUICK, page_hashes=1))
            assert node.settings.max_peers == QUICK.max_peers + 2
            assert [event async for event in node.peer_events()] == []
            assert len([event async for event in early]) == 4, "both ends of one connection come and go"

    run(main())


def test_a_node_can_be_used_again_but_not_twice_at_once() -> None:
    async def main() -> None:
        async with nothing_is_left():
            with stored() as store:
                node = Node(store, QUICK)
                for _ in range(3):
                    async with node:
                        with pytest.raises(NodeError, match="the node is already running"):
                            async with node:
                                pass
                        await node.connect(await node.listen(Address(HOST, 0)))
                    await node.__aexit__()

    run(main())


@pytest.mark.parametrize("name", CALLS)
def test_a_call_during_the_end_is_rejected_or_ends(name: str) -> None:
    """Nothing connects afterwards, and no task waits for the node."""

    async def main() -> None:
        async with raw_listener(Raw) as (there, dialled), nothing_is_left():
            with stored() as store:
                async with Node(store, QUICK) as node:
                    peer = await with_announced_post(node, store)
                    asked = node, Address("192.0.2.1", 1)
                    call = CALLS[name](*asked) if "once" in name or name == "connect" else asyncio.sleep(0)
                    pending = asyncio.ensure_future(call)
                    await asyncio.sleep(0)
                    ending = asyncio.ensure_future(node.__aexit__())
                    await asyncio.sleep(0)
                    await refuses(lambda: CALLS[name](node, there))
                    await soon(ending)
                    with suppress(NodeError):
                        await soon(pending)
                await asyncio.sleep(0.05)
                assert not dialled
                await peer.close()

    run(main())


@pytest.mark.parametrize("name", [*CALLS, "peers", "connections", "peer_events"])
def test_a_call_from_another_thread_is_rejected(name: str) -> None:
    def call(node: Node) -> None:
        async def elsewhere() -> None:
            found = CALLS[name](node, Address(HOST, 1)) if name in CALLS else getattr(node, name)
            found = found() if callable(found) else found
            if asyncio.iscoroutine(found):
                await found

        def without_loop() -> None:
            found = CALLS[name](node, Address(HOST, 1)) if name in CALLS else getattr(node, name)
            found = found() if callable(found) else found
            if asyncio.iscoroutine(found):
                found.send(None)

        with pytest.raises(NodeError, match="another event loop"):
            asyncio.run(elsewhere())
        with pytest.raises(NodeError, match="another event loop"):
            without_loop()
        assert node.load().peers == 0

    async def main() -> None:
        with stored() as store:
            async with Node(store, QUICK) as node:
                await soon(asyncio.to_thread(call, node))
                with pytest.raises(NodeError):
                    await asyncio.to_thread(asyncio.run, node.__aexit__())

    run(main())


def test_a_program_may_run_the_loop_in_single_steps(tmp_path: Path) -> None:
    """With Tk, a callback of a window runs between two turns of the loop."""
    with CableStore.open(tmp_path / "a") as store, memory("bob") as other:
        loop = asyncio.new_event_loop()

        async def start(store: CableStore, settings: NodeSettings) -> Node:
            return await Node(store, settings).__aenter__()

        node, source = (loop.run_until_complete(start(each, QUICK)) for each in (store, other))
        at = loop.run_until_complete(source.listen(Address(HOST, 0)))
        other.post("default", "a text")
        node.keep_connected(at)  # no turn

        def turn() -> int:
            loop.run_until_complete(asyncio.sleep(0.001))
            return store.last_sequence

        wait_until(turn)
        assert len(node.peers()) == 1
        for each in (node, source):
            loop.run_until_complete(each.__aexit__())
        loop.close()


def test_a_node_needs_an_asyncio_task() -> None:
    """Under trio, the loop of asyncio may be absent or run as a guest."""

    def start(store: CableStore) -> None:
        with pytest.raises(NodeError, match="requires a task on a running asyncio event loop"):
            Node(store).__aenter__().send(None)

    async def main(store: CableStore) -> None:
        called = asyncio.Event()

        def call() -> None:
            start(store)
            called.set()

        async with nothing_is_left():
            asyncio.get_running_loop().call_soon(call)
            await called.wait()

    with stored() as store:
        start(store)
        asyncio.run(main(store))


def test_a_sync_interrupted_by_the_end_raises_an_error() -> None:
    async def main() -> None:
        async with raw_listener(Raw) as (there, _):
            with stored() as store:
                async with Node(store, QUICK) as node:
                    syncing: asyncio.Future[SyncReport] = asyncio.ensure_future(node.sync_once(there))
                    await until(lambda: node.connections)
                with pytest.raises(NodeError):
                    await soon(syncing)

    run(main())
