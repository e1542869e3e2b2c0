"""Cabin users among peers: cable.rs concludes few requests, and writes some message lengths one too small."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cable_rs import written_by_cable_rs
from peering import QUICK, Keeper, memory, network, raw_listener, raw_peer, run, until
from people import ANN, BOB

from cablestore import LEGACY, Post, limits
from cablestore.protocol.message import (
    HashResponse,
    ListRequest,
    Message,
    PostRequest,
    PostResponse,
    StateRequest,
    TimeRangeRequest,
    encode_message,
)


class Cabin(Keeper):
    """A Cabin user. The state of its channel is all posts except texts."""

    concludes = False

    def say(self, *messages: Message) -> None:
        self.write(b"".join(map(written_by_cable_rs, messages)))

    def answer(self, message: Message) -> None:
        if isinstance(message, StateRequest):
            self.say(
                HashResponse(message.request_id, tuple(digest for digest, post in self.posts.items() if post.type))
            )
        else:
            super().answer(message)


def is_short_by_one(*posts: Post) -> bool:
    """Return True if the length that cable.rs writes for these posts excludes the final 0."""
    message = PostResponse(b"abcd", tuple(post.raw for post in posts))
    return written_by_cable_rs(message) != encode_message(message, LEGACY)


@pytest.mark.thorough
def test_a_name_of_five_bytes_of_a_cabin_user_is_received() -> None:
    async def main() -> None:
        quick = replace(QUICK, answer_timeout_s=1.0)  # cable.rs concludes few requests
        here = memory("here", posts=[ANN.join("default"), BOB.join("default")])
        named, text = BOB.named("Bobby"), BOB.text("default", "hello")
        assert is_short_by_one(named)
        async with network(here, settings=quick) as net, raw_listener(Cabin, posts=[named]) as (address, peers):
            net.nodes[0].keep_connected(address)
            await until(lambda: here.user(BOB.key).name == "Bobby")
            (cabin,) = peers
            assert (named.hash,) in [asked.hashes for asked in cabin.requests_of(PostRequest)]
            await until(lambda: [asked for asked in cabin.requests_of(TimeRangeRequest) if asked.is_live])
            (live,) = [asked for asked in cabin.requests_of(TimeRangeRequest) if asked.is_live]
            cabin.posts[text.hash] = text
            cabin.say(HashResponse(live.request_id, (text.hash,)))
            await until(lambda: here.get(text.hash))  # the rest of the stream is read too
            assert not net.log.faults()

    run(main())


def test_a_limited_number_of_messages_of_length_0_is_skipped() -> None:
    async def main() -> None:
        async with network(memory()) as net:
            peer = await raw_peer(net.addresses[net.nodes[0]])
            for _ in range(3):
                peer.write(bytes(limits.MAX_EMPTY_MESSAGES))
                names = peer.send_request(ListRequest(b"", 0, 0))
                await until(lambda names=names: peer.is_concluded(names))  # type: ignore[misc] # the argument has its default
            assert not net.log.faults()
            peer.write(bytes(limits.MAX_EMPTY_MESSAGES + 1))
            await until(lambda: peer.is_over)
            await until(net.log.reasons)
            assert "too many empty messages" in net.log.reasons()[0]
            await peer.close()

    run(main())
