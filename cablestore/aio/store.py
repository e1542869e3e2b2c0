"""The store for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from functools import partial, wraps
from itertools import islice
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from cablestore import limits
from cablestore.aio.arrivals import Arrivals
from cablestore.aio.calls import Opening, on_reader, on_worker, on_writer
from cablestore.aio.items import Feed, Items
from cablestore.aio.local_values import AsyncLocalValues
from cablestore.aio.moderator import AsyncModerator
from cablestore.aio.queries import AsyncQueries, AsyncSnapshot
from cablestore.aio.threads import Threads, to_the_end
from cablestore.arguments import check, check_given, check_instance, check_iterable, check_text
from cablestore.errors import OpenError, StoreClosedError, StoreLockedError
from cablestore.forks import ProcessBound, bind
from cablestore.index.batches import batches
from cablestore.index.verdict import Outcome
from cablestore.protocol.crypto import Identity
from cablestore.protocol.dialect import Dialect
from cablestore.remote.store import RemoteStore, connect_soon
from cablestore.store.changes import Change, Changes
from cablestore.store.cursor import ChangesCursor
from cablestore.store.results import Event, WriteState
from cablestore.store.store import CableStore
from cablestore.store.writing import size_bytes

P = ParamSpec("P")
T = TypeVar("T")

_SHARED_OPTIONS: Final = frozenset({"create", "dialect", "progress", "upgrade"})
"""Options of `CableStore.open` that are allowed for a store that another process has open."""


def _opening(
    function: Callable[P, CableStore], run: Callable[..., CableStore] | None = None
) -> Callable[P, Opening[AsyncCableStore]]:
    """Return the async version of `function`, which opens a store. It calls `run` if given, otherwise `function`."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Opening[AsyncCableStore]:
        return Opening(partial(_open, partial(run or function, *args, **kwargs)))

    return call


def _open_or_connect(path: Path | str, **options: Any) -> CableStore:
    """Open a store. If another process has it open and serves it, connect to that process."""
    try:
        return CableStore.open(path, **options)
    except StoreLockedError:
        if options.keys() - _SHARED_OPTIONS:
            raise
        store = connect_soon(path)
        if store is None:
            raise
    if (dialect := options.get("dialect")) is not None and dialect != store.dialect:
        store.close()
        raise OpenError(
            f"the store at {path} has the dialect {store.dialect.name}, not {dialect.name}. The dialect of a store "
            "cannot be changed"
        )
    return store


async def _open(function: Callable[[], CableStore]) -> AsyncCableStore:
    """Open a store in a thread. If the caller is cancelled, the store is closed."""
    threads = Threads()
    work = threads.begin(function)
    try:
        return AsyncCableStore(await asyncio.wrap_future(work.future))
    except asyncio.CancelledError as error:
        work.stop(error)
        work.future.add_done_callback(_close_unused)
        raise
    finally:
        threads.leave()


def _close_unused(opened: Future[CableStore]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()


def _ingest(
    store: CableStore, posts: Iterable[bytes], *, sync: bool, batch_posts: int, verify: bool
) -> Iterator[list[Outcome]]:
    """Store posts, and yield the outcomes of each batch after its write."""
    if not isinstance(store, RemoteStore):
        return store.parts.writer.ingest(posts, sync=sync, batch_posts=batch_posts, verify=verify)
    single = batches(posts, size_bytes, min(batch_posts, limits.MAX_BATCH_POSTS))
    return (store.ingest(batch, sync=sync, batch_posts=batch_posts, verify=verify) for batch in single)


class AsyncCableStore(AsyncQueries, ProcessBound):
    """Open store for asyncio programs: the methods of `CableStore`, awaitable, with the same parameters and results.

    Methods that yield return an async iterator. Properties are the same, except that `identity`, `public_key` and
    `cursor` are awaited. Calls run in threads, which `cablestore.aio.threads` describes. Several tasks
    and several event loops may use one store.

    A cancelled call takes effect completely or not at all: a write that has begun completes, and any other write is
    discarded. Waiting tasks do not occupy a thread.
    """

    _blocking: CableStore

    def __init__(self, store: CableStore, *, read_threads: int = limits.READ_THREADS) -> None:
        """Wrap an open store, or the result of `cablestore.connect`. `close` closes it too."""
        expected = "an open CableStore. AsyncCableStore.open(path) opens one"
        check_instance("store", store, (CableStore, RemoteStore), expected)
        check(read_threads=read_threads)
        super().__init__(store, Threads(read_threads))
        self._arrivals = Arrivals(store)
        self.moderation: Final = AsyncModerator(store.moderation, self._threads, self._arrivals)
        """Moderation: roles, hidden and dropped posts, users and channels, blocked users, and the user's actions."""
        self.local: Final = AsyncLocalValues(store.local, self._threads)
        """Local values of the user: drafts, muted channels, values of clients. They never leave the machine."""
        bind(self)

    open = staticmethod(_opening(CableStore.open, _open_or_connect))
    """Open the store in a folder, or connect to the process that has it open and serves it.

    The parameters are those of `CableStore.open`. A call with options other than `create`, `dialect`, `upgrade` and
    `progress` does not connect to another process. It raises StoreLockedError, because that process chose the options.
    """

    in_memory = staticmethod(_opening(CableStore.in_memory))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close the store. If the caller is cancelled, CancelledError is raised only after the folder is unlocked."""
        await to_the_end(self.close())

    async def close(self) -> None:
        """Complete pending writes and close the store. Open iterators and snapshots become invalid."""
        await self._threads.close(self._close)

    def _close(self) -> None:
        self._blocking.close()
        self._arrivals.end()

    def detach(self) -> None:
        """End the threads and leave the store open. Calls that are already running run to their end."""
        self._arrivals.end()
        self._threads.leave()

    # --- without a thread ----------------------------------------------------------------------

    @property
    def blocking(self) -> CableStore:
        """Underlying store with blocking calls, for code that needs a `CableStore`, such as a `Node`."""
        return self._blocking

    @property
    def dialect(self) -> Dialect:
        """Dialect with which the store was created."""
        return self._blocking.dialect

    @property
    def path(self) -> Path | None:
        """Folder of the store, None for a store in memory."""
        return self._blocking.path

    @property
    def is_read_only(self) -> bool:
        """True if the store was opened with `read_only`: see `CableStore.is_read_only`."""
        return self._blocking.is_read_only

    @property
    def is_closed(self) -> bool:
        """True if the store is closed."""
        return self._blocking.is_closed

    @property
    def write_state(self) -> WriteState:
        """State of writes: see `CableStore.write_state`."""
        return self._blocking.write_state

    @property
    def last_sequence(self) -> int:
        """Number of the latest event of the arrival log, 0 before the first event."""
        return self._blocking.last_sequence

    def watch(self, call: Callable[[], None], *, local: bool = False) -> Callable[[], None]:
        """Call a function after each write and when the store is closed: see `CableStore.watch`."""
        return self._blocking.watch(call, local=local)

    # --- the identity --------------------------------------------------------------------------

    @property
    def identity(self) -> Coroutine[Any, Any, Identity]:
        """Awaitable identity that signs the user's posts: see `CableStore.identity`."""
        return self._threads.write(lambda: self._blocking.identity)

    @property
    def public_key(self) -> Coroutine[Any, Any, bytes | None]:
        """Awaitable public key of the identity, None if the store has none yet: see `CableStore.public_key`."""
        return self._threads.read(lambda: self._blocking.public_key)

    import_identity = on_writer(CableStore.import_identity)

    # --- following -----------------------------------------------------------------------------

    def events(self, after: int = 0, *, timeout_s: float | None = None) -> Feed[Event, int]:
        """Yield every event after number `after`: first stored events, then new events. See `CableStore.events`."""
        check(after=after)
        check_given(timeout_s=timeout_s)

        async def later(after: int) -> tuple[list[Event], int] | None:
            try:
                found = await self._first(
                    lambda: self._threads.read(partial(self._stored_events, after)), len, timeout_s
                )
            except StoreClosedError:
                return None
            return (found, found[-1].sequence) if found else None

        return Feed(after, later)

    def _stored_events(self, after: int) -> list[Event]:
        return list(islice(self._blocking.events(after, timeout_s=0), limits.MAX_EVENTS_READ))

    async def next_changes(
        self, after: ChangesCursor, channel: str | None = None, *, timeout_s: float | None = None, local: bool = False
    ) -> Changes:
        """Return the changes after a cursor and the next cursor, or wait for the first change.

        See `CableStore.next_changes`.
        """
        check_given(timeout_s=timeout_s)

        async def read() -> Changes:
            nonlocal after
            next_changes = partial(self._blocking.next_changes, after, channel, timeout_s=0, local=local)
            found = await self._threads.read(next_changes)
            after = found.cursor
            return found

        return await self._first(read, lambda found: len(found.changes), timeout_s)

    def changes(
        self,
        channel: str | None = None,
        after: ChangesCursor | None = None,
        *,
        timeout_s: float | None = None,
        local: bool = False,
    ) -> Feed[Change, ChangesCursor | None]:
        """Yield the changes that a client must redraw: first the changes after a cursor, then new changes.

        See `CableStore.changes`.
        """
        check(local=local)
        check_given(channel=channel, timeout_s=timeout_s)
        if after is not None:
            check_text("after", after)

        async def later(after: ChangesCursor | None) -> tuple[list[Change], ChangesCursor] | None:
            try:
                if after is None:
                    return [], await self.cursor
                found = await self.next_changes(after, channel, timeout_s=timeout_s, local=local)
            except StoreClosedError:
                return None
            return found if found.changes else None

        return Feed(after, later)

    async def _first(self, read: Callable[[], Awaitable[T]], count: Callable[[T], int], timeout_s: float | None) -> T:
        """Call `read` after each write until `count` of its result is not 0, and return this result.

        After `timeout_s`, or when the store is closed, return the last result, which has no items.
        """
        loop = asyncio.get_running_loop()
        end = None if timeout_s is None else loop.time() + timeout_s
        while True:
            latest = self.last_sequence
            found = await read()
            if count(found) or not await self._arrivals.wait(latest, None if end is None else end - loop.time()):
                return found

    # --- writing -------------------------------------------------------------------------------

    write = on_writer(CableStore.write)
    post = on_writer(CableStore.post)
    set_topic = on_writer(CableStore.set_topic)
    join = on_writer(CableStore.join)
    leave = on_writer(CableStore.leave)
    set_info = on_writer(CableStore.set_info)
    set_name = on_writer(CableStore.set_name)
    mark_read = on_writer(CableStore.mark_read)
    mark_seen = on_writer(CableStore.mark_seen)
    delete = on_writer(CableStore.delete)
    discard = on_writer(CableStore.discard)

    async def ingest(
        self, posts: Iterable[bytes], *, sync: bool = False, batch_posts: int = 100, verify: bool = True
    ) -> list[Outcome]:
        """Store encoded posts from peers: see `CableStore.ingest`. Other writes may run between its batches."""
        check(sync=sync, batch_posts=batch_posts, verify=verify)
        check_iterable("posts", posts)
        ingest = partial(_ingest, self._blocking, posts, sync=sync, batch_posts=batch_posts, verify=verify)
        return [outcome async for outcomes in Items(self._threads.write, ingest, 1) for outcome in outcomes]

    clock_difference = on_reader(CableStore.clock_difference)

    # --- searching -----------------------------------------------------------------------------

    search = on_reader(CableStore.search)
    update_search_index = on_worker(CableStore.update_search_index)
    mentions = on_reader(CableStore.mentions)
    find_mentions = on_worker(CableStore.find_mentions)

    # --- long work and other methods -----------------------------------------------------------

    prune = on_worker(CableStore.prune)
    export = on_worker(CableStore.export)
    import_exports = on_worker(CableStore.import_exports)
    check = on_worker(CableStore.check)
    rebuild = on_worker(CableStore.rebuild)
    compact = on_worker(CableStore.compact)

    async def run(self, function: Callable[Concatenate[CableStore, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a long function on the blocking store, such as `cablestore.backup.backup`, in the worker thread.

        If the caller is cancelled, the function ends at its next `progress` report.
        """
        return await self._threads.work(function, self._blocking, *args, **kwargs)

    retry_writes = on_writer(CableStore.retry_writes)
    sync = on_writer(CableStore.sync)
    stats = on_reader(CableStore.stats)

    def snapshot(self) -> Opening[AsyncSnapshot]:
        """Return a snapshot of the current state for consistent reads: `async with store.snapshot() as s`."""

        async def begin() -> AsyncSnapshot:
            return await self._threads.read(lambda: AsyncSnapshot(self._blocking.snapshot(), self._threads))

        return Opening(begin)
