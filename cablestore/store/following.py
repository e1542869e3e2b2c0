"""Following a store: its events and changes as they happen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from cablestore import limits
from cablestore.arguments import check, check_given, check_text
from cablestore.errors import ArgumentError, StoreClosedError
from cablestore.index.engine import Engine
from cablestore.store.cursor import ChangesCursor, LogPlace, cursor_of, place_of
from cablestore.store.present import Present
from cablestore.store.queries import events_after
from cablestore.store.results import Event

if TYPE_CHECKING:
    from cablestore.store.changes import Change, Changes

T = TypeVar("T")


class Follower:
    """Iterators over the events and changes of an open store. They wait for new events and changes.

    `CableStore` documents its methods of the same names in more detail.
    """

    def __init__(self, engine: Engine, present: Present) -> None:
        self._engine = engine
        self._present = present

    def events(self, after: int, timeout_s: float | None) -> Iterator[Event]:
        """Yield every event after number `after`. End after `timeout_s` without an event, or when the store is closed."""
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
                # `found` may be empty although `latest` is greater: entries were lost, or concern local values.
                if found or not self._engine.wait(max(after, latest), _left(deadline)):
                    return found
        except StoreClosedError:
            return []

    def changes(
        self, channel: str | None, after: ChangesCursor | None, timeout_s: float | None, *, local: bool
    ) -> Iterator[Change]:
        """Yield every change after a cursor. End after `timeout_s` without a change, or when the store is closed."""
        check(local=local)
        check_given(timeout_s=timeout_s)
        _check_channel(channel)
        if after is not None:
            check_text("after", after)
        return self._each_change(channel, after, timeout_s, local=local)

    def _each_change(
        self, channel: str | None, after: ChangesCursor | None, timeout_s: float | None, *, local: bool
    ) -> Iterator[Change]:
        try:
            batches = self._batches(self.cursor() if after is None else after, channel, timeout_s, local=local)
        except StoreClosedError:
            return
        while True:
            try:
                found, _ = next(batches)
            except StoreClosedError:
                return
            if not found:
                return
            yield from found

    def next_changes(
        self, after: ChangesCursor, channel: str | None, timeout_s: float | None, *, local: bool
    ) -> Changes:
        """Wait for changes after a cursor. Return them with the next cursor; after a timeout, the list is empty."""
        check(local=local)
        check_text("after", after)
        check_given(timeout_s=timeout_s)
        _check_channel(channel)
        from cablestore.store.changes import Changes  # noqa: PLC0415 - not needed to open a store

        found, place = next(self._batches(after, channel, timeout_s, local=local))
        return Changes(found, place.cursor)

    def _batches(
        self, cursor: ChangesCursor, channel: str | None, timeout_s: float | None, *, local: bool
    ) -> Iterator[tuple[list[Change], LogPlace]]:
        """Yield, for each read of the log that found changes, these changes and the position after them.

        After `timeout_s` without a change, or when the store is closed, yield an item without changes and end.
        """
        from cablestore.store.changes import LocalChanged, is_of  # noqa: PLC0415 - not needed to open a store

        context = None if channel is None else self._engine.dialect.channel_id(channel)
        deadline = _deadline(timeout_s)
        after: ChangesCursor | LogPlace = cursor
        while True:
            found, after, latest = read_again(self._engine, partial(self._changes, after))
            reported = [
                change
                for change in found
                if (local or not isinstance(change, LocalChanged)) and (context is None or is_of(change, context))
            ]
            if reported:
                yield reported, after
                deadline = _deadline(timeout_s)
            if after.sequence == latest and not self._engine.wait(latest, _left(deadline)):
                yield [], after
                return

    def cursor(self) -> ChangesCursor:
        """Return the cursor of the current state. Changes after it are new."""
        return read_again(self._engine, self._cursor)

    def _cursor(self) -> ChangesCursor:
        with self._engine.reading() as reader:
            return cursor_of(reader)

    def _events(self, after: int) -> list[Event]:
        with self._engine.reading() as reader:
            return events_after(reader, self._present.state.moderation, after)

    def _changes(self, after: ChangesCursor | LogPlace) -> tuple[list[Change], LogPlace, int]:
        """Return the next changes after a position, the position after them, and the number of the latest entry."""
        from cablestore.store.touched import read_changes  # noqa: PLC0415 - not needed to open a store

        with self._engine.reading() as reader:
            return read_changes(reader, self._present.state.moderation, place_of(reader, after))


def _check_channel(channel: str | None) -> None:
    """Raise ArgumentError if `channel` is too long for a name, such as a cursor passed by mistake."""
    check_given(channel=channel)
    if channel is not None and len(channel) > limits.MAX_CHANNEL_CODEPOINTS:
        raise ArgumentError(
            f"invalid argument channel: expected at most {limits.MAX_CHANNEL_CODEPOINTS} code points, got "
            f"{len(channel)}. Pass a cursor as `after`"
        )


class _MayBeClosed(Protocol):
    @property
    def is_closed(self) -> bool: ...


def read_again(store: _MayBeClosed, read: Callable[[], T]) -> T:
    """Call `read` and return its result. If a rebuild replaces the database meanwhile, call `read` again.

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
