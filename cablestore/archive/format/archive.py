"""Encoding and decoding of archives. Pure.

An archive is padded to whole pieces, and encrypted if there is a key. A reader checks it against its index entry and
yields its messages one by one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cablestore.archive.format.fitting import smallest_within
from cablestore.archive.format.index import VerifiedIndex
from cablestore.archive.format.merkle import MerkleTree
from cablestore.archive.format.period import Period
from cablestore.archive.format.profile import Entry, Profile, Record, Topic, with_id
from cablestore.archive.format.seal import SEAL_OVERHEAD_BYTES, is_sealed, seal, unseal
from cablestore.errors import ArchiveError, CorruptStoreError, DecodeError
from cablestore.index.packing import pack, unpack
from cablestore.index.tombstone import Tombstone
from cablestore.limits import MAX_STORED_ARCHIVE_SIZE_BYTES, PIECE_SIZE_BYTES
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.keys import NS_PER_MS
from cablestore.protocol.post import Post, decode_post
from cablestore.protocol.protobuf import fields, sized_field
from cablestore.protocol.waku import WakuMessage, message_of

_PURPOSE: Final = b"archive"
_METADATA_FIELD, _MESSAGES_FIELD, _PADDING_FIELD = 2, 3, 4
"""Protobuf field numbers of an archive in both profiles."""
_TOMBSTONES_FIELD: Final = 1000
"""Field of cablestore, which other readers skip."""
_AROUND_TOMBSTONES_BYTES: Final = 2 * PIECE_SIZE_BYTES + SEAL_OVERHEAD_BYTES + 16
"""Maximum size of padding, encryption, and the lengths of the tombstone field and its list."""


@dataclass(frozen=True, slots=True)
class Archive:
    """Encoded archive.

    `stored` are its bytes in `data`: the document, then `padding_bytes` zeros. `merkle_root` is the root over its
    `num_posts` post hashes in order. `left_out` are the targets of tombstones that do not fit.
    """

    period: Period
    topics: tuple[Topic, ...]
    stored: bytes
    padding_bytes: int
    num_posts: int
    merkle_root: bytes
    left_out: tuple[bytes, ...] = ()

    @property
    def sha256(self) -> bytes:
        """SHA-256 of `stored`, 32 bytes."""
        return hashlib.sha256(self.stored).digest()

    def entry(self, profile: Profile, offset_bytes: int) -> Entry:
        """Return the archive's index entry for an offset in `data`."""
        size_bytes = len(self.stored)
        return with_id(profile, Entry("", self.period, self.topics, offset_bytes, size_bytes, self.padding_bytes))


def encode_archive(
    profile: Profile,
    period: Period,
    topics: tuple[Topic, ...],
    messages: Sequence[WakuMessage],
    key: bytes | None = None,
    tombstones: Sequence[Tombstone] = (),
) -> Archive:
    """Return the archive of `messages`, encrypted with a 32-byte cabal key if given, and padded to whole pieces.

    `topics` are the topics of the period in the profile's form (`topics_of`). `tombstones` describe the targets of the
    archive's post/deletes. They may be far larger than the post/deletes. Therefore the largest tombstones are left out
    if the archive would exceed `limits.MAX_STORED_ARCHIVE_SIZE_BYTES`. Raises ArchiveError if `messages` is empty, if
    a message is outside the period or the topics, or if the messages alone exceed that limit.
    """
    if not messages:
        raise ArchiveError(f"an archive of {period} needs at least one message")
    _check(profile, period, topics, messages)
    tree = MerkleTree(message.post_hash for message in messages)
    document = profile.document(period, topics, messages)
    told, left_out = _fitting(profile, len(document), tombstones, key)
    document += told
    document += profile.inner_padding(len(document) + (SEAL_OVERHEAD_BYTES if key is not None else 0))
    if key is not None:
        document = seal(document, key, purpose=_PURPOSE)
    padding_bytes = profile.outer_padding_bytes(len(document))
    stored = document + bytes(padding_bytes)
    if len(stored) > MAX_STORED_ARCHIVE_SIZE_BYTES:
        raise ArchiveError(
            f"archive too large: {len(stored)} bytes, the maximum is {MAX_STORED_ARCHIVE_SIZE_BYTES}. Split its "
            "messages into chunks"
        )
    return Archive(period, topics, stored, padding_bytes, tree.size, tree.root(), left_out)


def _fitting(
    profile: Profile, size_bytes: int, tombstones: Sequence[Tombstone], key: bytes | None
) -> tuple[bytes, tuple[bytes, ...]]:
    """Return the encoded field of the tombstones that fit, and the targets of the other tombstones.

    `size_bytes` is the size of the document without tombstones and padding, before encryption.
    """
    field = _written(tombstones)
    if _stored_size_bytes(profile, size_bytes + len(field), key) <= MAX_STORED_ARCHIVE_SIZE_BYTES:
        return field, ()
    room_bytes = MAX_STORED_ARCHIVE_SIZE_BYTES - size_bytes - _AROUND_TOMBSTONES_BYTES
    kept, _ = smallest_within(tombstones, room_bytes, lambda stone: (len(pack(_item(stone))), stone.target))
    remaining = frozenset(kept)
    field = _written([stone for stone in tombstones if stone in remaining])
    return field, tuple(stone.target for stone in tombstones if stone not in remaining)


def _stored_size_bytes(profile: Profile, size_bytes: int, key: bytes | None) -> int:
    """Return the size of the archive whose document has `size_bytes` before padding and encryption."""
    size_bytes += SEAL_OVERHEAD_BYTES if key is not None else 0
    size_bytes += len(profile.inner_padding(size_bytes))
    return size_bytes + profile.outer_padding_bytes(size_bytes)


def _check(profile: Profile, period: Period, topics: tuple[Topic, ...], messages: Sequence[WakuMessage]) -> None:
    known = frozenset(topics)
    strange = {topic for topic in {message.content_topic for message in messages} if profile.topic(topic) not in known}
    start_ns, stop_ns = period.from_ms * NS_PER_MS, period.to_ms * NS_PER_MS
    for message in messages:
        if not start_ns <= message.timestamp_ns < stop_ns or message.content_topic in strange:
            raise ArchiveError(
                f"post {message.post_hash.hex()} of {message.timestamp_ms} ms in {message.content_topic} is outside "
                f"{period} or of the archive's {len(topics)} topics. Put it into the archive of its week"
            )


def decode_archive(
    profile: Profile, stored: bytes, entry: Entry, key: bytes | None = None
) -> Iterator[Record | Tombstone]:
    """Yield the messages of an archive, then its tombstones. `stored` is its bytes, `entry` its index entry.

    With a key, the archive must be encrypted with this key. Without a key, it must not be encrypted. The size, the
    encryption and the padding after the document are checked first. Everything else is checked during reading. The
    document must be well-formed without unknown fields, and its metadata must match the index entry. Each message must
    be within the period and the topics, and padding within the document must be zeros at its end. Raises ArchiveError,
    possibly after some messages. Therefore, store the messages only after the last message.
    """
    if len(stored) > MAX_STORED_ARCHIVE_SIZE_BYTES:
        raise ArchiveError(
            f"archive too large: {len(stored)} bytes, the maximum is {MAX_STORED_ARCHIVE_SIZE_BYTES}. Contact the "
            "owner of the community"
        )
    if entry.cid is None and len(stored) != entry.size_bytes:
        raise ArchiveError(
            f"the archive has {len(stored)} bytes, expected {entry.size_bytes} as in its index. Fetch it again"
        )
    document = stored[: len(stored) - entry.padding_bytes] if entry.padding_bytes else stored
    if _has_more_than_zeros(stored[len(document) :]):
        raise ArchiveError(
            f"the {entry.padding_bytes} bytes of padding after the archive are not all zero. Fetch it again"
        )
    if key is not None:
        document = unseal(document, key, purpose=_PURPOSE)
    elif is_sealed(document):
        raise ArchiveError("the archive is encrypted, expected a public archive. Pass the cabal key (--cabal-key)")
    return _records(profile, document, entry)


def verified_post(profile: Profile, record: Record, dialect: Dialect) -> Post:
    """Return the decoded post of a message. All other fields of the message must match the post.

    The signature of the post is not checked: see `crypto.are_signed`. Raises ArchiveError if the post is malformed or a
    field does not match.
    """
    try:
        post = decode_post(record.payload, dialect)
    except DecodeError as error:
        raise ArchiveError(f"a message of the archive does not contain a {dialect.name} post: {error}") from None
    expected = profile.record(message_of(post))
    if record != expected:
        field, found, right = next(
            each for each in zip(Record._fields, record, expected, strict=True) if each[1] != each[2]
        )
        raise ArchiveError(f"invalid {field} of the message with {post!r}: expected {right!r}, got {found!r}")
    return post


def verified_content(
    verified: VerifiedIndex, entry: Entry, stored: bytes, dialect: Dialect, key: bytes | None = None
) -> tuple[list[Post], list[Tombstone]]:
    """Verify and return the posts and tombstones of an archive. Signatures of posts are not checked.

    Raises ArchiveError if the archive does not match its index entry, or a message does not contain a valid post.
    """
    stones: list[Tombstone] = []
    return list(verified_posts(verified, entry, stored, dialect, key, stones)), stones


def verified_posts(
    verified: VerifiedIndex,
    entry: Entry,
    stored: bytes,
    dialect: Dialect,
    key: bytes | None,
    stones: list[Tombstone],
) -> Iterator[Post]:
    """Verify and yield the posts of an archive, and append its tombstones to `stones`.

    Signatures of posts are not checked. Raises ArchiveError, possibly after some posts. Therefore, store the posts only
    after the last post.
    """
    profile = verified.index.profile
    commitment = verified.commitments[entry.archive_id]
    commitment.check_stored(stored)
    tree = MerkleTree()
    for record in decode_archive(profile, stored, entry, key):
        if isinstance(record, Tombstone):
            stones.append(record)
            continue
        if tree.size == commitment.num_posts:
            raise ArchiveError(
                f"archive {entry.archive_id} contains more posts than the {commitment.num_posts} that the control node "
                "signed. Do not import it. Request a new index"
            )
        post = verified_post(profile, record, dialect)
        tree.add(post.hash)
        yield post
    commitment.check_posts(tree)


def _written(tombstones: Sequence[Tombstone]) -> bytes:
    """Return the field of tombstones, msgpack [[target, author, value of the row], ...], or b"" without tombstones."""
    if not tombstones:
        return b""
    return sized_field(_TOMBSTONES_FIELD, pack([_item(stone) for stone in tombstones]))


def _item(stone: Tombstone) -> list[bytes]:
    return [stone.target, stone.author, stone.for_export().encode()]


def _tombstones(value: bytes) -> Iterator[Tombstone]:
    try:
        yield from map(Tombstone.read, unpack(value))
    except (CorruptStoreError, TypeError, ValueError):
        raise ArchiveError(
            "cannot read the tombstones of the archive. A newer version of cablestore may support them"
        ) from None


def _records(profile: Profile, document: bytes, entry: Entry) -> Iterator[Record | Tombstone]:
    found = fields(document, "archive")
    if next(found, None) != (_METADATA_FIELD, profile.write_metadata(entry.period, entry.topics)):
        raise ArchiveError("the metadata in the archive and in the index differ. Fetch both again")
    topics = frozenset(entry.topics)
    start, stop = (profile.timestamp(bound_ms) for bound_ms in entry.period)
    is_at_end = False
    for field, value in found:
        if is_at_end:
            raise ArchiveError(f"unexpected field {field} after the padding of the archive")
        if field == _PADDING_FIELD and _is_padding(profile, value):
            is_at_end = True
            continue
        if field == _TOMBSTONES_FIELD and isinstance(value, bytes):
            yield from _tombstones(value)
            continue
        if field != _MESSAGES_FIELD or not isinstance(value, bytes):
            raise ArchiveError(f"unknown field {field} in the archive. A newer version of cablestore may support it")
        record = profile.read_record(value)
        if not start <= record.timestamp < stop or record.topic not in topics:
            raise ArchiveError(
                f"a message with time {record.timestamp} and topic {record.topic!r} is outside {entry.period} "
                f"or of the {len(topics)} topics of the archive. The archive contradicts its metadata"
            )
        yield record


def _is_padding(profile: Profile, value: int | bytes) -> bool:
    return profile.pads_within and isinstance(value, bytes) and not _has_more_than_zeros(value)


def _has_more_than_zeros(data: bytes) -> bool:
    return data.count(0) != len(data)
