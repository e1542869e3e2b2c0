"""What a service tells the manager that started it: systemd's notification protocol, sd_notify(3)."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def tell_ready() -> None:
    """Tell that the service is up, where somebody wants to know: units with Type=notify. Nobody else notices."""
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifying, suppress(OSError):  # it is up all the same
        notifying.connect(f"\0{address[1:]}" if address.startswith("@") else address)
        notifying.send(b"READY=1")
