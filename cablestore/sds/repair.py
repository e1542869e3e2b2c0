"""Delays and response groups: which members repair a missing message, and when (SDS, "SDS Repair"). Pure.

Both are computed from hashes of ids. Therefore members do not all request or answer at once, and need not send messages
to agree on that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cablestore.errors import SdsError
from cablestore.sds.dialects import SdsDialect

_PARTICIPANTS_PER_GROUP: Final = 128


@dataclass(frozen=True, slots=True)
class RepairParameters:
    """Parameters of repairs, the same for all members of a channel.

    A repair is requested `t_min_ms` to `t_max_ms` after the gap was detected. One of `groups` groups answers it within
    `t_max_ms`. @waku/sds uses the same defaults. Raises SdsError for invalid values.
    """

    t_min_ms: int = 30_000
    t_max_ms: int = 120_000
    groups: int = 1

    def __post_init__(self) -> None:
        if not (0 <= self.t_min_ms < self.t_max_ms and self.groups >= 1):
            raise SdsError(
                f"invalid repair settings: expected t_min_ms < t_max_ms and at least 1 group, got {self.t_min_ms} ms, "
                f"{self.t_max_ms} ms and {self.groups} groups"
            )


def groups_for(participants: int) -> int:
    """Return the number of response groups for a channel with about this number of participants."""
    return participants // _PARTICIPANTS_PER_GROUP + 1


def request_delay_ms(participant_id: str, message_id: str, parameters: RepairParameters, dialect: SdsDialect) -> int:
    """Return how long this participant waits before it requests a missing message: T_req minus the current time.

    It is at least `t_min_ms` and less than `t_max_ms`.
    """
    span_ms = parameters.t_max_ms - parameters.t_min_ms
    return abs(dialect.repair_hash(participant_id + message_id)) % span_ms + parameters.t_min_ms


def response_delay_ms(
    participant_id: str, sender_id: str, message_id: str, parameters: RepairParameters, dialect: SdsDialect
) -> int:
    """Return how long this participant waits before it answers a request: T_resp minus the current time.

    `sender_id` is the author of the message, who does not wait. The delay is less than `t_max_ms`.
    """
    distance = abs(dialect.repair_hash(participant_id) ^ dialect.repair_hash(sender_id))
    return distance * abs(dialect.repair_hash(message_id)) % parameters.t_max_ms


def is_in_response_group(
    participant_id: str, sender_id: str, message_id: str, parameters: RepairParameters, dialect: SdsDialect
) -> bool:
    """Return True if this participant must answer requests for a message. Its author must always answer."""
    own = abs(dialect.repair_hash(participant_id + message_id))
    return own % parameters.groups == abs(dialect.repair_hash(sender_id + message_id)) % parameters.groups
