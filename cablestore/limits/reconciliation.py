"""Limits of reconciliation."""

from __future__ import annotations

from typing import Final

MAX_RECONCILE_FRAME_SIZE_BYTES: Final = 16_777_216
"""Maximum size of one payload: four times the largest that this node writes. Deployed nodes have no limit and write 1
MB for 25,000 posts an hour."""

MAX_RECONCILE_RANGES: Final = 262_144
"""Maximum number of ranges in one payload. A range occupies at least 2 bytes on the wire and about 300 bytes in memory.
This node writes at most half as many."""

MAX_RECONCILE_ITEMS: Final = 350_000
"""Maximum number of ids in one payload, written or read, at 250 bytes of memory each. The dialects of nwaku send all
ids of one timestamp at once."""

MAX_RECONCILE_SHARDS: Final = 1_024
"""Maximum number of shards in one payload: the number of shards of a Waku cluster."""

MAX_RECONCILE_TOPICS: Final = 4_096
"""Maximum number of pubsub topics, and of content topics, in one payload. Each content topic is a channel."""

MAX_RECONCILE_TOPIC_SIZE_BYTES: Final = 1_024
"""Maximum size of one topic. The longest channel name occupies 790 bytes when it is percent-encoded."""

MAX_RECONCILE_ROUNDS: Final = 1_000
"""Maximum number of payloads that one session reads. Ten find the differences of a million posts; differences that fill
many frames need more."""

MAX_RECONCILE_SESSION_SIZE_BYTES: Final = 268_435_456
"""Maximum number of bytes that one session reads and writes: the ids of 3.5 million posts that only one side has."""

MAX_RECONCILE_DIFFERENCES: Final = 1_000_000
"""Maximum number of differences that one session finds and holds in memory, 250 bytes each. Their posts are transferred
before the next session begins."""

COMPARISON_WAIT_S: Final = 15.0
"""Time that a node waits for a comparison with a reconciling store before it requests all posts over Cable. A busy
store begins within ten seconds."""

RECONCILE_TIMEOUT_S: Final = 600.0
"""Time from a session's first payload to its last. The session's snapshot keeps old database files on disk."""

MAX_AUDIT_CUTS: Final = 1_024
"""Maximum number of cuts in one audit request. Each costs the peer one fingerprint."""

MAX_TRANSFER_FRAME_SIZE_BYTES: Final = 266_240
"""Maximum size of one post in transfer, with its topics: the largest post and 4 kB."""

MAX_WAKU_TRANSFER_FRAME_SIZE_BYTES: Final = 153_600
"""Maximum size of one post in transfer to a deployed Waku node, which reads at most 150 KiB and a few bytes."""

MAX_TALK_FRAME_SIZE_BYTES: Final = 1_048_576
"""Maximum size of one frame of a conversation. The largest is a batch of posts that ends with the largest post."""

TALK_PAYLOAD_SIZE_BYTES: Final = 65_536
"""Approximate maximum size of one payload. Longer payloads would delay Cable answers on the same connection."""

TALK_FIRST_PAYLOAD_SIZE_BYTES: Final = 2_048
"""Approximate size of the first payloads of a conversation. Each payload that the peer answers quickly makes later
payloads longer."""

TALK_BATCH_SIZE_BYTES: Final = 65_536
"""Size of the posts that are sent and stored together, some 200 posts: a frame ends with the post that reaches this
size. A slow link uses smaller batches."""

TALK_LEAST_BATCH_SIZE_BYTES: Final = 1_024
"""Smallest batch while more posts wait to be sent. The confirmation of a batch takes some 20 bytes."""

MAX_TALK_BATCHES: Final = 4
"""Maximum number of batches in transfer that the receiver has not stored yet. An honest peer does not send more."""

MAX_TALK_DIFFERENCES: Final = 250_000
"""Maximum number of differences that one conversation finds, 60 MB of memory on each side. The next conversation finds
the rest."""

MAX_TALK_UNSENT: Final = 10_000
"""Maximum number of posts that wait to be sent. A side with more waiting posts pauses the comparison. On a slow link,
it pauses with fewer posts. So posts do not wait for the whole comparison."""

MAX_TALK_UNASKED: Final = 100
"""Maximum number of unexpected posts that a side accepts from the other side. If there are more, it ends the
conversation. Honest peers send none."""

MAX_TALK_REPEATED: Final = 32
"""Maximum number of consecutive received posts that are already stored because another peer sent them meanwhile. At
this limit, the comparison ends and waits for that peer, so that two peers do not send the same posts twice. A few
duplicates may be chance."""

TALK_REPEATED_WAIT_S: Final = 20.0
"""Time that a comparison ended by MAX_TALK_REPEATED waits for the other peer's comparison, which may be the slower one.
It is less than TALK_SILENCE_S, so that the waiting peer does not end the comparison."""

MAX_TALK_REASON_CODEPOINTS: Final = 500
"""Maximum length of a peer's reason for ending a conversation. It is written to logs and terminals."""

MAX_TALK_QUEUE_FRAMES: Final = 64
"""Maximum number of received frames that wait to be handled. Honest peers send at most a payload, four batches, and
acknowledgements of batches in advance."""

MAX_TALK_HELD_FRAMES: Final = 16
"""Maximum number of received frames that a side holds back while it has too many posts to send. Honest peers send at
most six in that time: a payload, four batches and the end."""

MAX_TALK_QUESTIONS: Final = 8
"""Maximum number of audits that a peer may request in one conversation. Each costs a thousand fingerprints."""

TALK_SILENCE_S: Final = 60.0
"""Time without a frame from a peer whose turn it is before this side ends the conversation."""

MAX_TALK_S: Final = 3_600.0
"""Time from a conversation's first frame to its last. Sending 250,000 posts over 1 Mbit/s needs half of it."""

MAX_TALKS: Final = 8
"""Maximum number of concurrent conversations of one node, whichever side began them. Each holds a snapshot and up to 60
MB of memory. At this limit, a new conversation replaces a slow one, or one of an address with at least two more
conversations. If there is none, the node asks the new peer to retry later."""

TALK_SLOW_AFTER_S: Final = 20.0
"""Time spent waiting for a peer before the node may stop a slow conversation to begin another conversation."""

TALK_SLOW_BYTES_PER_S: Final = 500
"""Minimum transfer rate while waiting for the peer. A conversation below it is slow. A 2G link is faster."""

GREETING_TIMEOUT_S: Final = 5.0
"""Maximum time to recognize a peer as cablestore on a connection that is opened for one reconciliation over Cable."""
