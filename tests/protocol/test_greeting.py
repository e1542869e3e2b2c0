"""Greetings: stores recognize each other by request ids that look random, and do not take other peers for stores."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from conversation import ALL_REQUESTS, DIALECTS, carry
from hypothesis import given
from hypothesis import strategies as st

from cablestore import DRAFT8, LEGACY, Dialect, limits
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.exchange import Extra, PeerRequest, Posts
from cablestore.protocol.message import (
    EXTRA_TYPE_ID,
    TYPE_IDS,
    FrameReader,
    ListRequest,
    PostRequest,
    Request,
    decode_message,
)
from cablestore.protocol.recognition import REQUESTS, Greeter, GreetingDetector, next_id
from cablestore.protocol.session import Session

ASK = ListRequest(b"", 0, 1)


def greeting(dialect: Dialect, new_id: Callable[[int], bytes] = random.randbytes, **named: bool) -> Session:
    return Session(dialect, Greeter(new_id), **named)


def ask(session: Session, request: Request = ASK, times: int = 1) -> None:
    for _ in range(times):
        session.send_request(request, 0)


@DIALECTS
def test_two_stores_recognise_each_other_and_may_send_extra_frames(dialect: Dialect) -> None:
    one, other = greeting(dialect), greeting(dialect)
    with pytest.raises(ValueError, match="has not been recognized"):
        one.send_extra(b"x")
    assert one.first_ids == (b"", b"")
    ask(one)
    first = one.first_ids
    ask(one, times=REQUESTS - 1)
    assert one.has_greeted
    carry(one, other)
    assert (one.is_cablestore, other.is_cablestore) == (False, True)
    assert other.first_ids[::-1] == one.first_ids == first
    assert len(first[0]) == dialect.request_id_size_bytes
    with pytest.raises(ValueError, match="has not been recognized"):
        other.send_extra(b"x")
    ask(other, times=REQUESTS)
    other.send_extra(b"hello")  # after the greeting, so the peer is recognized before
    assert [event for event in carry(other, one) if isinstance(event, Extra)] == [Extra(b"hello")]
    one.send_extra(bytes(1000))
    assert Extra(bytes(1000)) in carry(one, other)


@DIALECTS
@pytest.mark.parametrize("is_recognised", [True, False])
def test_a_store_that_is_recognised_gets_posts_in_short_responses(dialect: Dialect, is_recognised: bool) -> None:
    """POST_RESPONSE_PIECE_SIZE_BYTES: other peers may read only the first response."""
    posts = [bytes((number,)) * 300 for number in range(60)]
    one, other = greeting(dialect), greeting(dialect)
    ask(one, times=REQUESTS if is_recognised else 1)
    wanted = one.send_request(PostRequest(b"", tuple(map(post_hash, posts))), 0)
    (asked,) = [
        event
        for event in carry(one, other)
        if isinstance(event, PeerRequest) and event.exchange.request == wanted.request
    ]
    other.answer_posts(asked.exchange, posts)
    other.finish(asked.exchange)
    responses = [event.posts for event in carry(other, one) if isinstance(event, Posts)]
    assert [post for part in responses for post in part] == posts
    sizes = [sum(map(len, part)) for part in responses]
    if is_recognised:
        assert limits.POST_RESPONSE_PIECE_SIZE_BYTES - 300 < max(sizes) <= limits.POST_RESPONSE_PIECE_SIZE_BYTES
    else:
        assert len(sizes) == 1


@pytest.mark.parametrize("dialects", [(LEGACY, DRAFT8), (DRAFT8, LEGACY)])
def test_a_peer_that_changes_the_dialect_greets_again(dialects: tuple[Dialect, Dialect]) -> None:
    """Greetings in the earlier dialect do not count."""
    one, other = greeting(dialects[0]), greeting(dialects[1], speaks_first=False)
    ask(one, times=REQUESTS)
    ask(other, times=REQUESTS)
    carry(one, other)
    assert other.dialect is dialects[0]
    assert other.is_cablestore
    assert other.has_greeted
    carry(other, one)
    other.send_extra(b"x")
    assert Extra(b"x") in carry(other, one)
    crossed, also = greeting(dialects[0]), greeting(dialects[1])
    ask(crossed, times=REQUESTS)
    ask(also, times=REQUESTS)
    sent = [b"".join(session.output()) for session in (crossed, also)]
    crossed.receive(sent[1], 0)
    also.receive(sent[0], 0)
    for _ in range(3):
        carry(crossed, also)
        carry(also, crossed)
        ask(crossed, times=REQUESTS)
        ask(also, times=REQUESTS)
    assert crossed.dialect is also.dialect
    for session, peer in ((crossed, also), (also, crossed)):
        session.send_extra(b"y")
        assert Extra(b"y") in carry(session, peer)


@DIALECTS
@ALL_REQUESTS
def test_a_stranger_is_never_recognised_as_a_store(dialect: Dialect, request_: Request) -> None:
    """For all its requests, messages beside Cable from it are ignored, and none can be sent to it."""
    stranger, store = Session(dialect, random.randbytes), greeting(dialect)
    ask(store, times=REQUESTS)
    ask(stranger, request_, 30)
    carry(stranger, store)
    carry(store, stranger)
    assert not store.is_cablestore
    with pytest.raises(ValueError, match="has not been recognized"):
        store.send_extra(b"x")
    one, other = greeting(dialect), greeting(dialect)
    ask(one, times=REQUESTS)
    ask(other, times=REQUESTS)
    carry(one, other)
    carry(other, one)
    one.send_extra(b"x")
    assert stranger.receive(b"".join(one.output()), 0) == []


@DIALECTS
def test_a_reflected_greeting_is_ignored(dialect: Dialect) -> None:
    """Some existing clients forward every request to every peer, including the sender."""
    store = greeting(dialect)
    ask(store, times=REQUESTS)
    data = b"".join(store.output())
    store.receive(data, 0)
    assert store.has_greeted
    assert not store.is_cablestore


def test_a_greeting_is_detected_among_forwarded_requests() -> None:
    """Requests with a ttl do not count. The ttl of the last hop is 0, and a few of them are harmless."""
    one, other = greeting(LEGACY), greeting(LEGACY)
    for number in range(REQUESTS):
        ask(one, ListRequest(bytes((9, 9, 9, number)), 0, 0, 0))
        ask(one, ListRequest(bytes((9, 9, 8, number)), 0, 0, 3))
        ask(one)
    carry(one, other)
    assert other.is_cablestore
    assert one.has_greeted


@given(st.sampled_from([4, 8]), st.integers(0, 2**32), st.integers(0, 12))
def test_a_greeting_is_detected_after_up_to_a_dozen_other_ids(size_bytes: int, seed: int, before: int) -> None:
    rng = random.Random(seed)
    greeter, listener = Greeter(rng.randbytes), GreetingDetector()
    for _ in range(before):
        listener.add(rng.randbytes(size_bytes))
    for _ in range(REQUESTS):
        listener.add(greeter(size_bytes))
    assert listener.is_detected


def test_a_greeting_after_too_many_other_ids_is_not_detected() -> None:
    greeter, listener = Greeter(random.randbytes), GreetingDetector()
    for _ in range(13):
        listener.add(random.randbytes(4))
    for _ in range(2 * REQUESTS):
        listener.add(greeter(4))
    assert not listener.is_detected


@pytest.mark.parametrize(("size_bytes", "needed"), [(4, 4), (8, 3)])
def test_a_part_of_a_greeting_is_not_detected(size_bytes: int, needed: int) -> None:
    """The probability that random ids match, three of 4 bytes or two of 8, is less than 2**-64."""
    greeter, listener = Greeter(random.randbytes), GreetingDetector()
    for number in range(needed):
        assert not listener.is_detected, number
        listener.add(greeter(size_bytes))
    assert listener.is_detected
    assert greeter(size_bytes) != next_id(greeter(size_bytes))


@DIALECTS
def test_the_ids_of_greetings_look_random(dialect: Dialect) -> None:
    """Each bit is set in half of them, all are distinct, and those of draft 8 are not taken for legacy ones."""
    size_bytes = dialect.request_id_size_bytes
    greeters = [Greeter(random.randbytes) for _ in range(2_000)]
    ids = [greeter(size_bytes) for greeter in greeters for _ in range(REQUESTS + 1)]
    assert len(set(ids)) > len(ids) - 5
    for bit in range(8 * size_bytes):
        ones = sum(int.from_bytes(each, "big") >> bit & 1 for each in ids)
        assert abs(ones - len(ids) / 2) < 400, bit  # eight standard deviations
    assert size_bytes == 4 or not any(each.startswith(bytes(4)) for each in ids)


@DIALECTS
def test_frames_outside_of_cable_have_a_separate_type(dialect: Dialect) -> None:
    assert EXTRA_TYPE_ID not in TYPE_IDS.values()
    one, other = greeting(dialect), greeting(dialect)
    ask(one, times=REQUESTS)
    ask(other, times=REQUESTS)
    carry(one, other)
    carry(other, one)
    one.send_extra(b"x")
    [frame] = FrameReader().feed(b"".join(one.output()))
    assert decode_message(frame, dialect) is None
