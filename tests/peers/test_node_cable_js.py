"""Nodes and peers that may be cable.js: messages that crash it are not sent, requested or forwarded to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import peering
import pytest
from cable_js import BAD, BODIES, FITS, GOOD, LONG, POSTS, RESERVED
from peering import Keeper, Raw, hashes_of, memory, network, raw_peer, run, sync_of, until
from people import ANN, BOB, raws
from relaying import RELAYS, between

from cablestore import DRAFT8, LEGACY, Dialect, Post
from cablestore.protocol.body import MODERATION_TYPES, TEXT
from cablestore.protocol.exchange import State
from cablestore.protocol.message import (
    HashResponse,
    ListRequest,
    ListResponse,
    ModerationRequest,
    PostRequest,
    PostResponse,
    Request,
    StateRequest,
    TimeRangeRequest,
)

QUICK = replace(peering.QUICK, spares_cable_js=True)
ANSWERS_ONLY = replace(peering.ANSWERS_ONLY, spares_cable_js=True)
ALL = [post for pair in POSTS.values() for post in pair]
CHANNELS = sorted({post.channel for post in ALL if post.channel}, key=str.encode)
SAFE_CHANNELS = [name for name in CHANNELS if name not in (LONG, RESERVED, "\0")]
MEMBERS = [ANN.join(name) for name in ("default", FITS)] + [BOB.join(name) for name in ("default", FITS)]
NAMED = ANN.named("é" * 16), BOB.named("é" * 16 + "x")
"""The latest info of each user."""


def everything(*, is_live: bool = False) -> Sequence[Request]:
    """Return all requests for hashes."""
    of_channels = [
        (StateRequest(b"", name, is_live), TimeRangeRequest(b"", name, 0, 0 if is_live else 2**50, 0))
        for name in CHANNELS
    ]
    return [request for pair in of_channels for request in pair] + [ModerationRequest(b"", tuple(CHANNELS), is_live, 0)]


async def hashes_for(peer: Raw, requests: Iterable[Request]) -> set[bytes]:
    asked = [peer.send_request(request) for request in requests]
    await until(lambda: all(map(peer.is_concluded, asked)))
    return {digest for request_id in asked for digest in peer.hashes(request_id)}


async def posts_for(peer: Raw, posts: Iterable[Post], ttl: int = 0) -> set[bytes]:
    asked = peer.send_request(PostRequest(b"", tuple(post.hash for post in posts), ttl))
    await until(lambda: peer.is_concluded(asked))
    return hashes_of(raw for answer in peer.answers_to(asked) if isinstance(answer, PostResponse) for raw in answer[1])


async def names_for(peer: Raw, offset: int = 0, limit: int = 0) -> list[str]:
    asked = peer.send_request(ListRequest(b"", offset, limit))
    await until(lambda: peer.is_concluded(asked))
    return [name for answer in peer.answers_to(asked) if isinstance(answer, ListResponse) for name in answer.channels]


@pytest.mark.parametrize("may_be_cable_js", [True, False])
def test_posts_that_crash_cable_js_are_not_sent(may_be_cable_js: bool) -> None:
    async def main() -> None:
        store = memory(posts=[*ALL, *MEMBERS, *NAMED])
        settings = replace(ANSWERS_ONLY, spares_cable_js=may_be_cable_js)
        async with network(store, settings=settings) as net:
            peer = await raw_peer(net.addresses[net.nodes[0]])
            found = await hashes_for(peer, everything())
            bad = {*(post.hash for post in BAD), NAMED[1].hash}
            # Of the infos of a user, only the latest is part of a channel's state.
            hidden = {POSTS[case][1].hash for case in ("unknown key", "long name", "accept-role 2")}
            assert found & bad == (set() if may_be_cable_js else bad - hidden)
            assert {post.hash for post in GOOD if post.type in {TEXT, *MODERATION_TYPES}} <= found
            assert NAMED[0].hash in found
            given = await posts_for(peer, [*ALL, *NAMED])
            assert given == {post.hash for post in [*ALL, *NAMED]} - (bad if may_be_cable_js else set())
            names = SAFE_CHANNELS if may_be_cable_js else CHANNELS
            assert await names_for(peer) == names
            for offset in range(len(names)):
                assert await names_for(peer, offset, 2) == names[offset : offset + 2]
            await peer.close()

    run(main())


@pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=lambda dialect: dialect.name)
def test_live_changes_are_safe_for_cable_js(dialect: Dialect) -> None:
    async def main() -> None:
        async with network(memory(posts=MEMBERS), settings=ANSWERS_ONLY) as net:
            peer = await raw_peer(net.addresses[net.nodes[0]], dialect=dialect)
            asked = [peer.send_request(request) for request in everything(is_live=True)]
            await until(lambda: net.nodes[0].parts.serving.live.count == len(asked))
            (session,) = [connection.session for connection in net.nodes[0].connections]
            await until(lambda: all(exchange.state is State.LIVE for exchange in session.to_answer.values()))
            last = ANN.text("default", "the last")
            net.nodes[0].store.ingest(raws(*ALL))
            net.nodes[0].store.ingest(raws(last))

            def received() -> set[bytes]:
                return {digest for request_id in asked for digest in peer.hashes(request_id)}

            await until(lambda: last.hash in received())
            await until(
                lambda: {post.hash for post in GOOD} <= received(),
                lambda: [p for p in GOOD if p.hash not in received()],
            )
            bad = {post.hash for post in BAD}
            if dialect is LEGACY:
                assert not received() & bad
            else:
                await until(lambda: bad <= received(), lambda: [post for post in BAD if post.hash not in received()])
            await peer.close()

    run(main())


@pytest.mark.parametrize("case", ["unknown key", "long topic", "text in a long channel", "17 recipients"])
def test_a_peer_that_sent_an_unsafe_post_receives_unsafe_posts_afterwards(case: str) -> None:
    async def main() -> None:
        proof = ANN.post(BODIES[case][1])
        async with network(memory(posts=BAD), settings=replace(QUICK, channels=frozenset({"default"}))) as net:
            peer = await raw_peer(net.addresses[net.nodes[0]], Keeper, posts=[proof])
            assert await posts_for(peer, BAD) == set()
            await until(lambda: [asked for asked in peer.requests_of(StateRequest) if asked.channel == "default"])
            state = next(asked for asked in peer.requests_of(StateRequest) if asked.channel == "default")
            peer.say(HashResponse(state.request_id, (proof.hash,)))
            await until(lambda: net.nodes[0].store.get(proof.hash))
            await until(lambda: next(iter(net.nodes[0].connections)).session.reads_everything)
            assert await posts_for(peer, BAD) == {post.hash for post in BAD}
            assert await names_for(peer) == sorted(
                {post.channel or "" for post in [*BAD, proof]} - {""}, key=str.encode
            )
            await peer.close()

    run(main())


def test_requests_that_crash_cable_js_are_not_sent() -> None:
    """If the peer names a channel that would crash cable.js, the node requests this one and the others."""

    async def main() -> None:
        async with network(memory(posts=ALL), settings=QUICK) as net:
            peer = await raw_peer(net.addresses[net.nodes[0]], Keeper)

            def asked_for() -> set[str]:
                requests = [*peer.requests_of(StateRequest), *peer.requests_of(TimeRangeRequest)]
                moderated = [name for asked in peer.requests_of(ModerationRequest) for name in asked.channels]
                return {*(request.channel for request in requests), *moderated}

            await until(lambda: asked_for() == set(SAFE_CHANNELS), asked_for)
            lists = len(peer.requests_of(ListRequest))
            await until(lambda: len(peer.requests_of(ListRequest)) > lists + 2)
            assert asked_for() == set(SAFE_CHANNELS)
            theirs = BOB.text("é" * 40, "in a channel of the peer's")
            peer.posts[theirs.hash] = theirs
            await until(lambda: net.nodes[0].store.get(theirs.hash))
            await until(lambda: asked_for() == {*CHANNELS, "é" * 40}, asked_for)
            await peer.close()

    run(main())


@pytest.mark.parametrize("is_once", [True, False])
def test_cablestores_send_each_other_everything(is_once: bool) -> None:
    """One node syncs once, and another one stays connected. The greeting identifies both as cablestore."""

    async def main() -> None:
        answering = replace(ANSWERS_ONLY, reconciles=True)
        asking = QUICK if is_once else replace(QUICK, reconciles=True, reconcile_every_s=600)
        async with network() as net:
            giver = await net.add(memory("giver", posts=[*ALL, *MEMBERS]), answering)
            taker = await net.add(memory("taker"), asking)
            if is_once:
                await sync_of(taker, net.addresses[giver])
            else:
                await net.link(taker, giver)
            texts = [post for post in ALL if post.type == TEXT]
            await until(lambda: all(taker.store.get(post.hash) for post in texts))
            assert set(CHANNELS) <= {channel.name for channel in taker.store.channels()}
            for node in list(net.nodes):
                await net.stop(node)
                node.store.close()

    run(main())


def test_posts_and_requests_that_crash_cable_js_are_not_forwarded() -> None:
    async def main() -> None:
        async with between(memory(), *raws(*ALL)) as (_, requester, _giver):
            assert await posts_for(requester, ALL, ttl=1) == {post.hash for post in GOOD}
        async with between(memory(posts=[BAD[0]]), *raws(*ALL)) as (_, requester, giver):
            asked = requester.send_request(StateRequest(b"", "default", 0, 1))
            await until(lambda: requester.is_concluded(asked))
            assert set(requester.hashes(asked)) == {post.hash for post in ALL} - {BAD[0].hash}  # the others are known
            for name in (LONG, RESERVED):
                asked = requester.send_request(TimeRangeRequest(b"", name, 0, 2**50, 0, 1))
                await until(lambda asked=asked: requester.is_concluded(asked))  # type: ignore[misc] # the argument has its default
                assert requester.hashes(asked) == []
            asked = requester.send_request(ModerationRequest(b"", ("default", LONG), 0, 0, 1))
            await until(lambda: requester.is_concluded(asked))
            assert [request.channels for request in giver.requests_of(ModerationRequest)] == [("default",)]
            assert {
                request.channel for request in (*giver.requests_of(StateRequest), *giver.requests_of(TimeRangeRequest))
            } == {"default"}

    run(main())


def test_a_request_that_crashes_cable_js_is_not_forwarded_to_possible_cable_js() -> None:
    """A peer that sends such a request can handle it, but the peers that it is forwarded to may not."""

    async def main() -> None:
        async with network(memory(), settings=RELAYS) as net:
            address = net.addresses[net.nodes[0]]
            requester, giver = await raw_peer(address), await raw_peer(address)
            for peer in (requester, giver):
                await names_for(peer)
            for connection in net.nodes[0].connections:
                connection.session.reads_everything = connection.name.endswith(
                    f":{requester._writer.get_extra_info('sockname')[1]}"
                )
            for request in (
                TimeRangeRequest(b"", LONG, 0, 2**50, 0, 1),
                TimeRangeRequest(b"", "default", 0, 2**50, 0, 1),
            ):
                requester.send_request(request)
            await until(lambda: giver.requests_of(TimeRangeRequest))
            assert [request.channel for request in giver.requests_of(TimeRangeRequest)] == ["default"]
            await requester.close()
            await giver.close()

    run(main())
