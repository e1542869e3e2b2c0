"""Transfer of posts to a peer that lacks them: a Waku message and its topic (WAKU-SYNC, "Transfer Protocol").

As in archives, a post is sent as the payload of a 14/WAKU2-MESSAGE. Deployed nodes write the two fields in the other
order and require both. In WAKU-SYNC both are optional, and a missing topic is empty. The hash of an id depends on the
peer:

* Between cablestores it is the hash of the post (`post_id`). It is the key of the stored post, and ingest computes it
  anyway. It covers all signed bytes, and does not depend on the form of a topic.
* With Waku nodes it is the deterministic hash of the message (`waku_id`), because they compute it from received
  messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from cablestore.errors import ArchiveError
from cablestore.limits import MAX_TRANSFER_FRAME_SIZE_BYTES, MAX_WAKU_TRANSFER_FRAME_SIZE_BYTES
from cablestore.protocol.crypto import post_hash
from cablestore.protocol.keys import NS_PER_MS
from cablestore.protocol.post import Post
from cablestore.protocol.protobuf import fields, sized_field
from cablestore.protocol.waku import (
    PUBSUB_TOPIC,
    ReceivedWakuMessage,
    WakuMessage,
    decode_waku,
    encode_waku,
    message_hash,
    message_of,
)
from cablestore.reconcile.dialects import NWAKU_036, NWAKU_037, SPEC, SyncDialect
from cablestore.reconcile.errors import ReconcileError
from cablestore.reconcile.ids import SyncID


@dataclass(frozen=True, slots=True)
class TransferForm:
    """Wire form of WakuMessageAndTopic: its field numbers, the maximum size of a frame, whether a topic is required."""

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
    """Content of a frame: a message whose payload is a post, and the sender's pubsub topic."""

    message: ReceivedWakuMessage
    pubsub_topic: str

    @property
    def post_id(self) -> SyncID:
        """Id of the payload as a post, with the time that the sender claims."""
        return SyncID(self.message.timestamp_ns, post_hash(self.message.payload))

    @property
    def waku_id(self) -> SyncID:
        """Id of the message among Waku nodes."""
        payload, content_topic, timestamp_ns, meta, _ = self.message
        return SyncID(timestamp_ns, message_hash(self.pubsub_topic, payload, content_topic, meta, timestamp_ns))


def post_id(digest: bytes, timestamp_ms: int) -> SyncID:
    """Return the id of a post between stores. `digest` is its hash, `timestamp_ms` its own time."""
    return SyncID(timestamp_ms * NS_PER_MS, digest)


def encode_message(message: WakuMessage, dialect: SyncDialect) -> bytes:
    """Return the content of the frame for a message. Raises ReconcileError if it is too large for the dialect."""
    return wrap(encode_waku(message), PUBSUB_TOPIC, dialect)


def encode_post(post: Post) -> bytes:
    """Return the content of the frame for a post between stores, without topics, which follow from the post.

    Raises ArchiveError like `message_of`, and ReconcileError if it is too large.
    """
    waku_message = encode_waku(message_of(post)._replace(content_topic=""))
    return _framed([(FORMS[SPEC.name].message_field, waku_message)], SPEC)


def wrap(waku_message: bytes, pubsub_topic: str, dialect: SyncDialect) -> bytes:
    """Return the content of a frame with this WakuMessage and topic. Raises ReconcileError if it is too large."""
    form = FORMS[dialect.name]
    return _framed(sorted(((form.message_field, waku_message), (form.topic_field, pubsub_topic.encode()))), dialect)


def _framed(parts: list[tuple[int, bytes]], dialect: SyncDialect) -> bytes:
    form = FORMS[dialect.name]
    content = b"".join(sized_field(number, part) for number, part in parts)
    if len(content) > form.max_size_bytes:
        raise ReconcileError(
            f"a message has {len(content)} bytes, the maximum in {dialect.name} is {form.max_size_bytes}. Do not send "
            "it"
        )
    return content


def decode_message(content: bytes, dialect: SyncDialect) -> Transferred:
    """Decode the content of a transfer frame into a message and its pubsub topic.

    In `spec` the topic may be missing. Raises ReconcileError if the content is too large or malformed.
    """
    form = FORMS[dialect.name]
    if len(content) > form.max_size_bytes:
        raise ReconcileError(
            f"a message has {len(content)} bytes, the maximum in {dialect.name} is {form.max_size_bytes}"
        )
    try:
        found = dict(fields(content, "transferred message"))
        message = found.get(form.message_field)
        topic = found.get(form.topic_field, None if form.has_topic else b"")
        if not isinstance(message, bytes):
            raise ReconcileError(
                f"invalid transfer frame of {dialect.name}: field {form.message_field} does not contain a message"
            )
        if not isinstance(topic, bytes):
            raise ReconcileError(
                f"invalid transfer frame of {dialect.name}: field {form.topic_field} does not contain a topic"
            )
        return Transferred(decode_waku(message), topic.decode())
    except UnicodeDecodeError:
        raise ReconcileError("the topic of a transferred message is not UTF-8") from None
    except ArchiveError as error:
        raise ReconcileError(f"not a transferred message of {dialect.name}: {error}") from None
