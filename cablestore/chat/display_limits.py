"""Limits of what the client reads, holds and shows at once."""

from __future__ import annotations

from typing import Final

PAGE_MESSAGES: Final = 200
"""Messages read at once: several screens."""

SCREENS_FOLLOWED: Final = 2
"""Screens of messages read at once while the view follows the end of a channel. Each update reads them again."""

MAX_HELD: Final = 1_000
"""Messages held in memory. Those farthest from the view are dropped first, and read again when scrolled to."""

MAX_EVENTS: Final = 100
"""Events handled individually. After more events, the whole screen is read again."""

MAX_MEMBERS_SHOWN: Final = 500
"""Members of a channel in the list."""

MAX_NAMES_COMPARED: Final = 100_000
"""Users whose names are compared to find look-alikes, which requires a second and 20 MB."""

NAMES_AT_ONCE: Final = 500
"""Names read between two pauses, in some milliseconds."""

MAX_MENTIONS: Final = 200
"""Mentions marked on the screen: the latest of the channel."""

MAX_FOUND: Final = 100
"""Messages shown for one search."""

MAX_TYPED: Final = 65_536
"""Characters in the typing box: 16 messages of maximum size. A larger paste is rejected, because it would slow down
each key press."""
