"""What the system knows of a connection: whether the peer's machine still acknowledges what is sent to it.

TCP_USER_TIMEOUT is not used: it also ends the connection of a peer that is reachable and reads slowly.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import sys
import termios
from contextlib import suppress
from typing import Any, Final

from cablestore import limits

_KEEPALIVE: Final = {
    "TCP_KEEPIDLE": limits.KEEPALIVE_AFTER_S,
    "TCP_KEEPALIVE": limits.KEEPALIVE_AFTER_S,  # the name on macOS
    "TCP_KEEPINTVL": limits.KEEPALIVE_EVERY_S,
    "TCP_KEEPCNT": limits.KEEPALIVE_PROBES,
}
_MACOS_RXT_CONNDROPTIME: Final = 0x80
"""Seconds without an acknowledgement after which macOS drops a connection. Python does not name it."""

_TCP_INFO: Final = struct.Struct("=3xB4x16xI24xII")
"""Of Linux' tcp_info: probes without an answer, segments without an acknowledgement, and the milliseconds since data and
since an acknowledgement arrived."""


def keep_alive(connection: Any) -> None:
    """Have the system find out about peers that vanished while nothing is sent."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if sys.platform == "darwin":
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, _MACOS_RXT_CONNDROPTIME, int(limits.UNACKNOWLEDGED_TIMEOUT_S))


class Delivery:
    """The acknowledgements of one connection. Only Linux shows them; elsewhere all counts as delivered."""

    def __init__(self, connection: Any, now_s: float) -> None:
        """`connection` is the socket of a transport."""
        self._connection = connection if sys.platform == "linux" else None
        self._since_s = now_s

    def unacknowledged_s(self, now_s: float) -> float:
        """Return for how long the peer's machine has not acknowledged what was sent, 0 if it waits for nothing.

        A full window does not count as long as the peer's machine answers the probes of it. Call it every second.
        """
        if self._connection is None:
            return 0.0
        try:
            raw = self._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        except OSError:  # it is closed
            return 0.0
        probes, segments, data_ms, acknowledgement_ms = _TCP_INFO.unpack(raw)
        if not segments and probes < 2:  # one may be on its way
            self._since_s = now_s
        heard_ms: int = min(data_ms, acknowledgement_ms)
        return min(now_s - self._since_s, heard_ms / 1000)

    def restart(self, now_s: float) -> None:
        """Count from now on: nobody could acknowledge anything until now."""
        self._since_s = now_s

    def is_complete(self) -> bool:
        """Return True if the peer's machine has acknowledged everything that the system got to send."""
        if self._connection is None:
            return True
        try:
            waiting = fcntl.ioctl(self._connection.fileno(), termios.TIOCOUTQ, bytes(4))
        except (OSError, ValueError):  # it is closed
            return True
        return not int.from_bytes(waiting, sys.byteorder)
