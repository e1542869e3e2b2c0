"""Changes in an open store, for the screens. After more than MAX_EVENTS events, the screens read everything again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from cablestore.chat.display_limits import MAX_EVENTS
from cablestore.chat.name_watch import NameWatch
from cablestore.errors import CursorError, OwnerGoneError, StoreClosedError
from cablestore.store.changes import (
    Change,
    MessageAdded,
    MessageDeleted,
    MessageHidden,
    MessageShown,
    ModerationChanged,
    NameChanged,
    UserHidden,
    UserShown,
)
from cablestore.store.store import CableStore

CHANGES_WINDOW_S: Final = 0.02
"""Changes within this time are read and drawn together. The first change is not delayed."""
FLOOD_WINDOW_S: Final = 0.08
"""Additional delay of the next read and the next drawing if more changes arrive within CHANGES_WINDOW_S."""

_PAUSE_S: Final = 0.02
"""Pause after each part of a long task, so that others can use the store."""
_EVERYTHING: Final = (NameChanged, UserHidden, UserShown, ModerationChanged)
"""Changes after which any message may look different."""


@dataclass
class CabalChanges:
    """Parts of a cabal that may have changed. With `is_all`, the whole cabal may have changed."""

    channels: dict[str, int] = field(default_factory=dict)
    """Earliest timestamp of new messages by channel, in ms, or 0 after messages were deleted, hidden or shown."""
    has_lists: bool = False
    is_all: bool = False

    def add(self, change: Change) -> None:
        """Record which parts of the cabal a change affects."""
        self.has_lists = True
        if isinstance(change, MessageAdded):
            since = self.channels.get(change.channel, change.message.timestamp_ms)
            self.channels[change.channel] = min(change.message.timestamp_ms, since)
        elif isinstance(change, MessageDeleted | MessageHidden | MessageShown) and change.channel is not None:
            self.channels[change.channel] = 0
        elif isinstance(change, (*_EVERYTHING, MessageDeleted)):
            self.is_all = True

    def join(self, later: CabalChanges) -> None:
        """Merge later changes."""
        for channel, since in later.channels.items():
            self.channels[channel] = min(since, self.channels.get(channel, since))
        self.has_lists = self.has_lists or later.has_lists
        self.is_all = self.is_all or later.is_all

    @property
    def is_empty(self) -> bool:
        """True if nothing changed."""
        return not (self.has_lists or self.is_all)


class PendingChanges:
    """Changes that were not taken yet. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changes = CabalChanges()
        self._on_changes: Callable[[], None] | None = None
        self._on_state: Callable[[], None] | None = None

    def notify(self, on_changes: Callable[[], None], on_state: Callable[[], None]) -> None:
        """Set the functions that `add` and `note_state` call in the thread of their caller."""
        self._on_changes, self._on_state = on_changes, on_state

    def add(self, changes: CabalChanges) -> None:
        """Merge changes into the pending changes, and report them."""
        with self._lock:
            self._changes.join(changes)
        if self._on_changes is not None:
            self._on_changes()

    def note_state(self) -> None:
        """Report that the state of the connection changed, separately from changes, so that it does not delay them."""
        if self._on_state is not None:
            self._on_state()

    def take(self) -> CabalChanges:
        """Return the changes since the last call, without waiting."""
        with self._lock:
            found, self._changes = self._changes, CabalChanges()
        return found

    @property
    def is_empty(self) -> bool:
        """True if nothing changed since the last `take`."""
        return self._changes.is_empty


class StoreFollower:
    """Threads that collect the changes in one store. They end after `stop`, or after the store is closed or lost."""

    def __init__(self, store: CableStore, changes: PendingChanges) -> None:
        """Start the threads. Raises OwnerGoneError if the store does not answer."""
        self._store = store
        self._changes = changes
        self._seen = store.last_sequence
        """Number of the last event whose changes were added."""
        self._cursor = store.cursor  # read after `_seen`, so that no event in between is missed
        self._closing = threading.Event()
        self._woken = threading.Event()
        """Set after a write, and when the threads must end."""
        self._unwatch = store.watch(self._woken.set)
        self._names = NameWatch(store, lambda: changes.add(CabalChanges(is_all=True)))
        self._gathering = threading.Thread(target=self._gather_all, name="chat-follow", daemon=True)
        self._searching = threading.Thread(target=self._find_mentions, name="chat-mentions", daemon=True)
        for thread in (self._gathering, self._searching):
            thread.start()

    def stop(self) -> None:
        """End the threads, and wait for them."""
        self._closing.set()
        self._unwatch()
        self._woken.set()
        for thread in (self._gathering, self._searching):
            thread.join()
        self._names.stop()

    @property
    def is_busy(self) -> bool:
        """True if the changes of some known events were not added yet."""
        return self._searching.is_alive() or self._names.is_busy or self._seen != self._store.last_sequence

    @property
    def same_named(self) -> frozenset[bytes]:
        """Users whose name equals or resembles another user's name."""
        return self._names.same_named

    def _gather_all(self) -> None:
        with suppress(StoreClosedError, OwnerGoneError):
            while not self._closing.is_set() and not self._store.is_closed:
                if self._store.last_sequence != self._seen:
                    began_s = time.monotonic()
                    self._gather(self._store.last_sequence)
                    self._closing.wait(max(CHANGES_WINDOW_S, time.monotonic() - began_s))
                    if self._woken.is_set():
                        self._closing.wait(FLOOD_WINDOW_S)
                self._woken.wait()
                self._woken.clear()  # later writes set it again

    def _gather(self, upto: int) -> None:
        """Add the changes up to event `upto`, or up to a later event, to the pending changes."""
        found: list[Change] = []
        changes = CabalChanges(is_all=upto - self._seen > MAX_EVENTS)
        if not changes.is_all:
            try:
                found, self._cursor = self._store.next_changes(self._cursor, timeout_s=0)
            except CursorError:  # the store was rebuilt
                changes.is_all = True
        if changes.is_all:
            self._cursor = self._store.cursor
        for change in found:
            changes.add(change)
        if changes.is_all:
            self._names.renew()
        self._seen = upto  # before callbacks are called
        self._changes.add(changes)

    def _find_mentions(self) -> None:
        """Search the texts that were stored before mentions were recorded. The next start resumes the search."""
        with suppress(StoreClosedError, OwnerGoneError):
            self._store.find_mentions(self.pause)
            self._changes.add(CabalChanges(is_all=True))

    def pause(self, _: int) -> None:
        """Pause after a part of a long task, so that others can use the store. Raises StoreClosedError after `stop`."""
        if self._closing.wait(_PAUSE_S):
            raise StoreClosedError
