"""The pace of a peer that sends a message byte by byte. Pure.

It is counted in looks, at least a second apart. So the time in which this process is stopped does not count, nor does a
line that is cut for a while: a slow line brings packets of hundreds of bytes.
"""

from __future__ import annotations

from typing import Final

from cablestore import limits

_LOOK_EVERY_S: Final = 1.0


class MessagePace:
    """Pace of the message that is arriving."""

    def __init__(self, size_bytes: int, now_s: float) -> None:
        """Begin to count after this many bytes, which are of no message."""
        self._size_bytes = size_bytes
        self._looks_at_s = now_s + _LOOK_EVERY_S
        self._messages = 0
        self.slow_looks = 0
        """Looks at which very few bytes of this message had come since the look before."""

    @property
    def is_first(self) -> bool:
        """True as long as no message is complete."""
        return self._messages == 0

    def look(self, size_bytes: int, messages: int, now_s: float) -> None:
        """Note how many bytes have come in all, and how many messages are complete."""
        if now_s < self._looks_at_s:
            return
        self._looks_at_s = now_s + _LOOK_EVERY_S
        fresh_size_bytes, self._size_bytes = size_bytes - self._size_bytes, size_bytes
        if messages != self._messages or fresh_size_bytes >= limits.MIN_MESSAGE_BYTES_PER_S:
            self._messages = messages
            self.slow_looks = 0
        elif fresh_size_bytes or (self.is_first and self.slow_looks):
            self.slow_looks += 1
