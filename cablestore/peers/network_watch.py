"""Detection of events that may break connections: the machine's addresses or routes changed, or the machine slept."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

_SETTLES_IN_S: Final = 0.5
"""Time to wait for the rest of a group of changes: removed addresses, added addresses, then routes."""
_GROUPS: Final = 0x10 | 0x40 | 0x100 | 0x400
"""RTMGRP_IPV4_IFADDR, RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_IFADDR and RTMGRP_IPV6_ROUTE of linux/rtnetlink.h."""
_MESSAGE_SIZE_BYTES: Final = 65_536
_SLEEP_S: Final = 10.0
"""If more time than this passed between two checks, the machine slept. A busy loop is not that late."""


class NetworkWatch:
    """Watcher of the machine's addresses and routes through netlink. On systems other than Linux, it does nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop, changed: Callable[[], None]) -> None:
        """`changed` is called on the loop, once for each group of changes."""
        self._loop = loop
        self._changed = changed
        self._settling: asyncio.TimerHandle | None = None
        self._netlink: socket.socket | None = None
        if not hasattr(socket, "AF_NETLINK"):
            return
        with suppress(OSError):  # a sandbox forbids it; silence of peers is still detected
            self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
            self._netlink.bind((0, _GROUPS))
            loop.add_reader(self._netlink, self._read)

    def _read(self) -> None:
        """Read and discard all messages: any message, even a lost one, means that an address or a route changed."""
        with suppress(OSError):
            while self._netlink is not None:
                self._netlink.recv(_MESSAGE_SIZE_BYTES)
        if self._settling is None:
            self._settling = self._loop.call_later(_SETTLES_IN_S, self._settled)

    def _settled(self) -> None:
        self._settling = None
        self._changed()

    def close(self) -> None:
        """Stop watching."""
        if self._settling is not None:
            self._settling.cancel()
        if self._netlink is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.remove_reader(self._netlink)
            self._netlink.close()
            self._netlink = None


def has_address(end: tuple[Any, ...]) -> bool:
    """Return True if the machine still has the address of a socket's local end."""
    family = socket.AF_INET if len(end) == 2 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as trial:
        try:
            trial.bind((end[0], 0, *end[2:]))
        except OSError:
            return False
    return True


def source_address(end: tuple[Any, ...]) -> str:
    """Return the address from which the machine would send to a peer now, "" without a route. Nothing is sent."""
    family = socket.AF_INET if len(end) == 2 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as trial:
        try:
            trial.connect(end)
        except OSError:
            return ""
        return str(trial.getsockname()[0])


def wall_clock_s() -> float:
    """Return the seconds of a clock that includes sleep. On Linux it is CLOCK_BOOTTIME, which cannot be set."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time()


class SleepDetector:
    """Detector of sleep, such as a closed laptop, a paused virtual machine or SIGSTOP."""

    def __init__(self, now_s: float, wall_clock: Callable[[], float] = wall_clock_s) -> None:
        """`now_s` is a time of the loop, whose clock may stop during sleep."""
        self._wall_clock = wall_clock
        self._last_s = now_s
        self._last_wall_s = wall_clock()

    def slept_s(self, now_s: float) -> float:
        """Return how long the machine or the process slept since the last call, 0.0 if it did not. Call it every second."""
        wall_s = self._wall_clock()
        passed_s = max(now_s - self._last_s, wall_s - self._last_wall_s)
        self._last_s, self._last_wall_s = now_s, wall_s
        return passed_s if passed_s > _SLEEP_S else 0.0
