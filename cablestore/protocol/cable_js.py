"""Detection of posts and requests that crash cable.js, and the program that uses it.

cable.js counts bytes where the protocol counts code points, knows only two keys of post/info and reserves two channel
names. cable.rs counts code points, so its users write such posts. Do not send them to a peer that may be cable.js.
"""

from __future__ import annotations

from typing import Final

from cablestore import limits
from cablestore.errors import DecodeError
from cablestore.protocol.body import (
    DELETE,
    JOIN,
    LEAVE,
    TEXT,
    UNBLOCK,
    Body,
    Info,
    Moderation,
    Topic,
)
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.protocol.dialect import LEGACY
from cablestore.protocol.fields import read_sized
from cablestore.protocol.message import ModerationRequest, Request, StateRequest, TimeRangeRequest
from cablestore.protocol.post import SIGNED_FROM, decode_post, peek_type
from cablestore.protocol.varint import read_varint

RESERVED_CHANNELS: Final = frozenset({"reqid-to-channels", "\0"})
"""Channel names that cable-core.js uses internally: a table of requests, and the whole cabal."""

_TYPES: Final = range(TEXT, UNBLOCK + 1)
"""Types that cable.js knows. It throws an error for other types."""
_ACCEPT_ROLE_VALUES: Final = (b"\x00", b"\x01")


def handles_channel(name: str) -> bool:
    """Return True if cable.js can handle posts in a channel and requests for it. "" stands for the whole cabal."""
    return not is_too_long(name) and name not in RESERVED_CHANNELS


def is_too_long(channel: str) -> bool:
    """Return True if a channel name is too long for cable.js."""
    return len(channel.encode()) > limits.MAX_CABLE_JS_CHANNEL_SIZE_BYTES


def handles_topic(topic: str) -> bool:
    """Return True if cable.js can handle a topic."""
    return len(topic.encode()) <= limits.MAX_CABLE_JS_TOPIC_SIZE_BYTES


def handles_info(info: Info) -> bool:
    """Return True if cable.js can handle this post/info."""
    return all(
        len(value) <= limits.MAX_CABLE_JS_NAME_SIZE_BYTES
        if key == "name"
        else key == "accept-role" and value in _ACCEPT_ROLE_VALUES
        for key, value in info.pairs
    )


def handles_body(body: Body) -> bool:
    """Return True if cable.js can handle a post with this body."""
    match body:
        case Info():
            return handles_info(body)
        case Topic(topic=topic) if not handles_topic(topic):
            return False
        case Moderation(recipients=recipients) if len(recipients) > limits.MAX_RECIPIENTS:
            return False
    channel, reason = getattr(body, "channel", None), getattr(body, "reason", "")
    return body.type in _TYPES and (channel is None or handles_channel(channel)) and _handles_reason(reason)


def _handles_reason(reason: str) -> bool:
    return len(reason.encode()) <= limits.MAX_CABLE_JS_REASON_SIZE_BYTES


def handles_post(raw: bytes) -> bool:
    """Return True if cable.js can handle the bytes of a post. For most types only the channel is decoded."""
    post_type = peek_type(raw)
    if post_type == DELETE:
        return True
    try:
        if post_type in (TEXT, JOIN, LEAVE):
            return handles_channel(_channel_of(raw))
        return handles_body(decode_post(raw, LEGACY).body)
    except (DecodeError, UnicodeDecodeError):
        return False


def _channel_of(raw: bytes) -> str:
    """Return the channel of a post/text, post/join or post/leave."""
    links, at = read_varint(raw, SIGNED_FROM)
    _, at = read_varint(raw, at + links * HASH_SIZE_BYTES + 1)
    return read_sized(raw, at, "channel name")[0].decode()


def handled_request(request: Request) -> Request | None:
    """Return the part of a request that cable.js can handle, or None if it cannot handle any part."""
    match request:
        case TimeRangeRequest(_, channel) | StateRequest(_, channel):
            return request if handles_channel(channel) else None
        case ModerationRequest(_, channels):
            return request._replace(channels=tuple(filter(handles_channel, channels)))
    return request
