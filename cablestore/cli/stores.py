"""Opening stores with the views of installed packages."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from cablestore.cli.output import Output
from cablestore.errors import IdentityError, NodeError, StorageError, StoreLockedError
from cablestore.index.folder import IDENTITY_FILE
from cablestore.index.header import peek
from cablestore.protocol.crypto import Identity
from cablestore.protocol.dialect import Dialect
from cablestore.store.key_file import load_identity
from cablestore.store.options import StoreOptions
from cablestore.store.store import CableStore
from cablestore.views.installed import installed_catalog

if TYPE_CHECKING:
    from cablestore.remote.node import WatchedNode

T = TypeVar("T")

_NICENESS: Final = 10
"""Niceness of long work while another process serves the store, as in nice(1)."""
_LOG: Final = logging.getLogger("cablestore.node")


def open_store(path: Path, *, create: bool = True, dialect: Dialect | None = None) -> CableStore:
    """Open a store for writing. Raises OpenError if it has views that are not installed."""
    return CableStore.open(path, create=create, dialect=dialect, options=StoreOptions(catalog=installed_catalog()))


@contextmanager
def open_to_sync(path: Path, out: Output, *, create: bool) -> Iterator[CableStore]:
    """Open a store, or create it if `create`. If the body fails, remove a new folder whose store is still empty.

    Otherwise a wrong address or cabal key would leave an empty store with a key that nobody uses.
    """
    is_new_folder, is_new = not path.exists(), peek(path) is None
    is_unused = False
    try:
        with open_store(path, create=create) as store:
            try:
                yield store
            except BaseException:
                is_unused = is_new_folder and not any(store.stats().posts.values())
                raise
            finally:
                if is_new and not is_unused:
                    key = store.identity.public_key.hex()
                    out.note(f"created a new store at {path} with the new public key {key}")
    finally:
        if is_unused:
            shutil.rmtree(path)


def open_upgraded(path: Path) -> CableStore:
    """Open a store for writing, and create it if it is missing.

    Views built by another version are rebuilt first, with a progress bar.
    """
    with ExitStack() as stack:

        @cache
        def bar() -> Callable[[int], None]:
            return stack.enter_context(Output(as_json=False).progress("rebuilding", None))

        def advance(posts: int) -> None:
            bar()(posts)

        return CableStore.open(path, upgrade=True, progress=advance, options=StoreOptions(catalog=installed_catalog()))


def open_to_read(path: Path, *, read_only: bool = False) -> CableStore:
    """Open a store for reading, even if it has views that are not installed.

    Writes then raise OpenError. With `read_only`, nothing is written into its folder.
    """
    return CableStore.open(
        path,
        create=False,
        options=StoreOptions(catalog=installed_catalog(), allow_missing_views=True),
        read_only=read_only,
    )


def open_or_connect(path: Path, *, read_only: bool = False) -> CableStore:
    """Open a store like `open_to_read`, or connect to the process that has it open and serves it."""
    return or_connect(lambda: open_to_read(path, read_only=read_only), path)


def or_connect(open_here: Callable[[], CableStore], path: Path) -> CableStore:
    """Return the store that `open_here` opens. If another process has it open, connect to that process.

    Raises StoreLockedError if that process does not serve it.
    """
    try:
        return open_here()
    except StoreLockedError:
        store = connect_to_owner(path)
        if store is None:
            raise
        return store


def on_closed_store(path: Path, work: Callable[[Path], T]) -> T:
    """Call `work`, which may run long, with the path of a closed store, and return its result.

    If another process has the store open and serves it, `work` gets a checkpoint of the store's present state. It then
    runs at low priority, and the other process continues to answer.
    """
    try:
        return work(path)
    except StoreLockedError:
        store = connect_to_owner(path)
        if store is None:
            raise
    from cablestore.remote.checkpoint import checkpoint  # noqa: PLC0415 - most commands do not need it

    with store, checkpoint(store) as copy:
        os.setpriority(os.PRIO_PROCESS, 0, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
        return work(copy)


def connect_to_owner(path: Path) -> CableStore | None:
    """Connect to the process that has a store open. Return None if no process serves it."""
    _print_waits()
    from cablestore.remote.store import connect_soon  # noqa: PLC0415 - most commands do not need it

    return connect_soon(path)


@contextmanager
def offered(store: CableStore, owner: str, node: WatchedNode) -> Iterator[None]:
    """Serve an open store to other processes during the body, if its file system supports sockets.

    `owner` is the command that has the store open, and `node` connects the store to peers.
    """
    from cablestore.serving import offer  # noqa: PLC0415 - most commands do not need it

    with ExitStack() as stack:
        try:
            stack.enter_context(offer(store, owner=owner, node=node))
        except StorageError as error:
            _LOG.warning("other commands cannot connect to the store", extra={"reason": str(error)})
        yield


def node_of(store: CableStore) -> WatchedNode | None:
    """Return the node that connects a store to peers, or None if its process does not run a node."""
    if type(store) is CableStore:  # type checkers also see a RemoteStore as a CableStore
        return None
    from cablestore.remote.store import RemoteStore  # noqa: PLC0415 - most commands do not need it

    assert isinstance(store, RemoteStore)  # noqa: S101 - the only other kind of store
    _ = store.public_key  # the state of the node is reported before the first result
    return None if store.node.state is None else store.node


def required_node(store: CableStore) -> WatchedNode:
    """Return the node that connects a store to peers. Raises NodeError if no process runs a node."""
    node = node_of(store)
    if node is None:
        raise NodeError(
            "no running `serve` has this store open. Start `serve`, for example: cablestore serve --connect HOST:PORT"
        )
    return node


def identity_of(store: CableStore) -> Identity:
    """Return the identity of a store's user. For a store of another process, it is read from the key file."""
    if type(store) is CableStore:  # type checkers also see a RemoteStore as a CableStore
        return store.identity
    found = None if store.path is None else load_identity(store.path / IDENTITY_FILE)
    if found is None or found.public_key != store.public_key:
        raise IdentityError(
            f"no secret key found in the store's folder {store.path}. Run the command where the key file is"
        )
    return found


@cache
def _print_waits() -> None:
    """Print a line whenever the process that has the store open does not answer."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("cablestore: %(message)s"))
    log = logging.getLogger("cablestore.remote")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
