"""Read methods of a store for asyncio, and snapshots."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, Self

from cablestore.aio.calls import Mirror, each_on_reader, on_reader, on_worker
from cablestore.aio.threads import Threads
from cablestore.errors import StoreClosedError
from cablestore.store.cursor import ChangesCursor
from cablestore.store.queries import Queries, Snapshot
from cablestore.store.results import with_last_message


class AsyncQueries(Mirror):
    """Read methods of a store. Their parameters, results and errors are those of `Queries`."""

    get = on_reader(Queries.get)
    find_hashes = on_reader(Queries.find_hashes)
    deletion = on_reader(Queries.deletion)
    resolve = on_reader(Queries.resolve)
    messages = on_reader(Queries.messages)
    causal_messages = on_reader(Queries.causal_messages)
    mentions = on_reader(Queries.mentions)
    read_state = on_reader(Queries.read_state)
    channels = each_on_reader(Queries.channels, with_last_message)
    find_channel = on_reader(Queries.find_channel)
    members = each_on_reader(Queries.members)
    users = each_on_reader(Queries.users)
    find_users = on_reader(Queries.find_users)
    user = on_reader(Queries.user)
    topic = on_reader(Queries.topic)
    posts_by = each_on_reader(Queries.posts_by)
    heads = on_reader(Queries.heads)
    missing = each_on_reader(Queries.missing)
    links = on_reader(Queries.links)
    dump = each_on_reader(Queries.dump)
    dump_digest = on_worker(Queries.dump_digest)

    rows = on_reader(Queries.rows)
    rows_of = on_reader(Queries.rows_of)
    graph_nodes = on_reader(Queries.graph_nodes)
    channel_graph = on_reader(Queries.channel_graph)
    post_counts = on_reader(Queries.post_counts)

    @property
    def cursor(self) -> Coroutine[Any, Any, ChangesCursor]:
        """Awaitable cursor of the changes that follow this state."""
        return self._threads.read(lambda: self._blocking.cursor)


class AsyncSnapshot(AsyncQueries):
    """Snapshot of a store, which later writes do not change. Close it, or use it in an `async with`."""

    _blocking: Snapshot

    def __init__(self, blocking: Snapshot, threads: Threads) -> None:
        """Use `AsyncCableStore.snapshot`. Created in a thread, because it reads."""
        super().__init__(blocking, threads)
        self._last_sequence: Final = blocking.last_sequence

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    events = each_on_reader(Queries.events)

    @property
    def last_sequence(self) -> int:
        """Number of the latest event of the arrival log in this snapshot, 0 before the first event."""
        return self._last_sequence

    @property
    def blocking(self) -> Snapshot:
        """Underlying snapshot with blocking calls, for functions that accept its `reader`. Call them in a thread."""
        return self._blocking

    async def close(self) -> None:
        """Release the snapshot. Later reads raise StoreClosedError."""
        with suppress(StoreClosedError):  # closing the store has released it
            await self._threads.read(self._blocking.close)
