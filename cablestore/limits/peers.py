"""Limits of a node and its peers."""

from __future__ import annotations

from typing import Final

MAX_TTL: Final = 16
"""Hops that a legacy request may be forwarded (wire.md draft 1, 5.2.1); existing clients refuse more."""

MAX_MESSAGE_SIZE_BYTES: Final = 8_388_608
"""One message of a peer: 260,000 hashes. Longer messages are refused before their bytes are read."""

MAX_NAMES_PER_MESSAGE: Final = 65_536
"""Channels that one message names. They are decoded one by one, which takes 40 ms of the loop; further ones are
requested by offset."""

MAX_EMPTY_MESSAGES: Final = 16
"""Consecutive messages of length 0. cable.rs writes one after some of its messages."""

MAX_REQUESTS_ALIVE: Final = 4_096
"""Requests of one peer that wait for an answer or are live: two for each of 2,000 channels. Further ones end at
once."""

MAX_LIVE_ALIKE: Final = 64
"""Equal live requests of one peer: each gets all new posts. A peer that forwards requests of others may have some."""

MAX_LIVE_CHANNELS: Final = 1_024
"""Channels for which a node has live requests at one peer, two requests each. It asks for further ones every minute."""

MAX_UNSEEN_CHANNELS: Final = 65_536
"""Channels that a peer names and the store has no post of, and that the peer is asked for: 10 MB of memory. The store's
own channels do not count: when posts of some have come, there is room for further ones."""

LIST_EVERY_S: Final = 10.0
"""Seconds between two channel list requests to a peer. Stores like this one announce new channels, and are asked every
sixth time."""

CHANNELS_ASKED_EVERY_S: Final = 0.5
"""Seconds after a channel list request during which a store that announces new channels is not asked again: then once
for all of them."""

MAX_HASHES_PER_REQUEST: Final = 10_000
"""Posts that one post request may name. A request for more ends at once. Existing clients ask for at most 4,096."""

MAX_HASHES_PER_RESPONSE: Final = 128
"""Hashes in one response: 4 kB. The peer requests the first posts before the last hash is there, and a link that breaks
loses few. More follow in further responses."""

MAX_PAGE_HASHES: Final = 1_000_000
"""Hashes of one page of history. A node requests longer pages if more posts than a page holds have the same time."""

MAX_HASHES_PER_ANSWER: Final = 1_000_000
"""Hashes of one answer that is not live, in all its responses. An answer that exceeds it is cancelled."""

MAX_POST_RESPONSE_SIZE_BYTES: Final = 1_048_576
"""Posts in one response. Some clients read only the first response; it has room for the 4,096 posts that they
request."""

POST_RESPONSE_PIECE_SIZE_BYTES: Final = 4_096
"""Posts in one response to a store like this one, which reads several: a link that breaks loses one at most."""

REQUESTS_REMEMBERED: Final = 1_024
"""Ids of own requests that are concluded. A response to one of them is late; a response to an unknown id counts against
the peer."""

ANSWER_TIMEOUT_S: Final = 20.0
"""Seconds without an answer after which a request is abandoned: existing clients do not answer requests for what they
lack."""

SLOW_MESSAGE_S: Final = 1.0
"""Seconds in which bytes come and complete no message, after which no request is abandoned while more of them come."""

MAX_METRICS_CLIENTS: Final = 32
"""Clients of the page with metrics at the same time. Each has a thread; a few programs read it."""

METRICS_TIMEOUT_S: Final = 10.0
"""Seconds within which a client of the page with metrics must send its request and read the answer. Prometheus waits
for as long."""

RELAY_TIMEOUT_S: Final = 5.0
"""Seconds that a forwarded request waits for each further part of the answer, at the last node that it reaches."""

RELAY_STEP_S: Final = 0.625
"""Seconds that a forwarded request waits longer at each node nearer to the first to ask. With the highest ttl it still
waits for less than ANSWER_TIMEOUT_S."""

ROUTES_REMEMBERED: Final = 65_536
"""Ids of requests, kept to recognise one that returns on another route: minutes of a busy node."""

ROUTE_HASHES_REMEMBERED: Final = 10_000
"""Hashes of one forwarded request that are passed on only once. After this many, a repeated hash may be passed on
twice."""

MAX_WANTED_PER_PEER: Final = 65_536
"""Hashes of one peer that wait to be fetched, 10 MB. The next pass finds again what a peer offers beyond it."""

MAX_HASHES_REMEMBERED: Final = 65_536
"""Hashes of posts that lost peers did not deliver, 6 MB: the next peers are asked for them at once. The oldest are
forgotten first."""

MAX_GIVEN_REMEMBERED: Final = 4_096
"""Posts that a peer gave last, 400 kB: it is not told of them. It passes over others that it gave."""

FETCH_POSTS: Final = 500
"""Posts that a node requests at a time, at most: an answer of some 120 kB. A slow link gets shorter requests."""

FETCH_POSTS_LEAST: Final = 16
"""Posts that a node requests at a time where more are wanted: a request and its end take 40 bytes."""

FETCHES_OPEN: Final = 4
"""Open requests for posts at one peer: enough to keep it busy, few enough that another peer can take over the rest."""

FLOW_FIRST_SIZE_BYTES: Final = 8_192
"""Posts that are on their way over a new link: 1.6 s at 5 kB/s. Each batch that comes in time doubles it."""

FLOW_LEAST_SIZE_BYTES: Final = 2_048
"""The least that is on its way over any link, however slow."""

FLOW_AHEAD_S: Final = 0.5
"""Seconds of posts that are on their way beyond what fills the link: what a link that breaks may lose."""

PAGE_HASHES_LEAST: Final = 128
"""The shortest page of history that is requested of a slow peer: hashes of some 30 kB of posts."""

OFFERS_REMEMBERED: Final = 3
"""Further peers that are remembered for each post, in case the first one does not deliver it."""

MAX_PEERS: Final = 2_000
"""Connections of one node. Each takes a file descriptor and, while idle, some 30 kB."""

MAX_OVERLAP_POSTS: Final = 256
"""Posts of a channel that a peer which does not reconcile lists again after a reconnect: 8 kB."""

BACKGROUND_PAGE_HASHES: Final = 256
"""Hashes of a page of the full pass in the background: eight seconds at its rate."""

BACKGROUND_HASHES_PER_S: Final = 32
"""Rate of the full pass in the background: 1 kB a second. A million posts take nine hours."""

RESERVED_DESCRIPTORS: Final = 512
"""File descriptors that connections of peers leave free, but at most half of those that the process may use: for the
tables of LevelDB, commands, scrapes of metrics, and files that are written."""

MAX_EARLY_POSTS: Final = 16_384
"""Posts that were refused as too far ahead and are requested again when the clock allows it: 4 MB. If there are more,
all peers are asked again for their channels instead."""

MAX_MARKS_PER_PEER: Final = 65_536
"""Channels of one peer for which the time is kept up to which their history is stored: as many as one list names. Those
that were synced longest ago are dropped first."""

MAX_MARKS: Final = 131_072
"""The same of all peers together: 13 MB on the disk, written at once. Peers that were synced longest ago are dropped
first."""

MAX_PEERS_REMEMBERED: Final = 1_000
"""Peers for which the time is kept up to which their history is stored. Those that were synced longest ago are dropped
first."""

MAX_PEER_EVENTS: Final = 1_024
"""Changes of a node's peers that wait for one reader. Beyond it they are given up, and the reader is told so."""

MAX_INVITATION_PEERS: Final = 32
"""Peers that an invitation names: enough to find one that is there, few enough to be tried in turn."""

MAX_INVITATION_SIZE_CHARACTERS: Final = 16_384
"""Characters of an invitation: as many peers with long names and as large a seed as it may have. A wrong file is refused
early."""

MAX_PEERS_PER_ADDRESS: Final = 256
"""Connections from one address. Many people may share one behind a router."""

MAX_HANDSHAKES: Final = 64
"""Handshakes in progress at a time. A peer that sends 48 bytes costs a millisecond of arithmetic."""

MAX_HANDSHAKES_PER_ADDRESS: Final = 16
"""Handshakes in progress with one address: a peer that begins many and ends none does not lock out others."""

HANDSHAKE_TIMEOUT_S: Final = 10.0
"""Seconds within which a handshake must be done, counted from the start of the connection."""

EYEBALLS_DELAY_S: Final = 0.25
"""Seconds after which the next address of a host is tried beside those before it (RFC 8305 5)."""

NAME_FRESH_S: Final = 60.0
"""Seconds for which the addresses of a host are used without another look-up, unless they do not answer."""

NAME_PATIENCE_S: Final = 2.0
"""Seconds to wait for a name server before the addresses that a host had earlier are used."""

MAX_KNOWN_HOSTS: Final = 256
"""Hosts whose addresses are remembered: the latest of them. A node has fewer peers that it connects to by name."""
MIN_MESSAGE_BYTES_PER_S: Final = 100
"""Bytes of a message below which a second counts as slow. The slowest lines in use bring thousands."""

MAX_SLOW_S: Final = 60
"""Slow seconds of one message after which the peer is disconnected."""

MAX_SLOW_FIRST_S: Final = 20
"""The same for the first message of a peer. Until then it is a stranger, as in a handshake."""

IDLE_TIMEOUT_S: Final = 600.0
"""Seconds without a byte after which a connection without live requests is closed. Cable has no ping."""

KEEPALIVE_AFTER_S: Final = 20
"""Seconds of silence after which the system probes if the peer's machine is still reachable."""

KEEPALIVE_EVERY_S: Final = 8
"""Seconds between two of these probes."""

KEEPALIVE_PROBES: Final = 3
"""Probes without an answer after which the system ends the connection: 44 seconds after the last sign of life."""

UNACKNOWLEDGED_TIMEOUT_S: Final = 25.0
"""Seconds without an acknowledgement of sent bytes after which a connection is closed. The system alone waits for a quarter
of an hour. A peer that has told its window is full does not count: it reads slowly."""

SILENCE_S: Final = 20.0
"""Seconds without a byte after which a node asks the peer for a sign of life. It costs at most 8 kB an
hour in each direction, with encryption."""

LIFE_SIGN_TIMEOUT_S: Final = 12.0
"""Seconds to wait for this sign of life. After the second time without one the connection is closed: 46 seconds after the
last byte."""

FIRST_RETRY_S: Final = 1.0
"""Pause after the first failed attempt to connect to a peer. Each further failure doubles it."""

LONGEST_RETRY_S: Final = 45.0
"""Longest pause between two attempts to connect to a peer. With the HANDSHAKE_TIMEOUT_S of an attempt that just began, a
peer that is back is reached within 60 seconds."""

WORKING_S: Final = 2.0
"""Seconds that a connection must last to count as a success. A peer that refuses a connection ends it at once."""

BROKEN_RETRY_S: Final = 0.2
"""Pause after a connection that has worked breaks: over a link that breaks every five seconds, a second would be a fifth of
the time."""

EARLY_RETRY_EVERY_S: Final = 10.0
"""Seconds between two attempts that a success elsewhere causes: a peer that comes and goes must not cause many."""

MAX_KEY_WARNINGS: Final = 1_024
"""Addresses for which a node remembers that it has warned of another cabal key. Each is some 100 bytes."""

END_TIMEOUT_S: Final = 3.0
"""Seconds that a peer has to read the remaining bytes and to end its side of an encrypted stream (handshake.md 4.4)."""

GRACE_S: Final = 1.0
"""Seconds that a peer has, from when it was told of an own post, to ask for it while the node stops."""

MAX_TOLD_REMEMBERED: Final = 256
"""Own posts that a peer was told of and did not ask for, of which a node remembers when that was: the latest of them."""

BLOCK_NOTICE_S: Final = 10.0
"""Seconds that a peer whom the local user blocks has to fetch the post/block that notifies it (moderation.md 5.1.4)."""

DIALECT_WAIT_S: Final = 0.5
"""Seconds during which a peer may send first if our dialect could crash it: an existing client crashes at a message of
draft 8."""

SLOW_READER_SIZE_BYTES: Final = 16_384
"""Bytes queued to a peer above which nothing more is read for it from the store: own requests wait for no more than
these. The system keeps as many unsent."""

MAX_QUEUED_SIZE_BYTES: Final = 8_388_608
"""Bytes queued to one peer. A peer that exceeds it, because it reads slower than posts arrive, is disconnected."""

MAX_QUEUED_TOTAL_SIZE_BYTES: Final = 268_435_456
"""Bytes queued to all peers together. Above it the peers with the longest queues are disconnected."""

MAX_INGEST_QUEUE_SIZE_BYTES: Final = 16_777_216
"""Bytes of posts that wait to be verified and stored. Meanwhile nothing is read from peers that send more."""

MAX_INSPECTED_QUEUE_SIZE_BYTES: Final = 16_777_216
"""Bytes of posts and hashes for other peers that wait to be inspected. Meanwhile nothing is read from peers that send
more."""

MAX_FAULTS: Final = 100
"""Violations of the protocol by one peer before it is disconnected: honest peers may be late or confused at times."""

MAX_INVALID_POSTS: Final = 10
"""Malformed or wrongly signed posts of one peer before it is disconnected: honest peers verify posts first."""

LOOP_SHARE: Final = 0.25
"""Share of the loop's time that the messages of one peer may take. Beyond it nothing is read from the peer for a
while."""

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

PARTS_SHRINK: Final = 64
"""How much shorter the next part is for a peer that reads slowly: 31 hashes or 4 kB of posts. Each part that it reads at
once doubles the next one."""
