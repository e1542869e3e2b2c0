"""Following of a store: its events and changes as they happen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from cablestore.errors import StoreClosedError
from cablestore.index.engine import Engine
from cablestore.store.cursor import cursor_at, cursor_of, sequence_of
from cablestore.store.queries import Event, Queries

if TYPE_CHECKING:
    from cablestore.store.changes import Change, Changes

T = TypeVar("T")


class Following(Queries):
    """Read methods of an open store, and those that wait for its events and changes."""

    _engine: Engine

    @property
    def cursor(self) -> str:
        """The cursor of the changes that follow the present state: pass it to `changes` or `next_changes`."""
        return read_again(self._engine, lambda: super(Following, self).cursor)

    def subscribe(self, after: int = 0, *, timeout_s: float | None = None) -> Iterator[Event]:
        """Yield every event after number `after`: stored ones first, then new ones as they happen.

        Remember the number of the last event that you have handled: subscribing after it, also after a restart, neither
        repeats nor loses an event. Ends when nothing happens for `timeout_s`, or when the store is closed.
        """
        while found := self.next_events(after, timeout_s):
            yield from found
            after = found[-1].sequence

    def next_events(self, after: int, timeout_s: float | None = None) -> list[Event]:
        """Return the events after number `after`. If there is none, wait for the first.

        The list is empty when time is up, or when the store is closed.
        """
        deadline = _deadline(timeout_s)
        try:
            while True:
                latest = self.last_sequence
                found = read_again(self._engine, partial(self.events, after))
                # The log may have no event before the latest number: a part was lost, or is local.
                if found or not self._engine.wait(max(after, latest), _left(deadline)):
                    return found
        except StoreClosedError:
            return []

    def changes(
        self, channel: str | None = None, after: str | None = None, *, timeout_s: float | None = None
    ) -> Iterator[Change]:
        """Yield what a client draws again: what changed after a cursor, and then what changes.

        `after` is the cursor of a page, a snapshot, or of `next_changes`; None is the present state. With a `channel`,
        only its changes and those that concern all channels are told. Ends when nothing happens for `timeout_s`, or when
        the store is closed. Raises ChangesCursorError if the store is rebuilt: fetch a new page then.
        """
        while True:
            try:
                after = self.cursor if after is None else after
                found = self.next_changes(after, channel, timeout_s=timeout_s)
            except StoreClosedError:
                return
            if not found.changes:
                return
            yield from found.changes
            after = found.cursor

    def next_changes(self, after: str, channel: str | None = None, *, timeout_s: float | None = None) -> Changes:
        """Return what changed after a cursor, and the cursor that follows. If nothing did, wait for the first change.

        Each thing that was touched is told once, as it is now. So it does no harm to apply a change twice, or to begin
        at an older cursor. There are no changes when time is up. Raises ChangesCursorError for a cursor that does not
        fit the database, StoreClosedError when the store is closed.
        """
        from cablestore.store.changes import Changes, is_of  # noqa: PLC0415 - opening a store does without it
        from cablestore.store.touched import read_changes  # noqa: PLC0415 - the same

        deadline = _deadline(timeout_s)
        context = None if channel is None else self._engine.dialect.channel_id(channel)

        def read() -> tuple[list[Change], int, str, bool]:
            with self._reading() as reader:
                found, last = read_changes(reader, self._judgement(), sequence_of(reader, after))
                reached = cursor_at(reader, last)
                return found, last, reached, reached != cursor_of(reader)

        while True:
            found, last, after, is_behind = read_again(self._engine, read)
            told = [change for change in found if context is None or is_of(change, context)]
            if told:
                return Changes(told, after)
            if not is_behind and not self._engine.wait(last, _left(deadline)):
                return Changes([], after)

    def wait(self, after: int, timeout_s: float | None = None) -> bool:
        """Wait for events after number `after`. Returns False when time is up, or when the store is closed."""
        return self._engine.wait(after, timeout_s)

    def watch(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call a function after each write and when the store is closed. Returns the function that ends this.

        It is called in the thread that wrote, which goes on when it returns: it must be short and must not raise. An
        event loop is woken so, and no thread waits.
        """
        return self._engine.watch(call)

    @property
    def is_closed(self) -> bool:
        """Whether the store is closed."""
        return self._engine.is_closed

    @property
    def last_sequence(self) -> int:
        """The number of the latest event of the arrival log, 0 before the first."""
        return self._engine.next_sequence - 1


def read_again(store: Following | Engine, read: Callable[[], T]) -> T:
    """Return what a function reads. If a rebuild replaces the database meanwhile, the function is called again.

    Raises StoreClosedError if the store is closed.
    """
    while True:
        try:
            return read()
        except StoreClosedError:
            if store.is_closed:
                raise


def _deadline(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else time.monotonic() + timeout_s


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0, deadline - time.monotonic())
