"""What a database of causal logs holds, channel by channel, for whoever looks after it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cablestore.errors import CorruptStoreError
from cablestore.index.database import Database
from cablestore.protocol.keys import after_prefix
from cablestore.sds.records import counters_of
from cablestore.sds.tables import STATE, Table, channel_ids, channel_prefix


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """One channel: how many messages are where, and what the application has still to do."""

    channel: str
    sender: str
    """As whom we write."""
    dialect: str
    messages: int
    """In the log."""
    waiting: int
    """Received, and something that they depend on is missing."""
    missing: int
    """Named by others, and not here."""
    unacknowledged: int
    """Own ones that nobody has for certain, and that are sent again."""
    lost: int
    """Given up because they could not be had."""
    effects: int
    """In the outbox: the application has not confirmed them."""
    lamport_ms: int
    """The Lamport clock, close to milliseconds since 1970."""
    disk_size_bytes: int
    """About; what was written last may not be counted."""


def channel_statuses(database: Database) -> list[ChannelStatus]:
    """Return the status of each channel, in the order of their ids. A row is read for each."""
    with database.snapshot() as source:
        return [_status(database, channel_id, Table(source, channel_id, STATE)) for channel_id in channel_ids(source)]


def _status(database: Database, channel_id: str, table: Table) -> ChannelStatus:
    row = table.get(b"")
    if row is None:
        raise CorruptStoreError(
            f"the causal log of channel {channel_id!r} has no state. Remove the folder sds and fetch its channels again"
        )
    counters = counters_of(row)
    prefix = channel_prefix(channel_id)
    return ChannelStatus(
        channel=channel_id,
        sender=counters.sender_id,
        dialect=counters.dialect,
        messages=counters.logged,
        waiting=counters.waiting,
        missing=counters.missing,
        unacknowledged=counters.outgoing,
        lost=counters.lost,
        effects=counters.next_effect - 1 - counters.confirmed,
        lamport_ms=counters.lamport_ms,
        disk_size_bytes=database.approximate_size_bytes(prefix, after_prefix(prefix)),
    )
