"""Acknowledgements of a connection: whether the peer's machine still acknowledges sent data.

TCP_USER_TIMEOUT is not used: it also ends the connection of a peer that is reachable and reads slowly.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from contextlib import suppress
from typing import Any, Final, NamedTuple

from cablestore import limits

_KEEPALIVE: Final = {
    "TCP_KEEPIDLE": limits.KEEPALIVE_AFTER_S,
    "TCP_KEEPALIVE": limits.KEEPALIVE_AFTER_S,  # the name on macOS
    "TCP_KEEPINTVL": limits.KEEPALIVE_EVERY_S,
    "TCP_KEEPCNT": limits.KEEPALIVE_PROBES,
}
_MACOS_RXT_CONNDROPTIME: Final = 0x80
"""Seconds without an acknowledgement after which macOS drops a connection. Python does not define it."""

_TCP_INFO: Final = struct.Struct("=3xB4x16xI24xII84xI")
"""Fields of tcp_info in linux/tcp.h: unanswered probes, unacknowledged segments, milliseconds since data and since an
acknowledgement arrived, and unsent bytes.
"""


class _State(NamedTuple):
    probes: int
    segments: int
    data_ms: int
    acknowledgement_ms: int
    unsent_size_bytes: int


def keep_alive(connection: Any) -> None:
    """Enable keep-alive, so that the system detects peers that vanished during silence."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if sys.platform == "darwin":
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, _MACOS_RXT_CONNDROPTIME, int(limits.UNACKNOWLEDGED_TIMEOUT_S))


def keep_queue_short(transport: asyncio.Transport) -> None:
    """Limit the data that the transport and the system queue, so that later requests wait for less data."""
    transport.set_write_buffer_limits(high=limits.SLOW_READER_SIZE_BYTES)
    connection = transport.get_extra_info("socket")
    if hasattr(socket, "TCP_NOTSENT_LOWAT") and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, limits.SLOW_READER_SIZE_BYTES)


class Delivery:
    """The acknowledgements of one connection. On systems other than Linux, all data is assumed to be delivered."""

    def __init__(self, connection: Any, now_s: float) -> None:
        """`connection` is the socket of a transport."""
        self._connection = connection if sys.platform == "linux" else None
        self._since_s = now_s

    def unacknowledged_s(self, now_s: float) -> float:
        """Return how long the peer's machine has not acknowledged sent data, 0 if everything is acknowledged.

        Time with a full window does not count while the peer's machine answers probes. Call it every second.
        """
        state = self._state()
        if state is None:
            return 0.0
        if not state.segments and state.probes < 2:  # one probe may be in transit
            self._since_s = now_s
        return min(now_s - self._since_s, min(state.data_ms, state.acknowledgement_ms) / 1000)

    def restart(self, now_s: float) -> None:
        """Restart the time without an acknowledgement at `now_s`, because none was possible before."""
        self._since_s = now_s

    def is_complete(self) -> bool:
        """Return True if the peer's machine has acknowledged all data that was passed to the system."""
        state = self._state()
        return state is None or not (state.segments or state.unsent_size_bytes)

    def _state(self) -> _State | None:
        """Return the state of the connection, None if it is unknown or the connection is closed."""
        if self._connection is None:
            return None
        try:
            raw = self._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        except (OSError, ValueError):  # ValueError: the socket of a closed transport of uvloop
            return None
        return _State(*_TCP_INFO.unpack(raw)) if len(raw) == _TCP_INFO.size else None
