"""One reconciliation: its timeout for a silent peer, the reason that the peer receives, and the counts of the report."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from by_hand import on_loop, on_standing_loop
from clock import BlockingClock, pass_time
from history import NOW_MS
from peering import HOST, logged, memory, soon, until
from people import ANN, START_MS
from reconcile_peer import Peer
from talking import content_of, hello

from cablestore.errors import StorageError
from cablestore.peers import Address, Node, NodeSettings
from cablestore.reconcile.messages import Accepted, Ended, EndReason, PostsFrame, Stored, Terms

POST = ANN.text("default", "given", at=START_MS)


@asynccontextmanager
async def talking(node: Node) -> AsyncIterator[Peer]:
    """Yield a peer whose conversation the node accepted."""
    address = await node.reconcile_port.listen(Address(HOST, 0))
    peer = Peer(*await asyncio.open_connection(*address))
    peer.say(hello())
    assert await peer.hear() == (7, Accepted(Terms()))
    yield peer
    await peer.close()


async def end_of(peer: Peer) -> EndReason:
    """Wait for the end of the conversation, and return its reason."""
    while (heard := await peer.hear()) is not None:
        if isinstance(heard[1], Ended):
            return heard[1].reason
    raise AssertionError("the connection ended without a reason")


@on_standing_loop
async def test_silence_counts_unless_posts_are_being_stored() -> None:
    """TALK_SILENCE_S."""
    clock = BlockingClock(NOW_MS)
    with memory(clock=clock) as store, logged() as log:

        def outcomes() -> list[str]:
            return [vars(record)["outcome"] for record in log.records if record.getMessage() == "reconciled"]

        async with Node(store, NodeSettings(talk_silence_s=2.0)) as node, talking(node) as peer:
            peer.tell(PostsFrame(0, (content_of(POST),)))
            await until(clock.is_reached.is_set)
            await pass_time(5.0, step_s=0.5)
            clock.passes.set()
            assert await peer.hear() == (7, Stored(0))
            await pass_time(1.5, step_s=0.5)
            assert outcomes() == []
            await pass_time(1.0, step_s=0.5)
            await until(outcomes)
            assert outcomes() == ["silent"]
            assert await end_of(peer) is EndReason.FAULT
            [fields] = [vars(record) for record in log.records if record.getMessage() == "reconciled"]
            assert fields["posts_received"] == 1


@on_loop
async def test_a_peer_is_told_that_the_node_stops() -> None:
    with memory() as store:
        async with Node(store) as node, talking(node) as peer:
            await soon(node.__aexit__())
            assert await end_of(peer) is EndReason.STOPPING


@on_loop
async def test_a_peer_is_told_that_posts_cannot_be_stored() -> None:
    def clock() -> int:
        if threading.current_thread().name == "cablestore-write":
            raise StorageError("the disk is full")
        return NOW_MS

    with memory(clock=clock) as store, logged() as log:
        async with Node(store) as node, talking(node) as peer:
            peer.tell(PostsFrame(0, (content_of(POST),)))
            assert await end_of(peer) is EndReason.STORAGE
            await until(lambda: not len(node.parts.reconciler))
            [fields] = [vars(record) for record in log.records if record.getMessage() == "reconciled"]
            assert (fields["outcome"], fields["posts_received"]) == ("storage", 0)
            assert node.parts.sync.fetches.is_halted
            assert not node.parts.sync.fetches.is_on_its_way(POST.hash)
