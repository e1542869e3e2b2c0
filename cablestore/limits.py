"""Every limit of the store: its name, its value and why it is what it is."""

from __future__ import annotations

from typing import Final

# --- of the protocol (wire.md, moderation.md) -------------------------------------------------

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
"""moderation.md 5.1.4 and 5.1.5: users that one post/block or post/unblock names (at least 1)."""

MAX_FUTURE_MS: Final = 604_800_000
"""wire.md 5.1.4.3: posts dated a week or more ahead are refused at ingest."""

# --- ours --------------------------------------------------------------------------------------

MAX_TIMESTAMP_MS: Final = 2**53 - 1
"""The greatest number that JavaScript peers read exactly; it has 16 decimal digits, as a key's timestamp does."""

MAX_POST_SIZE_BYTES: Final = 262_144
"""One post. The protocol sets none; this holds 8,000 links or deletions and bounds what one post can cost."""

MAX_LINKS_WRITTEN: Final = 64
"""Heads that one new post links to. A channel with more is drawn together by the posts that follow."""

MAX_DELETIONS_WRITTEN: Final = 1_000
"""Hashes that one new post/delete names. More are spread over several posts, 32 kB each."""

MAX_BATCH_POSTS: Final = 1_000
"""Posts in one atomic write. Larger calls are cut: a batch is held in memory until it is written."""

MAX_BATCH_SIZE_BYTES: Final = 4_194_304
"""Bytes of posts in one atomic write; the rows of a batch take about five times that in memory."""

MAX_OWN_CLOCK_STEP_MS: Final = 60_000
"""How far an own post may be dated after the clock so that own posts keep their order. Beyond it the clock was set back."""

CAUSAL_SKEW_MS: Final = 604_800_000
"""How long before a window its causal order looks for ancestors that claim a later time. See `cablestore.causal`."""

MAX_CAUSAL_POSTS: Final = 100_000
"""Posts that one causal ordering holds in memory (about 500 bytes each)."""

STATE_POSTS_KEPT: Final = 3
"""wire.md 5.1.5.1: of each kind of channel state, `prune` keeps the latest, second-latest and third-latest."""

MAX_EVENTS_READ: Final = 1_000
"""Events of the arrival log that one call returns, posts included."""

MAX_PAGE_MESSAGES: Final = 1_000
"""Messages that one page holds in memory; its cursor goes on."""

SEGMENT_SIZE_BYTES: Final = 67_108_864
"""One file of an export. A task of the Spark job reads one whole."""

SEGMENT_BLOCK_SIZE_BYTES: Final = 1_048_576
"""Bytes of posts or rows in one block of a segment: what a reader holds in memory of it."""

MAX_SEGMENT_BLOCK_SIZE_BYTES: Final = 67_108_864
"""The largest block that is read. Writers stay far below; a damaged or hostile file gets no further."""

MAX_RUN_SIZE_BYTES: Final = 67_108_864
"""Pieces of rows that a rebuild, a check or a task holds in memory before it writes a run; Python takes twice that."""

MAX_BUCKET_SIZE_BYTES: Final = 33_554_432
"""Rows that are sorted in memory at a time in the second step of a derivation, about."""

PARTITION_POSTS: Final = 50_000
"""Posts whose hashes one task of the Spark job settles, about: 70 MB of pieces, 300 MB of Python."""

PART_ROWS: Final = 300_000
"""Rows that one process loads into one LevelDB at a time, about: 20 s, which is what an interruption loses."""

SHARED_OUT_FROM_SIZE_BYTES: Final = 134_217_728
"""A database from which on processes share out a rebuild: 100,000 posts, which one process rebuilds in a few seconds."""
