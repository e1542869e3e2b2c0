"""How much the client reads, holds and shows at once."""

from __future__ import annotations

from typing import Final

PAGE_MESSAGES: Final = 200
"""Messages that are read at once: some screens of them."""

SCREENS_FOLLOWED: Final = 2
"""Screens of messages that are read at once while the view follows the end of a channel. Each look reads them again."""

MAX_HELD: Final = 1_000
"""Messages that are held. Those farthest from the view are dropped first, and read again when the view gets there."""

MAX_EVENTS: Final = 100
"""Events that are looked at one by one. After more than these, everything that is shown is read again."""

MAX_MEMBERS_SHOWN: Final = 500
"""Members of a channel that the list shows."""

MAX_NAMES_COMPARED: Final = 100_000
"""Users whose names are compared to find those that look alike: comparing them takes a second and 20 MB."""

NAMES_AT_ONCE: Final = 500
"""Names that are read between two pauses: some milliseconds."""

MAX_MENTIONS: Final = 200
"""Messages that name the user and are marked on the screen: the latest of the channel."""

MAX_FOUND: Final = 100
"""Messages that one search shows."""

MAX_TYPED: Final = 65_536
"""Characters that the typing box holds: 16 messages of the greatest size. A larger paste is refused, because each key
in it would take long."""
