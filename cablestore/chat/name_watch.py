"""Background comparison of user names, to find names that look alike."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice

from cablestore.chat.display_limits import MAX_NAMES_COMPARED, NAMES_AT_ONCE
from cablestore.chat.same_names import same_named
from cablestore.errors import OwnerGoneError, StoreClosedError
from cablestore.store.naming import KEY_DIGITS
from cablestore.store.store import CableStore

_PAUSE_S = 0.02
"""Pause after each part, so that others can use the store."""
_REST = 4
"""Ratio of the pause after a comparison to the duration of the comparison."""


class NameWatch:
    """Thread that compares the names of users at its start and after each `renew`.

    Call `stop` before closing the store.
    """

    def __init__(self, store: CableStore, changed: Callable[[], None]) -> None:
        """Start a thread that calls `changed` after each change of the result."""
        self.same_named: frozenset[bytes] = frozenset()
        """Users whose name equals or resembles another user's name."""
        self._store = store
        self._changed = changed
        self._ends = threading.Event()
        self._is_due = threading.Event()
        self._is_due.set()
        self._is_comparing = False
        self._thread = threading.Thread(target=self._run, name="chat-names", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """True if a comparison is in progress or due."""
        return self._is_due.is_set() or self._is_comparing

    def renew(self) -> None:
        """Schedule a comparison after a name has changed."""
        self._is_due.set()

    def stop(self) -> None:
        """End the thread."""
        self._ends.set()
        self._is_due.set()
        self._thread.join()

    def _run(self) -> None:
        with suppress(StoreClosedError, OwnerGoneError):
            while True:
                self._is_due.wait()
                self._is_comparing = True
                self._is_due.clear()
                if self._ends.is_set():  # checked after `clear`, which may have undone the `set` of `stop`
                    return
                began = time.monotonic()
                found, before = same_named(self._names()), self.same_named
                self.same_named = found
                if found != before:
                    self._changed()
                self._is_comparing = False
                self._ends.wait(_REST * (time.monotonic() - began))

    def _names(self) -> dict[bytes, str]:
        names: dict[bytes, str] = {}
        for user in islice(self._store.users(), MAX_NAMES_COMPARED):
            names[user.public_key] = user.info.name or user.public_key.hex()[:KEY_DIGITS]
            if len(names) % NAMES_AT_ONCE == 0 and self._ends.wait(_PAUSE_S):
                raise StoreClosedError
        return names
