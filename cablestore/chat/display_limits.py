"""Limits of the client: messages, events, names and text that it reads, keeps in memory or shows at once."""

from __future__ import annotations

from typing import Final

PAGE_MESSAGES: Final = 200
"""Number of messages read at once: several screens."""

SCREENS_FOLLOWED: Final = 2
"""Screens of messages read at once while the view follows the end of a channel. Each update reads them again."""

MAX_HELD: Final = 1_000
"""Maximum number of messages in memory. Messages far from the view are removed first, and read again when needed."""

MAX_EVENTS: Final = 100
"""Maximum number of events handled individually. After more events, the whole screen is read again."""

MAX_MEMBERS_SHOWN: Final = 500
"""Maximum number of members in the list of a channel."""

MAX_NAMES_COMPARED: Final = 100_000
"""Maximum number of users whose names are compared to find look-alikes. That takes about 1 s and 20 MB of memory."""

NAMES_AT_ONCE: Final = 500
"""Names read between two pauses. Reading them takes some milliseconds."""

MAX_MENTIONS: Final = 200
"""Maximum number of marked mentions in a channel, and of mentions in a list. Only the latest mentions are shown."""

MAX_FOUND: Final = 100
"""Maximum number of messages shown for one search."""

MAX_TYPED: Final = 65_536
"""Maximum number of characters in the typing box: 16 messages of maximum size. A larger paste is rejected, because it
would slow down each key press."""
