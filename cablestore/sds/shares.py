"""Shares of a channel's space. When the space is full, messages of the largest share are dropped. Pure.

Each sender whose messages entered the log has a separate share, up to MAX_SDS_SHARES senders. All others have one
common share: names cost nothing, so invented names must not get more space than one member.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from cablestore.limits import MAX_SDS_SHARES
from cablestore.sds.state import ChannelState

STRANGERS: Final = ""
"""Share of all senders without a separate share."""
FREED_PART: Final = 8
"""One part in this many of the space is freed at a time, because finding the fullest share reads all claims."""


class Claim(NamedTuple):
    """Claim of one message or gap of a sender to `size` units of the space. `key` is its place or id."""

    key: bytes
    share: str
    sender_id: str
    size: int


def note_sender(state: ChannelState, sender_id: str) -> None:
    """Assign a separate share to a sender whose message entered the log, if fewer than MAX_SDS_SHARES are assigned."""
    counters, part = state.counters, sender_id.encode()
    if counters.senders < MAX_SDS_SHARES and part and state.senders.get(part) is None:
        state.senders.put(part, b"")
        counters.senders += 1


def share_of(state: ChannelState, sender_id: str) -> str:
    """Return the share to which a sender's messages belong."""
    has_own = sender_id == state.sender_id or state.senders.get(sender_id.encode()) is not None
    return sender_id if has_own else STRANGERS


def losers(claims: Iterable[Claim], surplus: int) -> set[bytes]:
    """Return the keys of the claims to drop to free `surplus`, always the largest claim of the fullest share.

    In the share of strangers, the claims of the sender with the largest sum are dropped first.
    """
    held: Counter[str] = Counter()
    by_sender: Counter[str] = Counter()
    sizes: defaultdict[str, list[tuple[int, int, bytes]]] = defaultdict(list)
    claims = [claim for claim in claims if claim.size]
    for claim in claims:
        held[claim.share] += claim.size
        by_sender[claim.sender_id] += claim.size
    for key, share, sender_id, size in claims:
        sizes[share].append((by_sender[sender_id], size, key))
    for of_share in sizes.values():
        of_share.sort()
    fullest = [(-total, share) for share, total in held.items()]
    heapify(fullest)
    gone: set[bytes] = set()
    while surplus > 0 and fullest:
        _, share = heappop(fullest)
        _, size, key = sizes[share].pop()
        gone.add(key)
        surplus -= size
        held[share] -= size
        if sizes[share]:
            heappush(fullest, (-held[share], share))
    return gone
