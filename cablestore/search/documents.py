"""Documents: what the index has of a post/text, and how a query names its channel, its author and its time."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

from cablestore import limits
from cablestore.errors import DecodeError
from cablestore.protocol.body import TEXT
from cablestore.protocol.crypto import HASH_SIZE_BYTES, KEY_SIZE_BYTES
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.fields import as_text, read_sized
from cablestore.protocol.post import SIGNED_FROM
from cablestore.protocol.varint import read_varint
from cablestore.search.words import prepared

PREFIX_SIZE_BYTES: Final = 8
"""Bytes of a hash, a channel's hash or a public key that the index has."""
TIE_BITS: Final = 4
"""Bits of an id after the milliseconds, for texts of the same time."""
MAX_ID: Final = (limits.MAX_TIMESTAMP_MS + 1 << TIE_BITS) - 1
_NUMBER_BITS: Final = 8 * PREFIX_SIZE_BYTES
_LEAST_NUMBER: Final = -(1 << _NUMBER_BITS - 1)


class Document(NamedTuple):
    """Text that is indexed.

    `id` is what FTS5 has it by in order of time and hash, unless another text has this id. `number` is the beginning of
    its post's hash, `place` are the words for its channel and author, and `text` is prepared.
    """

    id: int
    number: int
    place: str
    text: str


def document_of(hash_hex: bytes, raw: bytes, dialect: Dialect) -> Document | None:
    """Return what is indexed of a post, None if it is no text. Less is decoded than of a whole post."""
    try:
        links, at = read_varint(raw, SIGNED_FROM)
        at += links * HASH_SIZE_BYTES
        if raw[at] != TEXT:
            return None
        timestamp_ms, at = read_varint(raw, at + 1)
        channel, at = read_sized(raw, at, "channel name")
        text, _ = read_sized(raw, at, "text")
        if timestamp_ms > limits.MAX_TIMESTAMP_MS:
            return None
        number = int(hash_hex[: 2 * PREFIX_SIZE_BYTES], 16)
        return Document(
            (timestamp_ms << TIE_BITS) + (number >> _NUMBER_BITS - TIE_BITS),
            number + _LEAST_NUMBER,
            _place(channel, raw[:KEY_SIZE_BYTES], dialect),
            prepared(as_text(text, at, "text")),
        )
    except (DecodeError, IndexError):  # `cablestore check` finds damage, and search goes on without the post
        return None


@lru_cache(maxsize=4096)
def _place(channel: bytes, public_key: bytes, dialect: Dialect) -> str:
    name = dialect.channel_id(as_text(channel, 0, "channel name"))
    return f"{channel_word(name)} {author_word(public_key)}"


@lru_cache(maxsize=4096)
def channel_word(channel: str) -> str:
    """Return the word by which texts of a channel are found. It does not tell the channel's name."""
    return "c" + blake2b(channel.encode(), digest_size=PREFIX_SIZE_BYTES).hexdigest()


def author_word(public_key: bytes) -> str:
    """Return the word by which texts of an author are found."""
    return "a" + public_key[:PREFIX_SIZE_BYTES].hex()


def id_floor(timestamp_ms: int) -> int:
    """Return the first id of a millisecond."""
    return max(0, min(timestamp_ms << TIE_BITS, MAX_ID + 1))


def number_of(digest: bytes) -> int:
    """Return the beginning of a hash as SQLite has it: a signed number, in the order of hashes."""
    return int.from_bytes(digest[:PREFIX_SIZE_BYTES], "big") + _LEAST_NUMBER


def prefix_of(number: int) -> bytes:
    """Return the beginning of a hash from its number."""
    return (number - _LEAST_NUMBER).to_bytes(PREFIX_SIZE_BYTES, "big")
