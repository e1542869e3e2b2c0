"""One message of a causal log, of which kind it is, and the id that it is given (SDS, "Message"). Pure."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from enum import Enum
from typing import Final

from cablestore.errors import SdsError

_PERSON: Final = b"cablestore/sds"
_DIGEST_SIZE_BYTES: Final = 20
"""Whole characters of five bits, without padding."""


class MessageKind(Enum):
    """What a message is for."""

    CONTENT = "content"
    """It has content and a place in the log."""

    SYNC = "sync"
    """It tells what its sender has, and is kept by nobody."""

    EPHEMERAL = "ephemeral"
    """It has content, and nobody makes sure that it arrives."""


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A message that another one depends on, or that is to be repaired.

    `retrieval_hint` helps to fetch it, in whatever way the application agreed on; `sender_id` is who wrote it, which a
    repair needs (SDS-R).
    """

    message_id: str
    retrieval_hint: bytes | None = None
    sender_id: str | None = None


@dataclass(frozen=True, slots=True)
class SdsMessage:
    """One message.

    `lamport_ms` is its Lamport time, close to milliseconds since 1970, None for an ephemeral message; `causal_history` the
    messages it depends on, oldest first; `bloom_filter` the ids its sender has, in the bytes of the wire; `repair_request`
    what its sender misses; `content` None or empty, with a Lamport time, for a sync message.
    """

    message_id: str
    channel_id: str
    sender_id: str
    lamport_ms: int | None = None
    causal_history: tuple[HistoryEntry, ...] = ()
    bloom_filter: bytes | None = None
    repair_request: tuple[HistoryEntry, ...] = ()
    content: bytes | None = None

    @property
    def kind(self) -> MessageKind:
        """Of which kind it is, by the fields that are set, as @waku/sds tells."""
        if self.lamport_ms is None:
            return MessageKind.EPHEMERAL
        return MessageKind.CONTENT if self.content else MessageKind.SYNC


def message_id_of(sender_id: str, channel_id: str, lamport_ms: int | None, content: bytes) -> str:
    """Return a message's id: 32 characters, BLAKE2b-160 over all that makes it unique, each with its length.

    They are digits and letters from a to v (RFC 4648's base32hex in lower case), which sort as their bytes do in every
    implementation, also in those that sort ids as text. Nobody who receives an id can tell what it was made from, so
    it has as many bits as keep ids from being equal by chance.

    Two people who write the same have different ids, and so has one who writes it twice. For an ephemeral message, which
    has no time of its own, `lamport_ms` is None: those of one sender with the same content share an id. Raises SdsError
    for text that UTF-8 cannot write, and a time beyond 64 bits.
    """
    digest = hashlib.blake2b(digest_size=_DIGEST_SIZE_BYTES, person=_PERSON)
    try:
        time = b"" if lamport_ms is None else lamport_ms.to_bytes(8, "big")
        for part in (sender_id.encode(), channel_id.encode(), time, content):
            digest.update(len(part).to_bytes(8, "big") + part)
    except UnicodeEncodeError as error:
        raise SdsError(f"an id is no text that UTF-8 can write: {error.reason}. Choose another") from None
    except OverflowError:
        raise SdsError(
            f"a Lamport time has 64 bits and no sign, {lamport_ms} does not fit: look at the clock"
        ) from None
    return base64.b32hexencode(digest.digest()).decode().lower()
