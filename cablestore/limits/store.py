"""Limits of one store: posts, batches, exports, rebuilds, imported logs."""

from __future__ import annotations

from typing import Final

MAX_TIMESTAMP_MS: Final = 2**53 - 1
"""Latest timestamp: the greatest integer that JavaScript peers read exactly. It has 16 decimal digits, the width of
timestamps in keys."""

MAX_POST_SIZE_BYTES: Final = 262_144
"""Maximum size of one post. The protocol sets no limit; this one allows 8,000 links or deletions and bounds the cost of
a post."""

MAX_LINKS_WRITTEN: Final = 64
"""Maximum number of heads to which a new post links. If a channel has more heads, later posts link to the other
heads."""

MAX_DELETIONS_WRITTEN: Final = 1_000
"""Maximum number of hashes in one new post/delete, 32 kB. More hashes are written as several posts."""

MAX_DELETIONS_LISTED: Final = 8
"""Maximum number of post/deletes that the channel's history contains for one deleted post, earliest first. One
post/delete is enough to delete the post, but two devices of its author may each write one."""

MAX_BATCH_POSTS: Final = 1_000
"""Maximum number of posts in one atomic write. Larger calls are split, because a batch is held in memory until it is
written."""

MAX_BATCH_SIZE_BYTES: Final = 4_194_304
"""Maximum size of the posts in one atomic write. The rows of a batch need about five times as much memory."""

MAX_POSTS_REMEMBERED: Final = 512
"""Maximum number of decoded posts in the cache of a process. The cache keeps the posts that were read last."""

MAX_POST_REMEMBERED_SIZE_BYTES: Final = 4_096
"""Largest post in the cache of decoded posts. The whole cache occupies at most 4 MB."""

MAX_ROWS_REMEMBERED: Final = 4_096
"""Maximum number of counts, sums and folds that a writer caches between batches. A few hundred batches of one post each
change about this number of rows."""

MAX_ROW_REMEMBERED_SIZE_BYTES: Final = 2_048
"""Largest row in the cache of a writer. The cache occupies at most 8 MB. Larger rows are read again."""

MAX_GROUPS_REMEMBERED: Final = 64
"""Maximum number of channels whose heads a writer caches: more channels than one user usually writes to in turn."""

MAX_GROUP_ROWS_REMEMBERED: Final = 256
"""Maximum number of heads and missing posts of one channel that a writer caches. The cached heads of all channels
occupy some 4 MB. If a channel has more, the writer does not cache them, and reads its heads for each write."""

MAX_OWN_CLOCK_STEP_MS: Final = 60_000
"""How far a new post of the local user may be dated ahead of the clock, to keep the posts in order. A larger difference
means that the clock was set back."""

MAX_POSTS_IN_THE_WAY_LISTED: Final = 8
"""Maximum number of the user's posts that one error lists because they are dated too far ahead to be replaced. The user
can delete them with one command."""

MENTION_TOLERANCE_MS: Final = 5_400_000
"""A message mentions a user if the user has the name within this time before or after the message: an hour and a half.
A clock without summer time is an hour off, and other clocks drift."""

CLOCK_TOLERANCE_MS: Final = 600_000
"""Accepted difference between the local clock and the clocks of other users: ten minutes. Clocks set by the network differ by
less than a second, clocks set by hand by a few minutes."""

MIN_CLOCK_WITNESSES: Final = 2
"""Number of users whose texts must show that the local clock is wrong before it is reported. The clock of a single user
may be wrong, or the user may lie."""

CLOCK_MEMORY_MS: Final = 14_400_000
"""Maximum age of the local user's texts whose answers can show that the local clock is ahead: four hours. The clock may
have been corrected since it dated older texts."""

MAX_CLOCK_TEXTS_READ: Final = 200
"""Maximum number of latest texts that are read to compare clocks, in some milliseconds. A user who writes more texts than
this hides the texts of other users."""

CAUSAL_SKEW_MS: Final = 604_800_000
"""How far before the start of a time window causal order follows links: a week. Causal order does not find ancestors
that it can reach only through older posts. See `cablestore.store.causal_order`."""

MAX_LINKS_FOLLOWED: Final = 32
"""Maximum number of links that a page in the middle of a channel follows to find answers that are dated before their
messages. Each costs reading one post. Pages from an end of the channel do not follow links."""

MAX_ENDS_READ: Final = 512
"""Maximum number of rows of heads, missing and deleted posts that a page reads to find the heads of a channel. With
more rows, the page looks up the links to each of its messages, at about the same cost."""

MAX_ROWS_AHEAD: Final = 32
"""Maximum number of rows that a page reads ahead to find where two concurrent lines of messages meet. If they meet
later, the page looks up the links to each message."""

MAX_ARRIVALS_FOLLOWED: Final = 64
"""Maximum number of posts that may arrive between two pages without invalidating the cached message order. The second
page reads each of these posts. The cache is also invalid if one of these posts is not the latest post of its
channel."""

MAX_KNOWN_POSITIONS: Final = 200_000
"""Maximum number of messages whose position in the order a store caches, about 100 bytes each. The cache is cleared
when it is full."""

MAX_CAUSAL_POSTS: Final = 100_000
"""Maximum number of posts that one causal ordering holds in memory, about 500 bytes each."""

MAX_GRAPH_POSTS: Final = 1_000
"""Maximum number of posts in the graph of a channel by default. A browser draws as many at once, and a wide screen can
show them."""

MAX_TOPICS_READ: Final = 1_000
"""Maximum number of a channel's latest topics that are searched for the topic that applies, in some 15 ms. If blocked
users set more topics than this, the channel has no topic until another user sets one."""

STATE_POSTS_KEPT: Final = 3
"""Posts of each kind of channel state that `prune` keeps: the latest, second-latest and third-latest (wire.md
5.1.5.1)."""

MAX_EVENTS_READ: Final = 1_000
"""Maximum number of events of the arrival log that one call returns, posts included."""

READ_THREADS: Final = 2
"""Threads in which a store for asyncio reads. With two, a slow read does not block others. More threads are not faster,
because they share Python's lock."""

MAX_ITEMS_AHEAD: Final = 256
"""Maximum number of items that a thread fetches at once for an async iterator. Passing them to the loop costs as much
as reading a few items."""

MAX_THINGS_CHANGED: Final = 8_192
"""Maximum number of messages, users, topics and names that one read of changes reports. A read ends after the log entry
that reaches this number; one moderation post may add 8,000 more."""

MAX_LOCAL_VALUE_SIZE_BYTES: Final = 262_144
"""Maximum size of one local value (`CableStore.local`) or draft. Each is written in one atomic write."""

MAX_LOCAL_NAME_SIZE_BYTES: Final = 512
"""Maximum size of the name of a local value, and of its key. Both are parts of database keys; the longest channel name
fits."""

MAX_PAGE_MESSAGES: Final = 1_000
"""Maximum number of messages in one page, which is held in memory. The page's cursor leads to the next page."""

MAX_PAGE_ROWS_READ: Final = 2_000
"""Maximum number of messages that one page reads. In a channel with many hidden messages, a page ends here with fewer
messages."""

MAX_UNREAD_COUNTED: Final = 1_000
"""Maximum number of unread texts and mentions counted in one channel. This number means "this many or more", so a
client shows "999+"."""

MAX_LATE_TEXTS: Final = 4_000
"""Maximum number of unread texts of one channel that are dated before its read mark, about 170 bytes each. If there are
more, the store marks the older half as read, so that an import of old messages cannot fill the disk."""

MAX_SEARCH_CHARACTERS: Final = 1_000
"""Maximum length of one search query. People enter a few words; a pasted page is rejected."""

MAX_SEARCH_TERMS: Final = 32
"""Maximum number of words and phrases in one search query. A text must contain all of them."""

MAX_SEARCH_RANKED: Final = 20_000
"""Maximum number of matching texts that a search ranks: the newest. Each costs one or two microseconds, and a common
word occurs in every fifth text."""

SEARCH_CATCH_UP_S: Final = 2.0
"""Maximum time that a search spends on indexing new posts before it answers. It can index 100,000 posts in this
time."""

MAX_REJECTED_REMEMBERED: Final = 100_000
"""Maximum number of hashes of rejected posts of dropped users and channels, 200 bytes each, so that they are not
requested again. Further posts are rejected by author and channel when they arrive."""

MAX_BLOCKED_ACTIONS: Final = 1_000
"""Maximum number of actions, roles and deletions of one blocked user, dated before the block, that are stored or
remembered. The user can backdate any number of them."""

MAX_CONSENTS_REMEMBERED: Final = 64
"""Maximum number of statements of one user about accepting roles that are stored without their post/infos, about 150
bytes each. The latest are kept. So a blocked user cannot fill the disk with post/infos."""

MAX_SEED_ACTS_KEPT: Final = 10_000
"""Maximum number of actions dated after the revocation of a moderation seed that remain applied, 32 bytes each: the
earliest actions that applied at the revocation. Posts are dated at most a week ahead, so there are few."""

SEGMENT_SIZE_BYTES: Final = 67_108_864
"""Size at which a file of an export ends. A task of the Spark job reads a whole file."""

MAX_TEXT_FILE_SIZE_BYTES: Final = 1_048_576
"""Largest file with settings, a key or a seed that is read. Without this limit, a path to an endless device would fill
the memory."""

SEGMENT_BLOCK_SIZE_BYTES: Final = 1_048_576
"""Size of the posts or rows in one block of a segment. A reader holds one block in memory."""

MAX_SEGMENT_BLOCK_SIZE_BYTES: Final = 67_108_864
"""Largest block that a reader accepts. Writers write much smaller blocks; a damaged or hostile file is rejected."""

BACKUP_POSTS_SIZE_BYTES: Final = 1_048_576
"""Approximate size of one piece of posts in a backup. Deleting a post costs writing one such piece again."""

BACKUP_ROWS_SIZE_BYTES: Final = 262_144
"""Approximate size of one piece of other rows in a backup. Changing a row costs writing one such piece again."""

MAX_BACKUPS_SINCE_FULL: Final = 100
"""Maximum number of incremental backups before the next backup writes all posts again. Each leaves small pieces, and
all pieces are read after a deletion."""

MAX_BACKUP_ARRIVALS: Final = 1_000_000
"""Maximum number of entries of the arrival log since the last backup, 100 bytes of memory each. With more entries, a
backup writes all posts."""

SWITCH_INTERVAL_S: Final = 0.001
"""Maximum time that a thread of `serve` runs Python code while another thread waits. An answer passes through several
threads, and waits this long in each while long work runs, such as `prune`."""

BUSY_STORE_WAIT_S: Final = 300.0
"""How long `serve` waits at its start for a command that has the store open, such as a check."""

BACKUP_RETRY_MS: Final = 600_000
"""Pause after a failed regular backup, or the interval of backups if that is shorter."""

MAINTENANCE_CHECK_MS: Final = 60_000
"""How often `serve` compares the clock with the time of the next backup, because the clock may be set."""

RETENTION_EVERY_MS: Final = 3_600_000
"""How often `serve` removes posts that are older than `keep`."""

RETENTION_STEP_POSTS: Final = 20
"""Old posts that are removed in one write. Other writes wait for it, so it must take few milliseconds."""

RETENTION_PAUSE_RATIO: Final = 4.0
"""Pause after a write that removes old posts, as a multiple of the duration of the write."""

RETENTION_COMPACT_SHARE: Final = 0.1
"""Share of the posts that `serve` removes before it compacts the store. Without compaction, LevelDB may keep removed
rows for months."""

IMPORT_BATCH_POSTS: Final = 100
"""Number of posts that an import of chat logs stores in one write. Other writes wait until this write ends."""

MAX_PERIODS_KEPT: Final = 1_000
"""Maximum number of hours, days, weeks, months or years for each of which a backup keeps the last restore point. Each
run of the backup reads the list of files of every point."""

MAX_RUN_SIZE_BYTES: Final = 67_108_864
"""Maximum size of the pieces of rows that a rebuild, a check or a task of a reindexing holds in memory before it writes
them to a run, a sorted file. As Python objects, the pieces need twice as much memory."""

MAX_BUCKET_SIZE_BYTES: Final = 33_554_432
"""Approximate size of the rows that the second step of a derivation sorts in memory at a time."""

PARTITION_POSTS: Final = 50_000
"""Approximate number of posts in one task of the Spark job: 70 MB of pieces, 300 MB of Python objects."""

PART_ROWS: Final = 300_000
"""Approximate number of rows that one process loads into one LevelDB at a time. Loading takes 20 s. After an
interruption, this step is repeated."""

SHARED_OUT_FROM_SIZE_BYTES: Final = 134_217_728
"""Smallest database that several processes rebuild: 100,000 posts. One process rebuilds a smaller one in a few
seconds."""

MAX_LOG_LINE_SIZE_BYTES: Final = 1_048_576
"""Maximum size of one line of a chat log. IRC sends 512 bytes, bridges some thousand. A longer line is counted as
damaged and skipped."""

MAX_LOGS_UNPACKED_SIZE_BYTES: Final = 8_589_934_592
"""Maximum unpacked size of one file of packed logs. Unpacking costs only time, but a few packed megabytes can take
days."""

MAX_LOG_ARCHIVE_ENTRIES: Final = 250_000
"""Maximum number of entries of one archive of logs, 500 bytes of memory each: 25 channels for 25 years, one file a
day."""

MAX_LOG_ENTRY_HEADER_SIZE_BYTES: Final = 1_048_576
"""Maximum size of the header of one entry of a tar archive: 512 bytes, and any long name. The header is read into
memory."""

MAX_LOG_WRAPPINGS: Final = 4
"""Maximum number of nested packings of one log: a compressed file in a compressed archive is packed three times."""

MAX_LOG_XZ_MEMORY_SIZE_BYTES: Final = 134_217_728
"""Maximum memory for unpacking xz. The strongest preset of xz needs 65 MB, but a file may request 4 GB."""

MAX_LOGS_HELD_SIZE_BYTES: Final = 67_108_864
"""Maximum size of the packed logs that are held in memory while an archive is read, because logs of earlier days follow
later in the archive. If they do not fit, the archive is read again."""
