"""Read methods of a store for asyncio, and one state of it."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, Self

from cablestore.aio.calls import Mirror, each_on_reader, on_reader, on_worker
from cablestore.aio.threads import Threads
from cablestore.errors import StoreClosedError
from cablestore.store.queries import Queries, Snapshot
from cablestore.store.results import with_last_message


class AsyncQueries(Mirror):
    """Read methods of a store. Their parameters, results and errors are those of `Queries`."""

    get = on_reader(Queries.get)
    hashes_starting = on_reader(Queries.hashes_starting)
    deletion = on_reader(Queries.deletion)
    dropped = on_reader(Queries.dropped)
    resolve = on_reader(Queries.resolve)
    messages = on_reader(Queries.messages)
    causal_messages = on_reader(Queries.causal_messages)
    mentions = on_reader(Queries.mentions)
    read_state = on_reader(Queries.read_state)
    channels = each_on_reader(Queries.channels, with_last_message)
    find_channel = on_reader(Queries.find_channel)
    joined_channels = each_on_reader(Queries.joined_channels)
    is_member = on_reader(Queries.is_member)
    members = each_on_reader(Queries.members)
    users = each_on_reader(Queries.users)
    users_named = on_reader(Queries.users_named)
    user = on_reader(Queries.user)
    topic = on_reader(Queries.topic)
    posts_by = each_on_reader(Queries.posts_by)
    local_only = each_on_reader(Queries.local_only)
    heads = on_reader(Queries.heads)
    missing = each_on_reader(Queries.missing)
    links = on_reader(Queries.links)
    linking = on_reader(Queries.linking)
    dump = each_on_reader(Queries.dump)
    dump_digest = on_worker(Queries.dump_digest)

    @property
    def cursor(self) -> Coroutine[Any, Any, str]:
        """The cursor of the changes that follow this state, to be awaited."""
        return self._threads.read(lambda: self._blocking.cursor)


class AsyncSnapshot(AsyncQueries):
    """One state of a store, which later writes do not change. Close it, or use it in an `async with`."""

    _blocking: Snapshot

    def __init__(self, blocking: Snapshot, threads: Threads) -> None:
        """Use `AsyncCableStore.snapshot`. In a thread, because it reads."""
        super().__init__(blocking, threads)
        self._last_sequence: Final = blocking.last_sequence

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    events = each_on_reader(Queries.events)

    @property
    def last_sequence(self) -> int:
        """The number of the latest event of the arrival log in this state, 0 before the first."""
        return self._last_sequence

    @property
    def blocking(self) -> Snapshot:
        """The snapshot whose calls block, for functions that take its `reader`. Call them in a thread."""
        return self._blocking

    async def close(self) -> None:
        """Release the state; reads after this raise StoreClosedError."""
        with suppress(StoreClosedError):  # the store was closed, which released the state
            await self._threads.read(self._blocking.close)
