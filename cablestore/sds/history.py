"""Causal histories, and sync messages that carry them when no other message does (SDS, "Periodic Sync Message"). Pure.

A history lists the newest messages of the log. When many members write at once, some messages are never among the
newest of the next writer. A member that missed such a message would not detect the gap. Therefore a history also lists
*heads*: messages of the log that no message of the log lists. All messages of a log can be reached from its heads, and
equal logs have equal heads. Sync messages list a head unless a member other than its sender listed it within the last
interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice, zip_longest
from typing import Final

from cablestore.limits import MAX_SDS_SYNC_IDS
from cablestore.protocol.keys import after_prefix
from cablestore.sds import missing
from cablestore.sds.effects import Reason
from cablestore.sds.message import HistoryEntry, SdsMessage, message_id_of
from cablestore.sds.outbox import add_send_other
from cablestore.sds.records import Head, Known, MessageState, head_of
from cablestore.sds.shares import STRANGERS, share_of
from cablestore.sds.state import ChannelState
from cablestore.sds.tables import id_of, place_of, sized_prefix, sized_prefix_of

MAX_HEADS_READ: Final = 1_024
"""Number of heads to choose from for a sync message."""


def history(state: ChannelState) -> tuple[HistoryEntry, ...]:
    """Return the dependencies of a new message, oldest first."""
    newest, most = state.newest(), state.settings.heads
    if sum(state.heads.get(place) is not None for place in newest) == state.counters.heads:
        return entries(state, newest)
    heads = _heads(state, most + len(newest), state.counters.logged)
    others = [place for place in heads if place not in newest][:most]
    return entries(state, [*others, *newest])


def _heads(state: ChannelState, most: int, turn: int) -> list[bytes]:
    """Return the places of up to `most` heads. If there are more, all shares take turns, each with its oldest first.

    `turn` selects the share that begins.
    """
    if state.counters.heads <= most:
        return [place for place, _ in state.heads.some(b"", None, most)]
    shares, start = [], b""
    while found := state.heads_of.some(start, None, 1):
        prefix = sized_prefix_of(found[0][0])
        start = after_prefix(prefix)
        shares.append([part[len(prefix) :] for part, _ in state.heads_of.some(prefix, start, most)])
    return _in_turn(shares, most, turn)


def _in_turn(shares: list[list[bytes]], most: int, turn: int) -> list[bytes]:
    """Return up to `most` places: the first place of each share, then the second place of each share, and so on.

    The share at index `turn`, modulo their number, begins.
    """
    start = turn % len(shares) if shares else 0
    rounds = zip_longest(*shares[start:], *shares[:start])
    return list(islice((place for each in rounds for place in each if place is not None), most))


def index(state: ChannelState, place: bytes, head: Head) -> None:
    """Add a head to the index of its sender's share."""
    state.heads_of.put(sized_prefix(share_of(state, head.sender_id)) + place, b"")


def _forget(state: ChannelState, place: bytes, row: bytes) -> None:
    """Remove the head at `place`, also from the index. It may be indexed before its sender got a separate share."""
    state.heads.delete(place)
    for share in (STRANGERS, head_of(row).sender_id):
        state.heads_of.delete(sized_prefix(share) + place)
    state.counters.heads -= 1


def entries(state: ChannelState, places: Iterable[bytes]) -> tuple[HistoryEntry, ...]:
    """Return entries for the messages at `places`, in log order. They contain senders only if repairs are enabled."""
    found = [state.kept(place).entry for place in sorted(places)]
    if state.settings.repair is None:
        found = [entry._replace(sender_id=None) for entry in found]
    return tuple(found)


def logged(state: ChannelState, place: bytes, message: SdsMessage, *, is_named: bool) -> None:
    """Record a message that entered the log, as a head unless `is_named`. Its dependencies are no longer heads."""
    for entry in message.causal_history:
        known = state.known(entry.message_id)
        if known is None:
            continue
        if known.state is MessageState.GIVEN_UP:
            state.put_known(entry.message_id, known._replace(is_named=True))
        elif state.counters.heads:
            named = place_of(known.lamport_ms, entry.message_id)
            row = state.heads.get(named)
            if row is not None:
                _forget(state, named, row)
    if not is_named:
        head = Head(0, message.sender_id)
        state.heads.put(place, head.packed())
        index(state, place, head)
        state.counters.heads += 1


def note_named(state: ChannelState, message: SdsMessage, now_ms: int) -> None:
    """Record `now_ms` in the heads that a received message lists, as the time when a member last listed them."""
    if not state.counters.heads:
        return
    for entry in message.causal_history:
        place = state.logged_place(entry.message_id)
        if place is not None and (row := state.heads.get(place)) is not None:
            _note_named(state, place, head_of(row), message.sender_id, now_ms)


def _note_named(state: ChannelState, place: bytes, head: Head, by: str, now_ms: int) -> None:
    """Record that the member `by` listed a head, unless it is the head's sender: others may lack the head."""
    if by != head.sender_id:
        state.heads.put(place, head._replace(named_ms=now_ms).packed())


def sync_due(state: ChannelState, now_ms: int, random: Callable[[], float]) -> None:
    """Send a due sync message if some heads were not listed within the last interval, or a repair must be requested."""
    counters, interval_ms = state.counters, state.settings.sync_interval_ms
    if interval_ms is None:
        return
    if not counters.sync_ms:
        counters.sync_ms = now_ms + 1 + int(interval_ms * random())
        return
    if now_ms < counters.sync_ms:
        return
    counters.sync_ms = now_ms + int(interval_ms * (1 + random()))
    unnamed = _unnamed(state, now_ms - interval_ms, random)
    if unnamed or missing.has_requests(state, now_ms):
        _sync(state, unnamed, now_ms)


def _unnamed(state: ChannelState, since_ms: int, random: Callable[[], float]) -> list[bytes]:
    """Return the heads that were not listed since `since_ms`, except this member's messages that are still resent.

    If there are too many for a sync message, shares take turns, each beginning with a random head.
    """
    by_sender: dict[str, list[bytes]] = {}
    for place in _heads(state, MAX_HEADS_READ, state.counters.logged):
        head = head_of(state.heads.take(place))
        is_resent = head.sender_id == state.sender_id and state.outgoing.get(place) is not None
        if head.named_ms <= since_ms and not is_resent:
            by_sender.setdefault(share_of(state, head.sender_id), []).append(place)
    turned = []
    for places in by_sender.values():
        start = int(random() * len(places))
        turned.append(places[start:] + places[:start])
    return _in_turn(turned, state.settings.heads_in_sync, int(random() * len(turned)))


def _sync(state: ChannelState, unnamed: list[bytes], now_ms: int) -> None:
    counters = state.counters
    counters.lamport_ms = max(now_ms, counters.lamport_ms + 1)
    message_id = message_id_of(state.sender_id, state.channel_id, counters.lamport_ms, b"")
    message = SdsMessage(
        message_id,
        state.channel_id,
        state.sender_id,
        counters.lamport_ms,
        causal_history=entries(state, {*unnamed, *state.newest()}),
        repair_request=missing.requests_to_send(state, message_id, now_ms),
    )
    add_send_other(state, message, Reason.SYNC)
    if state.settings.dialect.logs_sync:
        remember_sync(state, message)
    for place in unnamed:
        _note_named(state, place, head_of(state.heads.take(place)), state.sender_id, now_ms)


def remember_sync(state: ChannelState, message: SdsMessage) -> None:
    """Record the id of a sent or received sync message. If its share is full, remove the oldest id of the share.

    In some dialects, members log and list sync messages. Messages do not wait for a recorded sync message.
    The ids are limited for each share, so that many ids from one sender do not displace the ids of others.
    """
    prefix = sized_prefix(share_of(state, message.sender_id))
    kept = state.sync_ids.some(prefix, after_prefix(prefix), MAX_SDS_SYNC_IDS)
    if len(kept) == MAX_SDS_SYNC_IDS:
        oldest, _ = kept[0]
        message_id = id_of(oldest[len(prefix) :])
        state.sync_ids.delete(oldest)
        known = state.known(message_id)
        if known is not None and known.state is MessageState.SYNC:
            state.ids.delete(message_id.encode())
    state.sync_ids.put(prefix + place_of(message.lamport_ms or 0, message.message_id), b"")
    state.put_known(message.message_id, Known(MessageState.SYNC))
