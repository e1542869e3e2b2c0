"""Columns of the data source: their names, types and values, as Arrow arrays of many posts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cablestore.index.packing import pack
from cablestore.index.tombstone import Skeleton, Tombstone, tombstones
from cablestore.protocol.body import LINKABLE_TYPES, TYPE_NAMES, Delete, Info, Text, Topic
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.protocol.post import Post

IN_CHANNELS: Final = [TYPE_NAMES[number] for number in sorted(LINKABLE_TYPES)]
"""Names of the types of post that are counted by channel."""
END_MS: Final = 253_402_300_800_000
"""The first millisecond after the year 9999, where the calendars of most tools end."""

_HEX_DIGITS: Final = 2 * HASH_SIZE_BYTES
_HASHES: Final = pa.list_(pa.field("element", pa.string()))
_MICROSECONDS: Final = pa.timestamp("us")


class Deletion(NamedTuple):
    """A deletion of a hash. `hash` and `timestamp_ms` identify the post/delete by `author`.

    A deletion from a tombstone contains the `skeleton` of the target.
    """

    target: bytes
    author: bytes
    hash: bytes
    timestamp_ms: int
    skeleton: Skeleton | None = None

    @classmethod
    def signed(cls, post: Post) -> list[Deletion]:
        """Return the deletions in a post/delete."""
        return [cls(stone.target, stone.author, post.hash, post.timestamp_ms) for stone in tombstones(post)]

    @classmethod
    def of_tombstone(cls, stone: Tombstone) -> Deletion:
        """Return the deletion that a tombstone records."""
        return cls(stone.target, stone.author, stone.deleted_by, stone.deleted_at_ms, stone.skeleton)


def no_values(_rows: Sequence[Any]) -> pa.Array:
    """Raise TypeError, because Spark computes this column."""
    raise TypeError("this column is computed, not read")


class Column(NamedTuple):
    """A column of a table: its types in Spark's DDL and in Arrow, its meaning, and a function for its values."""

    ddl: str
    arrow: pa.DataType
    meaning: str
    values: Callable[[Sequence[Any]], pa.Array] = no_values


def batch_of(columns: Mapping[str, Column], rows: Sequence[Any]) -> pa.RecordBatch:
    """Return the columns of rows as a record batch."""
    return pa.RecordBatch.from_arrays([column.values(rows) for column in columns.values()], schema=schema_of(columns))


def schema_of(columns: Mapping[str, Column]) -> pa.Schema:
    """Return the Arrow schema of columns."""
    return pa.schema([pa.field(name, of.arrow, nullable="NOT NULL" not in of.ddl) for name, of in columns.items()])


def ddl_of(columns: Mapping[str, Column]) -> str:
    """Return the schema of columns in Spark's DDL."""
    return ", ".join(f"{name} {column.ddl}" for name, column in columns.items())


# --- arrays --------------------------------------------------------------------------------------


def _hex(digests: Iterable[bytes]) -> pa.Array:
    """Return hashes or keys of 32 bytes as hexadecimal strings. All are encoded in one step."""
    digits = b"".join(digests).hex().encode()
    offsets = pa.array(range(0, len(digits) + 1, _HEX_DIGITS), pa.int32())
    return pa.StringArray.from_buffers(len(offsets) - 1, offsets.buffers()[1], pa.py_buffer(digits))


def _hashes(lists: Sequence[Sequence[bytes]]) -> pa.Array:
    offsets = pa.array(accumulate(map(len, lists), initial=0), pa.int32())
    return pa.ListArray.from_arrays(offsets, _hex(chain.from_iterable(lists)), type=_HASHES)


@cache
def _type_names() -> pa.Array:
    """Return the names of the types of post, by number. With the first array, PyArrow imports Pandas."""
    return pa.array([TYPE_NAMES.get(number) for number in range(max(TYPE_NAMES) + 1)])


def _types(numbers: list[int | None]) -> pa.Array:
    return pc.take(_type_names(), pa.array(numbers, pa.int8()))


def _times(timestamps_ms: list[int]) -> pa.Array:
    """Return times in UTC, null from the year 10000 on."""
    found = pa.array(timestamps_ms, pa.int64())
    within = pc.if_else(pc.less(found, END_MS), found, pa.scalar(None, pa.int64()))
    return within.cast(pa.timestamp("ms")).cast(_MICROSECONDS)


def _texts(values: list[str | None]) -> pa.Array:
    return pa.array(values, pa.string())


def _skeletons(rows: Sequence[Deletion]) -> list[Skeleton | None]:
    return [row.skeleton for row in rows]


# --- tables --------------------------------------------------------------------------------------

_HEX: Final = ("STRING NOT NULL", pa.string())
_TEXT: Final = ("STRING", pa.string())
_TIME: Final = ("TIMESTAMP_NTZ", _MICROSECONDS)
_MS: Final = ("BIGINT NOT NULL", pa.int64())

POSTS: Final[Mapping[str, Column]] = {
    "hash": Column(*_HEX, "hash of the post, 64 hex digits", lambda posts: _hex(post.hash for post in posts)),
    "author": Column(
        *_HEX, "public key of the post's author, 64 hex digits", lambda posts: _hex(p.author for p in posts)
    ),
    "type": Column(*_HEX, f"{', '.join(TYPE_NAMES.values())}", lambda posts: _types([post.type for post in posts])),
    "timestamp": Column(
        *_MS,
        "time that the post claims, milliseconds since 1970",
        lambda posts: pa.array([post.timestamp_ms for post in posts], pa.int64()),
    ),
    "time": Column(
        *_TIME,
        "`timestamp` in UTC; null after the year 9999",
        lambda posts: _times([post.timestamp_ms for post in posts]),
    ),
    "channel": Column(
        *_TEXT,
        "name by which channels are compared; null for types without a channel",
        lambda posts: _texts([post.channel for post in posts]),
    ),
    "text": Column(
        *_TEXT,
        "text of a post/text",
        lambda posts: _texts([post.body.text if isinstance(post.body, Text) else None for post in posts]),
    ),
    "topic": Column(
        *_TEXT,
        "topic that a post/topic sets; an empty topic clears it",
        lambda posts: _texts([post.body.topic if isinstance(post.body, Topic) else None for post in posts]),
    ),
    "name": Column(
        *_TEXT,
        "name that a post/info sets; null if it does not set a name",
        lambda posts: _texts([post.body.name if isinstance(post.body, Info) else None for post in posts]),
    ),
    "links": Column(
        "ARRAY<STRING> NOT NULL",
        _HASHES,
        "hashes to which the post links",
        lambda posts: _hashes([p.links for p in posts]),
    ),
    "targets": Column(
        "ARRAY<STRING> NOT NULL",
        _HASHES,
        "hashes that a post/delete names",
        lambda posts: _hashes([post.body.hashes if isinstance(post.body, Delete) else () for post in posts]),
    ),
    "raw": Column(
        "BINARY NOT NULL",
        pa.binary(),
        "the signed post",
        lambda posts: pa.array([post.raw for post in posts], pa.binary()),
    ),
}
"""Columns of `posts`, from lists of `Post`."""

DELETIONS: Final[Mapping[str, Column]] = {
    "target": Column(*_HEX, "hash that is deleted", lambda rows: _hex(row.target for row in rows)),
    "author": Column(*_HEX, "author of the post/delete", lambda rows: _hex(row.author for row in rows)),
    "hash": Column(*_HEX, "hash of the post/delete", lambda rows: _hex(row.hash for row in rows)),
    "timestamp": Column(
        *_MS,
        "time that the post/delete claims, milliseconds since 1970",
        lambda rows: pa.array([row.timestamp_ms for row in rows], pa.int64()),
    ),
    "time": Column(
        *_TIME, "`timestamp` in UTC; null after the year 9999", lambda rows: _times([row.timestamp_ms for row in rows])
    ),
    "is_signed": Column(
        "BOOLEAN NOT NULL",
        pa.bool_(),
        "true if a signed post/delete is the source, false for an unsigned tombstone",
        lambda rows: pa.array([row.skeleton is None for row in rows], pa.bool_()),
    ),
    "type": Column(
        *_TEXT,
        "type of the deleted post, from a tombstone",
        lambda rows: _types([None if bones is None else bones.type for bones in _skeletons(rows)]),
    ),
    "channel": Column(
        *_TEXT,
        "channel of the deleted post, from a tombstone",
        lambda rows: _texts([None if bones is None else bones.channel for bones in _skeletons(rows)]),
    ),
    "target_timestamp": Column(
        "BIGINT",
        pa.int64(),
        "time of the deleted post, from a tombstone, milliseconds since 1970",
        lambda rows: pa.array(
            [None if bones is None else bones.timestamp_ms for bones in _skeletons(rows)], pa.int64()
        ),
    ),
    "skeleton": Column(
        "BINARY",
        pa.binary(),
        "content of the tombstone: msgpack [type, timestamp, channel, links]",
        lambda rows: pa.array(
            [None if bones is None else pack(bones.fields()) for bones in _skeletons(rows)], pa.binary()
        ),
    ),
}
"""Columns of `deletions`, from lists of `Deletion`."""


# --- settled tables, which Spark computes ----------------------------------------------------------

_NAME: Final = Column("STRING", pa.string(), "current name of the author; the public key if the author has no name")
_CHANNEL: Final = Column("STRING", pa.string(), "name of the channel")
_COUNT: Final = ("BIGINT", pa.int64())


def _of_posts(*names: str) -> dict[str, Column]:
    return {name: POSTS[name]._replace(ddl=POSTS[name].ddl.removesuffix(" NOT NULL")) for name in names}


SETTLED: Final[Mapping[str, Mapping[str, Column]]] = {
    "posts": _of_posts(*(name for name in POSTS if name != "raw")),
    "messages": {
        **_of_posts("hash"),
        "channel": _CHANNEL,
        **_of_posts("author"),
        "name": _NAME,
        **_of_posts("timestamp", "time", "text", "links"),
    },
    "topics": {
        **_of_posts("hash"),
        "channel": _CHANNEL,
        **_of_posts("author"),
        "name": _NAME,
        **_of_posts("timestamp", "time", "topic"),
        "is_current": Column("BOOLEAN", pa.bool_(), "true if it is the channel's current topic"),
    },
    "members": {
        "channel": _CHANNEL,
        "author": Column("STRING", pa.string(), "public key of the member"),
        "name": _NAME,
        "type": Column("STRING", pa.string(), "type of the member's latest join, text or topic in the channel"),
        "timestamp": Column(*_COUNT, "time of the post that `hash` identifies, milliseconds since 1970"),
        "time": Column(*_TIME, "`timestamp` in UTC; null after the year 9999"),
        "hash": Column("STRING", pa.string(), "hash of the member's latest join, text or topic in the channel"),
    },
    "users": {
        "author": Column("STRING", pa.string(), "public key of the user"),
        "name": _NAME,
        "posts": Column(*_COUNT, "number of posts of all types"),
        "first_post": Column(*_TIME, "time of the user's first post, in UTC"),
        "last_post": Column(*_TIME, "time of the user's last post, in UTC"),
    },
    "channels": {
        "channel": _CHANNEL,
        "topic": Column("STRING", pa.string(), "current topic; empty if the channel has no topic"),
        "members": Column(*_COUNT, "number of members"),
        **{f"{kind}s": Column(*_COUNT, f"number of post/{kind} in the channel") for kind in IN_CHANNELS},
        "first_post": Column(*_TIME, "time of the first post in the channel, in UTC"),
        "last_post": Column(*_TIME, "time of the last post in the channel, in UTC"),
    },
    "deletions": {
        "target": Column("STRING", pa.string(), "hash of the deleted post"),
        "author": Column("STRING", pa.string(), "public key of the deleted post's author, who also deleted it"),
        "name": _NAME,
        "hash": Column("STRING", pa.string(), "hash of the post/delete; of several, the earliest by (timestamp, hash)"),
        "timestamp": Column(*_COUNT, "time of the post/delete that `hash` identifies, milliseconds since 1970"),
        "time": Column(*_TIME, "`timestamp` in UTC; null after the year 9999"),
        "type": Column("STRING", pa.string(), "type of the deleted post"),
        "channel": Column("STRING", pa.string(), "channel of the deleted post; null for types without a channel"),
        "target_timestamp": Column(*_COUNT, "time of the deleted post, milliseconds since 1970"),
    },
}
"""Columns of each settled table. All are nullable in the schema, because Spark computes them."""

BY_MONTH: Final = ("posts", "messages", "deletions")
"""Tables that grow with the history. Their files are partitioned by the month of `time`."""
