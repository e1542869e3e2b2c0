"""Documents: what the index has of a post/text, and how a query names its channel, its author and its time."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

from cablestore import limits
from cablestore.errors import DecodeError
from cablestore.protocol.body import TEXT, Text, read_body
from cablestore.protocol.crypto import HASH_SIZE_BYTES, KEY_SIZE_BYTES
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.post import SIGNED_FROM
from cablestore.protocol.varint import read_varint
from cablestore.search.words import prepared

PREFIX_SIZE_BYTES: Final = 8
"""Bytes of a hash, a channel's hash or a public key that the index has."""
TIE_BITS: Final = 4
"""Bits of an id after the milliseconds, for texts of the same time."""
MAX_ID: Final = (limits.MAX_TIMESTAMP_MS + 1 << TIE_BITS) - 1


class Document(NamedTuple):
    """Text that is indexed: its post's hash and time, words for its channel and author, and the prepared text."""

    hash: bytes
    timestamp_ms: int
    place: str
    text: str

    @property
    def id(self) -> int:
        """The id by which FTS5 has it in order of time and hash, unless another text has this id."""
        return id_floor(self.timestamp_ms) + (self.hash[0] >> 8 - TIE_BITS)


def document_of(digest: bytes, raw: bytes, dialect: Dialect) -> Document | None:
    """Return what is indexed of a post, None if it is no text. Less is decoded than of a whole post."""
    try:
        links, at = read_varint(raw, SIGNED_FROM)
        at += links * HASH_SIZE_BYTES
        if raw[at] != TEXT:
            return None
        timestamp_ms, at = read_varint(raw, at + 1)
        body, _ = read_body(TEXT, raw, at, dialect)
    except (DecodeError, IndexError):  # `cablestore check` finds damage, and search goes on without the post
        return None
    if not isinstance(body, Text):
        return None
    place = f"{channel_word(dialect.channel_id(body.channel))} {author_word(raw[:KEY_SIZE_BYTES])}"
    return Document(digest, timestamp_ms, place, prepared(body.text))


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
    """Return the beginning of a hash as SQLite has it: a signed number."""
    return int.from_bytes(digest[:PREFIX_SIZE_BYTES], "big", signed=True)


def prefix_of(number: int) -> bytes:
    """Return the beginning of a hash from its number."""
    return number.to_bytes(PREFIX_SIZE_BYTES, "big", signed=True)
