"""Messages of the Cable wire protocol: requests and responses in both dialects, and their framing.

A message is a length and that many bytes (wire.md 6.3.1):

    draft8: msg_type varint |                 req_id u8[8] | body
    legacy: msg_type varint | circuit_id u8[4] (zeros) | req_id u8[4] | ttl varint (requests only) | body

In both dialects eight bytes follow the type. In a legacy message, four of them are zero, and a request id of draft 8 is
random. So the first message of a peer shows its dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from cablestore import limits
from cablestore.errors import DecodeError
from cablestore.protocol.dialect import DRAFT8, LEGACY, Dialect
from cablestore.protocol.fields import counted, read_choice, read_hashes, read_sized, read_text, sized
from cablestore.protocol.varint import MAX_VARINT_SIZE_BYTES, encode_varint, read_varint

_IDS_SIZE_BYTES: Final = 8
"""Size of circuit id and request id together. It is the same in both dialects."""


class PostRequest(NamedTuple):
    """Request for posts by their hashes (wire.md 6.3.2.1)."""

    request_id: bytes
    hashes: tuple[bytes, ...]
    ttl: int = 0

    @property
    def is_live(self) -> bool:
        """Always False: the request does not remain open for later posts."""
        return False


class CancelRequest(NamedTuple):
    """Cancellation of the request `cancel_id` (wire.md 6.3.2.2). Peers do not respond to it."""

    request_id: bytes
    cancel_id: bytes
    ttl: int = 0

    @property
    def is_live(self) -> bool:
        """Always False: the request does not remain open for later posts."""
        return False


class TimeRangeRequest(NamedTuple):
    """Request for texts and deletions of a channel with start <= timestamp < end, newest first (wire.md 6.3.2.3).

    With `time_end_ms` 0, the request remains open for later posts. A `limit` of 0 means no limit.
    """

    request_id: bytes
    channel: str
    time_start_ms: int
    time_end_ms: int
    limit: int
    ttl: int = 0

    @property
    def is_live(self) -> bool:
        """True if the request remains open for later posts."""
        return self.time_end_ms == 0


class StateRequest(NamedTuple):
    """Request for the state of a channel, and for its later changes if `future` is 1 (wire.md 6.3.2.4)."""

    request_id: bytes
    channel: str
    future: int
    ttl: int = 0

    @property
    def is_live(self) -> bool:
        """True if the request remains open for later posts."""
        return self.future == 1


class ListRequest(NamedTuple):
    """Request for names of channels (wire.md 6.3.2.5). A `limit` of 0 means no limit."""

    request_id: bytes
    offset: int
    limit: int
    ttl: int = 0

    @property
    def is_live(self) -> bool:
        """Always False: the request does not remain open for later posts."""
        return False


class ModerationRequest(NamedTuple):
    """Request for the moderation of the whole cabal and of channels, since `oldest_ms` (moderation.md 5.2.1)."""

    request_id: bytes
    channels: tuple[str, ...]
    future: int
    oldest_ms: int
    ttl: int = 0

    @property
    def is_live(self) -> bool:
        """True if the request remains open for later posts."""
        return self.future == 1


class HashResponse(NamedTuple):
    """Hashes of posts (wire.md 6.3.3.1). An empty response concludes the request."""

    request_id: bytes
    hashes: tuple[bytes, ...]


class PostResponse(NamedTuple):
    """Posts (wire.md 6.3.3.2). An empty response concludes the request."""

    request_id: bytes
    posts: tuple[bytes, ...]


class ListResponse(NamedTuple):
    """Names of channels (wire.md 6.3.3.3). It concludes the request."""

    request_id: bytes
    channels: tuple[str, ...]


Request = PostRequest | CancelRequest | TimeRangeRequest | StateRequest | ListRequest | ModerationRequest
Response = HashResponse | PostResponse | ListResponse
Message = Request | Response
_Reader = Callable[[bytes, int, bytes, Dialect], tuple[Message, int]]
"""Function that reads a message, given its bytes, the offset after its ids, its request id and its dialect."""

MESSAGE_NAMES: Final[dict[type[Message], str]] = {
    HashResponse: "hash response",
    PostResponse: "post response",
    PostRequest: "post request",
    CancelRequest: "cancel request",
    TimeRangeRequest: "channel time range request",
    StateRequest: "channel state request",
    ListRequest: "channel list request",
    ListResponse: "channel list response",
    ModerationRequest: "moderation state request",
}
"""Names of the messages, in the order of their types on the wire."""
TYPE_IDS: Final = {kind: type_id for type_id, kind in enumerate(MESSAGE_NAMES)}
_RESPONSES: Final = (HashResponse, PostResponse, ListResponse)

EXTRA_TYPE_ID: Final = 0x6361_6273
"""Type of messages between cablestores outside Cable, "cabs". Other programs skip unknown types."""
_EXTRA_HEAD: Final = encode_varint(EXTRA_TYPE_ID)
_EXTRA_ID_BYTE: Final = b"\xff"
_LEGACY_CIRCUIT: Final = bytes(LEGACY.circuit_id_size_bytes)


# --- frames -----------------------------------------------------------------------------------


class FrameReader:
    """Splitter of a stream, which arrives in pieces of any size, into messages without their length prefixes."""

    def __init__(self, max_size_bytes: int = limits.MAX_MESSAGE_SIZE_BYTES, *, skips_empty: bool = True) -> None:
        self._max_size_bytes = max_size_bytes
        self._skips_empty = skips_empty
        self._rest = bytearray()
        self._needed = 1
        """Number of bytes to wait for before parsing: a large message is not parsed again for each of its pieces."""
        self._empty = 0
        """Consecutive messages of length 0."""
        self.messages = 0
        """Number of complete messages."""

    @property
    def held_size_bytes(self) -> int:
        """The size of the incomplete message so far."""
        return len(self._rest)

    @property
    def incomplete(self) -> bytes:
        """The received bytes of the incomplete message, without its length."""
        at = next((index + 1 for index, byte in enumerate(self._rest[:MAX_VARINT_SIZE_BYTES]) if byte < 0x80), None)
        return b"" if at is None else bytes(self._rest[at:])

    def feed(self, data: bytes) -> list[bytes]:
        """Add the next bytes and return the complete messages. After a DecodeError the stream is unusable.

        With `skips_empty`, messages of length 0 are skipped. Some lengths of cable.rs are too small by one, so the 0 at
        the end of such a message looks like another message.
        """
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return []
            data = bytes(self._rest)
            self._rest.clear()
        frames = []
        at = 0
        while at < len(data) and (found := self._next(data, at)) is not None:
            start, at = found
            self.messages += 1
            if start < at or not self._skips_empty:
                self._empty = 0
                frames.append(data[start:at])
                continue
            self._empty += 1
            if self._empty > limits.MAX_EMPTY_MESSAGES:
                raise DecodeError(at, f"too many empty messages in a row: the maximum is {limits.MAX_EMPTY_MESSAGES}")
        if at < len(data):
            self._rest += data[at:]
        return frames

    def _next(self, data: bytes, at: int) -> tuple[int, int] | None:
        """Return the start and the end of the message whose length is at `at`, or None if the message is incomplete."""
        self._needed = len(data) - at + 1
        if data[at] < 0x80:
            size_bytes, start = data[at], at + 1
        elif len(data) - at < MAX_VARINT_SIZE_BYTES and all(byte >= 0x80 for byte in data[at:]):
            return None
        else:
            size_bytes, start = read_varint(data, at)
        if size_bytes > self._max_size_bytes:
            raise DecodeError(
                at, f"a message of {size_bytes} bytes is announced, the maximum is {self._max_size_bytes}"
            )
        end = start + size_bytes
        if end > len(data):
            self._needed = end - at
            return None
        return start, end


class Head(NamedTuple):
    """Beginning of a message: its type, its dialect, and the offset of the ids after the type."""

    type_id: int
    dialect: Dialect
    at: int


def read_head(frame: bytes) -> Head:
    """Read the type and the dialect of a message. Raises DecodeError if it is too short for the ids."""
    type_id, at = (frame[0], 1) if frame and frame[0] < 0x80 else read_varint(frame, 0)
    left = len(frame) - at
    if left < _IDS_SIZE_BYTES:
        raise DecodeError(
            at, f"the message is truncated: {_IDS_SIZE_BYTES} bytes of ids follow its type, but only {left} remain"
        )
    return Head(type_id, LEGACY if frame.startswith(_LEGACY_CIRCUIT, at) else DRAFT8, at)


# --- decoding ---------------------------------------------------------------------------------


def decode_message(frame: bytes, dialect: Dialect, head: Head | None = None) -> Message | None:
    """Decode a message without its length. Pass `head` if it was already read.

    Returns None for an unknown type: skip the message (wire.md 6.3.1). Raises DecodeError for a malformed message.
    """
    type_id, _, at = head or read_head(frame)
    read = _READERS.get(type_id)
    if read is None:
        return None
    end = at + _IDS_SIZE_BYTES
    message, at = read(frame, end, frame[at + dialect.circuit_id_size_bytes : end], dialect)
    if at != len(frame):
        raise DecodeError(at, f"extra bytes after the end of the {MESSAGE_NAMES[type(message)]}: {len(frame) - at}")
    return message


def posts_of_incomplete(frame: bytes, dialect: Dialect) -> PostResponse | None:
    """Decode the complete posts in the start of a message. Return None if it is not a post response."""
    try:
        type_id, _, at = read_head(frame)
        if type_id != TYPE_IDS[PostResponse]:
            return None
    except DecodeError:
        return None
    end = at = at + _IDS_SIZE_BYTES
    request_id = frame[end - dialect.request_id_size_bytes : end]
    posts: list[bytes] = []
    with suppress(DecodeError):
        while (found := read_sized(frame, at, "post"))[0]:
            post, at = found
            posts.append(post)
    return PostResponse(request_id, tuple(posts))


def _channel(frame: bytes, at: int) -> tuple[str, int]:
    return read_text(frame, at, "channel", 1, limits.MAX_CHANNEL_CODEPOINTS)


def _future(frame: bytes, at: int) -> tuple[int, int]:
    return read_choice(frame, at, "future", 1)


def _names(frame: bytes, at: int) -> tuple[tuple[str, ...], int]:
    """Read names until a length of 0 or the end of the message, like `_post_response`."""
    names: list[str] = []
    while at < len(frame):
        name, at = read_text(frame, at, "channel", 0, limits.MAX_CHANNEL_CODEPOINTS)
        if not name:
            break
        names.append(name)
        if len(names) > limits.MAX_NAMES_PER_MESSAGE:
            raise DecodeError(at, f"too many channels in a message: the maximum is {limits.MAX_NAMES_PER_MESSAGE}")
    return tuple(names), at


def _hash_response(frame: bytes, at: int, request_id: bytes, _: Dialect) -> tuple[Message, int]:
    hashes, at = read_hashes(frame, at, "hashes")
    return HashResponse(request_id, hashes), at


def _post_response(frame: bytes, at: int, request_id: bytes, _: Dialect) -> tuple[Message, int]:
    """Read posts until a length of 0 or the end of the message: some lengths of cable.rs are too small by one."""
    posts = []
    while at < len(frame):
        post, at = read_sized(frame, at, "post")
        if not post:
            break
        posts.append(post)
    return PostResponse(request_id, tuple(posts)), at


def _list_response(frame: bytes, at: int, request_id: bytes, _: Dialect) -> tuple[Message, int]:
    channels, at = _names(frame, at)
    return ListResponse(request_id, channels), at


def _cancel_request(frame: bytes, at: int, request_id: bytes, dialect: Dialect) -> tuple[Message, int]:
    ttl, at = read_choice(frame, at, "ttl", limits.MAX_TTL) if dialect.requests_have_ttl else (0, at)
    end = at + dialect.request_id_size_bytes
    if end > len(frame):
        raise DecodeError(
            at, f"the cancel id is truncated: it has {len(frame) - at} bytes, expected {dialect.request_id_size_bytes}"
        )
    return CancelRequest(request_id, frame[at:end], ttl), end


def _request(kind: Callable[..., Message], *readers: Callable[[bytes, int], tuple[Any, int]]) -> _Reader:
    """Return a function that reads a request of class `kind`: its ttl, then one field with each of the `readers`."""

    def read(frame: bytes, at: int, request_id: bytes, dialect: Dialect) -> tuple[Message, int]:
        ttl, at = read_choice(frame, at, "ttl", limits.MAX_TTL) if dialect.requests_have_ttl else (0, at)
        values = []
        for read_field in readers:
            value, at = read_field(frame, at)
            values.append(value)
        return kind(request_id, *values, ttl), at

    return read


_READERS: Final[dict[int, _Reader]] = {
    0: _hash_response,
    1: _post_response,
    2: _request(PostRequest, partial(read_hashes, what="hashes")),
    3: _cancel_request,
    4: _request(TimeRangeRequest, _channel, read_varint, read_varint, read_varint),
    5: _request(StateRequest, _channel, _future),
    6: _request(ListRequest, read_varint, read_varint),
    7: _list_response,
    8: _request(ModerationRequest, _names, _future, read_varint),
}


# --- encoding ---------------------------------------------------------------------------------

_HEADS: Final = {
    (kind, dialect.circuit_id_size_bytes): bytes((type_id,)) + bytes(dialect.circuit_id_size_bytes)
    for kind, type_id in TYPE_IDS.items()
    for dialect in (LEGACY, DRAFT8)
}
"""First bytes of messages, up to the request id."""


def encode_message(message: Message, dialect: Dialect) -> bytes:
    """Encode a message with its length. Raises ValueError for ids of a wrong size, and for empty names or posts."""
    if len(message.request_id) != dialect.request_id_size_bytes:
        raise _wrong_id(message.request_id, dialect)
    head = _HEADS[type(message), dialect.circuit_id_size_bytes] + message.request_id
    if isinstance(message, HashResponse):  # the most frequent message of a node
        return sized(head + counted(message.hashes))
    if isinstance(message, CancelRequest) and len(message.cancel_id) != dialect.request_id_size_bytes:
        raise _wrong_id(message.cancel_id, dialect)
    if dialect.requests_have_ttl and not isinstance(message, _RESPONSES):
        head += encode_varint(message.ttl)
    return sized(head + _body(message))


def _wrong_id(request_id: bytes, dialect: Dialect) -> ValueError:
    return ValueError(
        f"a request id of {dialect.name} has {dialect.request_id_size_bytes} bytes, got {len(request_id)}"
    )


def _body(message: Message) -> bytes:  # noqa: PLR0911 - one case per type
    match message:
        case PostRequest(_, hashes) | HashResponse(_, hashes):
            return counted(hashes)
        case PostResponse(_, posts):
            return _ended(posts)
        case ListResponse(_, channels):
            return _ended(map(str.encode, channels))
        case CancelRequest(_, cancel_id):
            return cancel_id
        case TimeRangeRequest(_, channel, start_ms, end_ms, limit):
            return sized(channel.encode()) + b"".join(map(encode_varint, (start_ms, end_ms, limit)))
        case StateRequest(_, channel, future):
            return sized(channel.encode()) + encode_varint(future)
        case ListRequest(_, offset, limit):
            return encode_varint(offset) + encode_varint(limit)
        case ModerationRequest(_, channels, future, oldest_ms):
            return _ended(map(str.encode, channels)) + encode_varint(future) + encode_varint(oldest_ms)


def _ended(items: Iterable[bytes]) -> bytes:
    """Return items, each with its length, then a length of 0. Items must not be empty."""
    written = list(map(sized, items))
    if b"\x00" in written:
        raise ValueError("a name or post is empty, which would end the list early")
    return b"".join([*written, b"\x00"])


def encode_extra(content: bytes, dialect: Dialect) -> bytes:
    """Encode a message of type EXTRA_TYPE_ID for another cablestore, with its length. Its request id is not used."""
    ids = bytes(dialect.circuit_id_size_bytes) + _EXTRA_ID_BYTE * dialect.request_id_size_bytes
    return sized(_EXTRA_HEAD + ids + content)


def extra_of(frame: bytes) -> bytes | None:
    """Return the content of a message of type EXTRA_TYPE_ID without its length, or None for other messages."""
    if not frame.startswith(_EXTRA_HEAD):
        return None
    return frame[len(_EXTRA_HEAD) + _IDS_SIZE_BYTES :]
