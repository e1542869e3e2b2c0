"""Audiences: the hashes that a peer may get, for each kind of post and each relation between the users."""

from __future__ import annotations

import pytest
from peering import memory
from people import ANN, BOB, CYD, Person

from cablestore import Body, Post
from cablestore.peers.answering import without_blocked
from cablestore.peers.audience import EVERYONE, Audience, static_key_of
from cablestore.protocol.body import Block, Text, Unblock
from cablestore.protocol.message import ListRequest, ModerationRequest, TimeRangeRequest


def block(user: Person, *, notify: bool) -> Block:
    return Block("", 0, (user.key,), 0, int(notify))


@pytest.mark.parametrize(
    ("body", "for_bob", "for_blocked_bob"),
    [
        (Text("default", "text"), True, False),
        (block(BOB, notify=False), False, False),
        (block(BOB, notify=True), True, True),
        (Unblock("", 0, (BOB.key,), 0), True, True),
        (block(CYD, notify=False), True, False),
        (Unblock("", 0, (CYD.key,), 0), True, False),
    ],
)
def test_a_peer_receives_only_the_posts_that_blocks_allow(body: Body, for_bob: bool, for_blocked_bob: bool) -> None:
    """The hash of a stored post, the forwarded post and its bytes have the same audience."""
    post: Post = ANN.post(body)
    static = static_key_of(BOB.key)
    with memory(posts=[post]) as store, store.snapshot() as state:
        for audience, expected in (
            (EVERYONE, True),
            (Audience(static), for_bob),
            (Audience(static, is_blocked=True), for_blocked_bob),
        ):
            assert audience.may_get_hash(state.reader, post.hash) is expected
            assert audience.may_get_hash_of(post) is expected
            for request, is_given in (
                (ModerationRequest(b"", (), 0, 0), expected),
                (TimeRangeRequest(b"", "default", 0, 0, 0), expected or not audience.is_blocked),
                (ListRequest(b"", 0, 0), not audience.is_blocked),
            ):
                assert without_blocked(state.reader, request, [post.hash], audience) == [post.hash] * is_given
            assert audience.may_get(post.raw, state.reader.dialect) is expected
            assert audience.may_get_hash(state.reader, bytes(32)) is not audience.is_blocked  # it is not stored
        assert not Audience(static, frozenset({ANN.key})).may_get(ANN.text("default", "x").raw, state.reader.dialect)
