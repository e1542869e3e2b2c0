"""Following of a store: its events as they happen."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cablestore.errors import StoreClosedError
from cablestore.index.engine import Engine
from cablestore.store.queries import Event, Queries


class Following(Queries):
    """Read methods of an open store, and those that wait for its events."""

    _engine: Engine

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
        try:
            while True:
                latest = self.last_sequence
                found = self.events(after)
                # The log may end before the latest number if a part of it was lost.
                if found or not self._engine.wait(max(after, latest), timeout_s):
                    return found
        except StoreClosedError:
            return []

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
