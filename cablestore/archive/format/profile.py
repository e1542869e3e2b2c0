"""The two forms of archives: `rfc61`, as RFC 61 writes them, and `status-go`, as deployed.

They differ in every part. Pure.

|                | rfc61                                | status-go                                          |
|----------------|--------------------------------------|----------------------------------------------------|
| message        | 14/WAKU2: payload, topic, timestamp  | author, payload, topic, timestamp, hash            |
| topic          | the content topic                    | the first four bytes of its Keccak-256             |
| time           | nanoseconds                          | seconds                                            |
| padding        | a field of zeros within the document | zeros after the document                           |
| index metadata | offset, number of pieces             | offset, size with padding, padding                 |
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from Crypto.Hash import keccak

from cablestore.archive.format.documents import parsed, written
from cablestore.archive.format.period import Period
from cablestore.archive.proto import rfc61_pb2, status_go_pb2, waku_pb2
from cablestore.errors import ArchiveError
from cablestore.limits import MAX_ARCHIVE_TOPICS, PIECE_SIZE_BYTES
from cablestore.protocol.keys import NS_PER_MS
from cablestore.protocol.protobuf import repeated
from cablestore.protocol.varint import encode_varint
from cablestore.protocol.waku import WakuMessage

Topic = str | bytes
"""A content topic in a profile: str in rfc61, 4 bytes in status-go."""

_MS_PER_S: Final = 1_000
_TOPIC_SIZE_BYTES: Final = 4
_MESSAGES_FIELD: Final = 3
_TOPICS_REMEMBERED: Final = 4096


class Record(NamedTuple):
    """A message as an archive keeps it. `timestamp` is in the profile's unit; `sig` and `hash` are empty in rfc61."""

    payload: bytes
    topic: Topic
    timestamp: int
    sig: bytes = b""
    hash: bytes = b""


class Entry(NamedTuple):
    """An index entry of one archive: its id, period and topics, and where the archive is.

    In `data` it has `size_bytes` from `offset_bytes` on; the last `padding_bytes` of them follow the document (none in
    rfc61, which pads within the document). If `cid` is given, the archive is under that content id and the numbers are
    0.
    """

    archive_id: str
    period: Period
    topics: tuple[Topic, ...]
    offset_bytes: int = 0
    size_bytes: int = 0
    padding_bytes: int = 0
    cid: str | None = None


class Profile(Protocol):
    """A form of archives. `archive` and `index` have what all forms have in common."""

    @property
    def name(self) -> str:
        """The profile's name in configurations and statements."""

    @property
    def pads_within(self) -> bool:
        """Whether padding is a field of the document instead of bytes after it."""

    def topic(self, content_topic: str) -> Topic:
        """Return a content topic as this profile writes it."""

    def record(self, message: WakuMessage) -> Record:
        """Return a message as this profile keeps it."""

    def read_record(self, data: bytes) -> Record:
        """Decode one message of an archive. Raises ArchiveError."""

    def timestamp(self, timestamp_ms: int) -> int:
        """Return a time in the unit of this profile's documents, rounded down."""

    def document(self, period: Period, topics: tuple[Topic, ...], messages: Iterable[WakuMessage]) -> bytes:
        """Return the bytes of an archive without padding."""

    def inner_padding(self, size_bytes: int) -> bytes:
        """Return the padding field for a document that has `size_bytes` once it is sealed."""

    def outer_padding_bytes(self, size_bytes: int) -> int:
        """Return the number of zero bytes after a document of `size_bytes`, sealed or not."""

    def write_metadata(self, period: Period, topics: tuple[Topic, ...]) -> bytes:
        """Return the metadata at the beginning of an archive, which its index metadata repeats."""

    def write_index_metadata(self, entry: Entry) -> bytes:
        """Return the metadata of an archive in an index. The id is the hash of these bytes."""

    def read_index_metadata(self, name: str, data: bytes, *, by_cid: bool) -> Entry:
        """Decode index metadata. `name` is the id in the index, which is not checked here. Raises ArchiveError."""


class _Rfc61:
    """The profile of RFC 61 as written."""

    name: Final = "rfc61"
    pads_within: Final = True

    def topic(self, content_topic: str) -> Topic:
        return content_topic

    def timestamp(self, timestamp_ms: int) -> int:
        return timestamp_ms * NS_PER_MS

    def record(self, message: WakuMessage) -> Record:
        return Record(message.payload, message.content_topic, message.timestamp_ns)

    def read_record(self, data: bytes) -> Record:
        message = parsed(waku_pb2.WakuMessage, data)
        return Record(message.payload, message.content_topic, message.timestamp)

    def document(self, period: Period, topics: tuple[Topic, ...], messages: Iterable[WakuMessage]) -> bytes:
        head = rfc61_pb2.WakuMessageArchive(metadata=self._metadata(period, topics))
        return written(head) + repeated(
            _MESSAGES_FIELD,
            (
                waku_pb2.WakuMessage(payload=payload, content_topic=topic, timestamp=timestamp_ns).SerializeToString()
                for payload, topic, timestamp_ns, _ in messages
            ),
        )

    def inner_padding(self, size_bytes: int) -> bytes:
        gap_bytes = -size_bytes % PIECE_SIZE_BYTES
        if gap_bytes == 0:
            return b""
        zeros = _zeros_that_fill(gap_bytes)
        if zeros is None:
            zeros = _zeros_that_fill(gap_bytes + PIECE_SIZE_BYTES)
        return written(rfc61_pb2.WakuMessageArchive(padding=bytes(zeros or 0)))

    def outer_padding_bytes(self, size_bytes: int) -> int:  # noqa: ARG002 - the signature is that of all profiles
        return 0

    def write_metadata(self, period: Period, topics: tuple[Topic, ...]) -> bytes:
        return written(self._metadata(period, topics))

    def write_index_metadata(self, entry: Entry) -> bytes:
        metadata = self._metadata(entry.period, entry.topics)
        if entry.cid is not None:
            return written(rfc61_pb2.CodexWakuMessageArchiveIndexMetadata(metadata=metadata, cid=entry.cid))
        num_pieces = entry.size_bytes // PIECE_SIZE_BYTES
        return written(
            rfc61_pb2.WakuMessageArchiveIndexMetadata(
                metadata=metadata, offset=entry.offset_bytes, num_pieces=num_pieces
            )
        )

    def read_index_metadata(self, name: str, data: bytes, *, by_cid: bool) -> Entry:
        if by_cid:
            codex = parsed(rfc61_pb2.CodexWakuMessageArchiveIndexMetadata, data)
            return Entry(name, *self._understood(codex.metadata), cid=codex.cid)
        found = parsed(rfc61_pb2.WakuMessageArchiveIndexMetadata, data)
        return Entry(name, *self._understood(found.metadata), found.offset, found.num_pieces * PIECE_SIZE_BYTES)

    def _metadata(self, period: Period, topics: tuple[Topic, ...]) -> rfc61_pb2.WakuMessageArchiveMetadata:
        names = [topic for topic in topics if isinstance(topic, str)]
        bounds = {"from": period.from_ms * NS_PER_MS, "to": period.to_ms * NS_PER_MS}
        return rfc61_pb2.WakuMessageArchiveMetadata(**bounds, contentTopic=names)

    def _understood(self, metadata: rfc61_pb2.WakuMessageArchiveMetadata) -> tuple[Period, tuple[Topic, ...]]:
        bounds_ns = getattr(metadata, "from"), metadata.to
        if any(bound_ns % NS_PER_MS for bound_ns in bounds_ns):
            raise ArchiveError(
                f"the period {bounds_ns} ns is not of whole milliseconds. It is not an archive of Cable posts"
            )
        return _checked_period(*(bound_ns // NS_PER_MS for bound_ns in bounds_ns)), _checked_topics(metadata)


class _StatusGo:
    """The profile that status-go writes."""

    name: Final = "status-go"
    pads_within: Final = False

    def topic(self, content_topic: str) -> Topic:
        return _topic_id(content_topic)

    def timestamp(self, timestamp_ms: int) -> int:
        return timestamp_ms // _MS_PER_S

    def record(self, message: WakuMessage) -> Record:
        topic = self.topic(message.content_topic)
        return Record(message.payload, topic, self.timestamp(message.timestamp_ms), message.author, message.hash)

    def read_record(self, data: bytes) -> Record:
        message = parsed(status_go_pb2.WakuMessage, data)
        return Record(message.payload, message.topic, message.timestamp, message.sig, message.hash)

    def document(self, period: Period, topics: tuple[Topic, ...], messages: Iterable[WakuMessage]) -> bytes:
        head = status_go_pb2.WakuMessageArchive(metadata=self._metadata(period, topics))
        return written(head) + repeated(
            _MESSAGES_FIELD,
            (
                status_go_pb2.WakuMessage(
                    payload=message.payload,
                    topic=_topic_id(message.content_topic),
                    timestamp=self.timestamp(message.timestamp_ms),
                    sig=message.author,
                    hash=message.hash,
                ).SerializeToString()
                for message in messages
            ),
        )

    def inner_padding(self, size_bytes: int) -> bytes:  # noqa: ARG002 - the signature is that of all profiles
        return b""

    def outer_padding_bytes(self, size_bytes: int) -> int:
        """Fill the last piece. A document of two or more whole pieces gets one more piece of zeros, as deployed."""
        if size_bytes <= PIECE_SIZE_BYTES:
            return PIECE_SIZE_BYTES - size_bytes
        return PIECE_SIZE_BYTES - size_bytes % PIECE_SIZE_BYTES

    def write_metadata(self, period: Period, topics: tuple[Topic, ...]) -> bytes:
        return written(self._metadata(period, topics))

    def write_index_metadata(self, entry: Entry) -> bytes:
        metadata = self._metadata(entry.period, entry.topics)
        if entry.cid is not None:
            return written(status_go_pb2.CodexWakuMessageArchiveIndexMetadata(metadata=metadata, cid=entry.cid))
        return written(
            status_go_pb2.WakuMessageArchiveIndexMetadata(
                metadata=metadata, offset=entry.offset_bytes, size=entry.size_bytes, padding=entry.padding_bytes
            )
        )

    def read_index_metadata(self, name: str, data: bytes, *, by_cid: bool) -> Entry:
        if by_cid:
            codex = parsed(status_go_pb2.CodexWakuMessageArchiveIndexMetadata, data)
            return Entry(name, *self._understood(codex.metadata), cid=codex.cid)
        found = parsed(status_go_pb2.WakuMessageArchiveIndexMetadata, data)
        return Entry(name, *self._understood(found.metadata), found.offset, found.size, found.padding)

    def _metadata(self, period: Period, topics: tuple[Topic, ...]) -> status_go_pb2.WakuMessageArchiveMetadata:
        if period.from_ms % _MS_PER_S or period.to_ms % _MS_PER_S:
            raise ArchiveError(f"{period} is not of whole seconds, as status-go needs. Use whole weeks")
        names = [topic for topic in topics if isinstance(topic, bytes)]
        bounds = {"from": period.from_ms // _MS_PER_S, "to": period.to_ms // _MS_PER_S}
        return status_go_pb2.WakuMessageArchiveMetadata(**bounds, contentTopic=names)

    def _understood(self, metadata: status_go_pb2.WakuMessageArchiveMetadata) -> tuple[Period, tuple[Topic, ...]]:
        topics = _checked_topics(metadata)
        if any(len(topic) != _TOPIC_SIZE_BYTES for topic in topics):
            raise ArchiveError(f"a topic of an archive does not have {_TOPIC_SIZE_BYTES} bytes. Check the profile")
        return _checked_period(getattr(metadata, "from") * _MS_PER_S, metadata.to * _MS_PER_S), topics


RFC61: Final[Profile] = _Rfc61()
STATUS_GO: Final[Profile] = _StatusGo()
PROFILES: Final = {profile.name: profile for profile in (RFC61, STATUS_GO)}


def profile_named(name: str) -> Profile:
    """Return the profile with this name, or raise ArchiveError."""
    try:
        return PROFILES[name]
    except KeyError:
        raise ArchiveError(f"unknown profile {name[:100]!r}; this version knows {', '.join(PROFILES)}") from None


def topics_of(profile: Profile, content_topics: Iterable[str]) -> tuple[Topic, ...]:
    """Return content topics as an archive of the profile has them: sorted, each once.

    Raises ArchiveError for more than `limits.MAX_ARCHIVE_TOPICS`.
    """
    topics = {profile.topic(topic) for topic in content_topics}
    if len(topics) > MAX_ARCHIVE_TOPICS:
        raise ArchiveError(f"a week has {len(topics)} channels, an archive names at most {MAX_ARCHIVE_TOPICS}")
    return tuple(sorted(topics, key=_topic_bytes))


def keccak256(data: bytes) -> bytes:
    """Return the 32-byte Keccak-256 of `data`.

    SHA3-256, which hashlib has, pads in another way and is another function.
    """
    return keccak.new(digest_bits=256, data=data).digest()


def archive_id(index_metadata: bytes) -> str:
    """Return the id of the archive with these bytes of IndexMetadata: 0x and 64 hex digits, as status-go computes it.

    An id says where an archive is, and of which time and channels. It says nothing of the archive's content.
    """
    return f"0x{keccak256(index_metadata).hex()}"


def with_id(profile: Profile, entry: Entry) -> Entry:
    """Return an entry with the id that follows from its other fields."""
    return entry._replace(archive_id=archive_id(profile.write_index_metadata(entry)))


@lru_cache(_TOPICS_REMEMBERED)
def _topic_id(content_topic: str) -> bytes:
    return keccak256(content_topic.encode())[:_TOPIC_SIZE_BYTES]


def _topic_bytes(topic: Topic) -> bytes:
    return topic.encode() if isinstance(topic, str) else topic


def _zeros_that_fill(gap_bytes: int) -> int | None:
    """Return the number of zeros of a field that takes `gap_bytes` with its tag and its length.

    None if there is no such number: for 1 and 2, and if one more zero makes the length a byte longer (130, 16387).
    """
    for length_size_bytes in range(1, 5):
        zeros = gap_bytes - 1 - length_size_bytes
        if zeros > 0 and len(encode_varint(zeros)) == length_size_bytes:
            return zeros
    return None


def _checked_period(from_ms: int, to_ms: int) -> Period:
    if from_ms >= to_ms:
        raise ArchiveError(
            f"the period of an archive ends at {to_ms} ms, before it begins at {from_ms} ms. Ask for a new index"
        )
    return Period(from_ms, to_ms)


def _checked_topics(
    metadata: rfc61_pb2.WakuMessageArchiveMetadata | status_go_pb2.WakuMessageArchiveMetadata,
) -> tuple[Topic, ...]:
    if len(metadata.contentTopic) > MAX_ARCHIVE_TOPICS:
        raise ArchiveError(f"an archive names {len(metadata.contentTopic)} topics, allowed are {MAX_ARCHIVE_TOPICS}")
    topics: tuple[Topic, ...] = tuple(metadata.contentTopic)
    if len(set(topics)) != len(topics):
        raise ArchiveError("an archive names a topic twice. Ask for a new index")
    return topics
