"""Messages of a causal log, their kinds and their ids (SDS, "Message"). Pure."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from cablestore.errors import SdsError
from cablestore.reprs import hex_repr

_PERSON: Final = b"cablestore/sds"
_DIGEST_SIZE_BYTES: Final = 20
"""A multiple of five bits, so that base32 needs no padding."""


class MessageKind(Enum):
    """Kind of a message."""

    CONTENT = "content"
    """Message with content and a place in the log."""

    SYNC = "sync"
    """Message without content, which lists messages of its sender and is not stored."""

    EPHEMERAL = "ephemeral"
    """Message with content that is not resent if it is lost."""


class HistoryEntry(NamedTuple):
    """Reference to a message in a causal history or a repair request.

    `retrieval_hint` helps to fetch the message, in a way that the application defines. `sender_id` is the author of the
    message, which repairs need (SDS-R).
    """

    message_id: str
    retrieval_hint: bytes | None = None
    sender_id: str | None = None

    def __repr__(self) -> str:
        return hex_repr(self)


@dataclass(frozen=True, slots=True)
class SdsMessage:
    """Message of a causal log.

    `lamport_ms` is its Lamport time, close to milliseconds since 1970, or None for an ephemeral message.
    `causal_history` lists the messages that it depends on, oldest first. `bloom_filter` contains the ids of its
    sender's messages, as on the wire. `repair_request` lists missing messages of its sender. A sync message has a
    Lamport time, and its content is None or empty.
    """

    message_id: str
    channel_id: str
    sender_id: str
    lamport_ms: int | None = None
    causal_history: tuple[HistoryEntry, ...] = ()
    bloom_filter: bytes | None = None
    repair_request: tuple[HistoryEntry, ...] = ()
    content: bytes | None = None

    __repr__ = hex_repr

    @property
    def kind(self) -> MessageKind:
        """Kind of the message, determined by the set fields, as in @waku/sds."""
        if self.lamport_ms is None:
            return MessageKind.EPHEMERAL
        return MessageKind.CONTENT if self.content else MessageKind.SYNC


def message_id_of(sender_id: str, channel_id: str, lamport_ms: int | None, content: bytes) -> str:
    """Return a message's id: 32 characters, BLAKE2b-160 over sender, channel, time and content, each after its length.

    The characters are 0 to 9 and a to v (RFC 4648's base32hex in lower case). They sort like their bytes, also in
    implementations that sort ids as strings. With 160 bits, accidental collisions are impossible in practice.

    The same content by two senders, or at two times, has different ids. `lamport_ms` is None for an ephemeral message:
    equal ephemeral messages of one sender share an id. Raises SdsError for text that UTF-8 cannot encode, and for a
    time beyond 64 bits.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_SIZE_BYTES, person=_PERSON)
    try:
        time = b"" if lamport_ms is None else lamport_ms.to_bytes(8, "big")
        for part in (sender_id.encode(), channel_id.encode(), time, content):
            digest.update(len(part).to_bytes(8, "big") + part)
    except UnicodeEncodeError as error:
        raise SdsError(f"cannot encode an id in UTF-8: {error.reason}. Choose another id") from None
    except OverflowError:
        raise SdsError(
            f"invalid Lamport time {lamport_ms}: expected an unsigned 64-bit number. Check the clock"
        ) from None
    return base64.b32hexencode(digest.digest()).decode().lower()
