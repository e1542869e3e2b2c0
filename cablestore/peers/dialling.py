"""The addresses that a node stays connected to: pauses between attempts, and events that end a pause early."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from cablestore import limits
from cablestore.peers.address import Address


class DialState(NamedTuple):
    """State of an address that a node stays connected to, at one moment."""

    address: Address
    only_reconciles: bool
    is_connected: bool
    reason: str
    """Why the last attempt failed, or the last connection ended. "" while the peer is connected."""
    again_in_s: float
    """Seconds until the next attempt, 0.0 if one is in progress or the peer is connected."""


class Dial:
    """The attempts to stay connected to one address."""

    def __init__(self, address: Address, *, only_reconciles: bool, clock: Callable[[], float]) -> None:
        self._address = address
        self._only_reconciles = only_reconciles
        self._clock = clock
        self._due = asyncio.Event()
        self._connected_s: float | None = None
        self._failures = 0
        self._is_away = False
        """True if the last attempt failed."""
        self._reason = ""
        self._again_s = self._early_s = self._fresh_s = float("-inf")

    def connected(self) -> bool:
        """Record that a connection is established. Return True if the previous attempt failed."""
        self._connected_s = self._clock()
        self._reason = ""
        return self._is_away

    def ended(self, reason: str, first_s: float, longest_s: float, spread: Callable[[float, float], float]) -> float:
        """Record that an attempt failed or a connection ended. Return the pause before the next attempt.

        The pause is short after a connection that worked, and doubles from `first_s` with each failure, up to
        `longest_s`. `spread` returns a random number between two limits, so that many nodes do not reconnect at the
        same moment.
        """
        has_worked = self._connected_s is not None and self._clock() - self._connected_s >= limits.WORKING_S
        self._is_away = self._connected_s is None
        self._connected_s = None
        self._reason = reason
        if has_worked:
            self._failures = 0
            return spread(0.5, 1.0) * min(first_s, limits.BROKEN_RETRY_S)
        pause_s = spread(0.5, 1.0) * min(first_s * 2.0 ** min(self._failures, 32), longest_s)
        self._failures += 1
        return pause_s

    async def pause(self, pause_s: float) -> None:
        """Wait for `pause_s`, or until an event ends the pause early."""
        self._again_s = self._clock() + pause_s
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._due.wait()
        self._due.clear()
        self._again_s = float("-inf")

    def retry_now(self) -> None:
        """End the pause, or skip the next pause if an attempt is in progress. Later pauses start at the shortest length.

        Do nothing while the peer is connected.
        """
        if self._connected_s is None:
            self._failures = 0
            self._due.set()

    def network_changed(self) -> None:
        """End the pause, as `retry_now` does.

        Later pauses become short again at most once every `limits.LONGEST_RETRY_S` seconds, because some networks
        change often.
        """
        if self._connected_s is None:
            if self._clock() - self._fresh_s >= limits.LONGEST_RETRY_S:
                self._fresh_s, self._failures = self._clock(), 0
            self._due.set()

    def retry_early(self) -> None:
        """End the pause because another peer is reachable again, at most once in `limits.EARLY_RETRY_EVERY_S`."""
        if self._connected_s is None and self._clock() - self._early_s >= limits.EARLY_RETRY_EVERY_S:
            self._early_s = self._clock()
            self._due.set()

    @property
    def state(self) -> DialState:
        """A snapshot of the present state."""
        again_in_s = max(0.0, self._again_s - self._clock())
        return DialState(self._address, self._only_reconciles, self._connected_s is not None, self._reason, again_in_s)


class Dials:
    """The addresses that both ports of a node stay connected to. Use it on the node's loop."""

    def __init__(self, clock: Callable[[], float], spread: Callable[[float, float], float] = random.uniform) -> None:
        self._clock = clock
        self.spread: Final = spread
        self._dials: Final[list[Dial]] = []

    def add(self, address: Address, *, only_reconciles: bool) -> Dial:
        """Add an address."""
        dial = Dial(address, only_reconciles=only_reconciles, clock=self._clock)
        self._dials.append(dial)
        return dial

    def remove(self, dial: Dial) -> None:
        """Remove an address."""
        self._dials.remove(dial)

    def connected(self, dial: Dial) -> None:
        """Record that a connection is established. If the previous attempt failed, retry the other addresses early."""
        if dial.connected():
            for other in self._dials:
                other.retry_early()

    def retry_now(self) -> None:
        """End all pauses. The next pauses are short."""
        for dial in self._dials:
            dial.retry_now()

    def network_changed(self) -> None:
        """End all pauses: the peers may be reachable now."""
        for dial in self._dials:
            dial.network_changed()

    def states(self) -> list[DialState]:
        """Return the state of each address."""
        return [dial.state for dial in tuple(self._dials)]
