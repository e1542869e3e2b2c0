"""Settings of a channel: values that its members must agree on, and the times and limits of each member. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cablestore.errors import SdsError
from cablestore.limits import MAX_SDS_HISTORY, MAX_SDS_REPAIR_REQUESTS
from cablestore.sds.bloom import FilterParameters
from cablestore.sds.dialects import SPEC, SdsDialect
from cablestore.sds.message import SdsMessage
from cablestore.sds.repair import RepairParameters

_MINUTE_MS: Final = 60_000
_MOST_DOUBLINGS: Final = 32

COMPACT_FILTER: Final = FilterParameters(1_000, 0.001)
"""Filter for the 1,000 newest messages: 1,880 bytes on the wire. All members must use it."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between attempts: `first_ms`, doubled each time, up to `longest_ms`."""

    first_ms: int
    longest_ms: int

    def __post_init__(self) -> None:
        if not 1 <= self.first_ms <= self.longest_ms:
            raise SdsError(
                f"invalid backoff: expected 1 ms <= first_ms <= longest_ms, got {self.first_ms} ms and "
                f"{self.longest_ms} ms"
            )

    def after_ms(self, attempts: int) -> int:
        """Return the pause after this number of attempts, at least one."""
        return min(self.first_ms << min(attempts - 1, _MOST_DOUBLINGS), self.longest_ms)


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a channel. All members must agree on `dialect`, `check`, `filter` and `repair`.

    All times are in milliseconds.
    """

    dialect: SdsDialect = SPEC
    check: Callable[[SdsMessage], str | None] | None = None
    """Function that returns the problem of a received message with content, or None. Invalid messages are rejected."""
    filter: FilterParameters = field(default_factory=FilterParameters)
    repair: RepairParameters | None = field(default_factory=RepairParameters)
    """None disables requests for repairs and answers to them."""
    repairs_per_message: int = 3
    repair_backoff: Backoff = Backoff(120_000, 3_600_000)
    """Delay that is added to T_req after an unanswered request."""

    history_length: int = 2
    """Number of the newest messages of the log in a causal history."""
    heads: int = 16
    """Maximum number of additional heads in a causal history: messages that no message of the log lists."""
    heads_in_sync: int = 100
    """Maximum number of additional heads in a sync message."""

    resend: Backoff = Backoff(30_000, 10 * _MINUTE_MS)
    """Delay before an unacknowledged message is resent."""
    resend_possibly: Backoff = Backoff(2 * _MINUTE_MS, 20 * _MINUTE_MS)
    """Delay before a possibly acknowledged message is resent."""
    resends: int = 10
    """Maximum number of resends. The message remains in the log, so sync messages list it and repairs find it."""
    filters_that_acknowledge: int | None = None
    """Number of members whose filters together acknowledge a message. With None, only causal histories do."""
    most_doubt: float = 1e-6
    """Maximum probability that all of these filters were wrong."""

    retrieve: Backoff = Backoff(10_000, 10 * _MINUTE_MS)
    """Delay before the application must try again to retrieve a missing message."""
    lost_after_ms: int | None = 24 * 60 * _MINUTE_MS
    """Time after which a missing message is declared lost, and its dependents are delivered. None means never."""

    sync_interval_ms: int | None = 30_000
    """Minimum interval of sync messages, to which a random part of it is added. With None, none are sent."""

    def __post_init__(self) -> None:
        self.dialect.filter_hash("")  # raises early if the hash is not installed
        longest = self.history_length + max(self.heads, self.heads_in_sync)
        if self.history_length < 1 or min(self.heads, self.heads_in_sync) < 0 or longest > MAX_SDS_HISTORY:
            raise SdsError(
                f"invalid length of a causal history: expected 1 to {MAX_SDS_HISTORY} messages, but these settings "
                f"allow {longest}"
            )
        if not 0 <= self.repairs_per_message <= MAX_SDS_REPAIR_REQUESTS:
            raise SdsError(
                f"invalid repairs_per_message: expected 0 to {MAX_SDS_REPAIR_REQUESTS}, got {self.repairs_per_message}"
            )
        if self.resends < 0 or (self.filters_that_acknowledge or 1) < 1:
            raise SdsError("`resends` must be at least 0, and `filters_that_acknowledge` must be None or at least 1")
        for name in ("lost_after_ms", "sync_interval_ms"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SdsError(f"invalid {name}: expected None or at least 1 ms, got {value}")
