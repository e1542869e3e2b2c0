"""Limits of cablestore: the name, the value and the reason of each."""

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
"""moderation.md 5.1.4 and 5.1.5: users that one post/block or post/unblock names (at least 1). cable.js crashes at a post/moderation with more."""

MAX_FUTURE_MS: Final = 604_800_000
"""wire.md 5.1.4.3: posts dated a week or more ahead are refused at ingest."""

# --- ours --------------------------------------------------------------------------------------

MAX_TIMESTAMP_MS: Final = 2**53 - 1
"""The greatest number that JavaScript peers read exactly. It has 16 decimal digits, as the timestamp in a key does."""

MAX_POST_SIZE_BYTES: Final = 262_144
"""One post. The protocol sets no limit; this one has room for 8,000 links or deletions and bounds the cost of a post."""

MAX_LINKS_WRITTEN: Final = 64
"""Heads that one new post links to. If a channel has more, later posts link to the others."""

MAX_DELETIONS_WRITTEN: Final = 1_000
"""Hashes that one new post/delete names. More are written to several posts of 32 kB each."""

MAX_DELETIONS_LISTED: Final = 8
"""Deletions of one post by its author that the channel's history lists, earliest first. One is enough; two devices may write two."""

MAX_BATCH_POSTS: Final = 1_000
"""Posts in one atomic write. Larger calls are split: a batch is in memory until it is written."""

MAX_BATCH_SIZE_BYTES: Final = 4_194_304
"""Bytes of posts in one atomic write. The rows of a batch take about five times as much memory."""

MAX_ROWS_REMEMBERED: Final = 4_096
"""Counts, sums and folds that a writer keeps in memory from batch to batch: what a few hundred single posts change."""

MAX_ROW_REMEMBERED_SIZE_BYTES: Final = 2_048
"""Bytes of one of them. All together are at most 8 MB; a larger row is read again."""

MAX_OWN_CLOCK_STEP_MS: Final = 60_000
"""How far an own post may be dated ahead of the clock to keep own posts in order. A larger difference means that the clock was set back."""

CAUSAL_SKEW_MS: Final = 604_800_000
"""How far before a window causal order looks for ancestors that claim a later time. See `cablestore.store.causal_order`."""

MAX_CAUSAL_POSTS: Final = 100_000
"""Posts that one causal ordering holds in memory (about 500 bytes each)."""

STATE_POSTS_KEPT: Final = 3
"""wire.md 5.1.5.1: of each kind of channel state, `prune` keeps the latest, second-latest and third-latest."""

MAX_EVENTS_READ: Final = 1_000
"""Events of the arrival log that one call returns, posts included."""

MAX_PAGE_MESSAGES: Final = 1_000
"""Messages that one page holds in memory; its cursor leads to the next page."""

SEGMENT_SIZE_BYTES: Final = 67_108_864
"""One file of an export. A task of the Spark job reads a whole file."""

SEGMENT_BLOCK_SIZE_BYTES: Final = 1_048_576
"""Bytes of posts or rows in one block of a segment. A reader has one block in memory."""

MAX_SEGMENT_BLOCK_SIZE_BYTES: Final = 67_108_864
"""The largest block that is read. Writers stay far below; a damaged or hostile file is refused."""

MAX_RUN_SIZE_BYTES: Final = 67_108_864
"""Pieces of rows that a rebuild, a check or a task holds in memory before it writes a run. Python takes twice as much."""

MAX_BUCKET_SIZE_BYTES: Final = 33_554_432
"""About the size of the rows that are sorted in memory at a time in the second step of a derivation."""

PARTITION_POSTS: Final = 50_000
"""About the number of posts that one task of the Spark job handles: 70 MB of pieces, 300 MB of Python objects."""

PART_ROWS: Final = 300_000
"""About the number of rows that one process loads into one LevelDB at a time: 20 s, which an interruption loses."""

SHARED_OUT_FROM_SIZE_BYTES: Final = 134_217_728
"""The smallest database that several processes rebuild: 100,000 posts, which one process rebuilds in a few seconds."""

MAX_LOG_LINE_SIZE_BYTES: Final = 1_048_576
"""One line of a chat log. IRC sends 512 bytes, bridges some thousand. A longer line is damage: it is counted and skipped."""

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
"""Packed logs of an archive that wait in memory for earlier days, which the archive has after them. If they do not fit, the archive is read again."""

# --- of peers ----------------------------------------------------------------------------------

MAX_TTL: Final = 16
"""Hops that a legacy request may be forwarded (wire.md draft 1, 5.2.1); existing clients refuse more."""

MAX_MESSAGE_SIZE_BYTES: Final = 8_388_608
"""One message of a peer: 260,000 hashes. Longer messages are refused before their bytes are read."""

MAX_NAMES_PER_MESSAGE: Final = 65_536
"""Channels that one message names. They are decoded one by one, which takes 40 ms of the loop; further ones are requested by offset."""

MAX_EMPTY_MESSAGES: Final = 16
"""Consecutive messages of length 0. cable.rs writes one after some of its messages."""

MAX_REQUESTS_ALIVE: Final = 4_096
"""Requests of one peer that wait for an answer or are live: two for each of 2,000 channels. Further ones end at once."""

MAX_LIVE_ALIKE: Final = 64
"""Equal live requests of one peer: each gets all new posts. A peer that forwards requests of others may have some."""

MAX_LIVE_CHANNELS: Final = 1_024
"""Channels for which a node has live requests at one peer, two requests each. It asks for further ones every minute."""

LIST_EVERY_S: Final = 10.0
"""Seconds between two channel list requests to a peer. Stores like this one announce new channels, and are asked every sixth time."""

CHANNELS_ASKED_EVERY_S: Final = 0.5
"""Seconds after a channel list request during which a store that announces new channels is not asked again: then once for all of them."""

MAX_HASHES_PER_REQUEST: Final = 10_000
"""Posts that one post request may name. A request for more ends at once. Existing clients ask for at most 4,096."""

MAX_HASHES_PER_RESPONSE: Final = 10_000
"""Hashes in one response: 320 kB, so that other peers are served in between. More follow in further responses."""

MAX_PAGE_HASHES: Final = 1_000_000
"""Hashes of one page of history. A node requests longer pages if more posts than a page holds have the same time."""

MAX_HASHES_PER_ANSWER: Final = 1_000_000
"""Hashes of one answer that is not live, in all its responses. An answer that exceeds it is cancelled."""

MAX_POST_RESPONSE_SIZE_BYTES: Final = 1_048_576
"""Posts in one response. Some clients read only the first response; it has room for the 4,096 posts that they request."""

REQUESTS_REMEMBERED: Final = 1_024
"""Ids of own requests that are concluded. A response to one of them is late; a response to an unknown id counts against the peer."""

ANSWER_TIMEOUT_S: Final = 20.0
"""Seconds without an answer after which a request is abandoned: existing clients do not answer requests for what they lack."""

MAX_CONTROL_CONNECTIONS: Final = 64
"""Commands of other processes that run at the same time on an open store: each has a thread, and a `log --follow` runs for days."""

MAX_CONTROL_REQUEST_SIZE_BYTES: Final = 4_194_304
"""One command with its parameters for an open store: as much as a shell accepts in one line (2 MB on Linux), escaped."""

RELAY_TIMEOUT_S: Final = 5.0
"""Seconds that a forwarded request waits for each further part of the answer."""

ROUTES_REMEMBERED: Final = 65_536
"""Ids of requests, kept to recognise one that returns on another route: minutes of a busy node."""

ROUTE_HASHES_REMEMBERED: Final = 10_000
"""Hashes of one forwarded request that are passed on only once. After this many, a repeated hash may be passed on twice."""

MAX_WANTED_PER_PEER: Final = 65_536
"""Hashes of one peer that wait to be fetched, 10 MB. The next pass finds again what a peer offers beyond it."""

FETCH_POSTS: Final = 500
"""Posts that a node requests at a time: an answer of some 120 kB."""

FETCHES_OPEN: Final = 4
"""Open requests for posts at one peer: enough to keep it busy, few enough that another peer can take over the rest."""

OFFERS_REMEMBERED: Final = 3
"""Further peers that are remembered for each post, in case the first one does not deliver it."""

MAX_PEERS: Final = 2_000
"""Connections of one node. Each takes a file descriptor and, while idle, some 30 kB."""

MAX_PEERS_REMEMBERED: Final = 1_000
"""Peers for which the time is kept up to which their history is stored. Those that were synced longest ago are dropped first."""

MAX_PEERS_PER_ADDRESS: Final = 256
"""Connections from one address. Many people may share one behind a router."""

MAX_HANDSHAKES: Final = 64
"""Handshakes in progress at a time. A peer that sends 48 bytes costs a millisecond of arithmetic."""

MAX_HANDSHAKES_PER_ADDRESS: Final = 16
"""Handshakes in progress with one address: a peer that begins many and ends none does not lock out others."""

HANDSHAKE_TIMEOUT_S: Final = 10.0
"""Seconds within which a handshake must be done, counted from the start of the connection."""

IDLE_TIMEOUT_S: Final = 600.0
"""Seconds without a byte after which a connection without live requests is closed. Cable has no ping."""

KEEPALIVE_AFTER_S: Final = 60
"""Seconds of silence after which the system probes whether the peer's machine is still reachable."""

END_TIMEOUT_S: Final = 3.0
"""Seconds that a peer has to read the remaining bytes and to end its side of an encrypted stream (handshake.md 4.4)."""

DIALECT_WAIT_S: Final = 0.5
"""Seconds during which a peer may send first if our dialect could crash it: an existing client crashes at a message of draft 8."""

SLOW_READER_SIZE_BYTES: Final = 262_144
"""Bytes queued to a peer above which nothing more is read for it from the store."""

MAX_QUEUED_SIZE_BYTES: Final = 8_388_608
"""Bytes queued to one peer. A peer that exceeds it, because it reads slower than posts arrive, is disconnected."""

MAX_QUEUED_TOTAL_SIZE_BYTES: Final = 268_435_456
"""Bytes queued to all peers together. Above it the peers with the longest queues are disconnected."""

MAX_INGEST_QUEUE_SIZE_BYTES: Final = 16_777_216
"""Bytes of posts that wait to be verified and stored. Meanwhile nothing is read from peers that send more."""

MAX_INSPECTED_QUEUE_SIZE_BYTES: Final = 16_777_216
"""Bytes of posts and hashes for other peers that wait to be inspected. Meanwhile nothing is read from peers that send more."""

MAX_FAULTS: Final = 100
"""Violations of the protocol by one peer before it is disconnected: honest peers may be late or confused at times."""

MAX_INVALID_POSTS: Final = 10
"""Malformed or wrongly signed posts of one peer before it is disconnected: honest peers verify posts first."""

LOOP_SHARE: Final = 0.25
"""Share of the loop's time that the messages of one peer may take. Beyond it nothing is read from the peer for a while."""

LOOP_SHARE_IN_ADVANCE_S: Final = 0.02
"""Seconds of the loop's time that a peer may take at once: a post response of full size takes 10 ms."""

ROWS_PER_S: Final = 100_000
"""Rows a second that a peer's requests may cost; a peer that asks for more waits."""

ROWS_IN_ADVANCE: Final = 1_000_000
"""Rows that a peer may request at once after a while of silence: the whole history of a large channel."""

PART_ROWS_ANSWERED: Final = 2_000
"""Hashes or names read for one peer at a time, 2 ms; then the next peer has its turn."""

PART_SIZE_ANSWERED_BYTES: Final = 262_144
"""Bytes of posts read for one peer at a time; then the next peer has its turn."""

# --- of cable.js, which crashes beyond them -------------------------------------------------------------

MAX_CABLE_JS_CHANNEL_SIZE_BYTES: Final = 64
"""A channel's name in UTF-8. Here and in the limits below, cable.js counts bytes where the protocol counts code points."""

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
"""Data and index of one torrent: sixteen times the largest known community. A magnet link can claim any size."""

MAX_METAINFO_SIZE_BYTES: Final = 16_777_216
"""A torrent's metadata: 20 bytes for each piece of the largest torrent, 13.4 MB."""

MAX_INDEX_SIZE_BYTES: Final = 67_108_864
"""An index, which is read into memory as a whole: 100 bytes for each piece of the largest torrent."""

MAX_MAGNET_SIZE_BYTES: Final = 4_096
"""A magnet link. It comes in a post, whose text is not longer."""

MAX_TRACKERS: Final = 64
"""Trackers that a magnet link or a torrent names."""

METADATA_TIMEOUT_S: Final = 20.0
"""Seconds that peers have to send a magnet link's metadata; deployed members wait as long."""

STALL_TIMEOUT_S: Final = 60.0
"""Seconds without a byte of payload, or without progress in checking files, after which a fetch is abandoned."""

MAX_ARCHIVE_SIZE_BYTES: Final = 30_000_000
"""Posts and author keys in one archive, as deployed: a member holds them in memory. A larger week has several archives."""

MAX_STORED_ARCHIVE_SIZE_BYTES: Final = 134_217_728
"""One archive when it is read. 30 MB of the shortest posts and longest channel names come to 102 MB; no writer exceeds that."""

MAX_ARCHIVE_TOPICS: Final = 16_384
"""Content topics that one archive names, its channels: 13 MB with the longest names."""

MAX_INDEX_ARCHIVES: Final = 65_536
"""Archives in one index: 1,200 years with one a week. Larger indexes are refused before they are decoded."""

MAX_ARCHIVED_TIMESTAMP_MS: Final = 9_223_372_036_854
"""The last millisecond that 14/WAKU2 can express in 64-bit nanoseconds, in the year 2262. Later posts are in no archive."""

MAX_DATASET_SIZE_BYTES: Final = 68_719_476_736
"""One dataset with a content id: as much as one torrent. A manifest can claim any size."""

MAX_MANIFEST_SIZE_BYTES: Final = 4_096
"""A manifest of a dataset, its bytes or its JSON: 700 bytes with the longest filename and media type, 2,300 as JSON."""

MAX_FILENAME_SIZE_BYTES: Final = 255
"""The filename in a manifest: what file systems accept."""

MAX_DATASETS: Final = 100_000
"""Manifests in one content store, which are in memory, 500 bytes each. Many of them can share one dataset's bytes."""

MAX_DATASET_LIST_SIZE_BYTES: Final = 67_108_864
"""The list of a node's datasets, which is read into memory: 600 bytes for each of the largest number that a store has."""

MIN_FREE_DISK_SIZE_BYTES: Final = 67_108_864
"""Space that a content store and a download leave free on the disk, so that the store of posts can still write."""

MAX_UPLOADS_AT_ONCE: Final = 32
"""Uploads that a content endpoint accepts at a time. Each has a file open and takes 1 MiB of memory."""

MAX_CONTENT_FETCHES: Final = 8
"""Datasets that a content endpoint fetches from other nodes at a time. A further request is refused."""

# --- of reconciliation ---------------------------------------------------------------------------

MAX_RECONCILE_FRAME_SIZE_BYTES: Final = 16_777_216
"""One payload, four times the size of ours. Deployed nodes have no limit, and write 1 MB if they have 25,000 posts an hour."""

MAX_RECONCILE_RANGES: Final = 262_144
"""Ranges in one payload: a range takes two bytes on the wire and 300 in memory. Ours have half as many."""

MAX_RECONCILE_ITEMS: Final = 350_000
"""Ids in one payload, written or read; each takes 250 bytes in memory. Nwaku's dialects send all ids of one timestamp at once."""

MAX_RECONCILE_SHARDS: Final = 1_024
"""Shards that a payload names: as many as a cluster of Waku has."""

MAX_RECONCILE_TOPICS: Final = 4_096
"""Pubsub topics, and content topics, that a payload names: a channel each."""

MAX_RECONCILE_TOPIC_SIZE_BYTES: Final = 1_024
"""One topic: the longest name of a channel comes to 790 bytes when it is percent-encoded."""

MAX_RECONCILE_ROUNDS: Final = 1_000
"""Payloads that a session reads. Ten find the differences of a million posts; more are needed if differences fill many frames."""

MAX_RECONCILE_SESSION_SIZE_BYTES: Final = 268_435_456
"""Bytes that a session reads and writes: the ids of 3.5 million posts that only one side has."""

MAX_RECONCILE_DIFFERENCES: Final = 1_000_000
"""Differences that a session finds, in memory, 250 bytes each. They are transferred before the next session begins."""

RECONCILE_TIMEOUT_S: Final = 600.0
"""Seconds from a session's first payload to its last. Its snapshot keeps old files of the database on the disk."""

MAX_AUDIT_CUTS: Final = 1_024
"""Cuts in one request of an audit: each costs the peer one fingerprint."""

MAX_TRANSFER_FRAME_SIZE_BYTES: Final = 266_240
"""One post in transfer, with its topics: the largest post, and 4 kB."""

MAX_WAKU_TRANSFER_FRAME_SIZE_BYTES: Final = 153_600
"""The same for deployed Waku nodes, which read at most 150 KiB and a few bytes."""

MAX_TALK_FRAME_SIZE_BYTES: Final = 1_048_576
"""One frame of a conversation. The largest is a batch of posts that ends with the largest post."""

TALK_PAYLOAD_SIZE_BYTES: Final = 65_536
"""About the size of a payload. Answers of Cable on the same connection would wait for longer ones."""

TALK_BATCH_SIZE_BYTES: Final = 65_536
"""Posts that are sent and stored together: some 200. A frame ends with the post that reaches this size."""

MAX_TALK_BATCHES: Final = 4
"""Batches of posts in transfer that the receiver has not stored yet. An honest peer does not send more."""

MAX_TALK_DIFFERENCES: Final = 250_000
"""Differences that one conversation finds, 60 MB in memory on each side. Another conversation finds the rest."""

MAX_TALK_UNSENT: Final = 10_000
"""Posts that wait to be sent. A side with this many stops comparing: what is found and not sent is lost with the connection."""

MAX_TALK_UNASKED: Final = 100
"""Unexpected posts after which a side ends the conversation. Honest peers send none."""

MAX_TALK_REASON_CODEPOINTS: Final = 500
"""The reason that a peer gives for ending a conversation. It is written to logs and terminals."""

MAX_TALK_QUEUE_FRAMES: Final = 64
"""Frames of a peer that wait to be handled. Honest peers send a payload, four batches and their acknowledgements ahead."""

MAX_TALK_QUESTIONS: Final = 8
"""Audits that a peer may request in one conversation: each costs a thousand fingerprints."""

TALK_SILENCE_S: Final = 60.0
"""Seconds without a frame after which a peer whose turn it is counts as lost."""

MAX_TALK_S: Final = 3_600.0
"""Seconds from a conversation's first frame to its last: 250,000 posts over 1 Mbit/s take half of that."""

MAX_TALKS: Final = 8
"""Conversations of one node at a time, begun by either side: each has a snapshot and up to 60 MB. If all addresses have their
share and no conversation is slow, further peers are told to try later."""

TALK_SLOW_AFTER_S: Final = 20.0
"""Seconds of waiting for a peer after which a slow conversation gives way to another one."""

TALK_SLOW_BYTES_PER_S: Final = 500
"""Bytes that a conversation transfers for each second of waiting for the peer. One that transfers less is slow. 2G is faster."""

GREETING_TIMEOUT_S: Final = 5.0
"""Seconds within which a peer must be recognised as a store that reconciles, if the connection is for reconciling alone."""

# --- of causal logs ------------------------------------------------------------------------------

MAX_SDS_MESSAGE_SIZE_BYTES: Final = 1_310_720
"""One message: 1 MiB of content, as deployed nodes accept, and 256 KiB for filter, history and ids. Longer messages are not read."""

MAX_SDS_ID_SIZE_BYTES: Final = 512
"""The id of a message, sender or channel in UTF-8: hashes have 64 bytes. Ids are in keys and in histories of other messages."""

MAX_SDS_HINT_SIZE_BYTES: Final = 1_024
"""A retrieval hint: a hash, or an address. It is kept for each dependency that is missing."""

MAX_SDS_HISTORY: Final = 1_024
"""Entries of a causal history: deployed nodes write 200. Each missing one costs rows, so this bounds the cost of a message."""

MAX_SDS_REPAIR_REQUESTS: Final = 64
"""Repairs that one message requests: 3 are recommended. Each costs a look-up and perhaps a message."""

MAX_SDS_FIELDS: Final = 8_192
"""Protobuf fields in one message, unknown ones and those of its entries included: twice the fullest one, 13 ms at most to read."""

MAX_SDS_FILTER_SIZE_BYTES: Final = 262_144
"""The bits of one Bloom filter: 139,000 ids with one error in a thousand. Every message carries one."""

MAX_SDS_FILTER_HASHES: Final = 32
"""Bits that one id sets in a filter: 10 for one error in a thousand, 30 for one in a billion. A peer's filter can name any number."""

MAX_SDS_LAMPORT_AHEAD_MS: Final = 86_400_000
"""How far a message's Lamport time may be ahead of the clock, because all Lamport clocks follow it: a day of a thousand messages a second."""

MAX_SDS_WAITING: Final = 4_096
"""Messages of a channel that wait for messages on which they depend. Further ones are fetched again later."""

MAX_SDS_WAITING_SIZE_BYTES: Final = 33_554_432
"""Bytes of these messages. They are on the disk, and one arrival may deliver all of them in one write."""

MAX_SDS_MISSING: Final = 16_384
"""Messages of a channel that are known to be missing: each is requested. Half of the room is for those that only sync messages named."""

MAX_SDS_UNMET: Final = 256
"""Dependencies of one message that may be missing when it arrives: deployed nodes name 200. So one message takes at most 1/64 of the room."""

MAX_SDS_SHARES: Final = 128
"""Senders of a channel that have their own share of the room. All others have one share together, because names cost nothing."""

MAX_SDS_SYNC_IDS: Final = 64
"""Ids of sync messages that are remembered for each share: the newest of half an hour and more."""

MAX_SDS_ANSWERS: Final = 1_024
"""Repairs of a channel that wait for their time to be answered. A member whose request finds no room asks again."""

MAX_SDS_REVIEWED: Final = 64
"""Own messages that one received filter is compared with, a microsecond each. The others have their turn with the next write."""

MAX_SDS_TIMERS: Final = 256
"""Timers of a kind that one tick handles: it is one write. The others are due at the next one."""

MAX_SDS_BATCH: Final = 1_000
"""Messages of a list that are received in one write, which is in memory."""

MAX_SDS_EFFECTS_READ: Final = 1_000
"""Effects of the outbox that one call returns: with filters of 18,752 bytes 20 MB."""
