"""A store that another process has open: `connect` returns it, and it has the methods of `CableStore`.

The methods are derived from the public names of `CableStore`: see `cablestore.remote.methods`.
"""

from __future__ import annotations

import inspect
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, NoReturn, ParamSpec, TypeAlias, TypeVar, cast

from cablestore import limits
from cablestore.arguments import check, check_given, check_iterable
from cablestore.closable import Closable
from cablestore.errors import CableStoreError, StoreClosedError
from cablestore.forks import ProcessBound, bind
from cablestore.index.batches import batches
from cablestore.index.folder import store_path
from cablestore.index.verdict import Outcome
from cablestore.protocol.dialect import Dialect, dialect_named
from cablestore.remote import unix_socket
from cablestore.remote.codec import Codec
from cablestore.remote.link import Link
from cablestore.remote.messages import Items
from cablestore.remote.methods import OF_PROGRAM, OWNER_ONLY, SPACES, RemoteMethod, method_of, public
from cablestore.remote.node import NodeState, WatchedNode
from cablestore.store.local_values import LocalValues
from cablestore.store.moderator import Moderator
from cablestore.store.queries import Queries, Snapshot
from cablestore.store.results import WriteState
from cablestore.store.store import CableStore
from cablestore.store.writing import size_bytes

P = ParamSpec("P")
T = TypeVar("T")

_BEGIN_WAIT_S: Final = 1.0
"""Time to wait for a process that has just opened a store to serve it."""
_POLL_EVERY_S: Final = 0.05


class _Calls(ProcessBound):
    """Calls over a link to the methods of a store, or of its snapshot with the number `snapshot` if that is not 0."""

    def __init__(self, link: Link, snapshot: int = 0) -> None:
        self.link: Final = link
        self.dialect: Final = dialect_named(link.offer.dialect)
        self.snapshot: Final = snapshot
        self.is_released = False
        """True after the snapshot was closed."""

    def run(self, name: str, args: tuple[Any, ...] = (), more: Mapping[str, Any] | None = None) -> Any:
        """Call the method `name` with the arguments `args` and the named arguments `more`. Return its result.

        A property is read in the same way, without arguments.
        """
        if self.is_released:
            raise StoreClosedError("the store, or this snapshot of it, is closed")
        method = method_of(name, self.dialect)
        given = {} if method.is_property else method.bind(args, more or {})
        arguments = method.write(given)
        if method.is_iterator:
            return RemoteItems(self.link, name, method, arguments, self.snapshot)
        progress = given.get("progress")
        check_given(progress=progress)
        _, value = self.link.call(name, arguments, is_read=method.is_read, snapshot=self.snapshot, progress=progress)
        return _decoded(method, value)


def _decoded(method: RemoteMethod, value: Any) -> Any:
    try:
        return method.result.decode(value)
    except ValueError as error:
        raise CableStoreError(
            f"the process that has the store open runs another version of cablestore ({error}). Run the same version "
            "in both"
        ) from None


class RemoteItems(Iterator[T], Generic[T]):
    """Iterator over the items that another process yields. They arrive in parts, and one part is read ahead.

    `close`, or the garbage collection of this object, closes the iterator in that process.
    """

    def __init__(self, link: Link, name: str, method: RemoteMethod, arguments: Any, snapshot: int) -> None:
        self._link = link
        self._method = method
        self._items = deque[T]()
        self._pending = link.begin(name, arguments, is_read=method.is_read, snapshot=snapshot)
        self._is_over = False

    def __next__(self) -> T:
        while not self._items:
            if self._is_over:
                raise StopIteration
            self._take()
        return self._items.popleft()

    def _take(self) -> None:
        try:
            found = self._link.next_of(self._pending)
        except CableStoreError:
            self.close()
            raise
        if isinstance(found, Items):
            self._items.extend(_decoded(self._method, found.values))
            if found.is_last:
                self._is_over = True
            else:
                self._link.more(self._pending)

    def when_ready(self, call: Callable[[], None]) -> None:
        """Call `call` in the receiving thread after each message for this iterator. `next_part` then does not wait."""
        self._pending.notify = call

    @property
    def is_ready(self) -> bool:
        """True if `next_part` does not wait."""
        return bool(self._items) or self._is_over or not self._pending.received.empty()

    def next_part(self) -> list[T]:
        """Return the next items that have arrived, or [] at the end. If there are none yet, wait for a message."""
        while not self._items and not self._is_over:
            self._take()
        found = list(self._items)
        self._items.clear()
        return found

    def close(self) -> None:
        """End the iteration, in this process and in the process that has the store open."""
        if not self._is_over:
            self._is_over = True
            self._link.abandon(self._pending.number)

    def __del__(self) -> None:
        if hasattr(self, "_is_over"):
            with suppress(CableStoreError):  # in a forked process, which must not use it
                self.close()


# --- the methods ----------------------------------------------------------------------------------


def _remote_class(space: str, kind: type) -> type:
    """Return a class with the public methods of the class `kind`. Each method calls the other process.

    `space` is the prefix of the method names: see `methods.SPACES`.
    """
    members = {name: _member(f"{space}.{name}" if space else name, kind) for name in public(kind)}
    return type(f"_Remote{kind.__name__}", (ProcessBound,), members)


def _member(name: str, kind: type) -> Any:
    found = inspect.getattr_static(kind, name.rpartition(".")[2])
    function: Any = found.fget if isinstance(found, property) else inspect.unwrap(getattr(found, "__func__", found))
    if name in OF_PROGRAM and not isinstance(found, property):
        return found  # the method uses only other public methods, or a subclass overrides it
    call = _refusing(name, function) if name in OWNER_ONLY else _calling(name, function)
    return property(call) if isinstance(found, property) else call


def _calling(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(self: Any, /, *args: Any, **more: Any) -> Any:
        return self._calls.run(name, args, more)

    return call


def _refusing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def refuse(*_: Any, **_more: Any) -> NoReturn:
        raise CableStoreError(f"{name} cannot be used on a store that another process has open: {OWNER_ONLY[name]}")

    return refuse


if TYPE_CHECKING:  # the same methods, with the same types
    _Store: TypeAlias = CableStore
    _Snapshot: TypeAlias = Snapshot
    _Moderator: TypeAlias = Moderator
    _LocalValues: TypeAlias = LocalValues
    _Node: TypeAlias = WatchedNode
else:
    _Store, _Moderator, _LocalValues, _Node = (_remote_class(space, kind) for space, kind in SPACES.items())
    _Snapshot = _remote_class("", Queries)


class RemoteModerator(_Moderator):
    """Roles and moderation actions. Use `RemoteStore.moderation`; the methods are those of `Moderator`."""

    def __init__(self, calls: _Calls) -> None:
        """Use `RemoteStore.moderation`."""
        self._calls = calls


class RemoteLocalValues(_LocalValues):
    """Values of the store's user. Use `RemoteStore.local`; the methods are those of `LocalValues`."""

    def __init__(self, calls: _Calls) -> None:
        """Use `RemoteStore.local`."""
        self._calls = calls


class RemoteNode(_Node):
    """Node that connects the store to peers. Use `RemoteStore.node`; the methods are those of `WatchedNode`."""

    def __init__(self, calls: _Calls) -> None:
        """Use `RemoteStore.node`."""
        self._calls = calls

    @property
    def state(self) -> NodeState | None:  # type: ignore[override] # read-only here
        """Latest reported state of the node, None without a node. It is reported before the first result of a call."""
        return self._calls.link.node.state

    def watch(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call a function after each report of the state: see `WatchedNode.watch`."""
        return self._calls.link.node.watch(call)


class RemoteSnapshot(_Snapshot, Closable):
    """Snapshot of a store that another process has open. Close it, or use it in a `with`.

    It becomes invalid when the connection is closed.
    """

    def __init__(self, calls: _Calls, last_sequence: int) -> None:
        """Use `RemoteStore.snapshot`."""
        self._calls = calls
        self._last_sequence = last_sequence

    @property
    def last_sequence(self) -> int:
        """Number of the latest event of the arrival log in this snapshot, 0 before the first event."""
        return self._last_sequence

    def close(self) -> None:
        """Release the snapshot. Later reads raise StoreClosedError."""
        if not self._calls.is_released:
            self._calls.is_released = True
            self._calls.link.abandon(self._calls.snapshot)

    def __del__(self) -> None:
        if hasattr(self, "_calls"):
            with suppress(CableStoreError):  # in a forked process, which must not use it
                self.close()


class RemoteStore(_Store, Closable, ProcessBound):
    """Store that another process has open, with the methods of `CableStore`. Thread-safe. `connect` returns it.

    `cablestore.remote.methods.OWNER_ONLY` lists the missing methods. Calls raise the same errors as in that process,
    and OwnerGoneError if it ends or does not answer. The message of that error says if the call may have run. A lost
    connection is not restored: call `connect` again.
    """

    def __init__(self, link: Link) -> None:
        """Use `connect`."""
        self._link = link
        self._calls = _Calls(link)
        self.moderation = RemoteModerator(self._calls)  # type: ignore[misc] # type checkers see a CableStore
        """Moderation: roles, hidden and dropped posts, users and channels, blocked users, and the user's actions."""
        self.local = RemoteLocalValues(self._calls)  # type: ignore[misc] # as above
        """Local values of the user: drafts, muted channels, values of clients. They never leave the machine."""
        self.node: Final = RemoteNode(self._calls)
        """Node that connects the store to peers."""
        bind(self)

    def close(self) -> None:
        """Close the connection. The store remains open in the other process. Iterators and snapshots become invalid."""
        self._link.close()

    @property
    def owner(self) -> str:
        """Command that has the store open: `serve`, `chat`, or "" for another program."""
        return self._link.offer.owner

    @property
    def dialect(self) -> Dialect:
        """Dialect with which the store was created."""
        return self._calls.dialect

    @property
    def path(self) -> Path | None:
        """Folder of the store, None for a store in memory."""
        return None if self._link.offer.path is None else Path(self._link.offer.path)

    @property
    def is_read_only(self) -> bool:
        """True if the other process opened the store with `read_only`."""
        return self._link.offer.is_read_only

    def is_answering(self) -> bool:
        """Return False if the other process does not answer before the timeout, or if the connection is closed."""
        return self._link.is_answering()

    @property
    def is_closed(self) -> bool:
        """True if this connection is closed or lost, or if the store is closed."""
        return not self._link.is_open or self._link.state.is_closed

    @property
    def write_state(self) -> WriteState:
        """State of writes: see `CableStore.write_state`. It is reported after each write of any program."""
        return WriteState(self._link.state.write_failure, self._link.state.failed_writes)

    @property
    def last_sequence(self) -> int:
        """Number of the latest event that was reported or that a call returned, 0 before the first."""
        return self._link.state.last_sequence

    def watch(self, call: Callable[[], None], *, local: bool = False) -> Callable[[], None]:
        """Call a function after each report of a write and when the connection is closed: see `CableStore.watch`.

        The receiving thread calls it, so it must not call the store.
        """
        check(call=call, local=local)
        return self._link.watch(call, local=local)

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the current state for consistent reads."""
        nothing = method_of("cursor", self.dialect).write({})
        number, value = self._link.call("snapshot", nothing, is_read=True)
        return RemoteSnapshot(_Calls(self._link, number), Codec(int).decode(value))

    def ingest(
        self, posts: Iterable[bytes], *, sync: bool = False, batch_posts: int = 100, verify: bool = True
    ) -> list[Outcome]:
        """Store posts that came from peers: see `CableStore.ingest`. They are sent in parts of whole batches."""
        check(sync=sync, batch_posts=batch_posts, verify=verify)
        check_iterable("posts", posts)
        options = {"sync": sync, "batch_posts": batch_posts, "verify": verify}
        parts = _parts(batches(posts, size_bytes, min(batch_posts, limits.MAX_BATCH_POSTS)))
        return list(chain.from_iterable(self._calls.run("ingest", (part,), options) for part in parts))


def _parts(found: Iterable[list[bytes]]) -> Iterator[list[bytes]]:
    """Join the batches in `found` to parts of at least REMOTE_INGEST_SIZE_BYTES, without splitting a batch.

    The last part may be smaller.
    """
    part: list[bytes] = []
    total = 0
    for batch in found:
        part += batch
        total += sum(map(len, batch))
        if total >= limits.REMOTE_INGEST_SIZE_BYTES:
            yield part
            part, total = [], 0
    if part:
        yield part


def run(store: CableStore, function: Callable[Concatenate[CableStore, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function(store, ...)` in the process that has the store open, and return its result.

    For a store of another process, the function must be in `cablestore.remote.methods.FUNCTIONS`.
    """
    if isinstance(store, RemoteStore):
        return cast(T, store._calls.run(function.__name__, args, kwargs))  # noqa: SLF001 - of this module
    return function(store, *args, **kwargs)


def connect(path: Path | str, *, timeout_s: float = limits.REMOTE_TIMEOUT_S) -> RemoteStore:
    """Return the store that another process of this user has open: `cablestore serve`, `chat`, or `cablestore.offer`.

    Close it, or use it in a `with`. Calls fail after `timeout_s` without a sign of life of that process. Raises
    OwnerGoneError if no process serves the store, and CableStoreError if that process uses an incompatible version of
    the protocol.
    """
    return RemoteStore(Link.reach(store_path(path), timeout_s=timeout_s))


def connect_soon(path: Path | str) -> RemoteStore | None:
    """Connect as `connect` does, but wait up to 1 s for a process to serve the store.

    Return None if no process serves it.
    """
    until_s = time.monotonic() + _BEGIN_WAIT_S
    while (connection := unix_socket.connect(store_path(path))) is None:
        if time.monotonic() > until_s:
            return None
        time.sleep(_POLL_EVERY_S)
    return RemoteStore(Link.over(connection))
