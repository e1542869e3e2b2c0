"""Posts: the signed documents of Cable, with the header that they all have (wire.md 6.2.1).

    public_key u8[32] | signature u8[64] | num_links varint | links u8[32] each |
    post_type varint | timestamp varint | body

`decode_post` is total: any bytes are decoded or raise DecodeError, and numbers in them do not determine how much memory
is allocated. It does not verify the signature, because that takes thirty times longer (`crypto.is_signed`).
"""

from __future__ import annotations

from binascii import hexlify
from dataclasses import dataclass
from typing import Final

from cablestore import limits
from cablestore.arguments import check_bytes, check_id, check_instance, check_integer, checked_each
from cablestore.errors import ArgumentError, DecodeError
from cablestore.protocol.body import (
    LINKABLE_TYPES,
    LOCAL_ONLY,
    MODERATION_TYPES,
    PUBLIC,
    TYPE_NAMES,
    Body,
    check_body,
    read_body,
    write_body,
)
from cablestore.protocol.crypto import HASH_SIZE_BYTES, KEY_SIZE_BYTES, SIGNATURE_SIZE_BYTES, Identity, post_hash
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.fields import counted, read_hashes
from cablestore.protocol.keys import escape, sort_time
from cablestore.protocol.varint import encode_varint, read_varint

SIGNED_FROM: Final = KEY_SIZE_BYTES + SIGNATURE_SIZE_BYTES


@dataclass(slots=True, eq=False, repr=False)
class Post:
    """A decoded post, with the values that make up the keys of its rows.

    `raw` is the whole post, `hash` its 32-byte hash, `author` the 32-byte public key, `links` the hashes to which it
    links, `timestamp_ms` its claimed time in milliseconds since 1970. `channel` is the comparable name in the post's
    dialect, or None for types without a channel. `body` contains the channel name as the author signed it.
    """

    raw: bytes
    hash: bytes
    author: bytes
    links: tuple[bytes, ...]
    type: int
    timestamp_ms: int
    channel: str | None
    body: Body
    hash_hex: bytes
    author_hex: bytes
    sort_time: bytes
    channel_key: bytes
    """The channel's name as a key part, or b"" for a post without a channel."""
    is_local_only: bool
    """True if the post must not leave the store of its author (moderation.md 4.5)."""
    sealed: bytes | None = None
    """The encrypted post, stored instead of `raw` if the post is local-only (moderation.md 4.5)."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Post) and self.hash == other.hash

    def __repr__(self) -> str:
        return f"<post/{self.type_name} {self.hash.hex()[:12]} of {self.author.hex()[:8]} at {self.timestamp_ms}>"

    def __hash__(self) -> int:
        return hash(self.hash)

    @property
    def type_name(self) -> str:
        """The name of the type: text, delete, info, ..."""
        return TYPE_NAMES[self.type]

    @property
    def is_linkable(self) -> bool:
        """True if the post is part of its channel's history (wire.md 5.1.2.1)."""
        return self.type in LINKABLE_TYPES


def decode_post(raw: bytes, dialect: Dialect, digest: bytes | None = None) -> Post:
    """Decode a whole post without verifying its signature. Pass `digest` if the hash is already known.

    Raises DecodeError, with offset and reason, for bytes that are not a well-formed post of at most
    `limits.MAX_POST_SIZE_BYTES`. If the dialect does not contain the post's type, the error's `is_unknown_type` is True.
    """
    if type(raw) is not bytes:
        check_bytes("raw", raw)
    if type(dialect) is not Dialect:
        check_instance("dialect", dialect, Dialect)
    if len(raw) > limits.MAX_POST_SIZE_BYTES:
        raise DecodeError(0, f"the post has {len(raw)} bytes, the maximum is {limits.MAX_POST_SIZE_BYTES}")
    if len(raw) < SIGNED_FROM:
        raise DecodeError(len(raw), f"the post is truncated: its key and signature need {SIGNED_FROM} bytes")
    links, at = read_hashes(raw, SIGNED_FROM, "links")
    post_type, after_type = read_varint(raw, at)
    timestamp_ms, after_time = read_varint(raw, after_type)
    if timestamp_ms > limits.MAX_TIMESTAMP_MS:
        raise DecodeError(
            after_type, f"the timestamp is {timestamp_ms} ms, the maximum is {limits.MAX_TIMESTAMP_MS} ms"
        )
    try:
        body, end = read_body(post_type, raw, after_time, dialect)
    except DecodeError as error:
        error.add_note(f"in a post/{TYPE_NAMES.get(post_type, post_type)}")
        raise
    if end != len(raw):
        raise DecodeError(end, f"extra bytes after the end of the post/{TYPE_NAMES[post_type]}: {len(raw) - end}")
    if digest is None:
        digest = post_hash(raw)
    else:
        check_id("digest", digest)
    hash_hex = hexlify(digest)
    name = getattr(body, "channel", None)
    channel = None if name is None else dialect.channel_id(name)
    author = raw[:KEY_SIZE_BYTES]
    return Post(
        raw,
        digest,
        author,
        links,
        post_type,
        timestamp_ms,
        channel,
        body,
        hash_hex,
        hexlify(author),
        sort_time(timestamp_ms, hash_hex),
        escape(channel) if channel else b"",
        post_type in MODERATION_TYPES and getattr(body, "privacy", PUBLIC) == LOCAL_ONLY,
    )


def peek_type(raw: bytes) -> int | None:
    """Return the type of a post without decoding the rest, or None if the bytes end before it."""
    try:
        if raw[SIGNED_FROM] < 0x80:
            return raw[SIGNED_FROM + 1 + raw[SIGNED_FROM] * HASH_SIZE_BYTES]  # all types have one byte
        links, at = read_varint(raw, SIGNED_FROM)
        return raw[at + links * HASH_SIZE_BYTES]
    except (DecodeError, IndexError):
        return None


def encode_post(
    body: Body, *, links: tuple[bytes, ...], timestamp_ms: int, identity: Identity, dialect: Dialect
) -> Post:
    """Encode and sign a post. Raises ArgumentError if it exceeds a limit of the protocol."""
    check_body(body)
    checked_each("links", links, check_id)
    check_integer("timestamp_ms", timestamp_ms)
    check_instance("identity", identity, Identity)
    check_instance("dialect", dialect, Dialect)
    return sign_post(body, links, timestamp_ms, identity, dialect)


def sign_post(body: Body, links: tuple[bytes, ...], timestamp_ms: int, identity: Identity, dialect: Dialect) -> Post:
    """Encode and sign a post without checking arguments. Raises ArgumentError if it exceeds a limit of the protocol."""
    try:
        content = b"".join(
            (counted(links), encode_varint(body.type), encode_varint(timestamp_ms), write_body(body, dialect))
        )
        return decode_post(identity.public_key + identity.sign(content) + content, dialect)
    except UnicodeEncodeError as error:
        raise ArgumentError(
            f"the post/{TYPE_NAMES[body.type]} contains text that cannot be encoded in UTF-8: {error}"
        ) from None
    except (DecodeError, ValueError) as error:
        reason = error.reason if isinstance(error, DecodeError) else str(error)
        raise ArgumentError(f"cannot write this post/{TYPE_NAMES[body.type]}: {reason}") from None
