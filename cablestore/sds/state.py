"""State of one channel during events: the stored rows, and all changes until they are written atomically. Pure."""

from __future__ import annotations

from itertools import islice
from typing import Final

from cablestore.errors import SdsError
from cablestore.index.database import Source
from cablestore.sds import tables
from cablestore.sds.bloom import RollingFilter
from cablestore.sds.records import INDEXED, Counters, KeptMessage, Known, MessageState, counters_of, kept_of, known_of
from cablestore.sds.settings import Settings
from cablestore.sds.tables import Table, id_of, lamport_of, place_of, time_part

_ONLY: Final = b""
"""Key part of a table's only row."""


class ChannelState:
    """State of one channel, over one state of the database.

    `rolling` is the channel's filter after the last write of the same writer. Without it, the filter is read. Events
    change the filter, so a caller that does not write the rows must discard it.
    """

    def __init__(
        self,
        source: Source,
        channel_id: str,
        sender_id: str,
        settings: Settings,
        rolling: RollingFilter | None,
    ) -> None:
        self.channel_id: Final = channel_id
        self.sender_id: Final = sender_id
        self.settings: Final = settings
        self._tables: list[Table] = []
        self.log: Final = self._table(source, tables.LOG)
        self.ids: Final = self._table(source, tables.IDS)
        self.outgoing: Final = self._table(source, tables.OUTGOING)
        self.waiting: Final = self._table(source, tables.WAITING)
        self.needs: Final = self._table(source, tables.NEEDS)
        self.missing: Final = self._table(source, tables.MISSING)
        self.causes: Final = self._table(source, tables.CAUSES)
        self.ranks: Final = self._table(source, tables.RANKS)
        self.requests: Final = self._table(source, tables.REQUESTS)
        self.support: Final = self._table(source, tables.SUPPORT)
        self.retrievals: Final = self._table(source, tables.RETRIEVALS)
        self.heads: Final = self._table(source, tables.HEADS)
        self.heads_of: Final = self._table(source, tables.HEADS_OF)
        self.answers: Final = self._table(source, tables.ANSWERS)
        self.outbox: Final = self._table(source, tables.OUTBOX)
        self.senders: Final = self._table(source, tables.SENDERS)
        self.sync_ids: Final = self._table(source, tables.SYNC_IDS)
        self.resend: Final = self._table(source, tables.RESEND)
        self.retrieve: Final = self._table(source, tables.RETRIEVE)
        self.lost: Final = self._table(source, tables.LOST)
        self.request: Final = self._table(source, tables.REQUEST)
        self.answer: Final = self._table(source, tables.ANSWER)
        self.timers: Final = (self.resend, self.retrieve, self.lost, self.request, self.answer)
        self._blocks: Final = self._table(source, tables.FILTER)
        self._only: Final = self._table(source, tables.STATE)
        row = self._only.get(_ONLY)
        self.counters: Final = (
            Counters(sender_id, settings.dialect.name, settings.filter.bits, settings.filter.hashes, indexed=INDEXED)
            if row is None
            else counters_of(row)
        )
        self.is_outdated: Final = row is not None and self.counters.indexed < INDEXED
        """True if a version without indexes by sender wrote the state."""
        self._before = row
        self.kept_filter = rolling
        """Filter, or None if it was not used. After `rows`, it is the filter after the write."""
        self._newest: list[bytes] | None = None
        self.reviewed: tuple[tuple[int, int, int], list[tuple[bytes, tuple[int, ...]]]] | None = None
        """Messages of this member to compare with filters in this write: see `acknowledgements`."""
        self._check_sender()

    def _table(self, source: Source, name: bytes) -> Table:
        table = Table(source, self.channel_id, name)
        self._tables.append(table)
        return table

    def _check_sender(self) -> None:
        found = self.counters.sender_id
        if found != self.sender_id:
            raise SdsError(
                f"the log of channel {self.channel_id!r} belongs to {found!r}, not to {self.sender_id!r}. "
                "Open it as the same sender, or in another folder"
            )

    # --- the filter ------------------------------------------------------------------------------

    @property
    def filter(self) -> RollingFilter:
        """Filter of the ids of sent and received messages.

        If its parameters have changed, it is rebuilt from the newest messages of the log.
        """
        if self.kept_filter is None:
            counters, settings = self.counters, self.settings
            shape = (settings.dialect.name, settings.filter.bits, settings.filter.hashes)
            if shape == (counters.dialect, counters.filter_bits, counters.filter_hashes):
                self.kept_filter = RollingFilter(
                    settings.filter,
                    settings.dialect,
                    newer_slot=counters.newer_slot,
                    newer_count=counters.newer_count,
                    read_block=self._blocks.get,
                )
            else:
                self.kept_filter = self._new_filter()
        return self.kept_filter

    def _new_filter(self) -> RollingFilter:
        counters, settings = self.counters, self.settings
        counters.dialect = settings.dialect.name
        counters.filter_bits, counters.filter_hashes = settings.filter.bits, settings.filter.hashes
        for part, _ in list(self._blocks.rows()):
            self._blocks.delete(part)
        rolling = RollingFilter(settings.filter, settings.dialect)
        places = [place for place, _ in islice(self.log.rows(reverse=True), settings.filter.capacity)]
        for place in reversed(places):
            rolling.add(id_of(place))
        return rolling

    # --- ids and messages --------------------------------------------------------------------------

    def known(self, message_id: str) -> Known | None:
        """Return the state of an id, or None if it does not have a row."""
        return known_of(self.ids.get(message_id.encode()))

    def is_here(self, message_id: str) -> bool:
        """Return True if a message is in the log or waiting."""
        known = self.known(message_id)
        return known is not None and known.state in {MessageState.LOGGED, MessageState.WAITING}

    def logged_place(self, message_id: str) -> bytes | None:
        """Return the place of a message in the log, or None if it is not in the log."""
        known = self.known(message_id)
        if known is None or known.state is not MessageState.LOGGED:
            return None
        return place_of(known.lamport_ms, message_id)

    def put_known(self, message_id: str, known: Known) -> None:
        """Set the state of an id."""
        self.ids.put(message_id.encode(), known.packed())

    def kept(self, place: bytes) -> KeptMessage:
        """Return the message at a place of the log."""
        return self.read(place, self.log.take(place))

    def kept_waiting(self, place: bytes) -> KeptMessage:
        """Return the waiting message at a place."""
        return self.read(place, self.waiting.take(place))

    def read(self, place: bytes, row: bytes) -> KeptMessage:
        """Return the message of a row of the log or of a waiting message."""
        return kept_of(row, id_of(place), self.channel_id, lamport_of(place))

    def newest(self) -> list[bytes]:
        """Return the places of the newest messages of the log, oldest first, for a causal history."""
        if self._newest is None:
            length = self.settings.history_length
            rows = islice(self.log.rows(reverse=True, most=length), length)
            self._newest = [place for place, _ in rows][::-1]
        return self._newest

    def put_logged(self, place: bytes, row: bytes) -> None:
        """Add a message to the log."""
        self.log.put(place, row)
        self.counters.logged += 1
        newest = self._newest
        if newest is not None:
            length = self.settings.history_length
            if len(newest) < length or place > newest[0]:
                newest.append(place)
                newest.sort()
                del newest[:-length]

    # --- timers and effects -------------------------------------------------------------------------

    @staticmethod
    def set_timer(timers: Table, part: bytes, before_ms: int | None, due_ms: int | None) -> None:
        """Move the timer of `part` from `before_ms` to `due_ms`. None means that it is not set."""
        if before_ms is not None and before_ms != due_ms:
            timers.delete(time_part(before_ms) + part)
        if due_ms is not None:
            timers.put(time_part(due_ms) + part, b"")

    def append_effect(self, row: bytes) -> None:
        """Append an effect to the outbox."""
        self.outbox.put(self.counters.next_effect.to_bytes(8, "big"), row)
        self.counters.next_effect += 1

    # --- the write -------------------------------------------------------------------------------------

    def rows(self) -> dict[bytes, bytes | None]:
        """Return all changed rows, with the filter's blocks. The value of a deleted row is None.

        Write them all at once, or not at all.
        """
        if self.kept_filter is not None:
            self.counters.newer_slot = self.kept_filter.newer_slot
            self.counters.newer_count = self.kept_filter.newer_count
            for part, block in self.kept_filter.changed_blocks():
                self._blocks.put(part, block)
        row = self.counters.packed()
        if row != self._before:
            self._only.put(_ONLY, row)
        changed: dict[bytes, bytes | None] = {}
        for table in self._tables:
            changed.update(table.changes)
        return changed
