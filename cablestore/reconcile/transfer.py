"""Posts on their way to a peer that lacks them (WAKU-SYNC, "Transfer Protocol"): a Waku message and its topic. Pure.

A post travels as in archives, as the payload of a 14/WAKU2-MESSAGE. Deployed nodes have the two fields around it in the
other order, and require both; in WAKU-SYNC both are optional, and a topic that is left out is empty. Which hash an id has is not a matter of the codec:

* between stores like this one, the post's own (`post_id`). It is the key under which the post is found and the hash that
  ingest computes anyway; it covers all that is signed, and does not change when a topic is written otherwise.
* with Waku nodes, the message's deterministic hash (`waku_id`), because they compute it from what they receive.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from cablestore.errors import ArchiveError, ReconcileError
from cablestore.limits import MAX_TRANSFER_FRAME_SIZE_BYTES, MAX_WAKU_TRANSFER_FRAME_SIZE_BYTES
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.keys import NS_PER_MS
from cablestore.protocol.protobuf import fields
from cablestore.protocol.varint import encode_varint
from cablestore.protocol.waku import PUBSUB_TOPIC, WakuMessage, decode_waku, encode_waku, message_hash
from cablestore.reconcile.dialects import NWAKU_036, NWAKU_037, SPEC, SyncDialect
from cablestore.reconcile.ids import SyncID

_SIZED: Final = 2  # the wire type of strings, bytes and messages


@dataclass(frozen=True, slots=True)
class TransferForm:
    """How WakuMessageAndTopic is written: the numbers of its fields, how long a frame may be, and whether it has to have a topic."""

    message_field: int
    topic_field: int
    max_size_bytes: int
    has_topic: bool


FORMS: Final = {
    SPEC.name: TransferForm(1, 2, MAX_TRANSFER_FRAME_SIZE_BYTES, has_topic=False),
    NWAKU_036.name: TransferForm(2, 1, MAX_WAKU_TRANSFER_FRAME_SIZE_BYTES, has_topic=True),
    NWAKU_037.name: TransferForm(2, 1, MAX_WAKU_TRANSFER_FRAME_SIZE_BYTES, has_topic=True),
}


class Transferred(NamedTuple):
    """What a frame had: the payload, which is a post, its topics and its time in nanoseconds, as the sender says."""

    payload: bytes
    content_topic: str
    pubsub_topic: str
    timestamp_ns: int
    meta: bytes | None
    is_ephemeral: bool

    @property
    def post_id(self) -> SyncID:
        """The id of the payload as a post. That the post is of this time is for ingest to see."""
        return SyncID(self.timestamp_ns, post_hash(self.payload))

    @property
    def waku_id(self) -> SyncID:
        """The id of the message among Waku nodes."""
        hash_ = message_hash(self.pubsub_topic, self.payload, self.content_topic, self.meta, self.timestamp_ns)
        return SyncID(self.timestamp_ns, hash_)


class Expected:
    """The ids that a session found to be needed. Nothing else is taken from its peer, and nothing twice."""

    def __init__(self, need: Iterable[SyncID] = ()) -> None:
        self._need = set(need)

    def __len__(self) -> int:
        return len(self._need)

    def add(self, need: Iterable[SyncID]) -> None:
        """Expect more, found by a later step."""
        self._need.update(need)

    def take(self, sync_id: SyncID) -> bool:
        """Tell whether this was expected, and expect it no more."""
        if sync_id not in self._need:
            return False
        self._need.remove(sync_id)
        return True


def post_id(digest: bytes, timestamp_ms: int) -> SyncID:
    """Return the id of a post between stores: `digest` is its hash, `timestamp_ms` its own time."""
    return SyncID(timestamp_ms * NS_PER_MS, digest)


def waku_id(message: WakuMessage) -> SyncID:
    """Return the id of a post towards Waku nodes."""
    return SyncID(message.timestamp_ns, message.hash)


def encode_message(message: WakuMessage, dialect: SyncDialect) -> bytes:
    """Return the content of the frame in which a post travels. Raises ReconcileError where the dialect's are too short."""
    return wrap(encode_waku(message), PUBSUB_TOPIC, dialect)


def wrap(waku_message: bytes, pubsub_topic: str, dialect: SyncDialect) -> bytes:
    """Put the bytes of a WakuMessage and its pubsub topic into a frame's content. Raises ReconcileError for more than fits."""
    form = FORMS[dialect.name]
    parts = sorted(((form.message_field, waku_message), (form.topic_field, pubsub_topic.encode())))
    content = b"".join(encode_varint(number << 3 | _SIZED) + encode_varint(len(part)) + part for number, part in parts)
    if len(content) > form.max_size_bytes:
        raise ReconcileError(
            f"a message takes {len(content)} bytes, {dialect.name} allows {form.max_size_bytes}. Leave it out"
        )
    return content


def decode_message(content: bytes, dialect: SyncDialect) -> Transferred:
    """Read a frame's content; one of `spec` may have no topic. Raises ReconcileError for one that is too large or not well-formed."""
    form = FORMS[dialect.name]
    if len(content) > form.max_size_bytes:
        raise ReconcileError(f"a message takes {len(content)} bytes, {dialect.name} allows {form.max_size_bytes}")
    try:
        found = dict(fields(content, "transferred message"))
        message = found.get(form.message_field)
        topic = found.get(form.topic_field, None if form.has_topic else b"")
        if not isinstance(message, bytes):
            raise ReconcileError(f"a transferred frame has no message where {dialect.name} has it")
        if not isinstance(topic, bytes):
            raise ReconcileError(f"a transferred frame has no topic where {dialect.name} has it")
        waku = decode_waku(message)
        return Transferred(
            waku.payload,
            waku.content_topic,
            topic.decode(),
            waku.timestamp_ns,
            waku.meta,
            is_ephemeral=waku.is_ephemeral,
        )
    except UnicodeDecodeError:
        raise ReconcileError("the topic of a transferred message is no UTF-8") from None
    except ArchiveError as error:
        raise ReconcileError(f"this is no transferred message of {dialect.name}: {error}") from None
