"""Sync with one peer: what the node requests after the peer ended a live request."""

from __future__ import annotations

from typing import Any

import pytest
from by_hand import listening, on_loop
from peering import Keeper, raw_peer, until
from people import ANN

from cablestore import limits
from cablestore.protocol.message import (
    CancelRequest,
    HashResponse,
    ListRequest,
    Message,
    ModerationRequest,
    StateRequest,
    TimeRangeRequest,
)


@on_loop
async def test_a_channel_whose_live_request_the_peer_ended_is_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other live request is cancelled. A request for moderation that the peer ended is sent again.

    MAX_LIVE_CHANNELS: another channel may be live instead.
    """
    monkeypatch.setattr(limits, "MAX_LIVE_CHANNELS", 2)
    async with listening(channels=None, list_every_s=0.005) as (_, address):
        peer: Keeper = await raw_peer(address, Keeper, posts=[ANN.text("a", "x"), ANN.text("b", "x")])

        def live(kind: type[Message]) -> dict[str, Any]:
            return {asked.channel: asked for asked in peer.requests_of(kind) if asked.is_live}

        def polls() -> list[StateRequest]:
            return [asked for asked in peer.requests_of(StateRequest) if not asked.is_live]

        def polled() -> list[str]:
            return [asked.channel for asked in polls()]

        await until(lambda: len(live(TimeRangeRequest)) == 2)
        assert live(StateRequest).keys() == {"a", "b"}
        [moderation] = peer.requests_of(ModerationRequest)
        assert (moderation.channels, moderation.is_live) == (("a", "b"), True)
        before = len(peer.requests_of(TimeRangeRequest))
        for request in (live(TimeRangeRequest)["a"], moderation):
            peer.say(HashResponse(request.request_id, ()))
        await until(polled)
        await until(lambda: len(peer.requests_of(TimeRangeRequest)) > before)
        await until(lambda: len(peer.requests_of(ModerationRequest)) == 2)
        assert [asked.cancel_id for asked in peer.requests_of(CancelRequest)] == [live(StateRequest)["a"].request_id]
        assert set(polled()) == {"a"}
        assert {asked.channel for asked in peer.requests_of(TimeRangeRequest)[before:]} == {"a"}
        assert not [asked for asked in peer.requests_of(TimeRangeRequest)[before:] if asked.is_live]
        await until(lambda: len(polled()) > 1)
        rounds = [type(asked) for asked in peer.received if isinstance(asked, ListRequest) or asked in polls()]
        first = rounds.index(StateRequest)
        assert rounds[first + 1 : first + 8] == [*[ListRequest] * 6, StateRequest]
        post = ANN.text("c", "x")
        peer.posts[post.hash] = post
        await until(lambda: "c" in live(TimeRangeRequest))
        await peer.close()
