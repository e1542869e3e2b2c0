"""Warnings about peers that probably have another cabal key: one per address, not one per attempt."""

from __future__ import annotations

from collections import OrderedDict
from logging import Logger
from typing import Final

from cablestore import limits

_OTHER_KEY: Final = "the peer probably has another cabal key or none, or accepts no more connections"
_NO_KEY_THERE: Final = "the peer probably has no cabal key, and this node has one"
_NO_KEY_HERE: Final = "the peer probably has a cabal key, and this node has none"


def probable_cause(*, is_ours: bool, has_key: bool, received_size_bytes: int) -> str:
    """Return the probable cause if a connection ends before any message of the peer is understood.

    It is "" if an unknown peer connected and sent nothing, as health checks and port scanners do.
    """
    if not received_size_bytes and not is_ours:
        return ""
    if not has_key:
        return _NO_KEY_HERE if received_size_bytes else f"{_NO_KEY_HERE}; or it accepts no more connections"
    return _NO_KEY_THERE if received_size_bytes else _OTHER_KEY


class KeyWarnings:
    """The addresses that a node has warned about."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._warned: Final[OrderedDict[str, None]] = OrderedDict()

    def suspect(self, peer: str, reason: str) -> None:
        """Log a warning, unless one was logged for this peer since its last valid message."""
        if peer in self._warned:
            return
        self._warned[peer] = None
        if len(self._warned) > limits.MAX_KEY_WARNINGS:
            self._warned.popitem(last=False)
        self._log.warning("the cabal keys probably differ", extra={"peer": peer, "reason": reason})

    def understood(self, peer: str) -> None:
        """Record a valid message of a peer. A later problem is logged again."""
        self._warned.pop(peer, None)
