"""The silence of a peer: when to probe it, and when to close the connection."""

from __future__ import annotations

from enum import Enum
from typing import Final

from cablestore import limits

_MAX_PROBES: Final = 2
"""Maximum number of probes of a silent peer."""
_ACCEPTED_WAITS_S: Final = 2.0
"""Extra wait of the side that accepted the connection, so that only one side probes."""


class LifeCheck(Enum):
    """Reaction to a silent peer."""

    WAIT = "wait"
    PROBE = "request a sign of life"
    GIVE_UP = "close the connection"


class Silence:
    """The silence of one peer. Any received byte ends it."""

    def __init__(self, now_s: float, *, is_ours: bool) -> None:
        """`is_ours` is True if this node began the connection."""
        self._probes_after_s = limits.SILENCE_S + (0.0 if is_ours else _ACCEPTED_WAITS_S)
        self._received_s = self._probed_s = now_s
        self._probes = 0
        self._is_due = False
        self.is_answerable = False
        """True if the peer is known to answer probes, which some clients do not."""

    def check(self, now_s: float, received_s: float, *, is_delivered: bool) -> LifeCheck:
        """Return what to do about the silence now, and record it as done.

        `received_s` is the time of the last received byte. `is_delivered` is False while a probe may not have reached
        the peer. Then the check waits.
        """
        if received_s > self._received_s:
            self._received_s, self._probes = received_s, 0
        if not self._probes:
            if not self._is_due and now_s - received_s < self._probes_after_s:
                return LifeCheck.WAIT
        elif not is_delivered:
            self._probed_s = now_s
            return LifeCheck.WAIT
        elif now_s - self._probed_s < limits.LIFE_SIGN_TIMEOUT_S:
            return LifeCheck.WAIT
        elif self._probes == _MAX_PROBES or not self.is_answerable:
            return LifeCheck.GIVE_UP if self.is_answerable else LifeCheck.WAIT
        self._is_due = False
        self._probes += 1
        self._probed_s = now_s
        return LifeCheck.PROBE

    @property
    def is_unanswered(self) -> bool:
        """True if the peer did not answer the first probe within `limits.LIFE_SIGN_TIMEOUT_S`."""
        return self._probes == _MAX_PROBES

    def check_now(self) -> None:
        """Probe at the next `check`, as if for the first time: the network may have changed."""
        self._probes, self._is_due = 0, True
