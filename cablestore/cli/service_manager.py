"""Messages to the service manager (sd_notify(3)), for units with Type=notify: readiness, progress, signs of life."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Self

_PINGS_PER_LIMIT = 3
"""Number of signs of life within the time limit, so that one sign may be late."""


class ServiceManager:
    """Service manager, with the address of its socket, or "" if no service manager started the process.

    `watchdog_s` is the maximum time between two signs of life, 0.0 without a limit.
    """

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._watchdog_s = watchdog_s

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Self:
        """Return the service manager that the variables describe."""
        limit_s = 0.0
        with suppress(ValueError):
            limit_s = max(0.0, int(environment.get("WATCHDOG_USEC", "0")) / 1e6)
        is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        return cls(environment.get("NOTIFY_SOCKET", ""), limit_s if is_ours else 0.0)

    def ready(self) -> None:
        """Report that the service is ready."""
        self._notify("READY=1\nSTATUS=")

    def stopping(self) -> None:
        """Report that the service is stopping."""
        self._notify("STOPPING=1")

    def progress(self, text: str, limit_s: float) -> None:
        """Show a text in `systemctl status`. A starting service may take `limit_s` seconds after this call."""
        self._notify(f"STATUS={text}\nEXTEND_TIMEOUT_USEC={limit_s * 1e6:.0f}")

    async def send_signs_of_life(self) -> None:
        """Send signs of life from the running event loop, if the unit has WatchdogSec=.

        A loop that hangs does not send them. The service manager then ends the process and starts it again.
        """
        while self._watchdog_s:
            self._notify("WATCHDOG=1")
            await asyncio.sleep(self._watchdog_s / _PINGS_PER_LIMIT)

    def _notify(self, message: str) -> None:
        if self._address:
            # The service works even if this fails.
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifying, suppress(OSError):
                notifying.sendto(message.encode(), self._address)


@cache
def service_manager() -> ServiceManager:
    """Return the service manager that started this process. Child processes do not notify it."""
    found = ServiceManager.of_environment(os.environ)
    os.environ.pop("NOTIFY_SOCKET", None)
    return found
