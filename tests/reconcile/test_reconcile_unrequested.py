"""A peer that sends posts outside the comparison: of other channels or times, with a wrong time, twice, or unsigned."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from people import ANN, START_MS, raws
from talking import Side, claiming, content_of, content_with_time, hello, with_stores

from cablestore import Delete, Post, limits
from cablestore.protocol.keys import NS_PER_MS
from cablestore.reconcile.errors import ReconcileError
from cablestore.reconcile.ids import END_NS
from cablestore.reconcile.messages import PostsFrame, Terms, encode_frame
from cablestore.reconcile.transfer import post_id

FORGED_BYTE = 40
"""Position of a byte in the signature."""


def posts_at(at: int) -> list[Post]:
    texts = [ANN.text("a", "text", at=at), ANN.text("b", "text", at=at)]
    return [*texts, ANN.topic("b", "topic", at=at), ANN.named("Ann", at=at), ANN.post(Delete((bytes(32),)), at=at)]


POSTS = [post for after_ms in range(0, 50, 10) for post in posts_at(START_MS + after_ms)]


class Sent(NamedTuple):
    """A post that a peer sends, with a time that may be wrong, with or without its id before."""

    raw: bytes
    time_ns: int
    is_listed: bool

    @property
    def content(self) -> bytes:
        return content_with_time(self.raw, self.time_ns)


@st.composite
def sent_posts(draw: st.DrawFn) -> tuple[Post, Sent]:
    post = draw(st.sampled_from(POSTS))
    off_ns = draw(st.sampled_from([0, 0, 0, 1, -1, NS_PER_MS, -15 * NS_PER_MS, 25 * NS_PER_MS, -(10**20)]))
    time_ns = min(max(0, post.timestamp_ms * NS_PER_MS + off_ns), END_NS - 1)
    return post, Sent(post.raw, time_ns, draw(st.booleans()))


@st.composite
def all_terms(draw: st.DrawFn) -> Terms:
    from_ms = START_MS + draw(st.integers(-5, 45))
    until_ms = draw(st.none() | st.integers(from_ms + 1, START_MS + 60))
    channels = draw(st.none() | st.frozensets(st.sampled_from(["a", "b"])))
    return Terms(draw(st.sampled_from([True, True, True, False])), from_ms, until_ms, channels)


def is_compared(post: Post, terms: Terms) -> bool:
    is_in_time = terms.from_ms <= post.timestamp_ms and (terms.until_ms is None or post.timestamp_ms < terms.until_ms)
    return is_in_time and (terms.channels is None or post.channel is None or post.channel in terms.channels)


@given(all_terms(), all_terms(), st.lists(sent_posts(), max_size=40))
def test_only_compared_posts_are_accepted_once_under_their_own_time(
    own: Terms, of_peer: Terms, sent: list[tuple[Post, Sent]]
) -> None:
    both = own.narrowed(of_peer)
    if both.until_ms is not None and both.until_ms <= both.from_ms:
        return
    expected: dict[bytes, Post] = {}
    for post, (_, time_ns, _) in sent:
        if own.accepts_posts and is_compared(post, both) and time_ns == post.timestamp_ms * NS_PER_MS:
            expected[post.hash] = post
    [store] = with_stores([])
    with Side(store, own) as side:
        side.take(hello(terms=of_peer))
        listed = {post_id(post.hash, 0)._replace(timestamp_ns=each.time_ns) for post, each in sent if each.is_listed}
        side.take(encode_frame(7, claiming(*listed)))
        side.take(encode_frame(7, PostsFrame(0, tuple(each.content for _, each in sent))))
        assert side.came == raws(*expected.values())
        assert side.talk.findings.unasked == len(sent) - len(expected)
        assert {post.hash for post in POSTS if store.get(post.hash)} == set(expected)
    assert store.check().is_clean


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_post_that_is_not_signed_is_not_stored(is_listed: bool) -> None:
    """The unsigned post has the time of its id and a compared channel. The store rejects it, and accepts the signed
    post after it."""
    good = ANN.text("a", "text", at=START_MS)
    forged = good.raw[:FORGED_BYTE] + bytes((good.raw[FORGED_BYTE] ^ 1,)) + good.raw[FORGED_BYTE + 1 :]
    sent = Sent(forged, START_MS * NS_PER_MS, is_listed)
    [store] = with_stores([])
    with Side(store) as side:
        side.take(hello())
        if is_listed:
            side.take(encode_frame(7, claiming(post_id(good.hash, START_MS))))
        side.take(encode_frame(7, PostsFrame(0, (sent.content, content_of(good)))))
        assert store.stats().posts == {"text": 1}
        assert store.get(good.hash)


def test_posts_of_another_channel_have_a_limit() -> None:
    """MAX_TALK_UNASKED."""
    posts = [ANN.text("other", f"{i}", at=START_MS + i) for i in range(limits.MAX_TALK_UNASKED + 1)]
    [store] = with_stores([])
    with Side(store, Terms(channels=frozenset({"default"}))) as side:
        side.take(hello())
        side.take(encode_frame(7, PostsFrame(0, tuple(map(content_of, posts[:-1])))))
        with pytest.raises(ReconcileError, match="sent 101 posts that were not requested, the maximum is 100"):
            side.take(encode_frame(7, PostsFrame(1, (content_of(posts[-1]),))))
    assert store.stats().posts == {}
