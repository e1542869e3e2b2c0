"""Causal logs of a store: channels in a separate LevelDB in its folder `sds`, with one atomic write per event.

The application calls `send`, `receive` and, every second, `tick`. It reads effects from the outbox, handles them and
confirms them. The write of an event also adds its effects to the outbox. Therefore a crash does not lose effects, and
only effects that were handled but not confirmed are repeated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, Self, TypeVar
from weakref import WeakValueDictionary

from cablestore.closable import Closable
from cablestore.errors import CorruptStoreError, OpenError, SdsError, StorageError, StoreLockedError
from cablestore.files import lock, make_folder, make_part, restrict, share_lock, unlock
from cablestore.forks import ProcessBound, bind
from cablestore.index.batches import batches
from cablestore.index.database import Database, Row, SnapshotSource
from cablestore.index.folder import CAUSAL_LOGS, is_own, store_path
from cablestore.index.leveldb import LevelDB, Tuning, mend
from cablestore.index.memory import MemoryDB
from cablestore.index.read_only import open_read_only
from cablestore.limits import MAX_SDS_BATCH, MAX_SDS_EFFECTS_READ
from cablestore.protocol.keys import SEPARATOR, after_prefix
from cablestore.sds.bloom import RollingFilter
from cablestore.sds.channel import ChannelTransaction
from cablestore.sds.codec import check_id, encode
from cablestore.sds.delivery import Received
from cablestore.sds.effects import Effect
from cablestore.sds.message import HistoryEntry, SdsMessage
from cablestore.sds.records import Counters, counters_of
from cablestore.sds.settings import Settings
from cablestore.sds.state import ChannelState
from cablestore.sds.tables import STATE, Table, channel_ids, channel_prefix

T = TypeVar("T", SdsMessage, HistoryEntry)

_OWNER: Final = "owner"
_DEFAULT: Final = Settings()

_open_here: Final[WeakValueDictionary[Path, CausalLog]] = WeakValueDictionary()
"""Logs that this process has open. Commands use them, because the folder is locked."""


class CausalLog(Closable, ProcessBound):
    """Causal logs in one database. Threads may share them; one process at a time can open them."""

    def __init__(self, database: Database, lock: int | None = None) -> None:
        """Use `open` or `in_memory`."""
        self._database = database
        self._lock = lock
        self._writing = threading.RLock()
        self._batch: _Batch | None = None
        self._filters: dict[str, RollingFilter] = {}
        self._channels: dict[str, LogChannel] = {}
        bind(self)

    @classmethod
    def open(
        cls,
        store_folder: Path | str,
        *,
        create: bool = True,
        tuning: Tuning | None = None,
        read_only: bool = False,
    ) -> Self:
        """Open the causal logs of the store in a folder. With `create`, missing logs are created.

        The store itself need not be open. With `read_only`, the folder is not changed, and methods that write raise
        StorageError. Raises StoreLockedError if the logs are already open, OpenError if they do not exist, and
        StorageError if reading or writing fails.
        """
        path = _path_of(store_folder)
        if (read_only or not create) and not path.is_dir():
            raise OpenError(f"no causal logs found at {path}. Programs create them with CausalLog.open")
        try:
            if not read_only:
                make_folder(path.parent)
                make_part(path)
                restrict(path.parent, is_own)
            # Lock before LevelDB opens the folder: if LevelDB rejects a second open, it releases the lock of the first.
            locked = (share_lock if read_only else lock)(
                path / _OWNER,
                lambda _: StoreLockedError(
                    f"the causal logs at {path} are already open. Only one process at a time can open them. Close the "
                    "logs first"
                ),
            )
        except OSError as error:
            raise StorageError(f"cannot open the causal logs at {path}: {error.strerror}") from None
        try:
            database = open_read_only(path, tuning) if read_only else LevelDB(path, tuning, create=create)
        except BaseException:
            if locked is not None:
                unlock(locked)
            raise
        opened = _open_here[path] = cls(database, locked)
        return opened

    @classmethod
    def in_memory(cls, database: Database | None = None) -> Self:
        """Keep logs in memory, for tests and short-lived clients, or in a database that the caller closes."""
        return cls(database or MemoryDB())

    @classmethod
    def open_here(cls, store_folder: Path | str) -> CausalLog | None:
        """Return the causal logs of a store if this process has them open, otherwise None."""
        found = _open_here.get(_path_of(store_folder))
        return None if found is None or found._lock is None else found  # noqa: SLF001 - of the same class

    def channel(self, channel_id: str, sender_id: str, settings: Settings = _DEFAULT) -> LogChannel:
        """Return the channel in which this member writes as `sender_id`. Create it if it does not exist.

        Raises SdsError if an id is too long, the log belongs to another sender, or the channel is open with other
        settings.
        """
        if not channel_id or not sender_id:
            raise SdsError(f"channel id and sender id must not be empty, got {channel_id!r} and {sender_id!r}")
        check_id(channel_id, "channel")
        check_id(sender_id, "sender")
        with self._writing:
            known = self._channels.get(channel_id)
            if known is None:
                known = LogChannel(self, channel_id, sender_id, settings)
                with self._transaction(known, sync=True) as transaction:  # raises for another sender
                    transaction.open()
                self._channels[channel_id] = known
            elif (known.sender_id, known.settings) != (sender_id, settings):
                raise SdsError(
                    f"channel {channel_id!r} is already open with another sender or other settings. Use the same values"
                )
            return known

    def channel_ids(self) -> list[str]:
        """Return the ids of the channels in the database."""
        with self._database.snapshot() as source:
            return list(channel_ids(source))

    @contextmanager
    def rows(self) -> Iterator[Iterator[Row]]:
        """Yield all rows of the current state, in order of keys, for a backup."""
        with self._database.snapshot() as source:
            yield source.scan(SEPARATOR, after_prefix(SEPARATOR))

    @classmethod
    def make(cls, store_folder: Path | str, rows: Iterable[Row]) -> None:
        """Create causal logs for a store that does not have any, from rows that `rows` of other logs yielded."""
        with cls.open(store_folder) as log:
            for batch in batches(rows, lambda row: len(row[1])):
                log._database.write(dict(batch), sync=False)  # noqa: SLF001 - of the same class

    def status(self) -> list[ChannelStatus]:
        """Return the status of each channel, open or not, in the order of their ids.

        This reads one row per channel.
        """
        with self._database.snapshot() as source:
            return [_status(self._database, each, Table(source, each, STATE)) for each in channel_ids(source)]

    @contextmanager
    def batch(self, *, sync: bool = True) -> Iterator[None]:
        """Write all events of this thread inside the `with`, in any channels, atomically.

        With `sync`, they are on disk at the end of the `with`. If its body raises, no event is written. A nested batch
        is part of the outer batch.
        """
        with self._writing:
            if self._batch is not None:
                yield
                return
            try:
                mend(self._database)
                with self._database.snapshot() as source:
                    self._batch = _Batch(source)
                    yield
                    rows = self._batch.rows()
                if rows:
                    self._database.write(rows, sync=sync)
                for channel_id, transaction in self._batch.transactions.items():
                    if transaction.state.kept_filter is not None:
                        self._filters[channel_id] = transaction.state.kept_filter
            except BaseException:
                if self._batch is not None:
                    for channel_id in self._batch.transactions:
                        self._filters.pop(channel_id, None)  # the filter contains ids that were not written
                raise
            finally:
                self._batch = None

    @contextmanager
    def _transaction(self, channel: LogChannel, *, sync: bool) -> Iterator[ChannelTransaction]:
        """Yield the transaction of a channel for an event. An error in the middle of an event invalidates the batch."""
        with self.batch(sync=sync):
            batch = self._batch
            assert batch is not None  # noqa: S101 - for mypy: `batch` sets it
            transaction = batch.transactions.get(channel.channel_id)
            if transaction is None:
                transaction = batch.transactions[channel.channel_id] = self._begin(batch.source, channel)
            try:
                yield transaction
            except SdsError:
                raise  # raised before any change
            except BaseException:
                batch.is_spoilt = True
                raise

    @contextmanager
    def _reading(self, channel: LogChannel) -> Iterator[ChannelTransaction]:
        """Yield a transaction over the last written state.

        Raises SdsError inside a batch, whose state may never be written.
        """
        with self._writing:
            if self._batch is not None:
                raise SdsError("cannot read the channel inside a batch. Read it before or after the batch")
            with self._database.snapshot() as source:
                transaction = self._begin(source, channel)
                yield transaction
                if transaction.state.kept_filter is not None and not transaction.state.rows():
                    self._filters[channel.channel_id] = transaction.state.kept_filter

    def _begin(self, source: SnapshotSource, channel: LogChannel) -> ChannelTransaction:
        rolling = self._filters.get(channel.channel_id)
        return ChannelTransaction(
            ChannelState(source, channel.channel_id, channel.sender_id, channel.settings, rolling)
        )

    def close(self) -> None:
        """Wait for the current event, then close. Unconfirmed effects remain in the outbox."""
        with self._writing:
            self._database.close()
            if self._lock is not None:
                unlock(self._lock)
                self._lock = None


class _Batch:
    """Events that are written together: one ChannelTransaction for each channel, over one state."""

    def __init__(self, source: SnapshotSource) -> None:
        self.source: Final = source
        self.transactions: Final[dict[str, ChannelTransaction]] = {}
        self.is_spoilt = False

    def rows(self) -> dict[bytes, bytes | None]:
        if self.is_spoilt:
            raise StorageError("an operation of this batch failed, so the batch was not written. Repeat the batch")
        rows: dict[bytes, bytes | None] = {}
        for transaction in self.transactions.values():
            rows.update(transaction.state.rows())
        return rows


class LogChannel:
    """Channel of a causal log. Each event is one atomic write, on disk when the call returns, or part of a `batch`.

    Times are milliseconds since 1970. The effects of a call are in the outbox.
    """

    def __init__(self, log: CausalLog, channel_id: str, sender_id: str, settings: Settings) -> None:
        """Use `CausalLog.channel`."""
        self._log = log
        self.channel_id: Final = channel_id
        self.sender_id: Final = sender_id
        self.settings: Final = settings

    def _transaction(self, *, sync: bool) -> AbstractContextManager[ChannelTransaction]:
        return self._log._transaction(self, sync=sync)  # noqa: SLF001 - a log and its channels belong together

    def _reading(self) -> AbstractContextManager[ChannelTransaction]:
        return self._log._reading(self)  # noqa: SLF001 - the same

    # --- events ---------------------------------------------------------------------------------

    def send(
        self,
        content: bytes,
        now_ms: int,
        *,
        message_id: str | None = None,
        retrieval_hint: bytes | None = None,
        sync: bool = True,
    ) -> SdsMessage:
        """Add a message to the log and send it: see `ChannelTransaction.send`."""
        with self._transaction(sync=sync) as transaction:
            return transaction.send(content, now_ms, message_id=message_id, retrieval_hint=retrieval_hint)

    def send_ephemeral(self, content: bytes, *, sync: bool = True) -> SdsMessage:
        """Send a message that is not in any log: see `ChannelTransaction.send_ephemeral`."""
        with self._transaction(sync=sync) as transaction:
            return transaction.send_ephemeral(content)

    def receive(self, data: bytes, now_ms: int, *, retrieval_hint: bytes | None = None, sync: bool = True) -> Received:
        """Process received bytes: see `ChannelTransaction.receive`."""
        with self._transaction(sync=sync) as transaction:
            return transaction.receive(data, now_ms, retrieval_hint)

    def receive_all(self, data: Iterable[bytes], now_ms: int, *, sync: bool = True) -> list[Received]:
        """Process many messages, up to a thousand in one write. Return their results in order.

        An error does not undo earlier writes.
        """
        found: list[Received] = []
        pending = iter(data)
        while batch := list(islice(pending, MAX_SDS_BATCH)):
            with self._transaction(sync=sync) as transaction:
                found += [transaction.receive(each, now_ms) for each in batch]
        return found

    def retrieved(
        self, data: bytes, now_ms: int, *, retrieval_hint: bytes | None = None, sync: bool = True
    ) -> Received:
        """Process bytes retrieved from a store: as `receive`, but ignore old requests and accept this member's messages."""
        with self._transaction(sync=sync) as transaction:
            return transaction.receive(data, now_ms, retrieval_hint, retrieved=True)

    def met(self, message_ids: Iterable[str], *, sync: bool = True) -> None:
        """Treat dependencies as met: see `ChannelTransaction.met`."""
        with self._transaction(sync=sync) as transaction:
            transaction.met(message_ids)

    def tick(self, now_ms: int, random: Callable[[], float], *, sync: bool = True) -> None:
        """Handle due timers: see `ChannelTransaction.tick`."""
        with self._transaction(sync=sync) as transaction:
            transaction.tick(now_ms, random)

    def confirm(self, sequence: int, *, sync: bool = True) -> None:
        """Remove the handled effects up to number `sequence`. Without `sync`, a power failure may repeat them."""
        with self._transaction(sync=sync) as transaction:
            transaction.confirm(sequence)

    # --- reading ----------------------------------------------------------------------------------

    def outbox(self, after: int = 0, most: int = MAX_SDS_EFFECTS_READ) -> list[tuple[int, Effect]]:
        """Return the first `most` unconfirmed effects with numbers above `after`, in order, each with its number."""
        with self._reading() as transaction:
            return transaction.outbox(after, min(most, MAX_SDS_EFFECTS_READ))

    def log(self, after: SdsMessage | None = None) -> Iterator[SdsMessage]:
        """Yield the log in order, from the first message or after `after`.

        A thousand messages are read at a time. A message that enters the log meanwhile is also yielded if its place is
        after the last yielded message.
        """
        yield from self._paged(lambda transaction, last: transaction.log(last), after)

    def log_from(self, lamport_ms: int) -> Iterator[SdsMessage]:
        """Yield the log in order, from Lamport time `lamport_ms`: see `log`."""
        yield from self._paged(lambda transaction, last: transaction.log(last, from_ms=lamport_ms), None)

    def newest(self, most: int = 50) -> list[SdsMessage]:
        """Return the last `most` messages of the log, newest first."""
        with self._reading() as transaction:
            return list(islice(transaction.log(reverse=True), most))

    def message(self, message_id: str) -> SdsMessage | None:
        """Return a message of the log, or None if it is not in the log."""
        with self._reading() as transaction:
            return transaction.message(message_id)

    def encoded(self, message_id: str) -> bytes | None:
        """Return the bytes of a message of the log without its filter, or None if it is not in the log.

        Send them as the answer to a retrieval.
        """
        message = self.message(message_id)
        return None if message is None else encode(message, self.settings.dialect)

    def missing(self) -> Iterator[HistoryEntry]:
        """Yield the missing messages in order of ids. A thousand are read at a time."""
        yield from self._paged(lambda transaction, last: transaction.missing(last.message_id if last else ""), None)

    def _paged(self, read: Callable[[ChannelTransaction, T | None], Iterator[T]], last: T | None) -> Iterator[T]:
        """Yield the items that `read` yields after `last`, page by page, to limit memory."""
        while True:
            with self._reading() as transaction:
                page = list(islice(read(transaction, last), MAX_SDS_BATCH))
            yield from page
            if len(page) < MAX_SDS_BATCH:
                return
            last = page[-1]

    def counters(self) -> Counters:
        """Return the Lamport clock and the counts of messages."""
        with self._reading() as transaction:
            return transaction.state.counters

    def due_ms(self) -> int | None:
        """Return the time when `tick` must run next: 0 before the first tick, or None if no timer is set."""
        with self._reading() as transaction:
            return transaction.due_ms()


def _path_of(store_folder: Path | str) -> Path:
    return store_path(store_folder).absolute() / CAUSAL_LOGS


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """Status of a channel: the number of messages in each state, and of unconfirmed effects."""

    channel: str
    sender: str
    """Id with which this member writes."""
    dialect: str
    messages: int
    """Messages in the log."""
    waiting: int
    """Received messages with a missing dependency."""
    missing: int
    """Missing messages that others listed."""
    unacknowledged: int
    """Unacknowledged messages of this member, which are resent."""
    lost: int
    """Messages declared lost because they could not be retrieved."""
    effects: int
    """Effects in the outbox that the application has not confirmed."""
    lamport_ms: int
    """Lamport clock, close to milliseconds since 1970."""
    disk_size_bytes: int
    """Approximate size; the last writes may not be counted."""


def _status(database: Database, channel_id: str, table: Table) -> ChannelStatus:
    row = table.get(b"")
    if row is None:
        raise CorruptStoreError(
            f"the state of the causal log {channel_id!r} is missing. Remove the folder `sds` of the store, then fetch "
            "the channels from their members"
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
