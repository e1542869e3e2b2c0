"""Documents: the indexed form of a post/text, and the words for its channel and author."""

from __future__ import annotations

from binascii import unhexlify
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NewType

from cablestore import limits
from cablestore.errors import DecodeError
from cablestore.protocol.body import TEXT
from cablestore.protocol.crypto import HASH_SIZE_BYTES, KEY_SIZE_BYTES
from cablestore.protocol.dialect import Dialect, fold_case
from cablestore.protocol.fields import as_text, read_sized
from cablestore.protocol.post import SIGNED_FROM
from cablestore.protocol.varint import read_varint
from cablestore.search.words import prepared

PREFIX_SIZE_BYTES: Final = 8
"""Number of leading bytes of a post's hash, a channel's hash or a public key that the index contains."""
TIE_BITS: Final = 4
"""Bits of an id after the milliseconds, for texts of the same time."""
MAX_ID: Final = (limits.MAX_TIMESTAMP_MS + 1 << TIE_BITS) - 1
Document = NewType("Document", bytes)
"""Indexed text, in the form in which SQLite accepts thousands in one call. Documents sort by ids.

    id         19 digits: the number of the text in FTS5, in order of time and hash. If another text has this number,
               FTS5 uses a free number above it, and the table contains both numbers
    hash       8 bytes, the beginning of the post's hash
    place      37 bytes, words for the channel and the author
    text       the prepared text"""
ID, HASH = slice(0, 19), slice(19, 27)
_CHANNEL, _AUTHOR = "ǀǁ"
"""First letters of the words for a channel and an author. Words of texts begin with them only in Khoisan languages, so
prefix searches in other languages do not read these words.
"""
_HASH_BITS: Final = 8 * PREFIX_SIZE_BYTES


def document_of(hash_hex: bytes, raw: bytes, dialect: Dialect) -> Document | None:
    """Return the document of a post, None if it is not a text. Decodes less than the whole post."""
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
        if not text.isascii():
            text = prepared(as_text(text, at, "text")).encode()
        prefix = unhexlify(hash_hex[: 2 * PREFIX_SIZE_BYTES])
        place = _place(channel, raw[:KEY_SIZE_BYTES], dialect.folds_channel_case)
        document = b"%019d%b%b%b" % ((timestamp_ms << TIE_BITS) + (prefix[0] >> 8 - TIE_BITS), prefix, place, text)
    except (DecodeError, IndexError, ValueError):
        return None  # `cablestore check` reports damage; search continues without the post
    return Document(document)


def id_of(document: Document) -> int:
    """Return the id of a document."""
    return int(document[ID])


def with_id(document: Document, number: int) -> Document:
    """Return a copy of a document with the id `number`."""
    return Document(b"%019d" % number + document[HASH.start :])


def place_of(own_id: int, prefix: bytes) -> int:
    """Return the position of a text among all texts, in order of time and hash.

    `own_id` is the id by its time and hash, even if FTS5 uses another number. `prefix` is the beginning of its hash.
    """
    return own_id << _HASH_BITS | int.from_bytes(prefix)


def hash_at(place: int) -> bytes:
    """Return the beginning of the hash of the text at the position `place`: see `place_of`."""
    return (place & (1 << _HASH_BITS) - 1).to_bytes(PREFIX_SIZE_BYTES)


def id_at(place: int) -> int:
    """Return the `own_id` of the text at the position `place`: see `place_of`."""
    return place >> _HASH_BITS


@lru_cache(maxsize=4096)
def _place(channel: bytes, public_key: bytes, folds_case: bool) -> bytes:
    name = as_text(channel, 0, "channel name")
    return f"{channel_word(fold_case(name) if folds_case else name)} {author_word(public_key)}".encode()


@lru_cache(maxsize=4096)
def channel_word(channel: str) -> str:
    """Return the word that stands for a channel in the index. It does not contain the channel's name."""
    return _CHANNEL + blake2b(channel.encode(), digest_size=PREFIX_SIZE_BYTES).hexdigest()


def author_word(public_key: bytes) -> str:
    """Return the word that stands for an author in the index."""
    return _AUTHOR + public_key[:PREFIX_SIZE_BYTES].hex()


def id_floor(timestamp_ms: int) -> int:
    """Return the smallest own id of a text with this timestamp, limited to 0 ... MAX_ID + 1."""
    return max(0, min(timestamp_ms << TIE_BITS, MAX_ID + 1))
