"""Drops over real sockets: dropped posts are not requested, stored, sent, announced or forwarded until the undrop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import count

import pytest
from by_hand import on_loop
from history import NOW_MS
from peering import QUICK, Keeper, Raw, hashes_of, memory, network, raw_listener, raw_peer, run, until
from people import ANN, BOB, CYD

from cablestore import CableStore, Info, Post, StoreOptions, Unblock, limits
from cablestore.moderation import UserRole
from cablestore.peers import Address
from cablestore.protocol.message import (
    CancelRequest,
    HashResponse,
    ListRequest,
    ListResponse,
    Message,
    ModerationRequest,
    PostRequest,
    PostResponse,
    StateRequest,
    TimeRangeRequest,
)

EVERYTHING = TimeRangeRequest(b"", "default", 0, 2**50, 0)


def store_of(name: str, *posts: Post, at_ms: int = NOW_MS) -> CableStore:
    """Create a store with a moving clock, because an action counts for others only after its author got authority."""
    times = count(at_ms + 1_000)
    return memory(name, posts=posts, clock=lambda: next(times))


def has(store: CableStore, *posts: Post) -> list[bool]:
    return [store.get(post.hash) is not None for post in posts]


def written() -> list[Post]:
    return [CYD.text("default", "one"), CYD.text("elsewhere", "two"), CYD.named("cyd"), CYD.topic("default", "three")]


async def given_to(peer: Raw, posts: Iterable[Post]) -> set[bytes]:
    """Return the hashes of the posts that a node sends on a request for these."""
    asked = peer.send_request(PostRequest(b"", tuple(post.hash for post in posts)))
    await until(lambda: peer.is_concluded(asked))
    return hashes_of(raw for m in peer.answers_to(asked) if isinstance(m, PostResponse) for raw in m.posts)


async def announced_to(peer: Raw, *channels: str) -> set[bytes]:
    """Return all hashes that a node sends for these channels."""
    asked = [peer.send_request(EVERYTHING._replace(channel=channel)) for channel in channels]
    asked += [peer.send_request(StateRequest(b"", channel, 0)) for channel in channels]
    await until(lambda: all(map(peer.is_concluded, asked)))
    return {digest for request_id in asked for digest in peer.hashes(request_id)}


async def named_to(peer: Raw) -> set[str]:
    asked = peer.send_request(ListRequest(b"", 0, 0))
    await until(lambda: peer.is_concluded(asked))
    return {name for m in peer.answers_to(asked) if isinstance(m, ListResponse) for name in m.channels}


@on_loop
async def test_posts_of_a_dropped_user_return_after_it_is_undropped() -> None:
    """Three nodes are all connected. One drops the user of another, which continues to write."""
    stores = one, other, third = store_of("one", ANN.text("default", "x")), store_of("other"), store_of("third")
    before = [third.post("default", "before"), third.write(Info.of(name="third")), third.post("elsewhere", "y")]
    async with network(*stores) as net:
        await net.ring()
        await net.are_alike()
        effect = one.moderation.drop(users=[third.identity.public_key])
        assert effect.dropped_posts
        after = [third.post("default", "after"), third.set_topic("elsewhere", "z")]
        await until(lambda: all(has(other, *before, *after)))
        await until(lambda: not one.moderation.is_sweeping)
        client = await raw_peer(net.addresses[net.nodes[0]])
        theirs = {post.hash for post in (*before, *after)}
        assert not await given_to(client, (*before, *after))
        assert not theirs & await announced_to(client, "default", "elsewhere")
        assert not any(has(one, *before, *after))
        assert third.identity.public_key not in {user.public_key for user in one.users()}

        one.moderation.undrop(users=[third.identity.public_key])
        await until(lambda: all(has(one, *before, *after)), lambda: has(one, *before, *after))
        assert theirs <= await announced_to(client, "default", "elsewhere")
        assert await given_to(client, (*before, *after)) == theirs


def test_a_node_removes_the_posts_that_a_large_drop_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    posts = [BOB.text("default", f"{number}") for number in range(12)]
    monkeypatch.setattr(limits, "MAX_BATCH_SIZE_BYTES", max(len(post.raw) for post in posts) + 1)

    async def scenario() -> None:
        store = store_of("one", *posts)
        async with network(store):
            store.moderation.drop(posts=[post.hash for post in posts])
            assert store.moderation.is_sweeping
            await until(lambda: not store.moderation.is_sweeping)
            assert not any(has(store, *posts))

    run(scenario())


@on_loop
async def test_actions_and_deletions_of_a_blocked_user_arrive_after_its_unblock() -> None:
    """The block is private, so a third node forwards them."""
    stores = one, other, third = (
        store_of("one", ANN.text("default", "x")),
        store_of("other"),
        store_of("third", at_ms=NOW_MS + 50_000),
    )
    key = third.identity.public_key
    evidence = third.post("default", "insult")
    async with network(*stores) as net:
        await net.ring()
        await net.are_alike()
        one.moderation.block([key], private=True)
        (action,) = third.moderation.hide(users=[ANN.key], reason="noise").posts
        (deletion,), after = third.delete([evidence.hash]), third.post("default", "after")
        seen = one.post("default", "seen")
        await until(lambda: all(has(other, action, deletion, after, seen)))
        assert has(one, evidence, action, deletion, after) == [True, False, False, False]

        one.moderation.unblock([key], private=True)
        await until(lambda: all(has(one, deletion, after, action)), lambda: has(one, deletion, after, action))
        assert has(one, evidence) == [False]


@on_loop
async def test_remembered_posts_are_not_requested_and_rejected_posts_only_once() -> None:
    old, new = written(), [CYD.text("default", "new"), ANN.text("default", "another's")]
    store = store_of("one", *old)
    store.moderation.drop(users=[CYD.key])
    async with raw_listener(Keeper, posts=[*old, *new]) as (address, keepers), network(store) as net:
        node = net.nodes[0]
        for _ in range(3):
            link = await node.connect(address)
            await until(lambda: all(has(store, new[1])))
            await until(lambda: not node.parts.sync.fetches.pending and not node.parts.sync.fetches.storing)
            link.close("again")
            await until(lambda: not node.connections)
        asked = [digest for keeper in keepers for m in keeper.requests_of(PostRequest) for digest in m.hashes]
        assert not any(has(store, *old, new[0]))
        assert asked.count(new[0].hash) == 1
        assert set(asked) == {post.hash for post in new}


@on_loop
async def test_a_post_of_a_blocked_user_is_not_requested_again_after_an_action_that_admits_nothing() -> None:
    post, other = CYD.text("default", "new"), ANN.text("default", "another's")
    store = store_of("one")
    store.moderation.block([CYD.key])
    async with raw_listener(Keeper, posts=[post, other]) as (address, keepers), network(store) as net:
        node = net.nodes[0]
        await node.connect(address)
        await until(lambda: all(has(store, other)))
        store.moderation.hide(users=[BOB.key])
        await until(lambda: not node.parts.context.restrictions.are_outdated())
        await until(lambda: not node.parts.sync.fetches.pending and not node.parts.sync.fetches.storing)
        asked = [digest for keeper in keepers for m in keeper.requests_of(PostRequest) for digest in m.hashes]
        assert asked.count(post.hash) == 1


@pytest.mark.parametrize("moderated", [True, False])
@on_loop
async def test_a_node_continues_after_statements_about_roles_and_actions_that_undo_others(*, moderated: bool) -> None:
    first, later = ANN.text("default", "x"), BOB.text("default", "later")
    acts = [BOB.post(Info.of(accept_role=False)), BOB.post(Unblock("", 0, (CYD.key,), 0))]
    options = StoreOptions(verify_threads=1, clock=lambda: NOW_MS, moderated=moderated)
    with CableStore.in_memory(options=options) as store:
        store.ingest([first.raw])
        async with network(store, memory("other")) as net:
            await net.ring()
            other = net.nodes[1].store
            await until(lambda: all(has(other, first)))
            store.ingest([post.raw for post in (*acts, later)])
            await until(lambda: all(has(other, later)))


@on_loop
async def test_a_dropped_channel_is_not_requested_until_it_is_undropped() -> None:
    posts = written()
    store = store_of("one", *posts)
    store.moderation.drop(channel="elsewhere")
    async with raw_listener(Keeper, posts=posts) as (address, keepers), network(store) as net:
        await net.nodes[0].connect(address)
        await until(lambda: keepers)
        [keeper] = keepers
        await until(lambda: [m for m in keeper.requests_of(TimeRangeRequest) if m.is_live])
        assert {m.channel for m in keeper.requests_of(TimeRangeRequest)} == {"default"}
        assert {m.channel for m in keeper.requests_of(StateRequest)} == {"default"}
        client = await raw_peer(net.addresses[net.nodes[0]])
        assert await named_to(client) == {"default"}
        assert not await announced_to(client, "elsewhere")

        store.moderation.undrop(channel="elsewhere")
        await until(lambda: all(has(store, *posts)))
        assert await named_to(client) == {"default", "elsewhere"}


@pytest.mark.thorough
@on_loop
async def test_dropping_a_followed_channel_ends_its_live_requests() -> None:
    """The live requests for it end.

    An admin's drop counts for users who regard the author as an admin, and so does its undrop.
    """
    one, other = store_of("one", *written(), at_ms=NOW_MS + 1_000_000), store_of("other")
    async with network(one, other) as net:
        await net.ring()
        await net.are_alike()
        other.moderation.set_role(one.identity.public_key, UserRole.ADMIN)
        one.moderation.drop(channel="elsewhere", reason="nobody is here")
        await until(lambda: "elsewhere" not in {channel.name for channel in other.channels()})
        asked = [
            request for node in net.nodes for c in node.connections for request in c.session.open_requests.values()
        ]
        await until(
            lambda: not [e for e in asked if getattr(e.request, "channel", "") == "elsewhere" and not e.is_over]
        )
        late = CYD.text("elsewhere", "late")
        other.ingest([late.raw])
        assert has(other, late) == [False]
        source = store_of("source", *written(), late)
        await net.link(await net.add(source), net.nodes[1])
        one.moderation.undrop(channel="elsewhere")
        await until(lambda: all(has(one, late)) and all(has(other, late)))
    source.close()


class Late(Keeper):
    """Peer that does not answer requests for the history of a channel."""

    def answer(self, message: Message) -> None:
        if getattr(message, "channel", "") != "elsewhere":
            super().answer(message)


@on_loop
async def test_a_channel_that_is_dropped_before_its_history_arrives_is_not_followed() -> None:
    store = store_of("one")
    async with raw_listener(Late, posts=written()) as (address, keepers), network(store) as net:
        await net.nodes[0].connect(address)
        await until(lambda: keepers)
        [keeper] = keepers

        def asked(channel: str) -> list[TimeRangeRequest]:
            return [message for message in keeper.requests_of(TimeRangeRequest) if message.channel == channel]

        await until(lambda: asked("elsewhere"))
        [history] = asked("elsewhere")
        store.moderation.drop(channel="elsewhere")
        await until(lambda: history.request_id in [message.cancel_id for message in keeper.requests_of(CancelRequest)])
        store.ingest([ANN.text("third", "a channel that is followed later").raw])
        await until(lambda: [message for message in asked("third") if message.is_live])
        assert asked("elsewhere") == [history]


@on_loop
async def test_dropped_posts_are_not_forwarded() -> None:
    """A relay requests posts that it does not have from others, and they have the posts that it dropped."""
    settings = replace(QUICK, relays=True, channels=frozenset({"nobody writes here"}), list_every_s=600)
    posts = [*written(), ANN.text("default", "another's"), CYD.text("third", "by cyd")]
    relay, source = store_of("relay", *posts[:1]), store_of("source", *posts)
    relay.moderation.drop(users=[CYD.key])
    relay.ingest([ANN.text("elsewhere", "so that it can be dropped").raw])
    relay.moderation.drop(channel="elsewhere", private=True)
    async with network(relay, source, settings=settings) as net:
        await net.link(*net.nodes)
        await until(lambda: all(c.session.is_recognised for node in net.nodes for c in node.connections))
        client = await raw_peer(net.addresses[net.nodes[0]])
        await named_to(client)
        asked = client.send_request(PostRequest(b"", tuple(post.hash for post in posts), 2))
        history = client.send_request(EVERYTHING._replace(ttl=2))
        elsewhere = client.send_request(EVERYTHING._replace(ttl=2, channel="elsewhere"))
        names = client.send_request(ListRequest(b"", 0, 0, 2))
        await until(lambda: all(map(client.is_concluded, (asked, history, elsewhere, names))))
        parts = [m.posts for m in client.answers_to(asked) if isinstance(m, PostResponse)]
        assert hashes_of(raw for part in parts for raw in part) == {posts[-2].hash}
        assert posts[0].hash not in client.hashes(history)
        assert posts[-2].hash in client.hashes(history)
        assert not client.hashes(elsewhere)
        lists = [m for m in client.answers_to(names) if isinstance(m, ListResponse)]
        assert [set(m.channels) for m in lists] == [{"default", "third"}]


@pytest.mark.thorough
@pytest.mark.parametrize("over_cable", [True, False])
@on_loop
async def test_stores_with_different_drops_reconcile_to_the_end(over_cable: bool) -> None:
    settings = replace(QUICK, reconciles=True, channels=frozenset({"default"}))
    posts = [*written(), ANN.text("default", "another's"), ANN.named("ann")]
    one, other = store_of("one", *posts[:2]), store_of("other", *posts)
    one.moderation.drop(users=[CYD.key])
    async with network(one, other, settings=settings) as net:
        here, there = net.nodes
        port = net.addresses[there] if over_cable else await there.reconcile_port.listen(Address("127.0.0.1", 0))
        for _ in range(2):
            await here.reconcile_once(port, over_cable=over_cable)
            assert has(one, *posts) == [False] * 4 + [True] * 2


@pytest.mark.thorough
@on_loop
async def test_private_actions_do_not_change_answers_about_moderation() -> None:
    """A private block does not close a connection. The peer can only see that posts are missing."""
    acts = [ANN.text("default", "x"), CYD.text("default", "y")]
    store = store_of("one", *acts)
    store.moderation.set_role(ANN.key, UserRole.MOD)
    store.moderation.hide(users=[CYD.key], reason="in public")
    async with network(store) as net:
        client = await raw_peer(net.addresses[net.nodes[0]])
        asked = client.send_request(ModerationRequest(b"", ("default",), 1, 0))
        await until(lambda: client.hashes(asked))
        before = await moderation_of(client)
        for act in (store.moderation.block, store.moderation.drop):
            act(users=[CYD.key], private=True)
        store.moderation.hide(users=[ANN.key], private=True)
        store.moderation.drop(posts=[acts[0].hash], private=True)
        assert await moderation_of(client) == before
        assert await announced_to(client, "default") <= {post.hash for post in acts}
        store.moderation.hide(users=[ANN.key], reason="also in public")
        public = [post.hash for post in store.posts_by(store.identity.public_key) if not post.is_local_only]
        await until(lambda: set(client.hashes(asked)) == set(public))
        assert not client.is_over
    assert before < set(public)


async def moderation_of(peer: Raw) -> set[bytes]:
    asked = peer.send_request(ModerationRequest(b"", ("default",), 0, 0))
    await until(lambda: peer.is_concluded(asked))
    return {digest for m in peer.answers_to(asked) if isinstance(m, HashResponse) for digest in m.hashes}
