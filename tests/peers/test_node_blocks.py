"""Network blocks over real sockets: disconnected peers, notified peers, and posts that are hidden from peers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from by_hand import CABAL_KEY, on_loop
from peering import HOST as HOST_ADDRESS
from peering import QUICK, Network, memory, network, until, with_key
from people import ANN, BOB, CYD, Person
from waiting import LIMIT_S

from cablestore import CableStore, Identity, Post, limits
from cablestore.errors import NodeError
from cablestore.peers import Address, restrictions
from cablestore.peers.audience import Audience, BlockBook, static_key_of
from cablestore.peers.restrictions import Restrictions
from cablestore.protocol.body import Block, Unblock
from cablestore.protocol.dialect import LEGACY

KEYED = with_key(QUICK, CABAL_KEY)
RECONCILES = replace(KEYED, channels=frozenset({"nobody writes here"}), reconciles=True, reconcile_every_s=0.1)
"""Nodes that get posts only by reconciling one empty channel, so only posts without a channel."""


class Owner(Person):
    """The identity of a store from `memory`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.identity = Identity.derive("node", name)
        self.key = self.identity.public_key


HOST, GUEST = Owner("host"), Owner("guest")


def block(by: Person, *users: Person, notify: bool = False) -> Post:
    return by.post(Block("spam", 0, tuple(user.key for user in users), 0, int(notify)))


def unblock(by: Person, *users: Person) -> Post:
    return by.post(Unblock("", 0, tuple(user.key for user in users), 0))


def has(store: CableStore, posts: Iterable[Post]) -> list[bool]:
    return [store.get(post.hash) is not None for post in posts]


async def ended(net: Network, reason: str) -> None:
    await until(lambda: reason in net.log.reasons(), net.log.reasons)


@on_loop
async def test_posts_of_a_user_who_blocks_a_peer_are_not_sent_to_it() -> None:
    """The peer is not notified of the block, either by the blocking node or by others."""
    theirs = [BOB.text("default", "of bob"), ANN.text("default", "of ann"), CYD.text("default", "of cyd")]
    secret = block(BOB, GUEST)
    async with network(memory("host", posts=[*theirs, secret]), memory("guest"), settings=KEYED) as net:
        await net.link(*net.nodes)
        guest = net.nodes[1].store
        later = ANN.text("default", "later")
        await until(lambda: all(has(guest, theirs[1:])))
        net.nodes[0].store.ingest([later.raw])
        await until(lambda: all(has(guest, [later])))
        assert has(guest, [theirs[0], secret]) == [False, False]


@on_loop
async def test_posts_of_users_that_a_peer_blocks_are_not_sent_to_it() -> None:
    theirs = [BOB.text("default", "of bob"), ANN.text("default", "of ann")]
    acts = [block(GUEST, BOB)]
    async with network(memory("host", posts=[*theirs, *acts]), memory("guest"), settings=KEYED) as net:
        await net.link(*net.nodes)
        await until(lambda: all(has(net.nodes[1].store, [theirs[1], *acts])))
        assert has(net.nodes[1].store, theirs[:1]) == [False]


@on_loop
async def test_a_blocked_peer_is_disconnected_until_it_is_unblocked() -> None:
    post = ANN.text("default", "x")
    async with network(memory("host", posts=[post, block(HOST, GUEST)]), memory("guest"), settings=KEYED) as net:
        await net.link(net.nodes[1], net.nodes[0])
        await ended(net, "the local user blocks the peer")
        assert not list(net.nodes[1].store.users())
        net.nodes[0].store.ingest([unblock(HOST, GUEST).raw])

        async def comes_back() -> bool:
            await net.link(net.nodes[1], net.nodes[0])
            return all(has(net.nodes[1].store, [post]))

        await until(comes_back)


@on_loop
async def test_a_block_ends_an_existing_connection() -> None:
    async with network(memory("host", posts=[ANN.text("default", "x")]), memory("guest"), settings=KEYED) as net:
        await net.link(*net.nodes)
        await net.are_alike()
        secret = block(HOST, GUEST)
        net.nodes[0].store.ingest([secret.raw])
        await ended(net, "the local user blocks the peer")
        assert has(net.nodes[1].store, [secret]) == [False]


@pytest.mark.thorough
@pytest.mark.parametrize("is_there", [True, False])
@on_loop
async def test_only_a_block_that_notifies_is_sent_to_the_blocked_peer(is_there: bool) -> None:
    notice, later = block(HOST, GUEST, notify=True), ANN.text("default", "later")
    async with network(memory("host", posts=[HOST.text("default", "x")]), memory("guest"), settings=KEYED) as net:
        host, guest = (node.store for node in net.nodes)
        if not is_there:
            host.ingest([notice.raw, later.raw])
        await net.link(*net.nodes)
        if is_there:
            await net.are_alike()
            host.ingest([notice.raw, later.raw])
        await ended(net, "the local user blocks the peer")
        await until(lambda: all(has(guest, [notice])), net.log.reasons)  # received posts are stored a little later
        assert has(guest, [later]) == [False]


@pytest.mark.thorough
@on_loop
async def test_a_block_applies_before_it_is_read() -> None:
    """The task that reads moderation waits if the last run took long. A block applies to posts that arrive with it."""
    notice, later = block(HOST, GUEST, notify=True), ANN.text("default", "later")
    async with network(memory("host", posts=[HOST.text("default", "x")]), memory("guest"), settings=KEYED) as net:
        host, guest = net.nodes
        await net.link(host, guest)
        await net.are_alike()
        keeper = host.parts.context.restrictions
        keeper._not_before_s = host.parts.context.loop.time() + 10 * LIMIT_S
        host.store.ingest([notice.raw, later.raw])
        await until(lambda: all(has(guest.store, [notice])), net.log.reasons)
        [link] = host.connections
        keeper.read()
        await until(lambda: link.is_banished)
        link.tick(host.parts.context.loop.time() + limits.BLOCK_NOTICE_S)
        await ended(net, "the local user blocks the peer")
        assert has(guest.store, [later]) == [False]


@on_loop
async def test_a_read_that_began_before_a_block_does_not_undo_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with network(memory("host"), memory("guest"), memory("other"), settings=KEYED) as net:
        host, guest, other = net.nodes
        await net.link(host, guest)
        await net.link(host, other)
        keeper, static = host.parts.context.restrictions, static_key_of(GUEST.key)
        host.store.ingest([block(HOST, GUEST).raw])
        await until(lambda: keeper.audience(static).is_blocked)
        monkeypatch.setattr(restrictions, "read_restrictions", lambda *_: Restrictions())
        await keeper.read()
        assert keeper.audience(static).is_blocked
        host.store.ingest([unblock(HOST, GUEST).raw])
        await until(lambda: not keeper.audience(static).is_blocked)


@on_loop
async def test_a_blocked_peer_that_ignores_its_notice_is_disconnected() -> None:
    notice = block(HOST, GUEST, notify=True)
    stores = memory("host", posts=[notice]), memory("guest", posts=[notice])
    async with network(*stores, settings=replace(KEYED, channels=frozenset())) as net:
        await net.link(*net.nodes)
        await until(lambda: net.nodes[0].connections)
        [link] = net.nodes[0].connections
        assert link.is_banished
        now_s = net.nodes[0].parts.context.loop.time()
        link.tick(now_s)
        assert not link.closed.done()
        link.tick(now_s + limits.BLOCK_NOTICE_S)
        await ended(net, "the local user blocks the peer")


@pytest.mark.thorough
@pytest.mark.parametrize("over_cable", [True, False])
@on_loop
async def test_reconciliation_withholds_the_same_posts(over_cable: bool) -> None:
    theirs = [BOB.named("bob"), ANN.named("ann"), block(BOB, GUEST), block(ANN, CYD)]
    async with network(memory("host", posts=theirs), memory("guest"), settings=RECONCILES) as net:
        host, guest = net.nodes
        port = await host.reconcile_port.listen(Address(HOST_ADDRESS, 0))
        report = await guest.reconcile_once(net.addresses[host] if over_cable else port, over_cable=over_cable)
        assert has(guest.store, theirs) == [False, True, False, True]
        assert report.posts_received == 2


@on_loop
async def test_the_reconciliation_port_rejects_blocked_peers() -> None:
    secret = [block(HOST, GUEST), ANN.named("ann")]
    async with network(memory("host", posts=secret), memory("guest"), settings=RECONCILES) as net:
        host, guest = net.nodes
        port = await host.reconcile_port.listen(Address(HOST_ADDRESS, 0))
        with pytest.raises(NodeError, match="does not answer"):
            await guest.reconcile_once(port)
        assert has(guest.store, secret) == [False, False]


def test_a_key_and_its_negative_are_one_person() -> None:
    """Both keys have the same secret, so one person can sign with either.

    A block of one must not hide a block of the other.
    """
    negative = bytes([*BOB.key[:31], BOB.key[31] ^ 0x80])
    assert static_key_of(negative) == static_key_of(BOB.key)
    book = BlockBook([(ANN.key, BOB.key), (CYD.key, negative)])
    static = static_key_of(BOB.key)
    assert static is not None
    assert book.audience(static).withheld == {ANN.key, CYD.key}
    assert static_key_of(bytes(32)) is None
    assert Audience(static).may_get(ANN.text("default", "x").raw, LEGACY)
