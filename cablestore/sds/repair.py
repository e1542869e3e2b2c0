"""Who repairs a missing message, and when: delays and response groups (SDS, "SDS Repair"). Pure.

All follow from ids by a hash, so that members do not ask, or answer, all at once; nobody has to tell anybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cablestore.errors import SdsError
from cablestore.sds.dialects import SdsDialect

_PARTICIPANTS_PER_GROUP: Final = 128


@dataclass(frozen=True, slots=True)
class RepairParameters:
    """What all members of a channel have to agree on.

    A message is asked for `t_min_ms` to `t_max_ms` after it was missed, and answered within `t_max_ms`, by one of `groups`
    groups. The defaults are those of @waku/sds. Raises SdsError where they allow no time.
    """

    t_min_ms: int = 30_000
    t_max_ms: int = 120_000
    groups: int = 1

    def __post_init__(self) -> None:
        if not (0 <= self.t_min_ms < self.t_max_ms and self.groups >= 1):
            raise SdsError(
                f"repairs between {self.t_min_ms} and {self.t_max_ms} ms in {self.groups} groups cannot be: "
                "the first time is to be below the second, and one group is the least"
            )


def groups_for(participants: int) -> int:
    """Return how many response groups a channel of about so many participants has."""
    return participants // _PARTICIPANTS_PER_GROUP + 1


def request_delay_ms(participant_id: str, message_id: str, parameters: RepairParameters, dialect: SdsDialect) -> int:
    """Return how long this participant waits until it asks for a message that it misses: T_req less the current time.

    At least `t_min_ms`, less than `t_max_ms`.
    """
    span_ms = parameters.t_max_ms - parameters.t_min_ms
    return abs(dialect.repair_hash(participant_id + message_id)) % span_ms + parameters.t_min_ms


def response_delay_ms(
    participant_id: str, sender_id: str, message_id: str, parameters: RepairParameters, dialect: SdsDialect
) -> int:
    """Return how long this participant waits until it answers a request: T_resp less the current time.

    `sender_id` is who wrote the message: nothing, for itself. Less than `t_max_ms`.
    """
    distance = abs(dialect.repair_hash(participant_id) ^ dialect.repair_hash(sender_id))
    return distance * abs(dialect.repair_hash(message_id)) % parameters.t_max_ms


def is_in_response_group(
    participant_id: str, sender_id: str, message_id: str, parameters: RepairParameters, dialect: SdsDialect
) -> bool:
    """Tell whether this participant is to answer requests for a message. Who wrote it always is."""
    own = abs(dialect.repair_hash(participant_id + message_id))
    return own % parameters.groups == abs(dialect.repair_hash(sender_id + message_id)) % parameters.groups
