"""A node that cannot start or whose store is closed: peers do not wait for it, and all resources are released."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from by_hand import on_loop, texts
from peering import ANSWERS_ONLY, HOST, QUICK, Raw, memory, network, raw_peer, soon, until
from people import ANN, BOB, raws

from cablestore import CableStore
from cablestore.errors import CorruptStoreError, StoreClosedError
from cablestore.index.reader import Reader
from cablestore.peers import Address, Node, feed, live_changes, peer_sync
from cablestore.peers.threads import ReadThread, WriteThread
from cablestore.protocol.body import Block
from cablestore.protocol.message import TimeRangeRequest


def own_threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("cablestore-"))


def damage(store: CableStore, digest: bytes) -> None:
    """Overwrite the bytes of a post, so that it cannot be read."""
    store._engine._database.write({b"!data!" + digest.hex().encode(): b"no post"}, sync=False)


@on_loop
async def test_a_node_that_cannot_start_leaves_no_threads() -> None:
    before = own_threads()
    with memory("a") as store:
        block = ANN.post(Block("unwanted", 0, (BOB.key,), 0, 0))
        store.ingest(raws(block))
        damage(store, block.hash)
        for _ in range(2):
            with pytest.raises(CorruptStoreError, match="cablestore rebuild"):
                await Node(store).__aenter__()
        assert own_threads() == before


@on_loop
async def test_waiting_callers_are_notified_that_the_store_is_closed() -> None:
    store, loop = memory("a"), asyncio.get_running_loop()
    reads, writes = ReadThread(store, loop), WriteThread(store, loop)
    store.close()
    for _ in range(2):
        with pytest.raises(StoreClosedError, match="the store is closed"):
            await soon(reads.call(lambda reader: reader.dialect))
        with pytest.raises(StoreClosedError, match="the store is closed"):
            await soon(writes.submit(raws(*texts(2))))
    assert writes.queued_size_bytes == 0
    assert writes.failure == "the store is closed"
    reads.close()
    writes.close()


@on_loop
async def test_a_node_does_not_follow_a_closed_store() -> None:
    async with Node(memory("a"), QUICK) as node:
        follows = asyncio.create_task(node.parts.serving.feed.follow())
        await asyncio.sleep(0)  # it waits for a write
        node.store.close()
        await soon(follows)


@on_loop
async def test_peers_of_a_closed_store_do_not_wait() -> None:
    """Peers that sync and reconcile do not wait, and those that send requests do not either."""
    async with network(memory("a", posts=texts(3)), may_complain=True) as net, Node(memory("b"), QUICK) as other:
        [node] = net.nodes
        address = await node.reconcile_port.listen(Address(HOST, 0))
        other.store.close()
        for ask, given in ((other.sync_once, net.addresses[node]), (other.reconcile_once, address)):
            with pytest.raises(StoreClosedError, match="the store is closed"):
                await soon(ask(given))
        assert not [error for error in net.log.errors() if error.startswith("a task failed")]


@on_loop
async def test_a_rebuild_does_not_interrupt_live_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rebuild closes all snapshots of the old database, also one from which changes are being read."""
    rebuilt = 0

    def changes_of(*arguments: Any, **named: Any) -> Any:
        nonlocal rebuilt
        if not rebuilt:
            rebuilt += 1
            node.store.rebuild()
        return live_changes.changes_of(*arguments, **named)

    async with network(memory("a"), settings=QUICK) as net:
        [node] = net.nodes
        peer: Raw = await raw_peer(net.addresses[node])
        asked = peer.send_request(TimeRangeRequest(b"", "default", 0, 0, 0))
        await until(lambda: node.parts.serving.live.count)
        monkeypatch.setattr(feed, "changes_of", changes_of)
        node.store.ingest(raws(*texts(1)))
        await until(lambda: rebuilt and peer.hashes(asked) == [texts(1)[0].hash])
        await peer.close()


@on_loop
async def test_a_rebuild_does_not_end_a_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data that is being read is read again. Otherwise the node would not request new channels of the peer."""
    rebuilt: list[object] = []
    read = peer_sync.own_channels

    def own_channels(reader: Reader) -> list[str]:
        if not rebuilt:
            rebuilt.append(other.store.rebuild())
        return read(reader)

    monkeypatch.setattr(peer_sync, "own_channels", own_channels)
    async with network(memory("a", posts=texts(3)), settings=ANSWERS_ONLY) as net:
        [node] = net.nodes
        with memory("b") as store:
            async with Node(store, QUICK) as other:
                await other.connect(net.addresses[node])
                await until(lambda: rebuilt and [found.name for found in store.channels()] == ["default"])
                node.store.ingest(raws(*texts(1, "new")))
                await until(lambda: len(list(store.channels())) == 2)
