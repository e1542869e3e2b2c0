"""Start of `serve`: its status pages, and its store, whose outdated views are rebuilt first.

A store with outdated views cannot answer peers. The status pages, the log and the service manager show the progress of
the rebuild.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from cablestore import limits
from cablestore.cli.output import Output
from cablestore.cli.service import run_on_loop
from cablestore.cli.service_manager import ServiceManager, service_manager
from cablestore.cli.stores import open_store
from cablestore.closable import Closable
from cablestore.errors import CorruptStoreError, OpenError, OutdatedViewError, StorageError, StoreLockedError
from cablestore.index.evidence import find_evidence
from cablestore.index.header import peek
from cablestore.peers import Address
from cablestore.peers.address import listen_error
from cablestore.peers.health import Health, PhaseStatus, State
from cablestore.peers.status_pages import StatusPages
from cablestore.plurals import counted
from cablestore.remote import unix_socket
from cablestore.resolution import RESOLVER
from cablestore.serving import Refusal
from cablestore.store.options import StoreOptions
from cablestore.store.store import CableStore
from cablestore.views.installed import installed_catalog

_LOG: Final = logging.getLogger("cablestore.node")
_LOG_EVERY_S: Final = 10.0
_BUSY_POLL_S: Final = 0.2
_LONGEST_STEP_S: Final = 3600.0
"""Maximum time between two progress reports of a rebuild. Writing the database after all posts are read is one step."""


class ServePages(Closable):
    """Status pages of `serve`. They exist only with --metrics, and after `open`."""

    def __init__(self, wanted: Address | None, out: Output) -> None:
        self._wanted = wanted
        self._out = out
        self._pages: StatusPages | None = None
        self._stack = ExitStack()

    def open(self) -> StatusPages | None:
        """Open the pages once, print their address, and return them.

        Return None without --metrics. Raises NodeError if they cannot listen. Do not call this in an event loop.
        """
        if self._wanted is not None and self._pages is None:
            wanted = self._wanted
            self._pages = self._stack.enter_context(StatusPages(run_on_loop(lambda: _by_address(wanted))))
            address = self._pages.address
            self._out.say(f"metrics on {address}", metrics=str(address))
        return self._pages

    def close(self) -> None:
        """Close the pages."""
        self._stack.close()


async def _by_address(wanted: Address) -> Address:
    """Return `wanted` with an IP address as host. Raises NodeError if the host cannot be looked up."""
    try:
        return Address((await RESOLVER.texts(wanted.host))[0], wanted.port)
    except (OSError, ValueError) as error:  # ValueError: not a valid host name
        raise listen_error(wanted, error) from None


def open_served(path: Path, pages: ServePages, *, create: bool, manager: ServiceManager | None = None) -> CableStore:
    """Open the store of `serve`. Rebuild outdated views first. A signal during the rebuild leaves the store unchanged.

    Raises OpenError if posts would be lost, so that a service manager does not try again.
    """
    try:
        return _open_when_free(path, create=create)
    except OutdatedViewError as error:
        _LOG.warning("rebuilding outdated views", extra={"reason": str(error)})
    shown = pages.open()
    with _RebuildProgress(path, manager or service_manager()) as progress:
        if shown is not None:
            shown.show(PhaseStatus(progress.health))
        try:
            options = StoreOptions(catalog=installed_catalog())
            store = CableStore.open(path, create=False, upgrade=True, progress=progress.add, options=options)
        except CorruptStoreError as error:
            raise OpenError(f"cannot rebuild outdated views: {error}") from None
        _LOG.warning("rebuilt outdated views", extra={"seconds": progress.seconds})
        return store


def _open_when_free(path: Path, *, create: bool) -> CableStore:
    """Open a store. If a command has it open, wait up to BUSY_STORE_WAIT_S until the command closes it.

    A command that starts after a crash of `serve` and before its restart opens the store itself. A process that serves
    the store does not close it soon, so StoreLockedError is raised at once.
    """
    until_s = time.monotonic() + limits.BUSY_STORE_WAIT_S
    is_logged = False
    while True:
        try:
            return open_store(path, create=create)
        except StoreLockedError as error:
            connection = unix_socket.connect(path)
            if connection is not None:
                connection.close()
                raise
            if time.monotonic() >= until_s:
                raise
            if not is_logged:
                _LOG.warning("waiting until another process closes the store", extra={"reason": str(error)})
                is_logged = True
        time.sleep(_BUSY_POLL_S)


def _stored_posts(path: Path) -> int:
    """Return the number of posts when the store was last closed, or 0 if it is unknown."""
    header = peek(path)
    closed = None if header is None else find_evidence(path / header.generation, is_open=True).closed
    return 0 if closed is None else closed.posts


class _RebuildProgress(Closable):
    """Progress of the rebuild of a store. Programs that connect to the store receive the progress as an error."""

    def __init__(self, path: Path, manager: ServiceManager) -> None:
        self._path = path
        self._manager = manager
        self._posts = _stored_posts(path)
        self._done = 0
        self._began_s = self._logged_s = time.monotonic()
        self._refusal: Refusal | None = None
        self._manager.progress(self._text, _LONGEST_STEP_S)

    def close(self) -> None:
        """Stop answering programs that connect to the store."""
        if self._refusal is not None:
            self._refusal.close()

    @property
    def seconds(self) -> float:
        """Seconds since the rebuild began."""
        return round(time.monotonic() - self._began_s, 1)

    def add(self, posts: int) -> None:
        """Add `posts` to the number of posts that were read, and report the progress."""
        self._done += posts
        if self._refusal is None:  # the store is locked from the first call on
            with suppress(StorageError):  # the file system does not support sockets
                self._refusal = Refusal(self._path, lambda: f"the store at {self._path} is not open yet: {self._text}")
        self._manager.progress(self._text, _LONGEST_STEP_S)
        if time.monotonic() >= self._logged_s + _LOG_EVERY_S:
            self._logged_s = time.monotonic()
            _LOG.info("rebuild in progress", extra=self._fields)

    def health(self) -> Health:
        """Return the health of the process. Called in the threads of the status pages."""
        return Health(State.REBUILDING, self._text, self._fields)

    @property
    def _fields(self) -> dict[str, Any]:
        return {"posts_read": self._done, "posts": self._posts or None, "percent": self._percent}

    @property
    def _percent(self) -> int | None:
        return min(100, 100 * self._done // self._posts) if self._posts else None

    @property
    def _text(self) -> str:
        if self._percent is None:
            return f"rebuilding outdated views: {counted(self._done, 'post')} read"
        if self._percent == 100:
            return "rebuilding outdated views: all posts read, writing the new database"
        return f"rebuilding outdated views: {self._percent} % of the posts read"
