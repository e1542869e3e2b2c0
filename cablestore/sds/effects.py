"""Effects of a channel: what the application must do or should know. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, auto

from cablestore.reprs import hex_repr
from cablestore.sds.message import HistoryEntry, SdsMessage


class Reason(StrEnum):
    """Reason for sending a message."""

    NEW = auto()
    RESEND = auto()
    """Nobody acknowledged it."""
    REPAIR = auto()
    """Another member requested it; anybody may have written it."""
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
    """Delivery of a member's message: it and its dependencies are in the log. Own messages are there when sent.

    Its place is given by (Lamport time, id) and may be before messages that were delivered earlier.
    """

    message: SdsMessage


@dataclass(frozen=True, slots=True)
class DeliverEphemeral:
    """Delivery of a member's message that is in no log."""

    message: SdsMessage


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Notice that another member has this own message."""

    message_id: str


@dataclass(frozen=True, slots=True)
class PossiblyAcknowledged:
    """Notice that the filters of this many members have this own message.

    `doubt` is the probability that none has it.
    """

    message_id: str
    members: int
    doubt: float


@dataclass(frozen=True, slots=True)
class Unacknowledged:
    """Notice that this own message was sent `sent` times without acknowledgement. It is not sent again by itself."""

    message_id: str
    sent: int
    is_possibly_acknowledged: bool


@dataclass(frozen=True, slots=True)
class Missing:
    """Notice that another member named a message that is not here: retrieve it if you can. Comes once for each gap."""

    entry: HistoryEntry


@dataclass(frozen=True, slots=True)
class Retrieve:
    """Request to retrieve a message that is still missing, for the `attempt`-th time. `Missing` was the first."""

    entry: HistoryEntry
    attempt: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Notice that a missing message was given up.

    What depends on it is delivered without it. It is delivered if it comes.
    """

    entry: HistoryEntry


@dataclass(frozen=True, slots=True)
class RepairRequested:
    """Notice that the message with this id requests repairs from the others."""

    message_id: str
    entries: tuple[HistoryEntry, ...]


Told = Acknowledged | PossiblyAcknowledged | Unacknowledged | Missing | Retrieve | Lost | RepairRequested
"""Effect without a message of its own."""

Effect = Send | Deliver | DeliverEphemeral | Told
"""Entry of the outbox."""
