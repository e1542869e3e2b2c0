"""Effects of a channel: actions and notices for the application. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, auto

from cablestore.reprs import hex_repr
from cablestore.sds.message import HistoryEntry, SdsMessage


class Reason(StrEnum):
    """Reason for sending a message."""

    NEW = auto()
    RESEND = auto()
    """No member acknowledged the message."""
    REPAIR = auto()
    """Another member requested the message, which may be by any member."""
    SYNC = auto()
    EPHEMERAL = auto()


@dataclass(frozen=True, slots=True)
class Send:
    """Request to broadcast these bytes in the channel."""

    message_id: str
    reason: Reason
    data: bytes

    __repr__ = hex_repr


@dataclass(frozen=True, slots=True)
class Deliver:
    """Delivery of another member's message. The message and its dependencies are in the log.

    The message's place is (Lamport time, id). It may precede messages that were delivered earlier.
    """

    message: SdsMessage


@dataclass(frozen=True, slots=True)
class DeliverEphemeral:
    """Delivery of a member's message that is not in any log."""

    message: SdsMessage


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Notice that another member has this message of the local member."""

    message_id: str


@dataclass(frozen=True, slots=True)
class PossiblyAcknowledged:
    """Notice that the filters of `members` members contain this message of the local member.

    `doubt` is the probability that no other member has the message.
    """

    message_id: str
    members: int
    doubt: float


@dataclass(frozen=True, slots=True)
class Unacknowledged:
    """Notice that a message of the local member was sent `sent` times without acknowledgement.

    The log does not resend the message automatically.
    """

    message_id: str
    sent: int
    is_possibly_acknowledged: bool


@dataclass(frozen=True, slots=True)
class Missing:
    """Notice that another member listed a message that is missing: retrieve it if possible. Sent once for each gap."""

    entry: HistoryEntry


@dataclass(frozen=True, slots=True)
class Retrieve:
    """Request to retrieve a message that is still missing, for the `attempt`-th time. `Missing` is attempt 1."""

    entry: HistoryEntry
    attempt: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Notice that a missing message was declared lost.

    Messages that depend on the lost message are delivered without it. The lost message is still delivered if it
    arrives.
    """

    entry: HistoryEntry


@dataclass(frozen=True, slots=True)
class RepairRequested:
    """Notice that the message with this id requests repairs from other members."""

    message_id: str
    entries: tuple[HistoryEntry, ...]


Notification = Acknowledged | PossiblyAcknowledged | Unacknowledged | Missing | Retrieve | Lost | RepairRequested
"""Effect that does not contain a message."""

Effect = Send | Deliver | DeliverEphemeral | Notification
"""Entry of the outbox."""
