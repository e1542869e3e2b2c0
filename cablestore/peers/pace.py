"""The pace of a peer that sends a message byte by byte.

The pace is measured by checks, at least a second apart. So pauses of this process and interruptions of the link do not
count. Even a slow link transfers packets of hundreds of bytes.
"""

from __future__ import annotations

from typing import Final

from cablestore import limits

_POLL_EVERY_S: Final = 1.0


class MessagePace:
    """Pace of the incoming message."""

    def __init__(self, size_bytes: int, now_s: float) -> None:
        """Start measuring. The `size_bytes` bytes received before this are not part of a message."""
        self._size_bytes = size_bytes
        self._checks_at_s = now_s + _POLL_EVERY_S
        self._messages = 0
        self.slow_checks = 0
        """Number of checks that found very few new bytes of this message."""

    @property
    def is_first(self) -> bool:
        """True as long as no message is complete."""
        return self._messages == 0

    def check(self, size_bytes: int, messages: int, now_s: float) -> None:
        """Check the pace, unless the last check is recent. `size_bytes` and `messages` are totals received so far."""
        if now_s < self._checks_at_s:
            return
        self._checks_at_s = now_s + _POLL_EVERY_S
        fresh_size_bytes, self._size_bytes = size_bytes - self._size_bytes, size_bytes
        if messages != self._messages or fresh_size_bytes >= limits.MIN_MESSAGE_BYTES_PER_S:
            self._messages = messages
            self.slow_checks = 0
        elif fresh_size_bytes or (self.is_first and self.slow_checks):
            self.slow_checks += 1
