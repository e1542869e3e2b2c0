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
"""moderation.md 5.1.4 and 5.1.5: users that one post/block or post/unblock names (at least 1). cable.js bears no post/moderation of more."""

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

MAX_DELETIONS_LISTED: Final = 8
"""Deletions of one post by its author that its channel's history lists, the earliest: one is enough, two devices may write two."""

MAX_BATCH_POSTS: Final = 1_000
"""Posts in one atomic write. Larger calls are cut: a batch is held in memory until it is written."""

MAX_BATCH_SIZE_BYTES: Final = 4_194_304
"""Bytes of posts in one atomic write; the rows of a batch take about five times that in memory."""

MAX_ROWS_REMEMBERED: Final = 4_096
"""Counts, sums and folds that a writer keeps in memory from batch to batch: what a few hundred single posts change."""

MAX_ROW_REMEMBERED_SIZE_BYTES: Final = 2_048
"""Bytes of one of them. All together are at most 8 MB; a larger row is read again."""

MAX_OWN_CLOCK_STEP_MS: Final = 60_000
"""How far an own post may be dated after the clock so that own posts keep their order. Beyond it the clock was set back."""

CAUSAL_SKEW_MS: Final = 604_800_000
"""How long before a window its causal order looks for ancestors that claim a later time. See `cablestore.store.causal_order`."""

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

MAX_LOG_LINE_SIZE_BYTES: Final = 1_048_576
"""One line of a chat log. IRC sends 512 bytes, bridges some thousand; longer is damage, which is counted and passed over."""

MAX_LOGS_UNPACKED_SIZE_BYTES: Final = 8_589_934_592
"""What one file of packed logs unpacks to. It costs time alone; a few megabytes may stand for days of it."""

MAX_LOG_ARCHIVE_ENTRIES: Final = 250_000
"""Entries of one archive of logs: 25 channels for 25 years, a file a day. 500 bytes of memory each."""

MAX_LOG_ENTRY_HEADER_SIZE_BYTES: Final = 1_048_576
"""What stands before one entry of a tar archive: 512 bytes, and its name where that is long. It is read into memory."""

MAX_LOG_WRAPPINGS: Final = 4
"""How often a log is packed, one in another: a compressed file in a compressed archive is three times."""

MAX_LOG_XZ_MEMORY_SIZE_BYTES: Final = 134_217_728
"""Memory to unpack xz with: its strongest preset takes 65 MB, a file may ask for 4 GB."""

MAX_LOGS_HELD_SIZE_BYTES: Final = 67_108_864
"""Logs of an archive, packed, that wait in memory for earlier days that it has after them. Beyond it, it is read again."""

# --- of peers ----------------------------------------------------------------------------------

MAX_TTL: Final = 16
"""Hops that a legacy request may be forwarded (wire.md draft 1, 5.2.1); existing clients refuse more."""

MAX_MESSAGE_SIZE_BYTES: Final = 8_388_608
"""One message of a peer: 260,000 hashes. Longer ones are refused before their bytes are read."""

MAX_NAMES_PER_MESSAGE: Final = 65_536
"""Channels that one message names. They are decoded one by one, 40 ms of the loop; further ones are asked for by offset."""

MAX_EMPTY_MESSAGES: Final = 16
"""Messages of length 0 that may follow each other. cable.rs writes one after some of its messages; more are noise."""

MAX_REQUESTS_ALIVE: Final = 4_096
"""Requests of one peer that wait for an answer or are live: two for each of 2,000 channels. Others end at once."""

MAX_LIVE_ALIKE: Final = 64
"""Live requests of one peer for the same: each is told all news of it. A peer that forwards for others may have some."""

MAX_LIVE_CHANNELS: Final = 1_024
"""Channels of which a node asks one peer to hear at once, two requests each. Of further ones it asks every minute."""

LIST_EVERY_S: Final = 10.0
"""Seconds between two questions to a peer for its channels. Stores like this one tell of new ones, and are asked every sixth time."""

CHANNELS_ASKED_EVERY_S: Final = 0.5
"""Seconds after a question for channels in which a store that tells of new ones is not asked again: then once for all of them."""

MAX_HASHES_PER_REQUEST: Final = 10_000
"""Posts that one post request may ask for; a request of more ends at once. Existing clients ask for 4,096 at most."""

MAX_HASHES_PER_RESPONSE: Final = 10_000
"""Hashes in one response: 320 kB, so that others are served in between. More follow in further ones."""

MAX_PAGE_HASHES: Final = 1_000_000
"""Hashes of one page of history. A node asks for longer pages where more posts than a page holds have the same time."""

MAX_HASHES_PER_ANSWER: Final = 1_000_000
"""Hashes of one answer that is not live, in all its responses; what goes on behind it is cancelled."""

MAX_POST_RESPONSE_SIZE_BYTES: Final = 1_048_576
"""Posts in one response. Some clients take the first alone; it holds the 4,096 posts that those ask for."""

REQUESTS_REMEMBERED: Final = 1_024
"""Ids of own requests that are concluded. What still comes for them is late; for others it counts against the peer."""

ANSWER_TIMEOUT_S: Final = 20.0
"""Seconds after which a request without a word of answer is given up: existing clients do not answer what they lack."""

MAX_CONTROL_CONNECTIONS: Final = 64
"""Commands of other processes that run at once on an open store: each has a thread here, and a `log --follow` stays for days."""

MAX_CONTROL_REQUEST_SIZE_BYTES: Final = 4_194_304
"""One command with its parameters for an open store: as much as a shell takes in one line (2 MB on Linux), escaped."""

RELAY_TIMEOUT_S: Final = 5.0
"""Seconds that a forwarded request waits for each further part of the answer."""

ROUTES_REMEMBERED: Final = 65_536
"""Ids of requests by which one that comes back another way is known: minutes of a busy node."""

ROUTE_HASHES_REMEMBERED: Final = 10_000
"""Hashes of one forwarded request that are passed on once only; behind these a repeated one may be passed on twice."""

MAX_WANTED_PER_PEER: Final = 65_536
"""Hashes of one peer that wait to be fetched, 10 MB. What a peer offers beyond it is found again by the next pass."""

FETCH_POSTS: Final = 500
"""Posts that a node asks for in one request: some 120 kB of answer."""

FETCHES_OPEN: Final = 4
"""Such requests of one peer at a time: enough to keep it busy, few enough that another can take over the rest."""

OFFERS_REMEMBERED: Final = 3
"""Further peers that are remembered to have a post, should the first not deliver it."""

MAX_PEERS: Final = 2_000
"""Connections of one node. Each takes a file descriptor and, while idle, some 30 kB."""

MAX_PEERS_REMEMBERED: Final = 1_000
"""Peers of which is kept up to when their history is here; those that were synced longest ago go first."""

MAX_PEERS_PER_ADDRESS: Final = 256
"""Connections from one address, many of which may be people behind one router."""

MAX_HANDSHAKES: Final = 64
"""Handshakes in progress at a time: each costs a millisecond of arithmetic for anyone who sends 48 bytes."""

MAX_HANDSHAKES_PER_ADDRESS: Final = 16
"""Of these, handshakes with one address: whoever begins many and ends none keeps nobody else out."""

HANDSHAKE_TIMEOUT_S: Final = 10.0
"""Seconds in which a handshake has to be done, from the connection's first moment."""

IDLE_TIMEOUT_S: Final = 600.0
"""Seconds without a byte after which a connection on which nothing is alive is closed. Cable has no ping."""

KEEPALIVE_AFTER_S: Final = 60
"""Seconds of silence after which the system asks whether the peer's machine is still there."""

END_TIMEOUT_S: Final = 3.0
"""Seconds that a peer has to read what is left and to end its side of an encrypted stream (handshake.md 4.4)."""

DIALECT_WAIT_S: Final = 0.5
"""Seconds in which a peer may speak first where our dialect could end it: an existing client ends at a word of draft 8."""

SLOW_READER_SIZE_BYTES: Final = 262_144
"""Bytes queued to a peer behind which nothing more is read for it from the store."""

MAX_QUEUED_SIZE_BYTES: Final = 8_388_608
"""Bytes queued to one peer: one that reads slower than news arrive is disconnected behind it."""

MAX_QUEUED_TOTAL_SIZE_BYTES: Final = 268_435_456
"""Bytes queued to all peers together; behind it those with the longest queues are disconnected."""

MAX_INGEST_QUEUE_SIZE_BYTES: Final = 16_777_216
"""Bytes of posts that wait to be verified and stored; peers that send more are not read from meanwhile."""

MAX_INSPECTED_QUEUE_SIZE_BYTES: Final = 16_777_216
"""Bytes of posts and hashes for other peers that wait to be looked at; peers that give more are not read from meanwhile."""

MAX_FAULTS: Final = 100
"""What one peer may do against the protocol before it is disconnected: honest ones may be late or confused at times."""

MAX_INVALID_POSTS: Final = 10
"""Posts of one peer that are malformed or wrongly signed before it is disconnected: honest peers verified them."""

LOOP_SHARE: Final = 0.25
"""How much of the loop's time what one peer sends may take; beyond it nothing is read from the peer for a while."""

LOOP_SHARE_IN_ADVANCE_S: Final = 0.02
"""Seconds of the loop's time that a peer may take at once: a post response of full size takes 10 ms."""

ROWS_PER_S: Final = 100_000
"""Rows a second that a peer's requests may cost; a peer that asks for more waits."""

ROWS_IN_ADVANCE: Final = 1_000_000
"""Rows that a peer may ask for at once after a while of silence: the whole history of a large channel."""

PART_ROWS_ANSWERED: Final = 2_000
"""Hashes or names read for one peer at a time, 2 ms; then it is the next one's turn."""

PART_SIZE_ANSWERED_BYTES: Final = 262_144
"""Posts read for one peer at a time, in bytes; then it is the next one's turn."""

# --- of cable.js, which ends at more -------------------------------------------------------------

MAX_CABLE_JS_CHANNEL_SIZE_BYTES: Final = 64
"""A channel's name in UTF-8: cable.js counts bytes where the protocol counts code points, here and in what follows."""

MAX_CABLE_JS_NAME_SIZE_BYTES: Final = 32
"""A user's name in UTF-8."""

MAX_CABLE_JS_TOPIC_SIZE_BYTES: Final = 512
"""A topic in UTF-8."""

MAX_CABLE_JS_REASON_SIZE_BYTES: Final = 128
"""The reason of a moderation post in UTF-8."""

# --- of archives -------------------------------------------------------------------------------

PIECE_SIZE_BYTES: Final = 102_400
"""One piece of a torrent. Deployed control nodes pad archives to it."""

MAX_TORRENT_SIZE_BYTES: Final = 68_719_476_736
"""Data and index of one torrent: sixteen times the largest community known. A magnet link promises any size."""

MAX_METAINFO_SIZE_BYTES: Final = 16_777_216
"""A torrent's metadata: 20 bytes for each piece of the largest torrent take 13.4 MB."""

MAX_INDEX_SIZE_BYTES: Final = 67_108_864
"""An index, which is read into memory whole: 100 bytes for each piece of the largest torrent."""

MAX_MAGNET_SIZE_BYTES: Final = 4_096
"""A magnet link: it comes in a post, which has no more text."""

MAX_TRACKERS: Final = 64
"""Trackers that a magnet link or a torrent names."""

METADATA_TIMEOUT_S: Final = 20.0
"""Seconds that peers have to give a magnet link's metadata, as deployed members wait."""

STALL_TIMEOUT_S: Final = 60.0
"""Seconds without a byte of payload, or of progress in checking files, after which a fetch is given up."""

MAX_ARCHIVE_SIZE_BYTES: Final = 30_000_000
"""Posts and author keys in one archive, as deployed: what a member holds in memory. A week of more has several."""

MAX_STORED_ARCHIVE_SIZE_BYTES: Final = 134_217_728
"""One archive as it is read. 30 MB of the shortest posts and longest channel names come to 102 MB, no writer gets beyond."""

MAX_ARCHIVE_TOPICS: Final = 16_384
"""Content topics that one archive names, its channels: 13 MB with the longest names."""

MAX_INDEX_ARCHIVES: Final = 65_536
"""Archives in one index: 1,200 years of one a week. Further ones are refused before they are decoded."""

MAX_ARCHIVED_TIMESTAMP_MS: Final = 9_223_372_036_854
"""The last millisecond that 14/WAKU2 can say in nanoseconds of 64 bits, in the year 2262. Later posts are in no archive."""

MAX_DATASET_SIZE_BYTES: Final = 68_719_476_736
"""One dataset with a content id: as much as one torrent. A manifest promises any size."""

MAX_MANIFEST_SIZE_BYTES: Final = 4_096
"""A manifest of a dataset, its bytes or its JSON: 700 bytes with the longest filename and media type, 2,300 as JSON."""

MAX_FILENAME_SIZE_BYTES: Final = 255
"""The filename in a manifest: what file systems take."""

MAX_DATASETS: Final = 100_000
"""Manifests in one content store, which are held in memory, 500 bytes each. Many of them can share one dataset's bytes."""

MAX_DATASET_LIST_SIZE_BYTES: Final = 67_108_864
"""The list of a node's datasets, which is read into memory: 600 bytes for each of the most that a store has."""

MIN_FREE_DISK_SIZE_BYTES: Final = 67_108_864
"""What a content store and a download leave free on the disk: the store of posts beside it needs room to write."""

MAX_UPLOADS_AT_ONCE: Final = 32
"""Uploads that a content endpoint takes at a time: each holds a file open and 1 MiB in memory."""

MAX_CONTENT_FETCHES: Final = 8
"""Datasets that a content endpoint fetches from other nodes at a time; a request for one more is refused."""

# --- of reconciliation ---------------------------------------------------------------------------

MAX_RECONCILE_FRAME_SIZE_BYTES: Final = 16_777_216
"""One payload, four times what ours hold. Deployed nodes have no limit, and write 1 MB where they hold 25,000 posts an hour."""

MAX_RECONCILE_RANGES: Final = 262_144
"""Ranges in one payload: a range takes two bytes on the wire and 300 in memory. Ours hold half as many."""

MAX_RECONCILE_ITEMS: Final = 350_000
"""Ids in one payload, written or read; each takes 250 bytes in memory. Nwaku's dialects send all of one time at once."""

MAX_RECONCILE_SHARDS: Final = 1_024
"""Shards that a payload names: as many as a cluster of Waku has."""

MAX_RECONCILE_TOPICS: Final = 4_096
"""Pubsub topics, and content topics, that a payload names: a channel each."""

MAX_RECONCILE_TOPIC_SIZE_BYTES: Final = 1_024
"""One topic: the longest name of a channel comes to 790 bytes when it is percent-encoded."""

MAX_RECONCILE_ROUNDS: Final = 1_000
"""Payloads that a session reads. Ten find the differences of a million posts; more are needed where they fill many frames."""

MAX_RECONCILE_SESSION_SIZE_BYTES: Final = 268_435_456
"""Bytes that a session reads and writes: the ids of 3.5 million posts that only one side has."""

MAX_RECONCILE_DIFFERENCES: Final = 1_000_000
"""Differences that a session finds, which it holds in memory, 250 bytes each. They are transferred before a next one begins."""

RECONCILE_TIMEOUT_S: Final = 600.0
"""Seconds from a session's first payload to its last: its snapshot keeps old files of the database on the disk."""

MAX_AUDIT_CUTS: Final = 1_024
"""Cuts in one question of an audit: each costs the peer one fingerprint."""

MAX_TRANSFER_FRAME_SIZE_BYTES: Final = 266_240
"""One post on its way, with its topics: the largest post, and 4 kB."""

MAX_WAKU_TRANSFER_FRAME_SIZE_BYTES: Final = 153_600
"""The same for deployed Waku nodes, which read no more than 150 KiB and a few bytes."""

MAX_TALK_FRAME_SIZE_BYTES: Final = 1_048_576
"""One frame of a conversation: the largest is a batch of posts with the largest post as its last."""

TALK_PAYLOAD_SIZE_BYTES: Final = 65_536
"""What a payload holds, about, so that answers of Cable on the same connection do not wait for longer ones."""

TALK_BATCH_SIZE_BYTES: Final = 65_536
"""Posts that travel and are stored together: some 200. A frame ends with the post that reaches it."""

MAX_TALK_BATCHES: Final = 4
"""Batches of posts on their way that the receiver has not stored yet; a peer that sends more is no honest one."""

MAX_TALK_DIFFERENCES: Final = 250_000
"""Differences that one conversation finds, 60 MB in memory on each side. Behind them another one begins."""

MAX_TALK_UNSENT: Final = 10_000
"""Posts that wait to be sent, behind which a side compares no further: what is found and not sent is lost with a connection."""

MAX_TALK_UNASKED: Final = 100
"""Posts that one side did not expect, behind which it ends the conversation. Honest peers send none."""

MAX_TALK_REASON_CODEPOINTS: Final = 500
"""Why a peer ended a conversation, in its words, which come into logs and onto terminals."""

MAX_TALK_QUEUE_FRAMES: Final = 64
"""Frames of a peer that wait to be worked on. Honest peers send a payload, four batches and their acknowledgements ahead."""

MAX_TALK_QUESTIONS: Final = 8
"""Audits that a peer may ask for in one conversation: each costs a thousand fingerprints."""

TALK_SILENCE_S: Final = 60.0
"""Seconds without a frame after which a peer that has something to say is given up."""

MAX_TALK_S: Final = 3_600.0
"""Seconds from a conversation's first frame to its last: 250,000 posts over 1 Mbit/s take half of that."""

MAX_TALKS: Final = 8
"""Conversations of one node at a time, begun by either side: each has a snapshot and up to 60 MB. Where all addresses have their
share of them and none is slow, others are told to come again."""

TALK_SLOW_AFTER_S: Final = 20.0
"""Seconds of waiting for a peer behind which a conversation gives way to another one, if it is slow."""

TALK_SLOW_BYTES_PER_S: Final = 500
"""Bytes that a conversation moves for each second of waiting for the peer; one that moves less is slow. 2G carries more."""

GREETING_TIMEOUT_S: Final = 5.0
"""Seconds in which a peer is recognised as a store that reconciles, when that is all that it was called for."""

# --- of causal logs ------------------------------------------------------------------------------

MAX_SDS_MESSAGE_SIZE_BYTES: Final = 1_310_720
"""One message: 1 MiB of content, as deployed nodes take, and 256 KiB for filter, history and ids. Longer ones are not read."""

MAX_SDS_ID_SIZE_BYTES: Final = 512
"""A message's, sender's or channel's id, in UTF-8: hashes have 64. Ids stand in keys and in the histories of others."""

MAX_SDS_HINT_SIZE_BYTES: Final = 1_024
"""A retrieval hint: a hash, or an address. It is kept for each dependency that is missing."""

MAX_SDS_HISTORY: Final = 1_024
"""Entries of a causal history: deployed nodes write 200. Each that is missing costs rows, so a message costs no more."""

MAX_SDS_REPAIR_REQUESTS: Final = 64
"""Repairs that one message requests: 3 are recommended. Each costs a look-up, and perhaps a message."""

MAX_SDS_FIELDS: Final = 8_192
"""Protobuf fields in one message, unknown ones and those of its entries included: twice the fullest one, 13 ms at most to read."""

MAX_SDS_FILTER_SIZE_BYTES: Final = 262_144
"""One Bloom filter's bits: 139,000 ids with one error in a thousand. It travels with every message."""

MAX_SDS_FILTER_HASHES: Final = 32
"""Bits that one id sets in a filter: 10 for one error in a thousand, 30 for one in a billion. A peer's filter names any."""

MAX_SDS_LAMPORT_AHEAD_MS: Final = 86_400_000
"""How far a message's Lamport time may be ahead of the clock: everybody's clock follows it. A day of a thousand messages a second."""

MAX_SDS_WAITING: Final = 4_096
"""Messages of a channel that wait for others which they depend on. What finds no room is fetched again later."""

MAX_SDS_WAITING_SIZE_BYTES: Final = 33_554_432
"""Bytes of these messages: they lie on the disk, and one arrival may deliver all of them in one write."""

MAX_SDS_MISSING: Final = 16_384
"""Messages of a channel that are known to be missing: each is asked for. Half of the room is for those that only sync messages named."""

MAX_SDS_UNMET: Final = 256
"""Dependencies of one message that may be missing when it comes: deployed nodes name 200. So one message takes a sixtieth of the room."""

MAX_SDS_SHARES: Final = 128
"""Senders of a channel that have a share of the room of their own. All others have one together: names cost nothing."""

MAX_SDS_SYNC_IDS: Final = 64
"""Ids of sync messages that are remembered of each share, where members name them: the newest of half an hour and more."""

MAX_SDS_ANSWERS: Final = 1_024
"""Repairs of a channel that wait for their time to be answered. Whoever was not noted asks again."""

MAX_SDS_REVIEWED: Final = 64
"""Own messages that one received filter is held against, a microsecond each. Of more the next ones have their turn with the next write."""

MAX_SDS_TIMERS: Final = 256
"""Timers of a kind that one tick handles: it is one write. The others are due at the next one."""

MAX_SDS_BATCH: Final = 1_000
"""Messages of a list that are received in one write, which is held in memory."""

MAX_SDS_EFFECTS_READ: Final = 1_000
"""Effects of the outbox that one call returns: with filters of 18,752 bytes 20 MB."""
