"""Limits of a node and its peers."""

from __future__ import annotations

from typing import Final

MAX_TTL: Final = 16
"""Maximum number of hops over which a legacy request may be forwarded (wire.md draft 1, 5.2.1). Existing clients reject
more."""

MAX_MESSAGE_SIZE_BYTES: Final = 8_388_608
"""Maximum size of one message of a peer: 260,000 hashes. Longer messages are rejected before their bytes are read."""

MAX_NAMES_PER_MESSAGE: Final = 65_536
"""Maximum number of channels in one message. Decoding them blocks the event loop for 40 ms; further channels are
requested by offset."""

MAX_EMPTY_MESSAGES: Final = 16
"""Maximum number of consecutive messages of length 0. cable.rs writes one after some of its messages."""

MAX_REQUESTS_ALIVE: Final = 4_096
"""Maximum number of unanswered and live requests of one peer: two for each of 2,000 channels. Further requests end at
once."""

MAX_LIVE_ALIKE: Final = 64
"""Maximum number of equal live requests of one peer, each of which receives all new posts. A peer that forwards
requests of other peers may need several."""

MAX_LIVE_CHANNELS: Final = 1_024
"""Maximum number of channels for which a node has live requests at one peer, two requests each. The node polls further
channels every minute."""

MAX_UNSEEN_CHANNELS: Final = 65_536
"""Maximum number of the channels listed by one peer that are requested from it although no post of them is stored: 10
MB of memory. A channel no longer counts when its first post is stored."""

LIST_EVERY_S: Final = 10.0
"""Interval of channel list requests to a peer. Other cablestores announce new channels, so a node requests their lists
only every sixth time."""

CHANNELS_REQUESTED_EVERY_S: Final = 0.5
"""Time between two channel list requests to a store that announces new channels. The second request covers all channels
announced meanwhile."""

MAX_HASHES_PER_REQUEST: Final = 10_000
"""Maximum number of posts in one post request. A longer request ends at once. Existing clients request at most
4,096."""

MAX_HASHES_PER_RESPONSE: Final = 128
"""Maximum number of hashes in one response, 4 kB. The peer can request the first posts before the last hash arrives,
and a broken link loses few hashes. Further hashes follow in further responses."""

MAX_PAGE_HASHES: Final = 1_000_000
"""Maximum number of hashes of one page of history. A node requests longer pages only where more posts than fit into a
page have the same time."""

MAX_HASHES_PER_ANSWER: Final = 1_000_000
"""Maximum number of hashes in all responses to one request that is not live. A longer answer is cancelled."""

MAX_POST_RESPONSE_SIZE_BYTES: Final = 1_048_576
"""Maximum size of the posts in one response. Some clients read only the first response; the 4,096 posts that they
request fit into it."""

POST_RESPONSE_PIECE_SIZE_BYTES: Final = 4_096
"""Maximum size of several posts in one response to another cablestore, which reads several responses to a request. A
broken link loses at most one response."""

REQUESTS_REMEMBERED: Final = 1_024
"""Number of ids of concluded requests that a node remembers. A response to one of them is late; a response to an
unknown id is a fault of the peer."""

ANSWER_TIMEOUT_S: Final = 20.0
"""Time without an answer before the node abandons a request. Existing clients do not answer requests for posts that
they lack."""

SLOW_MESSAGE_S: Final = 1.0
"""Maximum time between complete messages on a fast link. After this time, received bytes belong to a long message, and
all timeouts restart when further bytes arrive."""

MAX_METRICS_CLIENTS: Final = 32
"""Maximum number of concurrent clients of the metrics page, one thread each. Only a few programs read it."""

METRICS_TIMEOUT_S: Final = 10.0
"""Maximum time for a client of the metrics page to send its request and read the answer. Prometheus waits equally
long."""

TIMEOUTS_EVERY_S: Final = 1.0
"""Interval at which a node checks its timeouts."""

RELAY_TIMEOUT_S: Final = 5.0
"""Time that the last node on the route of a forwarded request waits for each further part of the answer."""

RELAY_STEP_S: Final = 0.625
"""Additional time that each node closer to the requester waits for a forwarded request. With the highest ttl, the sum
is below ANSWER_TIMEOUT_S."""

ROUTES_REMEMBERED: Final = 65_536
"""Maximum number of remembered request ids, which show that a request returned on another route: enough for some
minutes on a busy node."""

ROUTE_HASHES_REMEMBERED: Final = 10_000
"""Maximum number of hashes remembered for one forwarded request, so that each is forwarded once. Beyond this number, a
hash may be forwarded twice."""

MAX_PENDING_HASHES_PER_PEER: Final = 65_536
"""Maximum number of hashes of one peer that wait to be fetched, 10 MB. Further posts of the peer are found by the next
scan of its history."""

MAX_HASHES_REMEMBERED: Final = 65_536
"""Maximum number of hashes of posts that disconnected peers did not deliver, 6 MB. They are requested from the next
peers at once. The oldest are forgotten first."""

MAX_RECEIVED_REMEMBERED: Final = 4_096
"""Maximum number of remembered posts that one peer sent, 400 kB. The node does not announce them to this peer. If the
node has forgotten an older post and announces it, the peer ignores the announcement."""

FETCH_POSTS: Final = 500
"""Posts in one post request of a node: an answer of some 120 kB. A slow link uses shorter requests."""

FETCH_POSTS_LEAST: Final = 16
"""Smallest number of posts in one request while more are pending. A request and its conclusion take 40 bytes."""

FETCHES_OPEN: Final = 4
"""Open post requests at one peer: enough to keep the peer busy, but few enough to request other posts from other
peers."""

FLOW_FIRST_SIZE_BYTES: Final = 8_192
"""First window, in bytes of posts in flight, of a new link: 1.6 s at 5 kB/s. Each batch can at most double
it."""

FLOW_LEAST_SIZE_BYTES: Final = 2_048
"""Smallest window of any link, however slow."""

FLOW_AHEAD_S: Final = 0.5
"""Seconds of posts in flight beyond the capacity of the link. A broken link may lose these posts."""

PAGE_HASHES_LEAST: Final = 128
"""Shortest page of history requested from a slow peer: hashes of some 30 kB of posts."""

OFFERS_REMEMBERED: Final = 3
"""Alternative peers remembered for each post, in case the first peer does not deliver the post."""

MAX_PEERS: Final = 2_000
"""Maximum number of connections of one node. Each uses a file descriptor and, while idle, some 30 kB."""

MAX_OVERLAP_POSTS: Final = 256
"""Maximum number of posts of a channel that a peer without reconciliation lists again after a reconnection: 8 kB."""

BACKGROUND_PAGE_HASHES: Final = 256
"""Hashes in one page of a background scan of a peer's history. At BACKGROUND_HASHES_PER_S, a page takes eight
seconds."""

BACKGROUND_HASHES_PER_S: Final = 32
"""Rate of a background scan of a peer's history, 1 kB/s. A million posts take nine hours."""

RESERVED_DESCRIPTORS: Final = 512
"""File descriptors reserved for LevelDB tables, commands, metrics and files being written, but at most half of the
allowed number. Peer connections use the rest."""

MAX_EARLY_POSTS: Final = 16_384
"""Maximum number of posts rejected as too far ahead that are requested again when the clock allows it: 4 MB. If there
are more, the channels of all peers are requested again instead."""

MAX_MARKS_PER_PEER: Final = 65_536
"""Maximum number of channels of one peer for which a node saves a mark: the time up to which the channel's history is
complete. One response lists as many channels. The marks of the least recently synced channels are dropped first."""

MAX_MARKS: Final = 131_072
"""Maximum number of marks of the channels of all peers together: 13 MB on disk, in one file. The marks of the least
recently synced peers are dropped first."""

MAX_PEERS_REMEMBERED: Final = 1_000
"""Maximum number of peers with marks of channels. The marks of the least recently synced peers are dropped first."""

MAX_PEER_EVENTS: Final = 1_024
"""Maximum number of peer events that wait for one reader. Above this number, one `PeerEventsMissed` replaces all of
them."""

MAX_INVITATION_PEERS: Final = 32
"""Maximum number of peers in one invitation: enough to find one that is online, few enough to try in turn."""

MAX_INVITATION_SIZE_CHARACTERS: Final = 16_384
"""Maximum length of an invitation: the maximum number of peers with long names, and the largest seed. A wrong file is
rejected early."""

MAX_PEERS_PER_ADDRESS: Final = 256
"""Maximum number of connections from one IPv4 address, or from one IPv6 network (/64). Many people may share an address
behind a router."""

MAX_HANDSHAKES: Final = 64
"""Maximum number of concurrent handshakes. The first 48 bytes of a peer cost the node a millisecond of arithmetic."""

MAX_HANDSHAKES_PER_ADDRESS: Final = 16
"""Maximum number of concurrent handshakes with one address, so that a peer that completes none does not lock out
others."""

HANDSHAKE_TIMEOUT_S: Final = 10.0
"""Maximum time from the start of a connection to the end of its handshake."""

EYEBALLS_DELAY_S: Final = 0.25
"""Delay before the next address of a host is tried in parallel (RFC 8305 5)."""

NAME_FRESH_S: Final = 60.0
"""Time that the node reuses the addresses of a host without another look-up, unless they do not answer."""

NAME_PATIENCE_S: Final = 2.0
"""Time to wait for a name server before the host's earlier addresses are used."""

MAX_KNOWN_HOSTS: Final = 256
"""Maximum number of hosts whose addresses are cached. The node forgets the oldest first. A node connects to fewer peers
by name."""

MIN_MESSAGE_BYTES_PER_S: Final = 100
"""Minimum receive rate of a message. A second with fewer bytes is slow. The slowest links in use carry thousands of bytes
per second."""

MAX_SLOW_S: Final = 60
"""Slow seconds that one message may take before the node disconnects the peer."""

MAX_SLOW_FIRST_S: Final = 20
"""Slow seconds that the first message may take before the node disconnects the peer. The limit is lower than MAX_SLOW_S,
because the peer has not sent a complete message yet."""

IDLE_TIMEOUT_S: Final = 600.0
"""Time without a byte before the node closes a connection without live requests. Cable does not define a ping."""

KEEPALIVE_AFTER_S: Final = 20
"""Seconds of silence before the system probes whether the peer's machine is reachable."""

KEEPALIVE_EVERY_S: Final = 8
"""Seconds between two probes of the system."""

KEEPALIVE_PROBES: Final = 3
"""Number of unanswered probes before the system closes the connection: 44 seconds after the last sign of life."""

UNACKNOWLEDGED_TIMEOUT_S: Final = 25.0
"""Time without an acknowledgement of sent bytes before the node closes the connection. Without this limit, the system
waits a quarter of an hour. A peer that reports a full window is exempt: it reads slowly."""

SILENCE_S: Final = 20.0
"""Time without a byte before a node requests a sign of life from the peer. With encryption, these requests cost at
most 8 kB an hour in each direction."""

LIFE_SIGN_TIMEOUT_S: Final = 12.0
"""Time to wait for a requested sign of life. After two unanswered requests, the connection is closed. That is 44 seconds
after the last byte, or 46 if the peer opened the connection."""

FIRST_RETRY_S: Final = 1.0
"""Delay after the first failed attempt to connect to a peer. Each further failure doubles it."""

LONGEST_RETRY_S: Final = 45.0
"""Longest delay between two attempts to connect to a peer. With HANDSHAKE_TIMEOUT_S for an attempt in progress, a peer
that returns is reached within 60 seconds."""

WORKING_S: Final = 2.0
"""Minimum duration of a connection that counts as successful. A peer that rejects a connection closes it at once."""

BROKEN_RETRY_S: Final = 0.2
"""Delay after a working connection breaks. On a link that breaks every five seconds, a delay of one second would lose a
fifth of the time."""

EARLY_RETRY_EVERY_S: Final = 10.0
"""Minimum time between two attempts that another peer's return causes: an unstable peer must not cause many
attempts."""

MAX_KEY_WARNINGS: Final = 1_024
"""Maximum number of addresses for which a node remembers its warning about another cabal key, some 100 bytes each."""

END_TIMEOUT_S: Final = 3.0
"""Time for a peer to read the remaining bytes and to end its side of an encrypted stream (handshake.md 4.4)."""

GRACE_S: Final = 1.0
"""Time that a stopping node waits for a peer to request a post of the local user after its announcement."""

MAX_ANNOUNCED_REMEMBERED: Final = 256
"""Maximum number of posts of the local user that the node announced to one peer, and that the peer has not requested
yet. The node remembers the times of these announcements, and forgets the oldest first."""

BLOCK_NOTICE_S: Final = 10.0
"""Time for a blocked peer to fetch the post/block that notifies it (moderation.md 5.1.4)."""

DIALECT_WAIT_S: Final = 0.5
"""Time that a node of the dialect `draft8` waits for a new peer to send first. If the node sent first, a message of
draft 8 could crash an existing client."""

SLOW_READER_SIZE_BYTES: Final = 16_384
"""Maximum number of bytes queued to a peer while the node still reads the store to answer it. So requests of this node
to the peer wait for few bytes. The system queues as many unsent bytes again."""

MAX_QUEUED_SIZE_BYTES: Final = 8_388_608
"""Maximum number of bytes queued to one peer. Above this limit, the node disconnects the peer, because it reads slower
than posts arrive."""

MAX_QUEUED_TOTAL_SIZE_BYTES: Final = 268_435_456
"""Maximum number of bytes queued to all peers together. Above this limit, the node disconnects the peers with the
longest queues."""

MAX_INGEST_QUEUE_SIZE_BYTES: Final = 16_777_216
"""Maximum size of the posts that wait to be verified and stored. Above this limit, the node stops reading from peers
that send more."""

MAX_INSPECTED_QUEUE_SIZE_BYTES: Final = 16_777_216
"""Maximum size of the posts and hashes for other peers that wait to be inspected. Above this limit, the node stops
reading from peers that send more."""

MAX_FAULTS: Final = 100
"""Maximum number of protocol violations of one peer before the node disconnects the peer. Honest peers may occasionally
be late or confused."""

MAX_INVALID_POSTS: Final = 10
"""Maximum number of malformed or wrongly signed posts of one peer before the node disconnects the peer. Honest peers
verify posts first."""

LOOP_SHARE: Final = 0.25
"""Share of the event loop's time for the messages of one peer. Above it, the node pauses reading from the peer."""

LOOP_SHARE_IN_ADVANCE_S: Final = 0.02
"""Event loop time that a peer may use at once. A post response of full size takes 10 ms."""

ROWS_PER_S: Final = 100_000
"""Rows a second that a peer's requests may read. A peer that requests more waits."""

ROWS_IN_ADVANCE: Final = 1_000_000
"""Rows that a peer may read at once after a pause: the whole history of a large channel."""

PART_ROWS_ANSWERED: Final = 2_000
"""Maximum number of hashes or names that are read for one peer in its turn, in some 2 ms. Then the next peer has its
turn."""

PART_SIZE_ANSWERED_BYTES: Final = 262_144
"""Maximum size of the posts that are read for one peer in its turn. Then the next peer has its turn."""

PARTS_SHRINK: Final = 64
"""Divisor for the size of the next part of an answer if the peer reads slowly. The part then has 31 hashes or 4 kB of
posts. Each part that the peer reads at once doubles the size of the next part."""

MAX_RATES_REMEMBERED: Final = 65_536
"""Maximum number of authors and addresses whose posts per minute are counted, 15 MB. The least recently active are
forgotten: after a pause, they may send at the full rate again."""

MAX_REJECTIONS_REMEMBERED: Final = 65_536
"""Maximum number of posts that the policy or the quota rejected and that are not fetched again, 10 MB. The oldest are
forgotten first, and a peer that still offers them sends them once more."""

MAX_POSTPONED_POSTS: Final = 16_384
"""Maximum number of posts of authors above their rate, and of posts that the policy command did not judge, 4 MB. If
there are more, the channels of all peers are requested again instead."""

POSTPONED_S: Final = 60.0
"""Minimum time before the node requests postponed posts again."""

POSTPONED_OVERFLOW_S: Final = 600.0
"""Time before the node requests channels again because it postponed too many posts."""

MAX_JUDGED_SIZE_BYTES_PER_PEER: Final = 1_048_576
"""Maximum size of the posts of one peer that wait for the policy. Above this limit, the node stops reading from the
peer."""

MAX_COMMAND_POSTS: Final = 1_024
"""Maximum number of posts that the policy command judges at a time. Further posts wait."""

QUOTA_MARGIN: Final = 0.1
"""Share of the smaller quota limit. While less room than this is left, only some posts are accepted."""

QUOTA_SHARE: Final = 0.05
"""Share of the margin (QUOTA_MARGIN) that posts from one address may use in a day."""

QUOTA_NEWEST_MS: Final = 604_800_000
"""Maximum age of the texts that are accepted near a limit of the quota: a week."""

QUOTA_MEASURED_EVERY_S: Final = 60.0
"""Longest time between two measurements of the disk, which other programs use too. Writes cause earlier
measurements."""
