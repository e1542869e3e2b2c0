"""A node whose store has unreadable rows: other peers and other posts are not affected."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from by_hand import CABAL_KEY, on_loop
from peering import ANSWERS_ONLY, HOST, Log, Raw, memory, network, raw_peer, soon, until, with_key
from people import ANN, BOB, CYD, Person, raws
from serving import fetch

from cablestore import CableStore, Post, limits
from cablestore.errors import StorageError
from cablestore.peers import Address, Node, feed, live_changes
from cablestore.peers.metrics_http import exporter
from cablestore.protocol.body import Block
from cablestore.protocol.message import StateRequest, TimeRangeRequest
from cablestore.views import membership

CHANNEL = "default"
EVENT = "cannot announce new posts to peers"


class Watched(NamedTuple):
    """A node and its log."""

    node: Node
    log: Log

    def reasons(self, event: str) -> list[str]:
        return [vars(record)["reason"] for record in self.log.records if record.getMessage() == event]

    async def health(self) -> tuple[int, str]:
        with exporter(self.node, Address(HOST, 0)) as address:
            status, text = await asyncio.to_thread(fetch, f"http://{address}/readyz")
            alive, _ = await asyncio.to_thread(fetch, f"http://{address}/healthz")
        health = json.loads(text)
        assert alive == (503 if health["status"] == "failing" else 200)  # 503 if a restart helps
        return status, health.get("reason", "")


class Follower(NamedTuple):
    """A peer with live requests for a channel's texts and state."""

    peer: Raw
    texts: bytes

    async def hears(self, *posts: Post) -> None:
        """Wait until these posts are the latest that are announced to the peer."""
        hashes = [post.hash for post in posts]
        await until(lambda: self.peer.hashes(self.texts)[-len(hashes) :] == hashes, lambda: self.peer.received)


@asynccontextmanager
async def followed(*posts: Post) -> AsyncIterator[tuple[Watched, Follower]]:
    """Yield a node that has these posts, and a peer. The node's store is repaired at the end."""
    async with network(memory("a", posts=posts), settings=ANSWERS_ONLY, may_complain=True) as net:
        [node] = net.nodes
        peer: Raw = await raw_peer(net.addresses[node])
        texts, state = (
            peer.send_request(TimeRangeRequest(b"", CHANNEL, 0, 0, 0)),
            peer.send_request(StateRequest(b"", CHANNEL, 1)),
        )
        await until(lambda: node.parts.serving.live.count == 2 and peer.hashes(state))
        yield Watched(node, net.log), Follower(peer, texts)
        await peer.close()
        node.store.rebuild()


def damage_membership(store: CableStore, person: Person) -> None:
    """Overwrite the membership row of a member of the channel."""
    [key] = [key for key, _ in store.dump() if key.startswith(membership.PREFIX) and key.endswith(_hex(person))]
    store._engine._database.write({key: b"no membership"}, sync=False)


def _hex(person: Person) -> bytes:
    return person.key.hex().encode()


@on_loop
async def test_an_unreadable_entry_does_not_delay_other_announcements() -> None:
    async with followed(ANN.join(CHANNEL), BOB.join(CHANNEL)) as (here, peer):
        assert await here.health() == (200, "")
        damage_membership(here.node.store, BOB)
        before, after = ANN.text(CHANNEL, "before"), ANN.text(CHANNEL, "after")
        here.node.store.ingest(raws(before, BOB.named("Bob"), BOB.named("Bobby"), after))
        await peer.hears(before, after)
        later = ANN.text(CHANNEL, "later")
        here.node.store.ingest(raws(later))
        await peer.hears(before, after, later)
        [reason] = here.reasons(EVENT)
        assert "cablestore rebuild" in reason
        assert await here.health() == (503, f"peers miss updates until they reconnect: {reason}")


@on_loop
async def test_a_block_is_enforced_as_soon_as_blocks_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TIMEOUTS_EVERY_S", 0.02)
    old = ANN.post(Block("", 0, (BOB.key,), 0, 0))
    key = b"!data!" + old.hash_hex
    settings = with_key(ANSWERS_ONLY, CABAL_KEY)
    async with network(memory("a", posts=[old]), memory("b"), settings=settings, may_complain=True) as net:
        node, guest = net.nodes
        here = Watched(node, net.log)
        link = await net.link(guest, node)
        damaged = node.store._engine._database
        damaged.write({key: b"no block"}, sync=False)
        node.store.write(Block("", 0, (guest.store.identity.public_key,), 0, 0))
        await until(lambda: here.reasons("cannot read the moderation state"))
        assert (await here.health())[0] == 503
        node.store.write(Block("", 0, (CYD.key,), 0, 0))
        await asyncio.sleep(0.2)  # it is read again, and fails again
        damaged.write({key: old.raw}, sync=False)
        await soon(asyncio.shield(link.closed))
        assert await here.health() == (200, "")
        [reason] = here.reasons("cannot read the moderation state")
        assert old.hash_hex.decode() in reason


@on_loop
async def test_changes_are_announced_after_a_temporary_failure_of_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed, "_RETRY_S", 0.02)
    refusals = 3

    def changes_of(*arguments: Any, **named: Any) -> Any:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise StorageError("too many open files")
        return live_changes.changes_of(*arguments, **named)

    async with followed(ANN.join(CHANNEL)) as (here, peer):
        monkeypatch.setattr(feed, "changes_of", changes_of)
        text = ANN.text(CHANNEL, "told late")
        here.node.store.ingest(raws(text))
        await peer.hears(text)
        assert here.reasons(EVENT) == ["too many open files"]
        await until(lambda: not here.node.parts.serving.feed.failure)
        assert (await here.health())[0] == 200
