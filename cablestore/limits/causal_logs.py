"""Limits of causal logs."""

from __future__ import annotations

from typing import Final

MAX_SDS_MESSAGE_SIZE_BYTES: Final = 1_310_720
"""One message: 1 MiB of content, as deployed nodes accept, and 256 KiB for filter, history and ids. Longer messages are
not read. A new one must leave room for its filter and the most repairs that it may request."""

MAX_SDS_ID_SIZE_BYTES: Final = 512
"""The id of a message, sender or channel in UTF-8: hashes have 64 bytes. Ids are in keys and in histories of other
messages."""

MAX_SDS_HINT_SIZE_BYTES: Final = 1_024
"""A retrieval hint: a hash, or an address. It is kept for each dependency that is missing."""

MAX_SDS_HISTORY: Final = 1_024
"""Entries of a causal history: deployed nodes write 200. Each missing one costs rows, so this bounds the cost of a
message."""

MAX_SDS_REPAIR_REQUESTS: Final = 64
"""Repairs that one message requests: 3 are recommended. Each costs a look-up and perhaps a message."""

MAX_SDS_FIELDS: Final = 8_192
"""Protobuf fields in one message, unknown ones and those of its entries included: twice the fullest one, 13 ms at most
to read."""

MAX_SDS_FILTER_SIZE_BYTES: Final = 262_144
"""The bits of one Bloom filter: 139,000 ids with one error in a thousand. Every message carries one."""

MAX_SDS_FILTER_HASHES: Final = 32
"""Bits that one id sets in a filter: 10 for one error in a thousand, 30 for one in a billion. A peer's filter can name
any number."""

MAX_SDS_LAMPORT_AHEAD_MS: Final = 86_400_000
"""How far a message's Lamport time may be ahead of the clock, because all Lamport clocks follow it: a day of a thousand
messages a second."""

MAX_SDS_WAITING: Final = 4_096
"""Messages of a channel that wait for messages on which they depend. Further ones are fetched again later."""

MAX_SDS_WAITING_SIZE_BYTES: Final = 33_554_432
"""Bytes of these messages. They are on the disk, and one arrival may deliver all of them in one write."""

MAX_SDS_MISSING: Final = 16_384
"""Messages of a channel that are known to be missing: each is requested. Half of the room is for those that only sync
messages named."""

MAX_SDS_UNMET: Final = 256
"""Dependencies of one message that may be missing when it arrives: deployed nodes name 200. So one message takes at
most 1/64 of the room."""

MAX_SDS_SHARES: Final = 128
"""Senders of a channel that have their own share of the room. All others have one share together, because names cost
nothing."""

MAX_SDS_CAUSES: Final = 16
"""Senders of one missing message that share its cost, those that are served first: one honest sender is enough."""

MAX_SDS_SYNC_IDS: Final = 64
"""Ids of sync messages that are remembered for each share: the newest of half an hour and more."""

MAX_SDS_ANSWERS: Final = 1_024
"""Repairs of a channel that wait for their time to be answered. A member whose request finds no room asks again."""

MAX_SDS_REVIEWED: Final = 64
"""Own messages that one received filter is compared with, a microsecond each. The others have their turn with the next
write."""

MAX_SDS_TIMERS: Final = 256
"""Timers of a kind that one tick handles: it is one write. The others are due at the next one."""

MAX_SDS_BATCH: Final = 1_000
"""Messages of a list that are received in one write, which is in memory."""

MAX_SDS_EFFECTS_READ: Final = 1_000
"""Effects of the outbox that one call returns: with filters of 18,752 bytes 20 MB."""
