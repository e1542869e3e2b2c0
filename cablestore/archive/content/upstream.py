"""Fetching datasets that a content endpoint lacks from other nodes with the same API, in turn and verified."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

from cablestore import limits
from cablestore.archive.content.client import ContentClient
from cablestore.archive.content.store import ContentStore
from cablestore.archive.errors import NoRoomError, NoSuchContentError
from cablestore.archive.format.cid import Cid, DatasetManifest
from cablestore.errors import ArchiveError

_LOG: Final = logging.getLogger("cablestore.content")


class Upstream:
    """The upstream nodes of a store. Use it between `start` and `stop`, in one event loop."""

    def __init__(self, store: ContentStore, urls: Sequence[str]) -> None:
        self._store = store
        self._clients = [ContentClient(url, network=True, is_relay=True) for url in urls]
        self._open = AsyncExitStack()
        self._running: dict[Cid, asyncio.Task[DatasetManifest]] = {}

    async def start(self) -> None:
        """Open the clients."""
        for client in self._clients:
            await self._open.enter_async_context(client)

    async def stop(self) -> None:
        """Cancel all fetches. Nothing of them is stored."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._open.aclose()

    async def manifest(self, cid: Cid, *, is_asked_by_node: bool = False) -> DatasetManifest:
        """Return a manifest of the store or of another node. Raises ArchiveError, NoSuchContentError if no node has it.

        A request of a node is answered from the store alone: otherwise two nodes that have each other as upstream would
        ask in a circle.
        """
        if is_asked_by_node or self._store.exists(cid):
            return self._store.manifest(cid)
        for client in self._clients:
            try:
                return await client.manifest(cid)
            except ArchiveError as error:
                self._tell(client, cid, error)
        return self._store.manifest(cid)

    async def fetch(self, cid: Cid, *, is_asked_by_node: bool = False) -> None:
        """Return once the store has a dataset, or no request may be sent for it.

        Raises NoSuchContentError, NoRoomError.
        """
        if not self._store.exists(cid) and not is_asked_by_node and self._clients:
            await asyncio.shield(self.begin(cid))

    def begin(self, cid: Cid) -> asyncio.Task[DatasetManifest]:
        """Fetch a dataset in the background unless it is being fetched. Raises NoRoomError if too many others are."""
        if cid in self._running:
            return self._running[cid]
        if len(self._running) >= limits.MAX_CONTENT_FETCHES:
            raise NoRoomError(f"{len(self._running)} datasets are being fetched: try again later")
        task = asyncio.get_running_loop().create_task(self._fetch(cid))
        self._running[cid] = task
        task.add_done_callback(lambda _: self._end(cid))
        return task

    def _end(self, cid: Cid) -> None:
        task = self._running.pop(cid)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.warning("a dataset was not fetched", extra={"cid": str(cid), "reason": str(error)})

    async def _fetch(self, cid: Cid) -> DatasetManifest:
        if self._store.exists(cid):
            return self._store.manifest(cid)
        no_room: NoRoomError | None = None
        for client in self._clients:
            with self._store.incoming() as incoming:
                try:
                    return await client.fetch_into(cid, incoming)
                except ArchiveError as error:
                    no_room = error if isinstance(error, NoRoomError) else no_room
                    self._tell(client, cid, error)
        if no_room is not None:  # raised last: if a node claimed it, another node might still give the dataset
            raise no_room
        raise NoSuchContentError(f"dataset {cid} not found in the content store, and no upstream node gave it")

    def _tell(self, client: ContentClient, cid: Cid, error: ArchiveError) -> None:
        _LOG.info("an upstream node gave nothing", extra={"node": client.url, "cid": str(cid), "reason": str(error)})
