"""Limits of causal logs."""

from __future__ import annotations

from typing import Final

MAX_SDS_MESSAGE_SIZE_BYTES: Final = 1_310_720
"""Maximum size of one message: 1 MiB of content, as deployed nodes accept, and 256 KiB for filter, history and ids.
Longer messages are rejected unread. A new message must leave room for its filter and the maximum number of repair
requests."""

MAX_SDS_ID_SIZE_BYTES: Final = 512
"""Maximum size of the id of a message, sender or channel in UTF-8. Ids are part of keys and of the histories of other
messages; a hash has 64 bytes in hex."""

MAX_SDS_HINT_SIZE_BYTES: Final = 1_024
"""Maximum size of one retrieval hint, which is a hash or an address. The log stores one for each missing dependency."""

MAX_SDS_HISTORY: Final = 1_024
"""Maximum number of entries in one causal history; deployed nodes write 200. Each missing entry costs rows, so this
limit bounds the cost of a message."""

MAX_SDS_REPAIR_REQUESTS: Final = 64
"""Maximum number of repair requests in one message; the specification recommends 3. Each costs a look-up and possibly a
message."""

MAX_SDS_FIELDS: Final = 8_192
"""Maximum number of Protobuf fields in one message, including unknown fields and fields of its entries. The fullest
message needs half of them; reading takes at most 13 ms."""

MAX_SDS_FILTER_SIZE_BYTES: Final = 262_144
"""Maximum size of one Bloom filter: 139,000 ids with an error rate of 0.1%. Every message carries a filter."""

MAX_SDS_FILTER_HASHES: Final = 32
"""Maximum number of bits that one id sets in a filter: 10 for an error rate of 0.1%, 30 for one in a billion. A peer's
filter can claim any number."""

MAX_SDS_LAMPORT_AHEAD_MS: Final = 86_400_000
"""How far a message's Lamport time may be ahead of the clock. Each message advances it by one, so an honest sender gains
this lead only with 86 million messages. All members' Lamport clocks follow the largest time that they receive."""

MAX_SDS_WAITING: Final = 4_096
"""Maximum number of messages of one channel that wait for their dependencies. Further messages are fetched again
later."""

MAX_SDS_WAITING_SIZE_BYTES: Final = 33_554_432
"""Maximum size of the messages of one channel that wait for their dependencies. They are on disk, and one arrival may
deliver all of them in one write."""

MAX_SDS_MISSING: Final = 16_384
"""Maximum number of missing messages of one channel, each of which is requested. Only half of them may be known from
sync messages alone."""

MAX_SDS_UNMET: Final = 256
"""Maximum number of missing dependencies of one message when it arrives; deployed nodes name 200. One message can
therefore fill at most 1/64 of MAX_SDS_MISSING."""

MAX_SDS_SHARES: Final = 128
"""Maximum number of senders of one channel that each have a share of its limits. All other senders have one common
share, because a sender can use any number of names."""

MAX_SDS_CAUSES: Final = 16
"""Maximum number of senders that share the cost of one missing message that they listed. Of more senders, those that are
served last do not share it. One honest sender is enough to have the message requested."""

MAX_SDS_SYNC_IDS: Final = 64
"""Maximum number of ids of sync messages remembered for each share, enough for at least half an hour. The oldest are
forgotten first."""

MAX_SDS_ANSWERS: Final = 1_024
"""Maximum number of scheduled repair answers of one channel. A member whose request is dropped sends it again."""

MAX_SDS_REVIEWED: Final = 64
"""Maximum number of messages of this member compared with one received filter in one write, at one microsecond each.
The next write compares the others."""

MAX_SDS_TIMERS: Final = 256
"""Maximum number of timers of one kind that one tick handles in one write. The next tick handles the other timers."""

MAX_SDS_BATCH: Final = 1_000
"""Maximum number of received messages that one write stores. The write is held in memory."""

MAX_SDS_EFFECTS_READ: Final = 1_000
"""Maximum number of outbox effects that one call returns: 20 MB with filters of 18,752 bytes."""
