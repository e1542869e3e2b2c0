"""Reactions to a changed network or to a wake-up: check the connected peers, and dial the disconnected peers."""

from __future__ import annotations

from collections.abc import Iterable

from cablestore.peers.context import PeerContext
from cablestore.peers.link import PeerLink
from cablestore.peers.network_watch import NetworkWatch, SleepDetector


class Reachability:
    """The checks of one node. Use it on the node's loop."""

    def __init__(self, context: PeerContext, links: Iterable[PeerLink]) -> None:
        """`links` are the connections of both ports."""
        self._context = context
        self._links = links
        self._sleep = SleepDetector(context.loop.time())
        self._watch = NetworkWatch(context.loop, self._changed)

    def check(self, now_s: float) -> None:
        """Check all peers if the machine has slept since the last call. Call it every second."""
        slept_s = self._sleep.slept_s(now_s)
        if slept_s:
            self._context.log.info("awake again", extra={"slept_s": round(slept_s)})
            for link in self._links:
                link.check_life()
            self._context.dials.network_changed()

    def _changed(self) -> None:
        for link in self._links:
            link.check_path()
        self._context.dials.network_changed()

    def close(self) -> None:
        """Stop watching."""
        self._watch.close()
