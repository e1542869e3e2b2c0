"""Following a store: its events and changes as they happen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from cablestore.arguments import check, check_given, check_text
from cablestore.errors import StoreClosedError
from cablestore.index.engine import Engine
from cablestore.store.cursor import cursor_at, cursor_of, sequence_of
from cablestore.store.present import Present
from cablestore.store.queries import events_after
from cablestore.store.results import Event

if TYPE_CHECKING:
    from cablestore.store.changes import Change, Changes

T = TypeVar("T")


class Follower:
    """Iterators over the events and changes of an open store. They wait for new ones.

    `CableStore` documents its methods of the same names in more detail.
    """

    def __init__(self, engine: Engine, present: Present) -> None:
        self._engine = engine
        self._present = present

    def events(self, after: int, timeout_s: float | None) -> Iterator[Event]:
        """Yield every event after number `after`, until none occurs for `timeout_s` or the store is closed."""
        check(after=after)
        check_given(timeout_s=timeout_s)
        return self._each_event(after, timeout_s)

    def _each_event(self, after: int, timeout_s: float | None) -> Iterator[Event]:
        while found := self._next_events(after, _deadline(timeout_s)):
            yield from found
            after = found[-1].sequence

    def _next_events(self, after: int, deadline: float | None) -> list[Event]:
        try:
            while True:
                latest = self._engine.next_sequence - 1
                found = read_again(self._engine, partial(self._events, after))
                # Events before the latest number may be missing from the log: some were lost, or are local.
                if found or not self._engine.wait(max(after, latest), _left(deadline)):
                    return found
        except StoreClosedError:
            return []

    def changes(
        self, channel: str | None, after: str | None, timeout_s: float | None, *, local: bool
    ) -> Iterator[Change]:
        """Yield every change after a cursor, until none occurs for `timeout_s` or the store is closed."""
        check(local=local)
        check_given(channel=channel, timeout_s=timeout_s)
        if after is not None:
            check_text("after", after)
        return self._each_change(channel, after, timeout_s, local=local)

    def _each_change(
        self, channel: str | None, after: str | None, timeout_s: float | None, *, local: bool
    ) -> Iterator[Change]:
        while True:
            try:
                cursor = self.cursor() if after is None else after
                found = self.next_changes(cursor, channel, timeout_s, local=local)
            except StoreClosedError:
                return
            if not found.changes:
                return
            yield from found.changes
            after = found.cursor

    def next_changes(self, after: str, channel: str | None, timeout_s: float | None, *, local: bool) -> Changes:
        """Wait for changes after a cursor. Returns them with the next cursor; after a timeout, the list is empty."""
        from cablestore.store.changes import Changes, LocalChanged, is_of  # noqa: PLC0415 - not needed to open a store

        check(local=local)
        check_text("after", after)
        check_given(channel=channel, timeout_s=timeout_s)
        deadline = _deadline(timeout_s)
        context = None if channel is None else self._engine.dialect.channel_id(channel)
        while True:
            found, last, after, is_behind = read_again(self._engine, partial(self._changes, after))
            wanted = found if local else [change for change in found if not isinstance(change, LocalChanged)]
            reported = [change for change in wanted if context is None or is_of(change, context)]
            if reported:
                return Changes(reported, after)
            if not is_behind and not self._engine.wait(last, _left(deadline)):
                return Changes([], after)

    def cursor(self) -> str:
        """Return the cursor of the current state. Changes after it are new."""
        return read_again(self._engine, self._cursor)

    def _cursor(self) -> str:
        with self._engine.reading() as reader:
            return cursor_of(reader)

    def _events(self, after: int) -> list[Event]:
        with self._engine.reading() as reader:
            return events_after(reader, self._present.state.moderation, after)

    def _changes(self, after: str) -> tuple[list[Change], int, str, bool]:
        """Return the changes, the number of the last event that was read, its cursor, and True if there are more."""
        from cablestore.store.touched import read_changes  # noqa: PLC0415 - not needed to open a store

        with self._engine.reading() as reader:
            found, last = read_changes(reader, self._present.state.moderation, sequence_of(reader, after))
            reached = cursor_at(reader, last)
            return found, last, reached, reached != cursor_of(reader)


class _MayBeClosed(Protocol):
    @property
    def is_closed(self) -> bool: ...


def read_again(store: _MayBeClosed, read: Callable[[], T]) -> T:
    """Call `read` and return its result. Calls it again if a rebuild replaces the database meanwhile.

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
