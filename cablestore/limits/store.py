"""Limits of one store: posts, batches, exports, rebuilds, imported logs."""

from __future__ import annotations

from typing import Final

MAX_TIMESTAMP_MS: Final = 2**53 - 1
"""The greatest number that JavaScript peers read exactly. It has 16 decimal digits, as the timestamp in a key does."""

MAX_POST_SIZE_BYTES: Final = 262_144
"""One post. The protocol sets no limit; this one has room for 8,000 links or deletions and bounds the cost of a
post."""

MAX_LINKS_WRITTEN: Final = 64
"""Heads that one new post links to. If a channel has more, later posts link to the others."""

MAX_DELETIONS_WRITTEN: Final = 1_000
"""Hashes that one new post/delete names. More are written to several posts of 32 kB each."""

MAX_DELETIONS_LISTED: Final = 8
"""Deletions of one post by its author that the channel's history lists, earliest first. One is enough; two devices may
write two."""

MAX_BATCH_POSTS: Final = 1_000
"""Posts in one atomic write. Larger calls are split: a batch is in memory until it is written."""

MAX_BATCH_SIZE_BYTES: Final = 4_194_304
"""Bytes of posts in one atomic write. The rows of a batch take about five times as much memory."""

MAX_POSTS_REMEMBERED: Final = 512
"""Decoded posts that a process keeps in memory: those that were read last."""

MAX_POST_REMEMBERED_SIZE_BYTES: Final = 4_096
"""Size of the largest post that is kept decoded. All of them take at most 4 MB."""

MAX_ROWS_REMEMBERED: Final = 4_096
"""Counts, sums and folds that a writer keeps in memory from batch to batch: what a few hundred single posts change."""

MAX_ROW_REMEMBERED_SIZE_BYTES: Final = 2_048
"""Bytes of one of them. All together are at most 8 MB; a larger row is read again."""

MAX_GROUPS_REMEMBERED: Final = 64
"""Channels whose heads a writer keeps in memory: more than one user writes to in turn."""

MAX_GROUP_ROWS_REMEMBERED: Final = 256
"""Heads of one of them, with the posts that it lacks. All together take some 4 MB; a channel with more is read each
time."""

MAX_OWN_CLOCK_STEP_MS: Final = 60_000
"""How far an own post may be dated ahead of the clock to keep own posts in order. A larger difference means that the
clock was set back."""

MAX_POSTS_IN_THE_WAY_LISTED: Final = 8
"""Own posts that an error lists because they are dated too far ahead to be replaced: they fit one command that deletes
them."""

MENTION_TOLERANCE_MS: Final = 5_400_000
"""How far a message's time may be from the time at which the user has a name, so that the name counts: an hour and a
half. A clock that missed the change to summer time differs by an hour, and others drift."""

CLOCK_TOLERANCE_MS: Final = 600_000
"""How far the local clock may differ from those of others without a warning: ten minutes. Clocks that are set by the
network differ by less than a second, and by hand by a few minutes."""

MIN_CLOCK_WITNESSES: Final = 2
"""Users whose texts must show that the local clock is wrong: one may be wrong, or lie."""

CLOCK_MEMORY_MS: Final = 14_400_000
"""How old own texts may be whose answers show that the local clock is ahead: four hours. It may be corrected since."""

MAX_CLOCK_TEXTS_READ: Final = 200
"""Latest texts that are read to compare clocks: some milliseconds. One user who writes more of them hides others."""

CAUSAL_SKEW_MS: Final = 604_800_000
"""How far before a window causal order looks for ancestors that claim a later time. See
`cablestore.store.causal_order`."""

MAX_LINKS_FOLLOWED: Final = 32
"""Links that a page in the middle of a channel follows to find out that a message answers one with a later time. Each
costs reading a post. Pages from an end of the channel need none."""

MAX_ENDS_READ: Final = 512
"""Rows of heads, missing and deleted posts of a channel that a page reads to find the heads. If there are more, the page
looks up for each of its messages what links to it, which costs about as much."""

MAX_ROWS_AHEAD: Final = 32
"""Rows that a page reads ahead to find where two lines of messages meet that were written at the same time. If they meet
later, it looks up for each message what links to it."""

MAX_ARRIVALS_FOLLOWED: Final = 64
"""Posts that may arrive between two pages so that what is known of the order is kept. Each is read. After more, or after
one that is not the latest of its channel, a page finds out again where its messages are."""

MAX_KNOWN_PLACES: Final = 200_000
"""Messages of which a store remembers the place in the order, about 100 bytes each. After more, it begins again."""

MAX_CAUSAL_POSTS: Final = 100_000
"""Posts that one causal ordering holds in memory (about 500 bytes each)."""

MAX_TOPICS_READ: Final = 1_000
"""Latest topics of a channel among which one is found that counts: some 15 ms. A channel in which blocked users set more
of them has no topic until the next one is set."""

STATE_POSTS_KEPT: Final = 3
"""wire.md 5.1.5.1: of each kind of channel state, `prune` keeps the latest, second-latest and third-latest."""

MAX_EVENTS_READ: Final = 1_000
"""Events of the arrival log that one call returns, posts included."""

READ_THREADS: Final = 2
"""Threads in which a store for asyncio reads. With two, a slow read does not keep others waiting; more are no faster,
because they share Python's lock."""

MAX_ITEMS_AHEAD: Final = 256
"""Items that a thread takes at once for an async iterator. Handing them over costs as much as reading a few of them."""

MAX_THINGS_CHANGED: Final = 8_192
"""Messages, users, topics and names that one read of changes tells. A read ends after the entry of the log that brings
it there; one act of moderation may name 8,000 more."""

MAX_LOCAL_VALUE_SIZE_BYTES: Final = 262_144
"""One value of the user's own (`CableStore.local`), or one draft. It is written as a whole in one atomic write."""

MAX_LOCAL_NAME_SIZE_BYTES: Final = 512
"""The name of such a value, and its key: a channel's name has room. They are parts of keys, which are read often."""

MAX_PAGE_MESSAGES: Final = 1_000
"""Messages that one page holds in memory; its cursor leads to the next page."""

MAX_PAGE_ROWS_READ: Final = 2_000
"""Messages that one page reads at most. A page of a channel in which most is hidden ends there, with a cursor."""

MAX_UNREAD_COUNTED: Final = 1_000
"""Unread texts and mentions that are counted in one channel. This number means that there are as many or more, so a
client shows "999+"."""

MAX_LATE_TEXTS: Final = 4_000
"""Unread texts of one channel that are dated before its read mark, about 170 bytes each. When there are more, the older
half counts as read, so that an import of old messages cannot fill the disk twice."""

MAX_SEARCH_CHARACTERS: Final = 1_000
"""Characters of one search. People enter a few words; a pasted page is refused."""

MAX_SEARCH_TERMS: Final = 32
"""Words and phrases of one search. All of them must be in a text."""

MAX_SEARCH_RANKED: Final = 20_000
"""Texts among which the best are found: the newest that match. Each costs one or two microseconds, and a common word
is in every fifth text."""

SEARCH_CATCH_UP_S: Final = 2.0
"""Seconds that a search reads what is new in the store before it answers from what it has read: 100,000 posts."""

MAX_REFUSED_REMEMBERED: Final = 100_000
"""Refused posts of dropped users and channels whose hashes are remembered, 200 bytes each, so that they are not
requested again. Further ones are refused by author and channel when they come."""

MAX_BLOCKED_ACTIONS: Final = 1_000
"""Actions, roles and deletions of one blocked user that are stored or remembered, if they are dated before the block.
The user can date any number of them back."""

MAX_CONSENTS_REMEMBERED: Final = 64
"""Statements about roles of one user that are remembered without their post/infos: the latest, about 150 bytes each. So
a blocked user cannot fill the disk with post/infos."""

MAX_SEED_ACTS_KEPT: Final = 10_000
"""Acts dated after the revocation of a moderation seed that stay applied, 32 bytes each: the earliest of those that
were applied then. Posts are dated at most a week ahead, so there are few."""

SEGMENT_SIZE_BYTES: Final = 67_108_864
"""One file of an export. A task of the Spark job reads a whole file."""

MAX_TEXT_FILE_SIZE_BYTES: Final = 1_048_576
"""Largest file of settings, key or seed that is read. A device without an end would fill the memory."""

SEGMENT_BLOCK_SIZE_BYTES: Final = 1_048_576
"""Bytes of posts or rows in one block of a segment. A reader has one block in memory."""

MAX_SEGMENT_BLOCK_SIZE_BYTES: Final = 67_108_864
"""The largest block that is read. Writers stay far below; a damaged or hostile file is refused."""

BACKUP_POSTS_SIZE_BYTES: Final = 1_048_576
"""About the size of one piece of posts in a backup. A post that is deleted later costs writing one such piece again."""

BACKUP_ROWS_SIZE_BYTES: Final = 262_144
"""About the size of one piece of other rows in a backup. A row that changes costs writing one such piece again."""

MAX_BACKUPS_SINCE_FULL: Final = 100
"""Backups of what is new, after which one writes all posts again: each leaves small pieces, and all are read when
something was deleted."""

MAX_BACKUP_ARRIVALS: Final = 1_000_000
"""Entries of the arrival log since the last backup, 100 bytes of memory each. After more a backup writes all posts."""

MAX_RUN_SIZE_BYTES: Final = 67_108_864
"""Pieces of rows that a rebuild, a check or a task holds in memory before it writes a run. Python takes twice as
much."""

MAX_BUCKET_SIZE_BYTES: Final = 33_554_432
"""About the size of the rows that are sorted in memory at a time in the second step of a derivation."""

PARTITION_POSTS: Final = 50_000
"""About the number of posts that one task of the Spark job handles: 70 MB of pieces, 300 MB of Python objects."""

PART_ROWS: Final = 300_000
"""About the number of rows that one process loads into one LevelDB at a time: 20 s, which an interruption loses."""

SHARED_OUT_FROM_SIZE_BYTES: Final = 134_217_728
"""The smallest database that several processes rebuild: 100,000 posts, which one process rebuilds in a few seconds."""

MAX_LOG_LINE_SIZE_BYTES: Final = 1_048_576
"""One line of a chat log. IRC sends 512 bytes, bridges some thousand. A longer line is damage: it is counted and
skipped."""

MAX_LOGS_UNPACKED_SIZE_BYTES: Final = 8_589_934_592
"""The unpacked size of one file of packed logs. It costs only time, but a few packed megabytes can take days."""

MAX_LOG_ARCHIVE_ENTRIES: Final = 250_000
"""Entries of one archive of logs: 25 channels for 25 years, one file a day. Each takes 500 bytes of memory."""

MAX_LOG_ENTRY_HEADER_SIZE_BYTES: Final = 1_048_576
"""The header of one entry of a tar archive: 512 bytes, and its name if that is long. It is read into memory."""

MAX_LOG_WRAPPINGS: Final = 4
"""How many times a log may be packed: a compressed file in a compressed archive is packed three times."""

MAX_LOG_XZ_MEMORY_SIZE_BYTES: Final = 134_217_728
"""Memory for unpacking xz: its strongest preset takes 65 MB, but a file may request 4 GB."""

MAX_LOGS_HELD_SIZE_BYTES: Final = 67_108_864
"""Packed logs of an archive that wait in memory for earlier days, which the archive has after them. If they do not fit,
the archive is read again."""
