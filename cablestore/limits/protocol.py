"""Limits of the protocol (wire.md, moderation.md), and of cable.js, which crashes beyond its own."""

from __future__ import annotations

from typing import Final

MAX_TEXT_SIZE_BYTES: Final = 4096
"""wire.md 6.2.2: the text of a post/text."""

MAX_INFO_VALUE_SIZE_BYTES: Final = 4096
"""wire.md 6.2.4: one value of a post/info."""

MAX_INFO_KEY_CODEPOINTS: Final = 128
"""wire.md 6.2.4: one key of a post/info (at least 1)."""

MAX_USER_NAME_CODEPOINTS: Final = 32
"""wire.md 5.3.1 (at least 1)."""

MAX_CHANNEL_CODEPOINTS: Final = 64
"""wire.md 5.4.1 (at least 1; 0 means the whole cabal in post/role and post/moderation)."""

MAX_TOPIC_CODEPOINTS: Final = 512
"""wire.md 5.4.2."""

MAX_REASON_CODEPOINTS: Final = 128
"""moderation.md 5.1.1."""

MAX_RECIPIENTS: Final = 16
"""moderation.md 5.1.4 and 5.1.5: users that one post/block or post/unblock names (at least 1). cable.js crashes at a
post/moderation with more."""

MAX_SEED_USERS: Final = 16
"""moderation.md 4.7.2: users to whom one moderation seed gives a role (at least 1)."""

MAX_FUTURE_MS: Final = 604_800_000
"""wire.md 5.1.4.3: posts dated a week or more ahead are refused at ingest."""

# --- of cable.js ---------------------------------------------------------------------------------

MAX_CABLE_JS_CHANNEL_SIZE_BYTES: Final = 64
"""A channel's name in UTF-8. Here and in the limits below, cable.js counts bytes where the protocol counts code
points."""

MAX_CABLE_JS_NAME_SIZE_BYTES: Final = 32
"""A user's name in UTF-8."""

MAX_CABLE_JS_TOPIC_SIZE_BYTES: Final = 512
"""A topic in UTF-8."""

MAX_CABLE_JS_REASON_SIZE_BYTES: Final = 128
"""The reason of a moderation post in UTF-8."""
