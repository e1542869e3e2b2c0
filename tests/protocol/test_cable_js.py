"""Posts that crash cable.js: each of its limits. The result for any bytes is True or False."""

from __future__ import annotations

import pytest
from cable_js import FITS, LONG, POSTS, RESERVED
from hypothesis import assume, given
from hypothesis import strategies as st
from people import ANN

from cablestore import LEGACY, Info, decode_post, limits
from cablestore.protocol import cable_js
from cablestore.protocol.message import (
    CancelRequest,
    ListRequest,
    ModerationRequest,
    PostRequest,
    Request,
    StateRequest,
    TimeRangeRequest,
)

MOST = {
    "channel": (limits.MAX_CABLE_JS_CHANNEL_SIZE_BYTES, cable_js.handles_channel),
    "topic": (limits.MAX_CABLE_JS_TOPIC_SIZE_BYTES, cable_js.handles_topic),
    "name": (limits.MAX_CABLE_JS_NAME_SIZE_BYTES, lambda name: cable_js.handles_info(Info.of(name=name))),
    "reason": (limits.MAX_CABLE_JS_REASON_SIZE_BYTES, cable_js._handles_reason),
}


@pytest.mark.thorough("channel")
@pytest.mark.parametrize("what", MOST)
@given(st.data())
def test_sizes_are_counted_in_bytes(what: str, data: st.DataObject) -> None:
    most, handles = MOST[what]
    text = data.draw(st.text(min_size=most // 4, max_size=most + 2))
    assume(text not in cable_js.RESERVED_CHANNELS)
    assert handles(text) == (len(text.encode()) <= most)
    assert handles("x" * most)
    assert not handles("x" * most + "x")
    assert not handles("é" * (most // 2) + "x")


@pytest.mark.parametrize("case", POSTS)
def test_posts_are_safe_or_unsafe_for_cable_js(case: str) -> None:
    good, bad = POSTS[case]
    for post, is_safe in ((good, True), (bad, False)):
        assert cable_js.handles_body(post.body) == is_safe
        assert cable_js.handles_post(post.raw) == is_safe
        linked = ANN.post(post.body, links=(bytes(32),) * 200)
        assert cable_js.handles_post(linked.raw) == is_safe
    assert cable_js.handles_post(ANN.delete(bad).raw)


@given(st.sampled_from([post.raw for pair in POSTS.values() for post in pair]), st.data())
def test_any_bytes_are_safe_or_unsafe(raw: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(90, len(raw)))
    damaged = raw[:at] + data.draw(st.binary(max_size=3)) + raw[at + data.draw(st.integers(0, 3)) :]
    assert cable_js.handles_post(damaged) in (True, False)
    assert cable_js.handles_post(raw[:at]) in (True, False)


@given(st.text(max_size=64), st.text(max_size=512))
def test_bytes_and_decoded_posts_have_the_same_result(channel: str, topic: str) -> None:
    posts = [ANN.topic(channel, topic), ANN.text(channel, topic), ANN.join(channel)] if channel else []
    for post in posts:
        assert cable_js.handles_post(post.raw) == cable_js.handles_body(decode_post(post.raw, LEGACY).body)


@pytest.mark.parametrize(
    ("request_", "is_safe"),
    [
        (StateRequest(b"", FITS, 1), True),
        (StateRequest(b"", LONG, 1), False),
        (TimeRangeRequest(b"", FITS, 0, 0, 0), True),
        (TimeRangeRequest(b"", RESERVED, 0, 0, 0), False),
        (TimeRangeRequest(b"", "\0", 0, 0, 0), False),
        (PostRequest(b"", (bytes(32),)), True),
        (ListRequest(b"", 0, 0), True),
        (CancelRequest(b"", b""), True),
    ],
)
def test_requests_are_safe_or_unsafe_for_cable_js(request_: Request, is_safe: bool) -> None:
    assert cable_js.handled_request(request_) == (request_ if is_safe else None)


def test_a_moderation_request_keeps_only_safe_channels() -> None:
    request = ModerationRequest(b"abcd", (FITS, LONG, "default", RESERVED, "\0"), 1, 5, 2)
    assert cable_js.handled_request(request) == request._replace(channels=(FITS, "default"))
