"""Listening sockets that resume accepting after the system ran out of file descriptors.

The servers of the event loops cannot do this. After such an error, the uvloop server closes permanently, and the asyncio
server logs a traceback every second.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

_BACKLOG: Final = 1024
_AT_ONCE: Final = 64
"""Maximum number of connections to accept before the loop does other work."""
_PAUSE_S: Final = 1.0
"""Pause after the system had no descriptor or memory for a connection."""
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_NO_SUCH_FAMILY: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""Errors of IPv6 addresses on a machine without IPv6. `bind` ignores them if it could bind another address."""


class AcceptingSockets:
    """Sockets that listen on all addresses of a host. Use it on the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sockets: list[socket.socket],
        accepted: Callable[[socket.socket], None],
        failed: Callable[[OSError], None],
    ) -> None:
        """Start accepting. `accepted` is called with each connection, and `failed` with the error before each pause."""
        self._loop = loop
        self.sockets: Final = sockets
        self._accepted = accepted
        self._failed = failed
        self._pauses: Final[dict[socket.socket, asyncio.TimerHandle]] = {}
        """The last pause of each socket."""
        for each in sockets:
            self._resume(each)

    def close(self) -> None:
        """Stop accepting, and close the sockets."""
        for pause in self._pauses.values():
            pause.cancel()
        while self.sockets:
            each = self.sockets.pop()
            with suppress(RuntimeError):  # the loop is closed
                self._loop.remove_reader(each)
            each.close()

    def _resume(self, listening: socket.socket) -> None:
        self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = listening.accept()
            except OSError as error:  # no connection waits, the peer is gone, or descriptors are exhausted
                if error.errno in _EXHAUSTED:
                    self._loop.remove_reader(listening)
                    self._pauses[listening] = self._loop.call_later(_PAUSE_S, self._resume, listening)
                    self._failed(error)
                return
            connection.setblocking(False)
            self._accepted(connection)


def bind(hosts: Iterable[str], port: int) -> list[socket.socket]:
    """Return sockets that listen on these numeric addresses; "" stands for all addresses. Raises OSError."""
    flags = socket.AI_PASSIVE | socket.AI_NUMERICHOST
    found: list[Any] = []
    for host in hosts:
        found += socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)
    sockets: list[socket.socket] = []
    errors: list[OSError] = []
    for family, _, _, _, address in dict.fromkeys(found):
        try:
            sockets.append(_bound(family, address))
        except OSError as error:
            errors.append(error)
    fatal = errors if not sockets else [error for error in errors if error.errno not in _NO_SUCH_FAMILY]
    if fatal:
        for each in sockets:
            each.close()
        raise fatal[0]
    return sockets


def _bound(family: int, address: tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]) -> socket.socket:
    listening = socket.socket(
        family, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )  # asyncio sets TCP_NODELAY only with IPPROTO_TCP
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            with suppress(OSError):
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.setblocking(False)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening
