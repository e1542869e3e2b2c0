"""Events of one channel: sending, receiving and timers (SDS, "Protocol Steps", "SDS Repair"). Pure.

A causal log orders the messages of a channel without a server. Each message lists the newest messages of its sender's
log, its *causal history*. A receiver adds a message to its log when all messages of its history are in the log. Until
then the message waits, and the listed messages that have not arrived are missing:

    m1 <--- m2 <--- m4 <--- m5      m2 and m3 list m1, m4 lists both, m5 lists m4
    ^               |              a member with m5 in its log has all five
    +----- m3 <-----+

    received -> is its history in the log? -> yes -> log -> delivered; messages that waited for it follow
                                           -> no  -> waits; missing: retrieve, request a repair, finally give up

The log is ordered by (Lamport time, id). The Lamport time of a message is the current time, but later than each message
in its sender's log. Therefore all members end with the same messages in the same order, independent of the order of
arrival.

A member resends its messages until other members acknowledge them. A member acknowledges each message that it lists.
Each message carries a Bloom filter of the newest ids, which shows with some uncertainty which other messages its sender
has. If members do not write, sync messages without content carry histories and requests (`history`).

All changes are events: send, receive, retrieved, met, tick. A ChannelTransaction is one or more events over one state
of the database. The rows of its state are all changes, for one atomic write. Without that write, the events do not have
an effect. The same write adds the effects for the application to the outbox, which keeps them until they are confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from cablestore.errors import SdsError
from cablestore.limits import MAX_SDS_LAMPORT_AHEAD_MS
from cablestore.sds import acknowledgements, delivery, history, indexes, missing, repair_answers
from cablestore.sds.codec import check_hint, check_id, decode, encode
from cablestore.sds.delivery import Received, ReceiveResult
from cablestore.sds.effects import Effect, Reason
from cablestore.sds.message import HistoryEntry, MessageKind, SdsMessage, message_id_of
from cablestore.sds.outbox import add_ephemeral, add_send, add_send_other, check_sendable, effect_of
from cablestore.sds.records import KeptMessage, fitting_hint, gap_of
from cablestore.sds.state import ChannelState
from cablestore.sds.tables import place_of


class ChannelTransaction:
    """Events of one channel over one state. Time and randomness are arguments. Times are milliseconds since 1970."""

    def __init__(self, state: ChannelState) -> None:
        self.state: Final = state

    # --- events ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Create the channel's row and missing indexes. Rebuild its filter if the parameters have changed."""
        if self.state.is_outdated:
            indexes.add(self.state)
        if self.state.counters.logged:
            _ = self.state.filter

    def send(
        self, content: bytes, now_ms: int, *, message_id: str | None = None, retrieval_hint: bytes | None = None
    ) -> SdsMessage:
        """Add a message to the log and send it. `retrieval_hint` accompanies its id in later histories.

        Raises SdsError if the content is empty, if it or the hint is too large, or if the id is already in the log or
        waiting.
        """
        state = self.state
        if not content:
            raise SdsError("empty content: a message needs content. `tick` sends sync messages, which do not need it")
        lamport_ms = max(now_ms, state.counters.lamport_ms + 1)
        new_id = message_id or message_id_of(state.sender_id, state.channel_id, lamport_ms, content)
        message = SdsMessage(
            new_id,
            state.channel_id,
            state.sender_id,
            lamport_ms,
            causal_history=history.history(state),
            content=content,
        )
        check_sendable(state, message)  # raises before any change
        if retrieval_hint is not None:
            check_hint(retrieval_hint)
        if state.is_here(new_id):
            raise SdsError(f"message {new_id!r} is already in the log or waiting. Send each message once")
        place = delivery.enter(state, KeptMessage(message, retrieval_hint), lamport_ms, is_own=True)
        state.counters.lamport_ms = lamport_ms
        state.filter.add(new_id)
        acknowledgements.sent(state, place, now_ms)
        add_send(state, place, Reason.NEW, missing.requests_to_send(state, new_id, now_ms))
        return message

    def send_ephemeral(self, content: bytes) -> SdsMessage:
        """Send a message that is not in any log. It is not resent if it is lost."""
        state = self.state
        message_id = message_id_of(state.sender_id, state.channel_id, None, content)
        message = SdsMessage(message_id, state.channel_id, state.sender_id, content=content)
        encode(message, state.settings.dialect)
        add_send_other(state, message, Reason.EPHEMERAL)
        return message

    def receive(self, data: bytes, now_ms: int, hint: bytes | None = None, *, retrieved: bool = False) -> Received:
        """Process received bytes. The result is REFUSED for invalid bytes. `hint` helps to retrieve the message again.

        A hint that is too long is ignored. For bytes that were `retrieved` from a store, old requests are ignored, and
        this member's messages are accepted.
        """
        try:
            message = decode(data, self.state.settings.dialect)
        except SdsError as error:
            return Received(ReceiveResult.REFUSED, None, str(error))
        return self._accept(message, now_ms, hint, retrieved=retrieved)

    def met(self, message_ids: Iterable[str]) -> None:
        """Treat dependencies as met, such as messages that the application already has or cannot retrieve.

        A message that arrives later is still delivered. Raises SdsError for an invalid id.
        """
        ids = list(message_ids)
        for message_id in ids:
            check_id(message_id, "message")
        for message_id in ids:
            delivery.give_up(self.state, message_id)

    def tick(self, now_ms: int, random: Callable[[], float]) -> None:
        """Handle due timers. `random` returns numbers from 0 to below 1. Call this every second, or at `due_ms`."""
        delivery.lost_due(self.state, now_ms)
        missing.retrieve_due(self.state, now_ms)
        acknowledgements.resend_due(self.state, now_ms)
        repair_answers.answer_due(self.state, now_ms)
        history.sync_due(self.state, now_ms, random)

    def _accept(self, message: SdsMessage, now_ms: int, hint: bytes | None, *, retrieved: bool) -> Received:
        state, message_id = self.state, message.message_id
        reason = self._rejection(message, now_ms)
        if reason is not None:
            return Received(ReceiveResult.REFUSED, message_id, reason)
        repair_answers.answered(state, message)
        is_own = message.sender_id == state.sender_id
        if is_own and not retrieved and missing.find(state, message_id) is None:
            return Received(ReceiveResult.OWN, message_id)
        if message.lamport_ms is None:
            add_ephemeral(state, message)
            return Received(ReceiveResult.EPHEMERAL, message_id)
        if not is_own:
            acknowledgements.review(state, message, now_ms)
        elif delivery.is_named_by_another(state, message_id):
            acknowledgements.review_history(state, message)  # that member has all dependencies of the message
        if not (retrieved or is_own):
            history.note_named(state, message, now_ms)
            repair_answers.note_requests(state, message, now_ms)
        if message.kind is MessageKind.SYNC:
            delivery.note_sync(state, message, now_ms)
            return Received(ReceiveResult.SYNC, message_id)
        if state.is_here(message_id):
            return Received(ReceiveResult.DUPLICATE, message_id)
        received = delivery.accept(state, KeptMessage(message, fitting_hint(hint)), message.lamport_ms, now_ms)
        if received.verdict is not ReceiveResult.REFUSED:
            state.filter.add(message_id)
        return received

    def _rejection(self, message: SdsMessage, now_ms: int) -> str | None:
        if message.channel_id != self.state.channel_id:
            return f"wrong channel: got {message.channel_id!r}, expected {self.state.channel_id!r}"
        lamport_ms = message.lamport_ms
        if lamport_ms is not None and lamport_ms > now_ms + MAX_SDS_LAMPORT_AHEAD_MS:
            return (
                f"its Lamport time {lamport_ms} is {lamport_ms - now_ms} ms ahead of the clock, the maximum is "
                f"{MAX_SDS_LAMPORT_AHEAD_MS} ms. Check the clocks on both sides"
            )
        check = self.state.settings.check
        return None if check is None or message.kind is not MessageKind.CONTENT else check(message)

    # --- results --------------------------------------------------------------------------------

    def outbox(self, after: int, most: int) -> list[tuple[int, Effect]]:
        """Return up to `most` unconfirmed effects with numbers above `after`, in order, each with its number."""
        first = max(after, self.state.counters.confirmed) + 1
        rows = self.state.outbox.some(first.to_bytes(8, "big"), None, most)
        return [(int.from_bytes(part, "big"), effect_of(self.state, row)) for part, row in rows]

    def confirm(self, sequence: int) -> None:
        """Remove the effects up to number `sequence` from the outbox. Call this after they were handled."""
        counters = self.state.counters
        last = min(sequence, counters.next_effect - 1)
        for number in range(counters.confirmed + 1, last + 1):
            self.state.outbox.delete(number.to_bytes(8, "big"))
        counters.confirmed = max(counters.confirmed, last)

    # --- reading --------------------------------------------------------------------------------

    def message(self, message_id: str) -> SdsMessage | None:
        """Return a message of the log without its filter, or None if it is not in the log."""
        try:
            place = self.state.logged_place(message_id)
        except UnicodeEncodeError:  # a member may request any string
            return None
        return None if place is None else self.state.kept(place).message

    def log(self, after: SdsMessage | None = None, *, from_ms: int = 0, reverse: bool = False) -> Iterator[SdsMessage]:
        """Yield the messages of the log, from Lamport time `from_ms` or after `after`, in order.

        With `reverse`, yield the same messages, newest first.
        """
        start = place_of(from_ms, "") if after is None else place_of(after.lamport_ms or 0, after.message_id) + b"\0"
        for place, row in self.state.log.rows(start, reverse=reverse):
            yield self.state.read(place, row).message

    def missing(self, after: str = "") -> Iterator[HistoryEntry]:
        """Yield the entries of the missing messages in order of ids, after the id `after`."""
        for _, row in self.state.missing.rows(after.encode() + b"\0" if after else b""):
            yield gap_of(row).entry

    def due_ms(self) -> int | None:
        """Return the time when `tick` must run next: 0 before the first tick, or None if no timer is set."""
        parts = [part for timers in self.state.timers for part, _ in timers.some(b"", None, 1)]
        due = [int.from_bytes(part[:8], "big") for part in parts]
        if self.state.settings.sync_interval_ms is not None:
            due.append(self.state.counters.sync_ms)
        return min(due, default=None)
