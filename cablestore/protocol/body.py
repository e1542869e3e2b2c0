"""Bodies of the ten post types: their fields, limits and bytes (wire.md 6.2, moderation.md 5.1).

The body of a post follows its header. `read_body` is total: any bytes give a body or a DecodeError. Only post/info
differs between the dialects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, get_args

from cablestore import limits
from cablestore.errors import DecodeError, UnknownPostTypeError
from cablestore.protocol.crypto import KEY_SIZE_BYTES
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.fields import as_text, counted, read_choice, read_hashes, read_sized, read_text, sized
from cablestore.protocol.keys import utf8
from cablestore.protocol.varint import encode_varint, read_varint

TEXT: Final = 0
DELETE: Final = 1
INFO: Final = 2
TOPIC: Final = 3
JOIN: Final = 4
LEAVE: Final = 5
ROLE: Final = 6
MODERATION: Final = 7
BLOCK: Final = 8
UNBLOCK: Final = 9

LINKABLE_TYPES: Final = frozenset({TEXT, TOPIC, JOIN, LEAVE})
"""Types that link to a channel's heads and become heads themselves (wire.md 5.1.2.1)."""
LEAST_CHANNEL_CODEPOINTS: Final = {TEXT: 1, TOPIC: 1, JOIN: 1, LEAVE: 1, ROLE: 0, MODERATION: 0}
"""Size of the shortest channel name, by types that have a channel. An empty name is the whole cabal."""
MODERATION_TYPES: Final = frozenset({ROLE, MODERATION, BLOCK, UNBLOCK})
"""Types with a body that begins with a reason and a privacy (moderation.md 5.1.1)."""

PUBLIC: Final = 0
LOCAL_ONLY: Final = 1
"""Privacy of a moderation post that never leaves the store of its author (moderation.md 4.5)."""


@dataclass(frozen=True, slots=True)
class Text:
    """post/text: a chat message of at most 4096 bytes (wire.md 6.2.2)."""

    type: ClassVar[int] = TEXT
    channel: str
    text: str


@dataclass(frozen=True, slots=True)
class Delete:
    """post/delete: the 32-byte hashes of posts of the same author to delete (wire.md 6.2.3)."""

    type: ClassVar[int] = DELETE
    hashes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Info:
    """post/info: everything that a user tells about itself, as pairs in the signed order (wire.md 6.2.4)."""

    type: ClassVar[int] = INFO
    pairs: tuple[tuple[str, bytes], ...]

    @property
    def name(self) -> str | None:
        """The name that the user chose, None without one."""
        value = dict(self.pairs).get("name")
        return None if value is None else value.decode()

    @property
    def accepts_role(self) -> bool:
        """Whether the user accepts moderation roles from others. The default is yes."""
        value = dict(self.pairs).get("accept-role")
        return value is None or read_varint(value, 0)[0] != 0

    @classmethod
    def of(cls, *, name: str | None = None, accept_role: bool | None = None, **others: bytes) -> Info:
        """Make an info with these properties. Raises InvalidPostError for a name that UTF-8 cannot say."""
        pairs: list[tuple[str, bytes]] = []
        if name is not None:
            pairs.append(("name", utf8(name, "the user name")))
        if accept_role is not None:
            pairs.append(("accept-role", encode_varint(int(accept_role))))
        return cls((*pairs, *others.items()))


@dataclass(frozen=True, slots=True)
class Topic:
    """post/topic: the topic of a channel; empty clears it (wire.md 6.2.5)."""

    type: ClassVar[int] = TOPIC
    channel: str
    topic: str


@dataclass(frozen=True, slots=True)
class Join:
    """post/join: the author joins a channel (wire.md 6.2.6)."""

    type: ClassVar[int] = JOIN
    channel: str


@dataclass(frozen=True, slots=True)
class Leave:
    """post/leave: the author leaves a channel (wire.md 6.2.7)."""

    type: ClassVar[int] = LEAVE
    channel: str


@dataclass(frozen=True, slots=True)
class Role:
    """post/role: makes `recipient` admin (0), mod (1) or user (2); channel "" is the cabal (moderation.md 5.1.2)."""

    type: ClassVar[int] = ROLE
    reason: str
    privacy: int
    channel: str
    recipient: bytes
    role: int


@dataclass(frozen=True, slots=True)
class Moderation:
    """post/moderation: hides or drops users, posts or a channel, or undoes it (moderation.md 5.1.3)."""

    type: ClassVar[int] = MODERATION
    reason: str
    privacy: int
    channel: str
    recipients: tuple[bytes, ...]
    action: int


@dataclass(frozen=True, slots=True)
class Block:
    """post/block: stops the exchange of posts with users (moderation.md 5.1.4)."""

    type: ClassVar[int] = BLOCK
    reason: str
    privacy: int
    recipients: tuple[bytes, ...]
    drop: int
    notify: int


@dataclass(frozen=True, slots=True)
class Unblock:
    """post/unblock: undoes a block (moderation.md 5.1.5)."""

    type: ClassVar[int] = UNBLOCK
    reason: str
    privacy: int
    recipients: tuple[bytes, ...]
    undrop: int


Body = Text | Delete | Info | Topic | Join | Leave | Role | Moderation | Block | Unblock
TYPE_NAMES: Final[dict[int, str]] = {body.type: body.__name__.lower() for body in get_args(Body)}
_FieldReader = Callable[[bytes, int], tuple[Any, int]]
_BodyReader = Callable[[bytes, int, Dialect], tuple[Body, int]]


def read_body(post_type: int, buffer: bytes, at: int, dialect: Dialect) -> tuple[Body, int]:
    """Read the body of a post of this type at offset `at`. Return it and the offset after it."""
    reader = _READERS.get(post_type)
    if reader is None:
        raise UnknownPostTypeError(at, f"unknown post type {post_type}")
    return reader(buffer, at, dialect)


def write_body(body: Body, dialect: Dialect) -> bytes:  # noqa: PLR0911 - one return a type
    """Return the bytes of `body`. Limits are not checked here, because `encode_post` reads the bytes back."""
    match body:
        case Text(channel, text) | Topic(channel, text):
            return sized(channel.encode()) + sized(text.encode())
        case Delete(hashes):
            return counted(hashes)
        case Info(pairs):
            return _write_info(pairs, dialect)
        case Join(channel) | Leave(channel):
            return sized(channel.encode())
        case Role(reason, privacy, channel, recipient, role):
            return _write_moderation(reason, privacy) + sized(channel.encode()) + recipient + encode_varint(role)
        case Moderation(reason, privacy, channel, recipients, action):
            context = _write_moderation(reason, privacy) + sized(channel.encode())
            return context + counted(recipients) + encode_varint(action)
        case Block(reason, privacy, recipients, drop, notify):
            flags = encode_varint(drop) + encode_varint(notify)
            return _write_moderation(reason, privacy) + counted(recipients) + flags
        case Unblock(reason, privacy, recipients, undrop):
            return _write_moderation(reason, privacy) + counted(recipients) + encode_varint(undrop)


def _read_channel(buffer: bytes, at: int) -> tuple[str, int]:
    return read_text(buffer, at, "channel name", 1, limits.MAX_CHANNEL_CODEPOINTS)


def _read_text_body(buffer: bytes, at: int, _dialect: Dialect) -> tuple[Body, int]:
    channel, at = _read_channel(buffer, at)
    data, end = read_sized(buffer, at, "text")
    if len(data) > limits.MAX_TEXT_SIZE_BYTES:
        raise DecodeError(at, f"the text has {len(data)} bytes, allowed are {limits.MAX_TEXT_SIZE_BYTES}")
    return Text(channel, as_text(data, at, "text")), end


def _read_delete(buffer: bytes, at: int, _dialect: Dialect) -> tuple[Body, int]:
    hashes, at = read_hashes(buffer, at, "deletions")
    return Delete(hashes), at


def _read_topic(buffer: bytes, at: int, _dialect: Dialect) -> tuple[Body, int]:
    channel, at = _read_channel(buffer, at)
    topic, at = read_text(buffer, at, "topic", 0, limits.MAX_TOPIC_CODEPOINTS)
    return Topic(channel, topic), at


def _read_join(buffer: bytes, at: int, _dialect: Dialect) -> tuple[Body, int]:
    channel, at = _read_channel(buffer, at)
    return Join(channel), at


def _read_leave(buffer: bytes, at: int, _dialect: Dialect) -> tuple[Body, int]:
    channel, at = _read_channel(buffer, at)
    return Leave(channel), at


def _read_info(buffer: bytes, at: int, dialect: Dialect) -> tuple[Body, int]:
    pairs: list[tuple[str, bytes]] = []
    if dialect.info_is_counted:
        count, at = read_varint(buffer, at)
        if count > len(buffer) - at:
            raise DecodeError(at, f"{count} pairs are claimed, but {len(buffer) - at} bytes are left")
        for _ in range(count):
            pair, at = _read_pair(buffer, at)
            pairs.append(pair)
        return Info(tuple(pairs)), at
    while True:
        size, after_size = read_varint(buffer, at)
        if size == 0:
            return Info(tuple(pairs)), after_size
        pair, at = _read_pair(buffer, at)
        pairs.append(pair)


def _read_pair(buffer: bytes, at: int) -> tuple[tuple[str, bytes], int]:
    key, at = read_text(buffer, at, "info key", 1, limits.MAX_INFO_KEY_CODEPOINTS)
    value, end = read_sized(buffer, at, "info value")
    if len(value) > limits.MAX_INFO_VALUE_SIZE_BYTES:
        raise DecodeError(at, f"the info value has {len(value)} bytes, allowed are {limits.MAX_INFO_VALUE_SIZE_BYTES}")
    if key == "name":
        _check_name(value, at)
    elif key == "accept-role" and read_varint(buffer, end - len(value))[1] != end:
        raise DecodeError(at, "the value of accept-role must be exactly one varint")
    return (key, value), end


def _check_name(value: bytes, at: int) -> None:
    size = len(as_text(value, at, "user name"))
    if not 1 <= size <= limits.MAX_USER_NAME_CODEPOINTS:
        raise DecodeError(
            at, f"the user name has {size} code points, allowed are 1 to {limits.MAX_USER_NAME_CODEPOINTS}"
        )


def _write_info(pairs: tuple[tuple[str, bytes], ...], dialect: Dialect) -> bytes:
    data = b"".join([sized(key.encode()) + sized(value) for key, value in pairs])
    return encode_varint(len(pairs)) + data if dialect.info_is_counted else data + b"\x00"


def _write_moderation(reason: str, privacy: int) -> bytes:
    return sized(reason.encode()) + encode_varint(privacy)


# --- moderation: each type is a reason, a privacy and further fields (moderation.md 5.1) ----------


def _read_reason(buffer: bytes, at: int) -> tuple[str, int]:
    return read_text(buffer, at, "reason", 0, limits.MAX_REASON_CODEPOINTS)


def _read_context(buffer: bytes, at: int) -> tuple[str, int]:
    return read_text(buffer, at, "channel name", 0, limits.MAX_CHANNEL_CODEPOINTS)


def _read_recipient(buffer: bytes, at: int) -> tuple[bytes, int]:
    recipient = buffer[at : at + KEY_SIZE_BYTES]
    if len(recipient) != KEY_SIZE_BYTES:
        raise DecodeError(at, f"the recipient has {KEY_SIZE_BYTES} bytes, but {len(recipient)} are left")
    return recipient, at + KEY_SIZE_BYTES


def _read_recipients(buffer: bytes, at: int) -> tuple[tuple[bytes, ...], int]:
    return read_hashes(buffer, at, "recipients")


def _read_users(buffer: bytes, at: int) -> tuple[tuple[bytes, ...], int]:
    recipients, end = _read_recipients(buffer, at)
    if not 1 <= len(recipients) <= limits.MAX_RECIPIENTS:
        raise DecodeError(at, f"{len(recipients)} recipients are named, allowed are 1 to {limits.MAX_RECIPIENTS}")
    return recipients, end


def _moderation(kind: Callable[..., Body], *readers: _FieldReader) -> _BodyReader:
    """Return the reader of a type: reason and privacy, then its other fields in order."""
    all_readers = (_read_reason, _choice("privacy", LOCAL_ONLY), *readers)

    def read(buffer: bytes, at: int, _dialect: Dialect) -> tuple[Body, int]:
        values = []
        for read_field in all_readers:
            value, at = read_field(buffer, at)
            values.append(value)
        return kind(*values), at

    return read


def _choice(what: str, most: int) -> _FieldReader:
    return lambda buffer, at: read_choice(buffer, at, what, most)


_READERS: Final[dict[int, _BodyReader]] = {
    TEXT: _read_text_body,
    DELETE: _read_delete,
    INFO: _read_info,
    TOPIC: _read_topic,
    JOIN: _read_join,
    LEAVE: _read_leave,
    ROLE: _moderation(Role, _read_context, _read_recipient, _choice("role", 2)),
    MODERATION: _moderation(Moderation, _read_context, _read_recipients, _choice("action", 7)),
    BLOCK: _moderation(Block, _read_users, _choice("drop flag", 1), _choice("notify flag", 1)),
    UNBLOCK: _moderation(Unblock, _read_users, _choice("undrop flag", 1)),
}
