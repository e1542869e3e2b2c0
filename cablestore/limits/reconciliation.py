"""Limits of reconciliation."""

from __future__ import annotations

from typing import Final

MAX_RECONCILE_FRAME_SIZE_BYTES: Final = 16_777_216
"""One payload, four times the size of ours. Deployed nodes have no limit, and write 1 MB if they have 25,000 posts an
hour."""

MAX_RECONCILE_RANGES: Final = 262_144
"""Ranges in one payload: a range takes two bytes on the wire and 300 in memory. Ours have half as many."""

MAX_RECONCILE_ITEMS: Final = 350_000
"""Ids in one payload, written or read; each takes 250 bytes in memory. Nwaku's dialects send all ids of one timestamp
at once."""

MAX_RECONCILE_SHARDS: Final = 1_024
"""Shards that a payload names: as many as a cluster of Waku has."""

MAX_RECONCILE_TOPICS: Final = 4_096
"""Pubsub topics, and content topics, that a payload names: a channel each."""

MAX_RECONCILE_TOPIC_SIZE_BYTES: Final = 1_024
"""One topic: the longest name of a channel comes to 790 bytes when it is percent-encoded."""

MAX_RECONCILE_ROUNDS: Final = 1_000
"""Payloads that a session reads. Ten find the differences of a million posts; more are needed if differences fill many
frames."""

MAX_RECONCILE_SESSION_SIZE_BYTES: Final = 268_435_456
"""Bytes that a session reads and writes: the ids of 3.5 million posts that only one side has."""

MAX_RECONCILE_DIFFERENCES: Final = 1_000_000
"""Differences that a session finds, in memory, 250 bytes each. They are transferred before the next session begins."""

COMPARISON_WAIT_S: Final = 15.0
"""Seconds that a node waits for a comparison with a store that reconciles before it requests all posts over Cable. One
that was busy begins within ten."""

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
"""About the size of a payload, at most. Answers of Cable on the same connection would wait for longer ones."""

TALK_FIRST_PAYLOAD_SIZE_BYTES: Final = 2_048
"""About the size of the first payloads of a conversation. Those that the peer answers in time make the next ones longer."""

TALK_BATCH_SIZE_BYTES: Final = 65_536
"""Posts that are sent and stored together, at most: some 200. A frame ends with the post that reaches this size. A slow
link gets smaller ones."""

TALK_LEAST_BATCH_SIZE_BYTES: Final = 1_024
"""The smallest batch of posts where more are to be sent: its confirmation takes some 20 bytes."""

MAX_TALK_BATCHES: Final = 4
"""Batches of posts in transfer that the receiver has not stored yet. An honest peer does not send more."""

MAX_TALK_DIFFERENCES: Final = 250_000
"""Differences that one conversation finds, 60 MB in memory on each side. Another conversation finds the rest."""

MAX_TALK_UNSENT: Final = 10_000
"""Posts that wait to be sent. A side with this many stops comparing, on a slow link with fewer: posts do not wait until
all is compared."""

MAX_TALK_UNASKED: Final = 100
"""Unexpected posts after which a side ends the conversation. Honest peers send none."""

MAX_TALK_REPEATED: Final = 32
"""Posts in a row that another peer has given since the comparison began. Then it ends, and waits for that peer: else
each of two peers with the same posts would give all of them. Fewer may come twice by chance."""

TALK_REPEATED_WAIT_S: Final = 20.0
"""Seconds that such a comparison waits for the end of that of the other peer, which may be the slower one. The peer
that waits for an answer counts this node as lost after 60."""

MAX_TALK_REASON_CODEPOINTS: Final = 500
"""The reason that a peer gives for ending a conversation. It is written to logs and terminals."""

MAX_TALK_QUEUE_FRAMES: Final = 64
"""Frames of a peer that wait to be handled. Honest peers send a payload, four batches and their acknowledgements
ahead."""

MAX_TALK_HELD_FRAMES: Final = 16
"""Frames of a peer that a side holds while it has too many posts to send. Honest peers send at most six then: a
payload, four batches, and the end."""

MAX_TALK_QUESTIONS: Final = 8
"""Audits that a peer may request in one conversation: each costs a thousand fingerprints."""

TALK_SILENCE_S: Final = 60.0
"""Seconds without a frame after which a peer whose turn it is counts as lost."""

MAX_TALK_S: Final = 3_600.0
"""Seconds from a conversation's first frame to its last: 250,000 posts over 1 Mbit/s take half of that."""

MAX_TALKS: Final = 8
"""Conversations of one node at a time, begun by either side: each has a snapshot and up to 60 MB. If all addresses have
their share and no conversation is slow, further peers are told to try later."""

TALK_SLOW_AFTER_S: Final = 20.0
"""Seconds of waiting for a peer after which a slow conversation gives way to another one."""

TALK_SLOW_BYTES_PER_S: Final = 500
"""Bytes that a conversation transfers for each second of waiting for the peer. One that transfers less is slow. 2G is
faster."""

GREETING_TIMEOUT_S: Final = 5.0
"""Seconds within which a peer must be recognised as a store that reconciles, if the connection is for reconciling
alone."""
