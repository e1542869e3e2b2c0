"""Post types: the body of each, and the table of their properties (wire.md 6.2, moderation.md 5.1).

Names, tallies, exports, reports and columns of tables follow from `POST_TYPES`. CONTRIBUTING.md describes how to add a
type. The body of a post follows its header. `read_body` is total: any bytes are decoded or raise DecodeError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, get_args

from cablestore.arguments import check_instance
from cablestore.errors import DecodeError
from cablestore.protocol import body_fields as form
from cablestore.protocol.dialect import DIALECTS, Dialect
from cablestore.protocol.keys import utf8
from cablestore.protocol.varint import encode_varint, read_varint
from cablestore.reprs import hex_repr

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

    __repr__ = hex_repr


@dataclass(frozen=True, slots=True)
class Info:
    """post/info: the properties of a user, as pairs in the signed order (wire.md 6.2.4)."""

    type: ClassVar[int] = INFO
    pairs: tuple[tuple[str, bytes], ...]

    __repr__ = hex_repr

    @property
    def name(self) -> str | None:
        """The name that the user chose, or None without a name."""
        value = dict(self.pairs).get("name")
        return None if value is None else value.decode()

    @property
    def accepts_role(self) -> bool:
        """True if the user accepts moderation roles from others. This is the default."""
        value = dict(self.pairs).get("accept-role")
        return value is None or read_varint(value, 0)[0] != 0

    @classmethod
    def of(cls, *, name: str | None = None, accept_role: bool | None = None, **others: bytes) -> Info:
        """Return an info with these properties. Raises ArgumentError for a name that cannot be encoded as UTF-8."""
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

    __repr__ = hex_repr


@dataclass(frozen=True, slots=True)
class Moderation:
    """post/moderation: hides or drops users, posts or a channel, or undoes it (moderation.md 5.1.3)."""

    type: ClassVar[int] = MODERATION
    reason: str
    privacy: int
    channel: str
    recipients: tuple[bytes, ...]
    action: int

    __repr__ = hex_repr


@dataclass(frozen=True, slots=True)
class Block:
    """post/block: stops the exchange of posts with users (moderation.md 5.1.4)."""

    type: ClassVar[int] = BLOCK
    reason: str
    privacy: int
    recipients: tuple[bytes, ...]
    drop: int
    notify: int

    __repr__ = hex_repr


@dataclass(frozen=True, slots=True)
class Unblock:
    """post/unblock: undoes a block (moderation.md 5.1.5)."""

    type: ClassVar[int] = UNBLOCK
    reason: str
    privacy: int
    recipients: tuple[bytes, ...]
    undrop: int

    __repr__ = hex_repr


Body = Text | Delete | Info | Topic | Join | Leave | Role | Moderation | Block | Unblock


class PostType(NamedTuple):
    """Type of post: the class of its body, and the fields of that class in the order of their bytes."""

    body: type[Body]
    fields: tuple[form.Field, ...]
    is_linkable: bool = False
    """True if posts link to their channel's heads and become heads themselves (wire.md 5.1.2.1)."""
    decides_membership: bool = False
    """True if the latest post with such a type decides whether its author is a channel's member (wire.md 5.4.3)."""
    dialects: frozenset[str] = frozenset(DIALECTS)
    """The names of the dialects that contain the type. In other dialects it is unknown."""

    @property
    def number(self) -> int:
        """The number in posts, keys and exports. It is at most 127, because it takes one byte in posts."""
        return self.body.type

    @property
    def name(self) -> str:
        """The name on the command line, in exports and in reports."""
        return self.body.__name__.lower()


POST_TYPES: Final = {
    kind.number: kind
    for kind in (
        PostType(Text, (form.CHANNEL, form.TEXT_LINE), is_linkable=True, decides_membership=True),
        PostType(Delete, (form.HASHES,)),
        PostType(Info, (form.PAIRS,)),
        PostType(Topic, (form.CHANNEL, form.TOPIC_LINE), is_linkable=True, decides_membership=True),
        PostType(Join, (form.CHANNEL,), is_linkable=True, decides_membership=True),
        PostType(Leave, (form.CHANNEL,), is_linkable=True, decides_membership=True),
        PostType(Role, (form.REASON, form.PRIVACY, form.CONTEXT, form.RECIPIENT, form.USER_ROLE)),
        PostType(Moderation, (form.REASON, form.PRIVACY, form.CONTEXT, form.RECIPIENTS, form.ACTION)),
        PostType(Block, (form.REASON, form.PRIVACY, form.USERS, form.DROP_FLAG, form.NOTIFY_FLAG)),
        PostType(Unblock, (form.REASON, form.PRIVACY, form.USERS, form.UNDROP_FLAG)),
    )
}
"""The table of post types, in order of their numbers."""
TYPE_NAMES: Final = {number: kind.name for number, kind in POST_TYPES.items()}
TYPE_NUMBERS: Final = {name: number for number, name in TYPE_NAMES.items()}
ALL_TYPES: Final = frozenset(POST_TYPES)
LINKABLE_TYPES: Final = frozenset(number for number, kind in POST_TYPES.items() if kind.is_linkable)
MEMBERSHIP_TYPES: Final = frozenset(number for number, kind in POST_TYPES.items() if kind.decides_membership)
MODERATION_TYPES: Final = frozenset(number for number, kind in POST_TYPES.items() if form.PRIVACY in kind.fields)
"""Types whose body starts with a reason and a privacy (moderation.md 5.1.1)."""
LEAST_CHANNEL_CODEPOINTS: Final = {
    number: int(form.CHANNEL in kind.fields)
    for number, kind in POST_TYPES.items()
    if form.CHANNEL in kind.fields or form.CONTEXT in kind.fields
}
"""Minimum length of the channel name, for each type with a channel. An empty name stands for the whole cabal."""
BEGIN_WITH_CHANNEL: Final = frozenset(number for number, kind in POST_TYPES.items() if kind.fields[0] is form.CHANNEL)
_FIELD_NAMES: Final = {number: tuple(each.name for each in fields(kind.body)) for number, kind in POST_TYPES.items()}


class _Form(NamedTuple):
    """Readers and writers of the fields of a body in one dialect."""

    body: type[Body]
    readers: tuple[form.Reader, ...]
    writers: tuple[form.Writer, ...]


def _form_in(dialect: Dialect, kind: PostType) -> _Form:
    def bound(function: Callable[..., Any], field: form.Field) -> Callable[..., Any]:
        return partial(function, dialect=dialect) if field.is_of_dialect else function

    readers = tuple(bound(field.read, field) for field in kind.fields)
    return _Form(kind.body, readers, tuple(bound(field.write, field) for field in kind.fields))


_FORMS: Final = {
    (number, dialect.name): _form_in(dialect, kind)
    for number, kind in POST_TYPES.items()
    for dialect in DIALECTS.values()
    if dialect.name in kind.dialects
}


def check_body(body: object) -> None:
    """Raise ArgumentError for a value that is not a body, or for a field with a wrong type.

    `encode_post` checks the sizes and ranges of the protocol.
    """
    check_instance("body", body, get_args(Body), "a body such as Text or Join")
    number: int = body.type  # type: ignore[attr-defined] # it is a body
    for name, field in zip(_FIELD_NAMES[number], POST_TYPES[number].fields, strict=True):
        field.check(f"{type(body).__name__}.{name}", getattr(body, name))


def read_body(post_type: int, buffer: bytes, at: int, dialect: Dialect) -> tuple[Body, int]:
    """Read the body of a post of this type at offset `at`. Return the body and the offset after it."""
    found = _FORMS.get((post_type, dialect.name))
    if found is None:
        raise DecodeError(at, f"unknown post type {post_type}", is_unknown_type=True)
    values = []
    for read in found.readers:
        value, at = read(buffer, at)
        values.append(value)
    return found.body(*values), at


def write_body(body: Body, dialect: Dialect) -> bytes:
    """Return the bytes of `body`. Limits are not checked here, because `encode_post` decodes the result."""
    found = _FORMS.get((body.type, dialect.name))
    if found is None:
        raise DecodeError(0, f"unknown post type {body.type}", is_unknown_type=True)
    return b"".join(
        [write(getattr(body, name)) for name, write in zip(_FIELD_NAMES[body.type], found.writers, strict=True)]
    )
