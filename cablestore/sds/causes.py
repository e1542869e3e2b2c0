"""Causes of gaps: the senders that listed a missing message, and the order in which gaps are requested. Pure.

A message can list dependencies that do not exist, at no cost. Therefore gaps are not ordered by age. Each sender that
lists a gap is a cause of it and has an account: its open gaps, and the unanswered requests for its gaps. The sender
with the smallest sum is served first. So a member that lists one lost message is served before a member that lists many
invented messages, even if the other member began earlier.

When a message arrives, its requests are subtracted from the accounts of its causes. Requests for messages that do not
exist remain in the account of a member, so the member's next gaps are served last from the start. Each message of the
member that enters the log subtracts one request.

A gap with several causes is in the queue of each cause, so the cause that is served first decides. An attacker that
lists the same message as an honest member does not delay it.

Anyone can invent sender names. Therefore members, whose messages entered the log, are served before strangers. But if a
log lacks its first message, all senders are strangers. Therefore gaps have a second order: first the gaps that most
senders listed and that were requested least. All later messages of honest members depend on a lost message. For a
nonexistent message, an attacker must send all these messages. Strangers and the second order share a third of the
attempts.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import zip_longest
from typing import Final, NamedTuple

from cablestore.limits import MAX_SDS_CAUSES
from cablestore.sds import shares
from cablestore.sds.records import Gap
from cablestore.sds.state import ChannelState
from cablestore.sds.tables import TIME_SIZE_BYTES, Table, sized_prefix, time_part

_ACCOUNT: Final = struct.Struct(">II")
_RANK: Final = struct.Struct(">BI8s")
_MEMBER: Final = 0
_STRANGER: Final = 1
_OTHERS_PART: Final = 3
"""Strangers and the second order share one of this many attempts, even if members could use all attempts."""
_LEVELS: Final = 256
"""Number of levels of support. A request lowers the support of a gap by two senders."""
_QUEUE_READ: Final = 8
"""Number of rows of a queue that are read at once."""


class Account(NamedTuple):
    """Account of a cause: its open gaps, and the unanswered requests for its gaps."""

    gaps: int = 0
    requests: int = 0

    @property
    def price(self) -> int:
        """Sum by which causes are ordered."""
        return self.gaps + self.requests


def account_of(state: ChannelState, sender_id: str) -> Account:
    """Return the account of a sender."""
    row = state.causes.get(sender_id.encode()) if state.counters.causes else None
    return Account() if row is None else Account(*_ACCOUNT.unpack(row))


def standing(state: ChannelState, sender_id: str) -> tuple[int, int]:
    """Return the sort key of a sender: smaller keys are served first."""
    return _lane(state, sender_id), account_of(state, sender_id).price


def is_much_cheaper(state: ChannelState, sender_id: str, other: str) -> bool:
    """Return True if `sender_id` is served much earlier than `other`.

    This means that it is a member and `other` a stranger, or that both are of one kind and its price is less than half.
    """
    lane, price = standing(state, sender_id)
    other_lane, other_price = standing(state, other)
    return lane < other_lane or (lane == other_lane and 2 * price + MAX_SDS_CAUSES < other_price)


def charge(state: ChannelState, sender_id: str, *, gaps: int = 0, requests: int = 0) -> None:
    """Add `gaps` and `requests`, which may be negative, to the account of a sender."""
    before = account_of(state, sender_id)
    _unrank(state, sender_id, before)
    # Of a damaged log, the row of the account may be lost, so that it has fewer gaps than are subtracted.
    _put(state, sender_id, Account(max(0, before.gaps + gaps), max(0, before.requests + requests)))


def entered(state: ChannelState, sender_id: str) -> None:
    """Record that a message of a sender entered the log: make the sender a member, and subtract one request."""
    before = account_of(state, sender_id)
    if before == Account():
        shares.note_sender(state, sender_id)
        return
    _unrank(state, sender_id, before)
    shares.note_sender(state, sender_id)
    _put(state, sender_id, before._replace(requests=max(0, before.requests - 1)))


def _put(state: ChannelState, sender_id: str, account: Account) -> None:
    part = sender_id.encode()
    had = state.causes.get(part) is not None
    lane = _lane(state, sender_id)
    has = account.gaps > 0 or (lane == _MEMBER and account.requests > 0)
    if has:
        state.causes.put(part, _ACCOUNT.pack(*account))
    elif had:
        state.causes.delete(part)
    state.counters.causes += has - had
    if account.gaps:
        state.ranks.put(_rank(state, lane, account, part), b"")


def _unrank(state: ChannelState, sender_id: str, account: Account) -> None:
    if account.gaps:
        state.ranks.delete(_rank(state, _lane(state, sender_id), account, sender_id.encode()))


def _rank(state: ChannelState, lane: int, account: Account, part: bytes) -> bytes:
    """Return the key of a cause in RANKS: `lane`, price, hash, and `part`, the sender's id.

    The hash breaks ties, in a different way for each member.
    """
    tie = hashlib.blake2b(part, digest_size=8, key=state.sender_id.encode()[:64]).digest()
    return _RANK.pack(lane, account.price, tie) + part


def is_stranger(state: ChannelState, sender_id: str) -> bool:
    """Return True if the sender does not have a separate share: see `shares`."""
    return shares.share_of(state, sender_id) == shares.STRANGERS


def _lane(state: ChannelState, sender_id: str) -> int:
    return _STRANGER if is_stranger(state, sender_id) else _MEMBER


def dearest(state: ChannelState, sender_ids: Iterable[str]) -> str:
    """Return the sender that is served last."""
    return max(sender_ids, key=lambda each: standing(state, each))


def cheapest(state: ChannelState, sender_ids: Iterable[str]) -> str:
    """Return the sender that is served first."""
    return min(sender_ids, key=lambda each: standing(state, each))


def queued(sender_id: str, due_ms: int, message_id: str) -> bytes:
    """Return the key of a gap in the queue of a cause."""
    return sized_prefix(sender_id) + time_part(due_ms) + message_id.encode()


def supported(gap: Gap) -> bytes:
    """Return the key of a gap in the second order, by most senders and fewest requests."""
    level = min(MAX_SDS_CAUSES - len(gap.causes) + 2 * gap.requested, _LEVELS - 1)
    return bytes([level]) + time_part(gap.request_ms or 0) + gap.entry.message_id.encode()


def due(state: ChannelState, queues: Table, now_ms: int, most: int) -> list[bytes]:
    """Return the ids of up to `most` gaps that are due in `queues`, first the gaps of the cheapest causes."""
    members = _of_lane(state, queues, _MEMBER, now_ms, most)
    return _shared(state, members, _of_lane(state, queues, _STRANGER, now_ms, most), most)


def requests_due(state: ChannelState, now_ms: int, most: int) -> list[bytes]:
    """Return the ids of up to `most` gaps to request: as in `due`, with some of the gaps that most senders listed."""
    members = _of_lane(state, state.requests, _MEMBER, now_ms, most)
    strangers = _of_lane(state, state.requests, _STRANGER, now_ms, most)
    named_most = _named_most(state, now_ms, most)
    pairs = zip_longest(*((strangers, named_most) if state.counters.next_effect % 2 else (named_most, strangers)))
    return _shared(state, members, [gap for pair in pairs for gap in pair if gap is not None], most)


def _shared(state: ChannelState, members: list[bytes], others: list[bytes], most: int) -> list[bytes]:
    """Return up to `most` gaps: a third are for `others`. Each group may use slots that the other does not need."""
    others = [gap for gap in dict.fromkeys(others) if gap not in set(members)]
    turn = state.counters.lamport_ms % _OTHERS_PART
    for_others = min(len(others), (most + turn) // _OTHERS_PART)
    return [*members[: most - for_others], *others][:most]


def _named_most(state: ChannelState, now_ms: int, most: int) -> list[bytes]:
    found: list[bytes] = []
    for level in range(_LEVELS):
        prefix = bytes([level])
        rows = state.support.some(prefix, prefix + time_part(now_ms + 1), most - len(found))
        found += [part[1 + TIME_SIZE_BYTES :] for part, _ in rows]
        if len(found) == most:
            break
    return found


def _of_lane(state: ChannelState, queues: Table, lane: int, now_ms: int, most: int) -> list[bytes]:
    """Return up to `most` due gaps of the causes in `lane`, first those of the cheapest causes.

    During the call, each gap raises the price of its cause, so that equal causes take turns.
    """
    waiting: list[tuple[int, int, bytes, Iterator[bytes]]] = []
    for part, _ in state.ranks.rows(bytes([lane]), bytes([lane + 1])):
        gaps = _due_of(queues, part[_RANK.size :].decode(), now_ms)
        first = next(gaps, None)
        if first is not None:
            waiting.append((_RANK.unpack_from(part)[1], len(waiting), first, gaps))
            if len(waiting) == most:
                break
    # The rows are in order of the price, so `waiting` is a heap.
    found: dict[bytes, None] = {}
    while waiting and len(found) < most:
        price, number, gap, gaps = heappop(waiting)
        price += gap not in found
        found[gap] = None
        following = next(gaps, None)
        if following is not None:
            heappush(waiting, (price, number, following, gaps))
    return list(found)


def _due_of(queues: Table, sender_id: str, now_ms: int) -> Iterator[bytes]:
    prefix = sized_prefix(sender_id)
    for part, _ in queues.rows(prefix, prefix + time_part(now_ms + 1), most=_QUEUE_READ):
        yield part[len(prefix) + TIME_SIZE_BYTES :]
