"""Limits of the protocol (wire.md, moderation.md), and limits above which cable.js crashes."""

from __future__ import annotations

from typing import Final

MAX_TEXT_SIZE_BYTES: Final = 4096
"""Maximum size of the text of a post/text in UTF-8 (wire.md 6.2.2)."""

MAX_INFO_VALUE_SIZE_BYTES: Final = 4096
"""Maximum size of one value of a post/info (wire.md 6.2.4)."""

MAX_INFO_KEY_CODEPOINTS: Final = 128
"""Maximum length of one key of a post/info (wire.md 6.2.4). The minimum is 1."""

MAX_USER_NAME_CODEPOINTS: Final = 32
"""Maximum length of a user's name (wire.md 5.3.1). The minimum is 1."""

MAX_CHANNEL_CODEPOINTS: Final = 64
"""Maximum length of a channel's name (wire.md 5.4.1). The minimum is 1; in a post/role and post/moderation, 0 means the
whole cabal."""

MAX_TOPIC_CODEPOINTS: Final = 512
"""Maximum length of a channel's topic (wire.md 5.4.2)."""

MAX_REASON_CODEPOINTS: Final = 128
"""Maximum length of the reason of a moderation post (moderation.md 5.1.1)."""

MAX_RECIPIENTS: Final = 16
"""Maximum number of users in one post/block or post/unblock (moderation.md 5.1.4, 5.1.5). The minimum is 1. A
post/moderation with more recipients crashes cable.js."""

MAX_SEED_USERS: Final = 16
"""Maximum number of users to whom one moderation seed assigns a role (moderation.md 4.7.2). The minimum is 1."""

MAX_FUTURE_MS: Final = 604_800_000
"""How far a post may be dated ahead of the clock (wire.md 5.1.4.3). Posts dated a week or more ahead are rejected."""

# --- of cable.js ---------------------------------------------------------------------------------

MAX_CABLE_JS_CHANNEL_SIZE_BYTES: Final = 64
"""Maximum size of a channel's name in UTF-8 that cable.js accepts. cable.js counts bytes instead of code points."""

MAX_CABLE_JS_NAME_SIZE_BYTES: Final = 32
"""Maximum size of a user's name in UTF-8 that cable.js accepts. cable.js counts bytes instead of code points."""

MAX_CABLE_JS_TOPIC_SIZE_BYTES: Final = 512
"""Maximum size of a topic in UTF-8 that cable.js accepts. cable.js counts bytes instead of code points."""

MAX_CABLE_JS_REASON_SIZE_BYTES: Final = 128
"""Maximum size of the reason of a moderation post in UTF-8 that cable.js accepts. cable.js counts bytes instead of code
points."""
