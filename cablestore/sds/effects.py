"""What comes out of a channel for the application to do or to know, and how it stands in the outbox. Pure.

The outbox has no bytes that stand elsewhere: a message of the log is named by its place, and gets its filter when it is
read, so that what is sent tells what is here at that moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from cablestore.sds.message import HistoryEntry, SdsMessage


class Reason(Enum):
    """Why a message is sent."""

    __hash__ = object.__hash__

    NEW = "new"
    RESEND = "resend"
    """Nobody acknowledged it."""
    REPAIR = "repair"
    """Somebody misses it, whoever wrote it."""
    SYNC = "sync"
    EPHEMERAL = "ephemeral"


@dataclass(frozen=True, slots=True)
class Send:
    """Broadcast these bytes in the channel."""

    message_id: str
    reason: Reason
    data: bytes


@dataclass(frozen=True, slots=True)
class Deliver:
    """A member's message is in the log, and all that it depends on is. Own messages are in the log when they are sent.

    It belongs where the order of (Lamport time, id) puts it, which may be before messages that were delivered earlier.
    """

    message: SdsMessage


@dataclass(frozen=True, slots=True)
class DeliverEphemeral:
    """A member's message that is in no log."""

    message: SdsMessage


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Somebody else has this own message."""

    message_id: str


@dataclass(frozen=True, slots=True)
class PossiblyAcknowledged:
    """The filters of `members` members have this own message; `doubt` is how probable it is that none of them has it."""

    message_id: str
    members: int
    doubt: float


@dataclass(frozen=True, slots=True)
class Unacknowledged:
    """This own message was sent `sent` times, nobody acknowledged it, and it is not sent again by itself."""

    message_id: str
    sent: int
    is_possibly_acknowledged: bool


@dataclass(frozen=True, slots=True)
class Missing:
    """Somebody named a message that is not here: retrieve it, if there is where from. Comes once for each gap."""

    entry: HistoryEntry


@dataclass(frozen=True, slots=True)
class Retrieve:
    """The same message is still missing: retrieve it, for the `attempt`-th time. `Missing` was the first."""

    entry: HistoryEntry
    attempt: int


@dataclass(frozen=True, slots=True)
class Lost:
    """A missing message was given up; what depends on it is delivered without it. Should it come, it is delivered."""

    entry: HistoryEntry


@dataclass(frozen=True, slots=True)
class RepairRequested:
    """The message with this id asks the others for repairs."""

    message_id: str
    entries: tuple[HistoryEntry, ...]


Effect = (
    Send
    | Deliver
    | DeliverEphemeral
    | Acknowledged
    | PossiblyAcknowledged
    | Unacknowledged
    | Missing
    | Retrieve
    | Lost
    | RepairRequested
)
"""What stands in the outbox."""

SEND_LOGGED: Final = 1
SEND_OTHER: Final = 2
DELIVER: Final = 3
DELIVER_EPHEMERAL: Final = 4
ACKNOWLEDGED: Final = 5
POSSIBLY_ACKNOWLEDGED: Final = 6
UNACKNOWLEDGED: Final = 7
MISSING: Final = 8
RETRIEVE: Final = 9
LOST: Final = 10
REPAIR_REQUESTED: Final = 11
"""What the rows of the outbox begin with."""
