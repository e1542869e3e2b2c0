"""The two profiles of archives: `rfc61` follows RFC 61, and `status-go` follows the deployed software. Pure.

|                | rfc61                                | status-go                                          |
|----------------|--------------------------------------|----------------------------------------------------|
| message        | 14/WAKU2: payload, topic, timestamp  | author, payload, topic, timestamp, hash            |
| topic          | the content topic                    | the first four bytes of its Keccak-256             |
| time           | nanoseconds                          | seconds                                            |
| padding        | a field of zeros within the document | zeros after the document                           |
| index metadata | offset, number of pieces             | offset, size with padding, padding                 |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final, NamedTuple

from Crypto.Hash import keccak

from cablestore.archive.format.period import WEEK_MS, Period
from cablestore.errors import ArchiveError
from cablestore.limits import MAX_ARCHIVE_TOPICS, MAX_ARCHIVED_TIMESTAMP_MS, PIECE_SIZE_BYTES
from cablestore.protocol.crypto import KEY_SIZE_BYTES
from cablestore.protocol.keys import NS_PER_MS
from cablestore.protocol.protobuf import BYTES, STRING, UINT32, UINT64, Document, Field, Kind, repeated, sized_field
from cablestore.protocol.varint import encode_varint
from cablestore.protocol.waku import TOPICS_REMEMBERED, WAKU_MESSAGE, WakuMessage, decode_waku

Topic = str | bytes
"""Content topic in a profile: str in rfc61, 4 bytes in status-go."""

_MS_PER_S: Final = 1_000
_NS_PER_S: Final = _MS_PER_S * NS_PER_MS
_TOPIC_SIZE_BYTES: Final = 4
_METADATA_FIELD, _MESSAGES_FIELD, _PADDING_FIELD = 2, 3, 4
"""Field numbers of an archive."""
_VERSION: Final = 0
"""Version of all metadata. Protobuf does not write this value, because it is the default."""


def _metadata_table(topic: Kind) -> Document:
    """Return the protobuf fields of an archive's metadata. `topic` is the type of a content topic."""
    return Document(
        "WakuMessageArchiveMetadata",
        Field(1, "version", UINT32),
        Field(2, "from", UINT64),
        Field(3, "to", UINT64),
        Field(4, "contentTopic", topic, is_repeated=True),
    )


def _index_metadata_table(metadata: Document, *places: str) -> Document:
    """Return the protobuf fields of an index entry with offsets. `places` names the fields for the position."""
    return Document(
        "WakuMessageArchiveIndexMetadata",
        Field(1, "version", UINT32),
        Field(2, "metadata", metadata),
        *(Field(number, name, UINT64) for number, name in enumerate(places, 3)),
    )


def _codex_metadata_table(metadata: Document) -> Document:
    """Return the protobuf fields of an index entry with a content id."""
    return Document(
        "CodexWakuMessageArchiveIndexMetadata",
        Field(1, "version", UINT32),
        Field(2, "metadata", metadata),
        Field(3, "cid", STRING),
    )


STATUS_GO_MESSAGE: Final = Document(
    "WakuMessage",
    Field(1, "sig", BYTES),
    Field(2, "timestamp", UINT64),
    Field(3, "topic", BYTES),
    Field(4, "payload", BYTES),
    Field(5, "padding", BYTES),
    Field(6, "hash", BYTES),
    Field(7, "thirdPartyId", STRING),
)
"""Message of status-go."""


class Record(NamedTuple):
    """Message in an archive. `timestamp` is in the profile's unit; `sig` and `hash` are empty in rfc61."""

    payload: bytes
    topic: Topic
    timestamp: int
    sig: bytes = b""
    hash: bytes = b""


class Entry(NamedTuple):
    """Index entry of one archive: its id, period, topics and position.

    In `data`, the archive occupies `size_bytes` from `offset_bytes`. The last `padding_bytes` are zeros after the
    document (0 bytes in rfc61, which pads within the document). With a `cid`, the archive is stored under that content
    id, and the numbers are 0.
    """

    archive_id: str
    period: Period
    topics: tuple[Topic, ...]
    offset_bytes: int = 0
    size_bytes: int = 0
    padding_bytes: int = 0
    cid: str | None = None


class Profile(ABC):
    """Profile of archives. The modules `archive` and `index` contain the common parts of all profiles."""

    name: ClassVar[str]
    """Name of the profile in configurations and statements."""
    pads_within: ClassVar[bool]
    """True if padding is a field of the document, and not bytes after it."""
    archive_metadata: ClassVar[Document]
    """Protobuf fields of an archive's metadata."""
    index_metadata: ClassVar[Document]
    """Protobuf fields of an index entry with offsets."""
    codex_metadata: ClassVar[Document]
    """Protobuf fields of an index entry with a content id."""

    @abstractmethod
    def topic(self, content_topic: str) -> Topic:
        """Return a content topic as this profile writes it."""

    @abstractmethod
    def timestamp(self, timestamp_ms: int) -> int:
        """Return a time in the unit of this profile's documents, rounded down."""

    @abstractmethod
    def record(self, message: WakuMessage) -> Record:
        """Return a message as this profile stores it."""

    @abstractmethod
    def read_record(self, data: bytes) -> Record:
        """Decode one message of an archive. Raises ArchiveError if it is malformed."""

    @abstractmethod
    def inner_padding(self, size_bytes: int) -> bytes:
        """Return the padding field for a document that would have `size_bytes` without it, after encryption, if any."""

    @abstractmethod
    def outer_padding_bytes(self, size_bytes: int) -> int:
        """Return the number of zero bytes that follow a document. `size_bytes` is its size after encryption, if any."""

    def document(self, period: Period, topics: tuple[Topic, ...], messages: Sequence[WakuMessage]) -> bytes:
        """Return the bytes of an archive without padding."""
        head = sized_field(_METADATA_FIELD, self.write_metadata(period, topics))
        return head + repeated(_MESSAGES_FIELD, self._written(messages) if messages else ())

    def write_metadata(self, period: Period, topics: tuple[Topic, ...]) -> bytes:
        """Return the metadata at the beginning of an archive, which its index metadata repeats."""
        return self.archive_metadata.encode(*self._metadata(period, topics))

    def write_index_metadata(self, entry: Entry) -> bytes:
        """Return the metadata of an archive in an index. The id is the hash of these bytes."""
        metadata = self._metadata(entry.period, entry.topics)
        if entry.cid is not None:
            return self.codex_metadata.encode(_VERSION, metadata, entry.cid)
        return self.index_metadata.encode(_VERSION, metadata, *self._place(entry))

    def read_index_metadata(self, name: str, data: bytes, *, by_cid: bool) -> Entry:
        """Decode the index metadata of the archive with the id `name`. The id is not checked.

        Raises ArchiveError for malformed metadata.
        """
        if by_cid:
            _, metadata, cid = self.codex_metadata.decode(data)
            return Entry(name, *self._understood(metadata), cid=cid)
        _, metadata, *place = self.index_metadata.decode(data)
        return Entry(name, *self._understood(metadata), *self._read_place(*place))

    @abstractmethod
    def _written(self, messages: Sequence[WakuMessage]) -> Iterator[bytes]:
        """Yield the encoded messages of the document."""

    @abstractmethod
    def _time_ms(self, timestamp: int) -> int:
        """Return a document's time in milliseconds. Raises ArchiveError if the time is invalid."""

    @abstractmethod
    def _place(self, entry: Entry) -> tuple[int, ...]:
        """Return the fields of index metadata for an archive's position in `data`."""

    @abstractmethod
    def _read_place(self, *place: int) -> tuple[int, int, int]:
        """Return offset, size and padding in bytes from `place`, the fields that `_place` returns."""

    def _metadata(self, period: Period, topics: tuple[Topic, ...]) -> tuple[Any, ...]:
        return _VERSION, self.timestamp(period.from_ms), self.timestamp(period.to_ms), topics

    def _understood(self, metadata: Sequence[Any] | None) -> tuple[Period, tuple[Topic, ...]]:
        _, start, stop, content_topics = metadata or self.archive_metadata.decode(b"")
        period = Period(self._time_ms(start), self._time_ms(stop))
        if period.from_ms >= period.to_ms:
            raise ArchiveError(
                f"invalid period of an archive: it ends at {period.to_ms} ms, before its start at {period.from_ms} ms. "
                "Request a new index"
            )
        if period.to_ms > MAX_ARCHIVED_TIMESTAMP_MS + WEEK_MS:
            raise ArchiveError(
                f"invalid period of an archive: it ends at {period.to_ms} ms, archives store posts up to "
                f"{MAX_ARCHIVED_TIMESTAMP_MS} ms. Request a new index"
            )
        topics = tuple[Topic, ...](content_topics)
        if len(topics) > MAX_ARCHIVE_TOPICS:
            raise ArchiveError(f"too many topics of an archive: {len(topics)}, the maximum is {MAX_ARCHIVE_TOPICS}")
        if len(set(topics)) != len(topics):
            raise ArchiveError("an archive lists a topic twice. Request a new index")
        return period, topics


class _Rfc61(Profile):
    """Profile of RFC 61."""

    name: ClassVar = "rfc61"
    pads_within: ClassVar = True
    archive_metadata: ClassVar = _metadata_table(STRING)
    index_metadata: ClassVar = _index_metadata_table(archive_metadata, "offset", "num_pieces")
    codex_metadata: ClassVar = _codex_metadata_table(archive_metadata)

    def topic(self, content_topic: str) -> Topic:
        return content_topic

    def timestamp(self, timestamp_ms: int) -> int:
        return timestamp_ms * NS_PER_MS

    def record(self, message: WakuMessage) -> Record:
        return Record(message.payload, message.content_topic, message.timestamp_ns)

    def read_record(self, data: bytes) -> Record:
        message = decode_waku(data)
        return Record(message.payload, message.content_topic, message.timestamp_ns)

    def inner_padding(self, size_bytes: int) -> bytes:
        gap_bytes = -size_bytes % PIECE_SIZE_BYTES
        if gap_bytes == 0:
            return b""
        zeros = _zeros_that_fill(gap_bytes)
        if zeros is None:
            zeros = _zeros_that_fill(gap_bytes + PIECE_SIZE_BYTES)
        return sized_field(_PADDING_FIELD, bytes(zeros or 0))

    def outer_padding_bytes(self, size_bytes: int) -> int:  # noqa: ARG002 - all profiles have this signature
        return 0

    def _written(self, messages: Sequence[WakuMessage]) -> Iterator[bytes]:
        payloads, content_topics, timestamps_ns, _ = zip(*messages, strict=True)
        return WAKU_MESSAGE.encode_each(payloads, content_topics, timestamps_ns)

    def _time_ms(self, timestamp: int) -> int:
        if timestamp % NS_PER_MS:
            raise ArchiveError(
                f"invalid period of an archive: expected whole milliseconds, got {timestamp} ns. "
                "It is not an archive of Cable posts"
            )
        return timestamp // NS_PER_MS

    def _place(self, entry: Entry) -> tuple[int, ...]:
        return entry.offset_bytes, entry.size_bytes // PIECE_SIZE_BYTES

    def _read_place(self, *place: int) -> tuple[int, int, int]:
        offset_bytes, num_pieces = place
        return offset_bytes, num_pieces * PIECE_SIZE_BYTES, 0


class _StatusGo(Profile):
    """Profile of status-go."""

    name: ClassVar = "status-go"
    pads_within: ClassVar = False
    archive_metadata: ClassVar = _metadata_table(BYTES)
    index_metadata: ClassVar = _index_metadata_table(archive_metadata, "offset", "size", "padding")
    codex_metadata: ClassVar = _codex_metadata_table(archive_metadata)

    def topic(self, content_topic: str) -> Topic:
        return _topic_id(content_topic)

    def timestamp(self, timestamp_ms: int) -> int:
        return timestamp_ms // _MS_PER_S

    def record(self, message: WakuMessage) -> Record:
        topic = self.topic(message.content_topic)
        return Record(message.payload, topic, self.timestamp(message.timestamp_ms), message.author, message.hash)

    def read_record(self, data: bytes) -> Record:
        sig, timestamp, topic, payload, _, digest, _ = STATUS_GO_MESSAGE.decode(data)
        return Record(payload, topic, timestamp, sig, digest)

    def inner_padding(self, size_bytes: int) -> bytes:  # noqa: ARG002 - all profiles have this signature
        return b""

    def outer_padding_bytes(self, size_bytes: int) -> int:
        """Fill the last piece. As in status-go, a piece of zeros follows a document of two or more whole pieces."""
        if size_bytes <= PIECE_SIZE_BYTES:
            return PIECE_SIZE_BYTES - size_bytes
        return PIECE_SIZE_BYTES - size_bytes % PIECE_SIZE_BYTES

    def _written(self, messages: Sequence[WakuMessage]) -> Iterator[bytes]:
        payloads, content_topics, timestamps_ns, _ = zip(*messages, strict=True)
        return STATUS_GO_MESSAGE.encode_each(
            [payload[:KEY_SIZE_BYTES] for payload in payloads],
            [timestamp_ns // _NS_PER_S for timestamp_ns in timestamps_ns],
            map(_topic_id, content_topics),
            payloads,
            [b""] * len(messages),
            [message.hash for message in messages],
        )

    def _time_ms(self, timestamp: int) -> int:
        return timestamp * _MS_PER_S

    def _place(self, entry: Entry) -> tuple[int, ...]:
        return entry.offset_bytes, entry.size_bytes, entry.padding_bytes

    def _read_place(self, *place: int) -> tuple[int, int, int]:
        offset_bytes, size_bytes, padding_bytes = place
        return offset_bytes, size_bytes, padding_bytes

    def _metadata(self, period: Period, topics: tuple[Topic, ...]) -> tuple[Any, ...]:
        if period.from_ms % _MS_PER_S or period.to_ms % _MS_PER_S:
            raise ArchiveError(f"invalid period {period}: status-go requires whole seconds. Use whole weeks")
        return super()._metadata(period, topics)

    def _understood(self, metadata: Sequence[Any] | None) -> tuple[Period, tuple[Topic, ...]]:
        if metadata and any(len(topic) != _TOPIC_SIZE_BYTES for topic in metadata[-1]):
            raise ArchiveError(f"invalid topic of an archive: expected {_TOPIC_SIZE_BYTES} bytes. Check the profile")
        return super()._understood(metadata)


RFC61: Final[Profile] = _Rfc61()
STATUS_GO: Final[Profile] = _StatusGo()
PROFILES: Final = {profile.name: profile for profile in (RFC61, STATUS_GO)}


def topics_of(profile: Profile, content_topics: Iterable[str]) -> tuple[Topic, ...]:
    """Return sorted, distinct content topics in the profile's form.

    Raises ArchiveError for more than `limits.MAX_ARCHIVE_TOPICS`.
    """
    topics = {profile.topic(topic) for topic in content_topics}
    if len(topics) > MAX_ARCHIVE_TOPICS:
        raise ArchiveError(
            f"too many channels: posts in {len(topics)} channels, an archive has at most {MAX_ARCHIVE_TOPICS}. "
            "Drop channels, or the users who created them, with `cablestore drop`"
        )
    return tuple(sorted(topics, key=_topic_bytes))


def keccak256(data: bytes) -> bytes:
    """Return the 32-byte Keccak-256 of `data`.

    It differs from hashlib's SHA3-256 in its padding.
    """
    return keccak.new(digest_bits=256, data=data).digest()


def archive_id(index_metadata: bytes) -> str:
    """Return the id of the archive with this encoded index metadata: 0x and 64 hex digits, as in status-go.

    An id identifies an archive's position, period and channels. It does not depend on the archive's content.
    """
    return f"0x{keccak256(index_metadata).hex()}"


def with_id(profile: Profile, entry: Entry) -> Entry:
    """Return an entry with the id that its other fields determine."""
    return entry._replace(archive_id=archive_id(profile.write_index_metadata(entry)))


@lru_cache(TOPICS_REMEMBERED)
def _topic_id(content_topic: str) -> bytes:
    return keccak256(content_topic.encode())[:_TOPIC_SIZE_BYTES]


def _topic_bytes(topic: Topic) -> bytes:
    return topic.encode() if isinstance(topic, str) else topic


def _zeros_that_fill(gap_bytes: int) -> int | None:
    """Return the number of zeros in a padding field that occupies `gap_bytes` in total, with its tag and its length.

    Returns None if no such field exists: for a gap of 1 or 2 bytes, and for a gap (such as 130 or 16387 bytes) at which
    one more zero makes the length a byte longer.
    """
    for length_size_bytes in range(1, 5):
        zeros = gap_bytes - 1 - length_size_bytes
        if zeros > 0 and len(encode_varint(zeros)) == length_size_bytes:
            return zeros
    return None
