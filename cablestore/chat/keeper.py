"""Store of a cabal, open in this or another process. The other process may exit, hang, and start again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, Self, TypeVar

from cablestore.chat.changes import CabalChanges, PendingChanges, StoreFollower
from cablestore.chat.hosting import HostedNode
from cablestore.errors import CableStoreError, OwnerGoneError, StoreClosedError
from cablestore.protocol.crypto import KEY_SIZE_BYTES
from cablestore.remote import RemoteStore
from cablestore.remote.node import WatchedNode
from cablestore.store.store import CableStore

T = TypeVar("T")

_BEAT_S: Final = 1.0
"""Interval for checking that the other process answers."""
_AGAIN_S: Final = 0.5
"""Pause before each attempt to reach a store again."""


class OpenStore:
    """Store that is open in this or another process, and the node that connects the store to peers."""

    def __init__(self, store: CableStore, node: WatchedNode) -> None:
        """Use a store. Close it through `closing`."""
        self.store: Final = store
        self.node: Final = node
        self.closing: Final = ExitStack()
        self.own_key = bytes(KEY_SIZE_BYTES)
        """Public key of the user; zeros before the first write to a store of another process."""
        self.learn_key()

    @classmethod
    def here(cls, store: CableStore, hosted: HostedNode | None = None) -> Self:
        """Return a store of this process. `closing` closes the node first, then the store."""
        opened = cls(store, WatchedNode() if hosted is None else hosted.watched)
        opened.closing.callback(store.close)
        if hosted is not None:
            opened.closing.callback(hosted.close)
        return opened

    @classmethod
    def there(cls, store: RemoteStore) -> Self:
        """Return a store that another process has open. Raises OwnerGoneError if that process does not answer."""
        with ExitStack() as stack:
            stack.callback(store.close)
            opened = cls(store, store.node)
            opened.closing.callback(stack.pop_all().close)
        return opened

    def learn_key(self) -> None:
        """Read the key of the user unless it is known."""
        if not any(self.own_key):
            is_here = not isinstance(self.store, RemoteStore)
            self.own_key = self.store.identity.public_key if is_here else self.store.public_key or self.own_key


Reopen = Callable[[], OpenStore]
"""Function that reopens a lost store. Raises OwnerGoneError until another process has it open."""


class StoreKeeper:
    """Open store and its changes. Reopens a store that another process had open, after that process exits."""

    def __init__(
        self, opened: OpenStore, changes: PendingChanges, reopen: Reopen | None, on_return: Callable[[], None]
    ) -> None:
        """Follow a store. `on_return` is called when a lost store can be used again."""
        self.opened = opened
        self.lost = ""
        """Reason why the store cannot be used, or ""."""
        self._changes = changes
        self._reopen = reopen
        self._on_return = on_return
        self._closing = threading.Event()
        self._woken = threading.Event()
        """Set when the store or this keeper is closed."""
        self.follower = StoreFollower(opened.store, changes)
        self._watch()
        self._thread = threading.Thread(target=self._keep, name="chat-keep", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the store, and stop the threads."""
        self._closing.set()
        self._woken.set()
        self.opened.closing.close()
        self._thread.join()
        self.opened.closing.close()  # the thread may have opened another store
        self.follower.stop()

    def run(self, function: Callable[[CableStore], T]) -> T:
        """Run a function on the store. Raises OwnerGoneError if it is lost, and the errors of the function."""
        if self.lost:
            raise OwnerGoneError(f"not connected: {self.lost}. Your input is kept")
        opened = self.opened
        store = opened.store
        try:
            found = function(store)
            opened.learn_key()
        except StoreClosedError:
            if not isinstance(store, RemoteStore) or self._closing.is_set():
                raise
            raise OwnerGoneError(
                f"{_named(store.owner)} exited before it answered. Check the result before you repeat the action"
            ) from None
        return found

    # --- in the thread ---------------------------------------------------------------------------

    def _keep(self) -> None:
        """Until `close`, check that the other process runs and answers, and return to the store after a loss.

        Return at once for a store of this process.
        """
        while isinstance(store := self.opened.store, RemoteStore) and not self._closing.is_set():
            try:
                self._check(store)
            except CableStoreError:  # the store was lost again before it could be used
                self._closing.wait(_AGAIN_S)

    def _check(self, store: RemoteStore) -> None:
        if store.is_closed:
            self._lose(_gone(store.owner))
            self._open_again()
        elif not store.is_answering():
            if not store.is_closed:
                self._lose(f"{_named(store.owner)} does not answer: it hangs or is stopped")
        elif self.lost:
            self._come_back(self.opened)
        else:
            self._woken.wait(_BEAT_S)
            self._woken.clear()

    def _open_again(self) -> None:
        """Retry every _AGAIN_S until the store is open again or `close` is called. Without `reopen`, do nothing."""
        while self._reopen is not None and self.lost and not self._closing.wait(_AGAIN_S):
            try:
                self._come_back(self._reopen())
            except OwnerGoneError:
                pass
            except CableStoreError as error:
                self._lose(str(error))

    def _come_back(self, opened: OpenStore) -> None:
        """Use a store after a loss, and report everything as changed, because events were missed."""
        with ExitStack() as unusable:
            unusable.callback(opened.closing.close)
            follower = StoreFollower(opened.store, self._changes)
            unusable.pop_all()
        self.follower.stop()
        self.follower = follower
        if opened is not self.opened:
            self.opened.closing.close()
            self.opened = opened
            self._watch()
        self.lost = ""
        self._changes.note_state()
        self._changes.add(CabalChanges(is_all=True))
        self._on_return()

    def _lose(self, why: str) -> None:
        if why != self.lost:
            self.lost = why
            self._changes.note_state()

    def _watch(self) -> None:
        """Report changes of the node, and wake the thread when the store is closed."""
        opened = self.opened

        def wake_at_end() -> None:
            if opened.store.is_closed:
                self._woken.set()

        opened.store.watch(wake_at_end)
        opened.node.watch(self._changes.note_state)


def _named(owner: str) -> str:
    """Return the name of the process that has a store open: `serve`, or as given to `cablestore.offer`."""
    return f"`{owner}`" if owner else "the other program"


def _gone(owner: str) -> str:
    if owner == "chat":
        return "the `chat` that had the store open has exited. This client opens the store"
    return f"{_named(owner)} has exited. Start it again. The client then resumes"
