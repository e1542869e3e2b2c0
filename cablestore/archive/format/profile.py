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

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, ClassVar, Final, NamedTuple

from Crypto.Hash import keccak

from cablestore.archive.format.documents import parsed, written
from cablestore.archive.format.period import WEEK_MS, Period
from cablestore.archive.proto import rfc61_pb2, status_go_pb2, waku_pb2
from cablestore.errors import ArchiveError
from cablestore.limits import MAX_ARCHIVE_TOPICS, MAX_ARCHIVED_TIMESTAMP_MS, PIECE_SIZE_BYTES
from cablestore.protocol.keys import NS_PER_MS
from cablestore.protocol.protobuf import repeated
from cablestore.protocol.varint import encode_varint
from cablestore.protocol.waku import TOPICS_REMEMBERED, WakuMessage

Topic = str | bytes
"""A content topic in a profile: str in rfc61, 4 bytes in status-go."""

_MS_PER_S: Final = 1_000
_TOPIC_SIZE_BYTES: Final = 4
_MESSAGES_FIELD: Final = 3


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


class Profile(ABC):
    """A form of archives. `archive` and `index` have what all forms have in common."""

    name: ClassVar[str]
    """The profile's name in configurations and statements."""
    pads_within: ClassVar[bool]
    """Whether padding is a field of the document instead of bytes after it."""
    _documents: ClassVar[Any]
    """The module of the profile's protobuf documents, which have the same names in both."""

    @abstractmethod
    def topic(self, content_topic: str) -> Topic:
        """Return a content topic as this profile writes it."""

    @abstractmethod
    def timestamp(self, timestamp_ms: int) -> int:
        """Return a time in the unit of this profile's documents, rounded down."""

    @abstractmethod
    def record(self, message: WakuMessage) -> Record:
        """Return a message as this profile keeps it."""

    @abstractmethod
    def read_record(self, data: bytes) -> Record:
        """Decode one message of an archive. Raises ArchiveError."""

    @abstractmethod
    def inner_padding(self, size_bytes: int) -> bytes:
        """Return the padding field for a document that has `size_bytes` once it is sealed."""

    @abstractmethod
    def outer_padding_bytes(self, size_bytes: int) -> int:
        """Return the number of zero bytes after a document of `size_bytes`, sealed or not."""

    def document(self, period: Period, topics: tuple[Topic, ...], messages: Iterable[WakuMessage]) -> bytes:
        """Return the bytes of an archive without padding."""
        head = self._documents.WakuMessageArchive(metadata=self._metadata(period, topics))
        return written(head) + repeated(_MESSAGES_FIELD, map(self._message, messages))

    def write_metadata(self, period: Period, topics: tuple[Topic, ...]) -> bytes:
        """Return the metadata at the beginning of an archive, which its index metadata repeats."""
        return written(self._metadata(period, topics))

    def write_index_metadata(self, entry: Entry) -> bytes:
        """Return the metadata of an archive in an index. The id is the hash of these bytes."""
        metadata = self._metadata(entry.period, entry.topics)
        if entry.cid is not None:
            return written(self._documents.CodexWakuMessageArchiveIndexMetadata(metadata=metadata, cid=entry.cid))
        return written(self._documents.WakuMessageArchiveIndexMetadata(metadata=metadata, **self._place(entry)))

    def read_index_metadata(self, name: str, data: bytes, *, by_cid: bool) -> Entry:
        """Decode index metadata. `name` is the id in the index, which is not checked here. Raises ArchiveError."""
        if by_cid:
            codex = parsed(self._documents.CodexWakuMessageArchiveIndexMetadata, data)
            return Entry(name, *self._understood(codex.metadata), cid=codex.cid)
        found = parsed(self._documents.WakuMessageArchiveIndexMetadata, data)
        return Entry(name, *self._understood(found.metadata), *self._read_place(found))

    @abstractmethod
    def _message(self, message: WakuMessage) -> bytes:
        """Return a message as it is in the document."""

    @abstractmethod
    def _time_ms(self, timestamp: int) -> int:
        """Return a time of a document in milliseconds. Raises ArchiveError."""

    @abstractmethod
    def _place(self, entry: Entry) -> dict[str, int]:
        """Return the fields of index metadata that say where an archive is in `data`."""

    @abstractmethod
    def _read_place(self, metadata: Any) -> tuple[int, int, int]:
        """Return offset, size and padding in bytes."""

    def _metadata(self, period: Period, topics: tuple[Topic, ...]) -> Any:
        bounds = {"from": self.timestamp(period.from_ms), "to": self.timestamp(period.to_ms)}
        return self._documents.WakuMessageArchiveMetadata(**bounds, contentTopic=topics)

    def _understood(self, metadata: Any) -> tuple[Period, tuple[Topic, ...]]:
        period = Period(self._time_ms(getattr(metadata, "from")), self._time_ms(metadata.to))
        if period.from_ms >= period.to_ms:
            raise ArchiveError(
                f"the period of an archive ends at {period.to_ms} ms, before it begins at {period.from_ms} ms. "
                "Ask for a new index"
            )
        if period.to_ms > MAX_ARCHIVED_TIMESTAMP_MS + WEEK_MS:
            raise ArchiveError(
                f"the period of an archive ends at {period.to_ms} ms, archives hold posts up to "
                f"{MAX_ARCHIVED_TIMESTAMP_MS} ms. Ask for a new index"
            )
        topics: tuple[Topic, ...] = tuple(metadata.contentTopic)
        if len(topics) > MAX_ARCHIVE_TOPICS:
            raise ArchiveError(f"an archive names {len(topics)} topics, allowed are {MAX_ARCHIVE_TOPICS}")
        if len(set(topics)) != len(topics):
            raise ArchiveError("an archive names a topic twice. Ask for a new index")
        return period, topics


class _Rfc61(Profile):
    """The profile of RFC 61 as written."""

    name: ClassVar = "rfc61"
    pads_within: ClassVar = True
    _documents: ClassVar = rfc61_pb2

    def topic(self, content_topic: str) -> Topic:
        return content_topic

    def timestamp(self, timestamp_ms: int) -> int:
        return timestamp_ms * NS_PER_MS

    def record(self, message: WakuMessage) -> Record:
        return Record(message.payload, message.content_topic, message.timestamp_ns)

    def read_record(self, data: bytes) -> Record:
        message = parsed(waku_pb2.WakuMessage, data)
        return Record(message.payload, message.content_topic, message.timestamp)

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

    def _message(self, message: WakuMessage) -> bytes:
        payload, topic, timestamp_ns, _ = message
        document = waku_pb2.WakuMessage(payload=payload, content_topic=topic, timestamp=timestamp_ns)
        return document.SerializeToString()

    def _time_ms(self, timestamp: int) -> int:
        if timestamp % NS_PER_MS:
            raise ArchiveError(
                f"the period of an archive begins or ends at {timestamp} ns: expected are whole milliseconds. "
                "It is not an archive of Cable posts"
            )
        return timestamp // NS_PER_MS

    def _place(self, entry: Entry) -> dict[str, int]:
        return {"offset": entry.offset_bytes, "num_pieces": entry.size_bytes // PIECE_SIZE_BYTES}

    def _read_place(self, metadata: Any) -> tuple[int, int, int]:
        return metadata.offset, metadata.num_pieces * PIECE_SIZE_BYTES, 0


class _StatusGo(Profile):
    """The profile that status-go writes."""

    name: ClassVar = "status-go"
    pads_within: ClassVar = False
    _documents: ClassVar = status_go_pb2

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

    def inner_padding(self, size_bytes: int) -> bytes:  # noqa: ARG002 - the signature is that of all profiles
        return b""

    def outer_padding_bytes(self, size_bytes: int) -> int:
        """Fill the last piece. A document of two or more whole pieces gets one more piece of zeros, as deployed."""
        if size_bytes <= PIECE_SIZE_BYTES:
            return PIECE_SIZE_BYTES - size_bytes
        return PIECE_SIZE_BYTES - size_bytes % PIECE_SIZE_BYTES

    def _message(self, message: WakuMessage) -> bytes:
        document = status_go_pb2.WakuMessage(
            payload=message.payload,
            topic=_topic_id(message.content_topic),
            timestamp=self.timestamp(message.timestamp_ms),
            sig=message.author,
            hash=message.hash,
        )
        return document.SerializeToString()

    def _time_ms(self, timestamp: int) -> int:
        return timestamp * _MS_PER_S

    def _place(self, entry: Entry) -> dict[str, int]:
        return {"offset": entry.offset_bytes, "size": entry.size_bytes, "padding": entry.padding_bytes}

    def _read_place(self, metadata: Any) -> tuple[int, int, int]:
        return metadata.offset, metadata.size, metadata.padding

    def _metadata(self, period: Period, topics: tuple[Topic, ...]) -> Any:
        if period.from_ms % _MS_PER_S or period.to_ms % _MS_PER_S:
            raise ArchiveError(f"{period} is not of whole seconds, as status-go needs. Use whole weeks")
        return super()._metadata(period, topics)

    def _understood(self, metadata: Any) -> tuple[Period, tuple[Topic, ...]]:
        if any(len(topic) != _TOPIC_SIZE_BYTES for topic in metadata.contentTopic):
            raise ArchiveError(f"a topic of an archive does not have {_TOPIC_SIZE_BYTES} bytes. Check the profile")
        return super()._understood(metadata)


RFC61: Final[Profile] = _Rfc61()
STATUS_GO: Final[Profile] = _StatusGo()
PROFILES: Final = {profile.name: profile for profile in (RFC61, STATUS_GO)}


def topics_of(profile: Profile, content_topics: Iterable[str]) -> tuple[Topic, ...]:
    """Return content topics as an archive of the profile has them: sorted, each once.

    Raises ArchiveError for more than `limits.MAX_ARCHIVE_TOPICS`.
    """
    topics = {profile.topic(topic) for topic in content_topics}
    if len(topics) > MAX_ARCHIVE_TOPICS:
        raise ArchiveError(
            f"there are posts in {len(topics)} channels, an archive names at most {MAX_ARCHIVE_TOPICS}. "
            "Drop channels, or the users who made them, with `cablestore drop`"
        )
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


@lru_cache(TOPICS_REMEMBERED)
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
