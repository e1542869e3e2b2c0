"""Cabals with many channels: the concurrent requests of a node, and the number of names that it accepts from a peer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from by_hand import listening, on_loop
from peering import ANSWERS_ONLY, Keeper, every, memory, network, raw_listener, raw_peer, sync_of, until
from people import ANN, BOB, raws

from cablestore import LEGACY, Post, limits
from cablestore.peers import Node, peer_sync
from cablestore.protocol.body import JOIN
from cablestore.protocol.exchange import PeerRequest
from cablestore.protocol.message import (
    CancelRequest,
    FrameReader,
    HashResponse,
    ListRequest,
    ListResponse,
    Message,
    ModerationRequest,
    StateRequest,
    TimeRangeRequest,
    decode_message,
    encode_message,
)
from cablestore.protocol.session import Session

FEW_ALIVE = 40
"""Limit of requests of the answering node: fewer than the channels, but several for some channels."""


def joins(count: int) -> list[Post]:
    """Return a join in each of N channels, which is enough for a channel to be listed."""
    return [ANN.join(f"channel {number:05}") for number in range(count)]


def states_asked(node: Node) -> float:
    """Return how many states of channels a node was asked for without rejecting the request."""
    name = "cablestore_requests_total"
    return node.parts.context.metrics.registry.get_sample_value(name, {"type": "channel_state_request"}) or 0.0


@on_loop
async def test_a_sync_requests_a_few_channels_at_a_time() -> None:
    """The answering node counts each request beyond its limit as a fault, and disconnects after some faults."""
    posts = joins(300)
    async with network(memory("a", posts=posts), settings=replace(ANSWERS_ONLY, max_requests_alive=FEW_ALIVE)) as net:
        with memory("b") as store:
            node = await net.add(store)
            report = await sync_of(node, net.addresses[net.nodes[0]])
            assert (report.posts, report.channels) == (len(posts), len(posts))
            assert not net.log.faults()
            await net.stop(node)


def test_a_live_sync_requests_a_few_channels_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit also applies when the node requests all channels again."""
    monkeypatch.setattr(limits, "MAX_LIVE_CHANNELS", 8)
    posts = joins(300)

    @on_loop
    async def scenario() -> None:
        async with listening(posts, max_requests_alive=FEW_ALIVE) as (answering, address), network(memory("b")) as net:
            [node] = net.nodes
            await node.connect(address)
            await every(posts, lambda post: node.store.get(post.hash))
            await until(lambda: states_asked(answering) >= len(posts))
            node.parts.sync.restricted((), requests_again=True)
            await until(lambda: states_asked(answering) >= 2 * len(posts) or net.log.faults())
            assert not net.log.faults()

    scenario()


@pytest.mark.thorough
def test_further_names_are_requested_by_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_NAMES_PER_MESSAGE. A peer that returns the same names for every offset gets a limited number of requests."""
    monkeypatch.setattr(limits, "MAX_NAMES_PER_MESSAGE", 50)
    monkeypatch.setattr(limits, "MAX_HASHES_PER_REQUEST", 50)  # requests do not name more channels either
    monkeypatch.setattr(peer_sync, "SURELY_ALL_NAMES", 50)
    posts = joins(120)

    @on_loop
    async def scenario() -> None:
        async with network(memory("a", posts=posts), settings=ANSWERS_ONLY) as net:
            with memory("b") as store:
                node = await net.add(store)
                assert (await sync_of(node, net.addresses[net.nodes[0]])).posts == len(posts)
                async with raw_listener(Keeper, posts=posts[:50]) as (address, peers):
                    assert (await sync_of(node, address)).channels == len(posts)
                    assert [request.offset for request in peers[0].requests_of(ListRequest) if not request.limit] == [
                        0,
                        50,
                    ]
                await net.stop(node)

    scenario()


def test_a_response_has_room_for_surely_all_names_of_maximum_length() -> None:
    """SURELY_ALL_NAMES: the longest names have 4 bytes for each of MAX_CHANNEL_CODEPOINTS."""
    session = Session(LEGACY, bytes, speaks_first=True)
    asked = ListRequest(bytes(4), 0, 0)
    [found] = session.receive(encode_message(asked, LEGACY), 0)
    assert isinstance(found, PeerRequest)
    names = [chr(0x1F600 + n % 50) * limits.MAX_CHANNEL_CODEPOINTS for n in range(peer_sync.SURELY_ALL_NAMES + 1_000)]
    session.answer_names(found.exchange, names)
    [frame] = FrameReader().feed(session.output()[-1])
    answer = decode_message(frame, LEGACY)
    assert isinstance(answer, ListResponse)
    assert peer_sync.SURELY_ALL_NAMES <= len(answer.channels) < len(names)


def test_the_live_requests_of_a_node_are_half_of_what_a_peer_allows() -> None:
    """MAX_LIVE_CHANNELS: there are two requests for each channel, so half of the limit is left for other requests."""
    assert 2 * limits.MAX_LIVE_CHANNELS <= limits.MAX_REQUESTS_ALIVE // 2


# --- names without channels -----------------------------------------------------------------------


class Inventor(Keeper):
    """Peer that names other channels on each request."""

    names_at_once = 40

    def answer(self, message: Message) -> None:
        if isinstance(message, ListRequest) and not message.limit:
            count = len(self.requests_of(ListRequest))
            self.say(ListResponse(message.request_id, tuple(f"{count} {n}" for n in range(self.names_at_once))))
        else:
            super().answer(message)


def test_a_limited_number_of_invented_channels_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_UNSEEN_CHANNELS. The store's own channels are requested first, also new ones. Marks are not stored."""
    monkeypatch.setattr(limits, "MAX_UNSEEN_CHANNELS", 100)
    old, new = ANN.text("own", "old"), ANN.text("new", "x")

    @on_loop
    async def scenario() -> None:
        async with (
            raw_listener(Inventor, posts=[BOB.text("own", "theirs")]) as (address, peers),
            network(memory("a", posts=[old])) as net,
        ):
            [node] = net.nodes
            await node.connect(address)
            await until(lambda: peers and len(peers[0].requests_of(ListRequest)) > 12)
            node.store.ingest(raws(new))
            await until(lambda: "new" in followed(peers[0]))
            assert followed(peers[0])[0] == "own"
            assert len(followed(peers[0])) == 102
            marks = node.parts.context.marks
            await until(lambda: marks.get(str(address), "own"))
            assert not any(marks.get(str(address), name) for name in followed(peers[0]) if name != "own")

    scenario()


def followed(peer: Keeper) -> list[str]:
    """Return the channels whose state a peer was asked for, each once."""
    return list(dict.fromkeys(request.channel for request in peer.requests_of(StateRequest)))


def test_an_endless_list_is_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_UNSEEN_CHANNELS: each further part has new names."""
    monkeypatch.setattr(limits, "MAX_UNSEEN_CHANNELS", 100)
    monkeypatch.setattr(peer_sync, "SURELY_ALL_NAMES", 40)

    @on_loop
    async def scenario() -> None:
        async with network(memory("a")) as net, raw_listener(Inventor) as (address, peers):
            assert (await sync_of(net.nodes[0], address)).channels == 100
            assert len([request for request in peers[0].requests_of(ListRequest) if not request.limit]) == 3

    scenario()


def test_channels_with_posts_make_room_for_further_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_UNSEEN_CHANNELS does not limit the channels of a cabal."""
    monkeypatch.setattr(limits, "MAX_UNSEEN_CHANNELS", 10)
    posts = joins(45)

    @on_loop
    async def scenario() -> None:
        async with network(memory("a", posts=posts), memory("b")) as net:
            await net.link(*reversed(net.nodes))
            await every(posts, lambda post: net.nodes[1].store.get(post.hash))

    scenario()


# --- live requests that a peer ends ---------------------------------------------------------------


class Busy(Keeper):
    """Peer that ends live requests of one kind, as cablestore nodes do beyond a limit. It also answers state requests."""

    ends: type[Message] = StateRequest

    def answer(self, message: Message) -> None:
        if isinstance(message, self.ends) and getattr(message, "is_live", False):
            self.say(HashResponse(message.request_id, ()))
        elif isinstance(message, StateRequest) and not message.is_live:
            state = [post for post in self.posts.values() if post.channel == message.channel and post.type == JOIN]
            self.tell(message.request_id, tuple(post.hash for post in state), ends=True)
        else:
            super().answer(message)

    def add(self, *posts: Post) -> None:
        self.posts |= {post.hash: post for post in posts}


@pytest.mark.parametrize("kind", [StateRequest, TimeRangeRequest], ids=["state", "time range"])
@on_loop
async def test_a_live_request_that_the_peer_ends_is_repeated(kind: type[Message]) -> None:
    """The test covers texts and state. The other live request is cancelled, so that a polled channel has none."""
    async with listening(channels=None, list_every_s=0.05) as (node, address):
        first, text, join = ANN.text("default", "first"), BOB.text("default", "later"), BOB.join("default")
        peer = await raw_peer(address, Busy, posts=[first], ends=kind)
        await until(lambda: node.store.get(first.hash) and [r for r in peer.requests_of(kind) if r.is_live])
        peer.add(text, join)
        await every((text, join), lambda post: node.store.get(post.hash))
        lives = [
            r.request_id for r in (*peer.requests_of(StateRequest), *peer.requests_of(TimeRangeRequest)) if r.is_live
        ]
        cancelled = [request.cancel_id for request in peer.requests_of(CancelRequest)]
        assert len(set(lives) - set(cancelled)) == 1
        await peer.close()


@pytest.mark.thorough
def test_a_live_request_that_the_peer_ends_makes_room_for_one_other_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_LIVE_CHANNELS", 1)

    @on_loop
    async def scenario() -> None:
        async with listening(channels=None, list_every_s=0.05) as (node, address):
            posts = [ANN.text(name, "x") for name in "abcd"]
            peer = await raw_peer(address, Busy, posts=posts[:1], ends=TimeRangeRequest)
            await until(lambda: [r for r in peer.requests_of(TimeRangeRequest) if r.is_live])
            peer.ends = CancelRequest  # the peer does not end further requests
            peer.add(*posts[1:])
            await every(posts, lambda post: node.store.get(post.hash))
            await until(lambda: len(peer.requests_of(TimeRangeRequest)) > 20)
            assert [r.channel for r in peer.requests_of(TimeRangeRequest) if r.is_live] == ["a", "b"]
            await peer.close()

    scenario()


@on_loop
async def test_moderation_is_requested_again_after_the_peer_ends_the_request() -> None:
    async with listening(channels=None, list_every_s=0.05) as (_, address):
        peer = await raw_peer(address, Busy, posts=[ANN.text("default", "x")], ends=ModerationRequest)
        await until(lambda: len(peer.requests_of(ModerationRequest)) > 2)
        await peer.close()
