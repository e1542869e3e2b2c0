"""Messages between two reconciling stores, and their frames: the protocol `cablestore-reconcile/1`.

A frame begins with its kind and the number of its conversation. The number identifies frames that are left over from an
interrupted conversation:

    frame:      kind u8 | conversation number varint | body
    1 hello:    version varint | purpose u8 (0 reconcile, 1 audit) | dialect of the store, sized text | terms
    2 accepted: terms of both sides
    3 ended:    reason varint (`EndReason`) | sized text
    4 payload:  a payload of the dialect `spec`
    5 posts:    batch number varint | sized transferred messages of `spec`
    6 stored:   batch number varint
    7 given:    empty; all posts but deletions are sent and stored
    8 done:     number of posts sent varint
    9 sums request, 10 sums response: of an audit

Conversations never have the number 0. A payload with the number 0 is a notice: the sender's store has a new channel
(empty), both stores are equal (1), the store has changed since (2), the compared state was read (3), a request for a
sign of life (4), that sign (5), the id of the sender's node (6, 16 bytes), or the sender accepts posts whose ids were
not sent (7). Stores ignore an unknown notice, like a frame that is left over.

    terms: accepts posts u8 | from ms varint | until ms varint, 0: no end | channels + 1 varint, 0: all | each sized
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple, get_args

from cablestore.errors import DecodeError
from cablestore.limits import (
    MAX_CHANNEL_CODEPOINTS,
    MAX_RECONCILE_TOPICS,
    MAX_TALK_FRAME_SIZE_BYTES,
    MAX_TALK_REASON_CODEPOINTS,
)
from cablestore.protocol.fields import read_choice, read_sized, read_text, sized
from cablestore.protocol.keys import NS_PER_MS
from cablestore.protocol.message import FrameReader
from cablestore.protocol.varint import encode_varint, read_varint
from cablestore.reconcile.errors import ReconcileError
from cablestore.reconcile.ids import END_NS

PROTOCOL: Final = "cablestore-reconcile/1"
VERSION: Final = 1
MAX_NUMBER: Final = 2**32 - 1
END_MS: Final = END_NS // NS_PER_MS
_MAX_DIALECT_CODEPOINTS: Final = 32


class Purpose(IntEnum):
    """Purpose of a conversation."""

    RECONCILE = 0
    AUDIT = 1


class EndReason(IntEnum):
    """Reason why a conversation is rejected or ends early."""

    OTHER = 0
    BUSY = 1
    VERSION = 2
    DIALECT = 3
    NOTHING = 4
    """The time ranges of the two sides do not overlap."""
    LIMIT = 5
    STORAGE = 6
    FAULT = 7
    STOPPING = 8


class Terms(NamedTuple):
    """Terms of one side: whether it accepts posts, a half-open range in milliseconds, channels (None: all)."""

    accepts_posts: bool = True
    from_ms: int = 0
    until_ms: int | None = None
    channels: frozenset[str] | None = None

    def narrowed(self, other: Terms) -> Terms:
        """Return the part of these terms that the other side's terms contain too."""
        ends = [end for end in (self.until_ms, other.until_ms) if end is not None]
        channels = self.channels
        if other.channels is not None:
            channels = other.channels if channels is None else channels & other.channels
        return Terms(self.accepts_posts, max(self.from_ms, other.from_ms), min(ends, default=None), channels)

    def is_within(self, other: Terms) -> bool:
        """Return True if the time range and the channels are part of the other terms."""
        return self.narrowed(other)[1:] == self[1:]


class Hello(NamedTuple):
    """First message of a conversation."""

    version: int
    purpose: Purpose
    dialect: str
    terms: Terms


class Accepted(NamedTuple):
    """Acceptance of a hello. `terms.accepts_posts` is True if the sender accepts posts."""

    terms: Terms


class Ended(NamedTuple):
    """End or rejection of the conversation."""

    reason: EndReason
    text: str


class PayloadFrame(NamedTuple):
    """A payload of the comparison."""

    data: bytes


class PostsFrame(NamedTuple):
    """A batch of posts, as transferred messages."""

    batch: int
    contents: tuple[bytes, ...]


class Stored(NamedTuple):
    """Confirmation that a batch is stored. The receiver of the confirmation may send another batch."""

    batch: int


class PostsSent(NamedTuple):
    """Notice that all posts but deletions are sent, and stored by the receiver."""


class Done(NamedTuple):
    """Notice that everything is sent and stored."""

    posts: int


class SumsRequest(NamedTuple):
    """Request of an audit for the sums over ranges."""

    data: bytes


class SumsResponse(NamedTuple):
    """Response to a `SumsRequest`."""

    data: bytes


ConversationMessage = (
    Hello | Accepted | Ended | PayloadFrame | PostsFrame | Stored | PostsSent | Done | SumsRequest | SumsResponse
)
"""A message of a conversation. The classes are in the order of their kinds, which start with 1."""
_TYPES: Final = dict(enumerate(get_args(ConversationMessage), 1))
_KINDS: Final = {type_: kind for kind, type_ in _TYPES.items()}
HELLO: Final = bytes((_KINDS[Hello],))
"""First byte of a frame that begins a conversation."""
_NO_TALK: Final = 0
TRANSFERRING: Final = (PostsFrame, Stored)
"""Messages that transfer posts. All other messages belong to the comparison."""


# --- writing ------------------------------------------------------------------------------------


def encode_frame(number: int, message: ConversationMessage) -> bytes:
    """Return the frame of a message in the conversation with this number.

    Raises ReconcileError if it exceeds a limit.
    """
    frame = bytes((_KINDS[type(message)],)) + encode_varint(number) + _body(message)
    error = size_error(frame)
    if error is not None:
        raise error
    return frame


NEW_CHANNEL: Final = bytes((_KINDS[PayloadFrame], _NO_TALK))
"""Notice that the sender's store has a new channel. Its channels can then be requested."""
EQUAL: Final = NEW_CHANNEL + b"\x01"
CHANGED: Final = NEW_CHANNEL + b"\x02"
"""Notices that both stores are equal, and that the sender's store has changed since (`cablestore.peers.agreement`)."""
SNAPSHOT: Final = NEW_CHANNEL + b"\x03"
"""Notice that the compared state was read, so live requests return later posts (`cablestore.peers.coverage`)."""
LIFE_REQUEST: Final = NEW_CHANNEL + b"\x04"
LIFE_SIGN: Final = NEW_CHANNEL + b"\x05"
"""Probe of a silent connection, and its answer."""
NODE: Final = NEW_CHANNEL + b"\x06"
"""Start of a frame with the id of the sender's node (`cablestore.peers.node_ids`)."""
UNLISTED: Final = NEW_CHANNEL + b"\x07"
"""Notice that the sender accepts posts whose ids were not sent (`cablestore.reconcile.conversation`)."""


def _body(message: ConversationMessage) -> bytes:  # noqa: PLR0911 - one case per kind
    match message:
        case Hello(version, purpose, dialect, terms):
            return encode_varint(version) + encode_varint(purpose) + sized(dialect.encode()) + _written(terms)
        case Accepted(terms):
            return _written(terms)
        case Ended(reason, text):
            said = text[:MAX_TALK_REASON_CODEPOINTS].encode(errors="replace")
            return encode_varint(reason) + sized(said)
        case PostsFrame(batch, contents):
            return encode_varint(batch) + b"".join(map(sized, contents))
        case Stored(count) | Done(count):
            return encode_varint(count)
        case PayloadFrame(data) | SumsRequest(data) | SumsResponse(data):
            return data
    return b""


def _written(terms: Terms) -> bytes:
    out = bytes((terms.accepts_posts,)) + encode_varint(terms.from_ms) + encode_varint(terms.until_ms or 0)
    if terms.channels is None:
        return out + encode_varint(0)
    if len(terms.channels) > MAX_RECONCILE_TOPICS:
        raise ReconcileError(
            f"{len(terms.channels)} channels are selected, the maximum is {MAX_RECONCILE_TOPICS}. Select fewer "
            "channels, or none for all channels"
        )
    names = (sized(name.encode()) for name in sorted(terms.channels))
    return out + encode_varint(len(terms.channels) + 1) + b"".join(names)


# --- reading ------------------------------------------------------------------------------------


def size_error(frame: bytes) -> ReconcileError | None:
    """Return the error for a frame that is too large, else None. The Cable message that contains it may be larger."""
    if len(frame) <= MAX_TALK_FRAME_SIZE_BYTES:
        return None
    return ReconcileError(f"a frame has {len(frame)} bytes, the maximum is {MAX_TALK_FRAME_SIZE_BYTES}")


def decode_frame(frame: bytes) -> tuple[int, ConversationMessage]:
    """Return the conversation number and the message of a frame. Raises ReconcileError if it is malformed."""
    error = size_error(frame)
    if error is not None:
        raise error
    try:
        kind, at = read_varint(frame, 0)
        number, at = read_choice(frame, at, "conversation number", MAX_NUMBER)
        message, at = _read(kind, frame, at)
    except DecodeError as error:
        raise ReconcileError(f"not a {PROTOCOL} frame: {error}") from None
    if at != len(frame):
        raise ReconcileError(f"extra bytes after the end of a {PROTOCOL} frame: {len(frame) - at}")
    return number, message


def _read(kind: int, frame: bytes, at: int) -> tuple[ConversationMessage, int]:  # noqa: PLR0911 - one case per kind
    match kind:
        case 1:
            return _hello(frame, at)
        case 2:
            terms, at = _terms(frame, at)
            return Accepted(terms), at
        case 3:
            reason, at = read_varint(frame, at)
            text, at = read_text(frame, at, "reason", 0, MAX_TALK_REASON_CODEPOINTS)
            return Ended(EndReason(reason) if reason in set(EndReason) else EndReason.OTHER, text), at
        case 5:
            return _posts(frame, at)
        case 6 | 8:
            count, at = read_varint(frame, at)
            return _TYPES[kind](count), at
        case 7:
            return PostsSent(), at
        case 4 | 9 | 10:
            return _TYPES[kind](frame[at:]), len(frame)
    raise DecodeError(0, f"a frame has the unknown type {kind}")


def _hello(frame: bytes, at: int) -> tuple[Hello, int]:
    version, at = read_varint(frame, at)
    purpose, at = read_choice(frame, at, "purpose", max(Purpose))
    dialect, at = read_text(frame, at, "dialect", 1, _MAX_DIALECT_CODEPOINTS)
    terms, at = _terms(frame, at)
    return Hello(version, Purpose(purpose), dialect, terms), at


def _terms(frame: bytes, at: int) -> tuple[Terms, int]:
    takes, at = read_choice(frame, at, "request for posts", 1)
    from_ms, at = read_choice(frame, at, "first time", END_MS)
    until_ms, at = read_choice(frame, at, "last time", END_MS)
    count, at = read_choice(frame, at, "number of channels", MAX_RECONCILE_TOPICS + 1)
    names = []
    for _ in range(count - 1):
        name, at = read_text(frame, at, "channel", 1, MAX_CHANNEL_CODEPOINTS)
        names.append(name)
    return Terms(bool(takes), from_ms, until_ms or None, frozenset(names) if count else None), at


def _posts(frame: bytes, at: int) -> tuple[PostsFrame, int]:
    batch, at = read_varint(frame, at)
    contents = []
    while at < len(frame):
        content, at = read_sized(frame, at, "transferred message")
        contents.append(content)
    return PostsFrame(batch, tuple(contents)), at


class ReconcileFrameReader(FrameReader):
    """A `FrameReader` that returns empty frames too, and raises ReconcileError."""

    def __init__(self, max_size_bytes: int) -> None:
        super().__init__(max_size_bytes, skips_empty=False)

    def feed(self, data: bytes) -> list[bytes]:
        """Add the next bytes, and return the contents of the complete frames.

        Raises ReconcileError for a size that is not a minimal varint or is above the limit. Then the rest of the stream
        cannot be read.
        """
        try:
            return super().feed(data)
        except DecodeError as error:
            raise ReconcileError(f"malformed frame in the stream: {error}") from None
