"""Fetching datasets that a content endpoint lacks from upstream nodes, which are tried in order."""

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
from cablestore.plurals import counted

_LOG: Final = logging.getLogger("cablestore.content")


class Upstream:
    """Upstream nodes of a content store. Call `start` first and `stop` last, in one event loop."""

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
        """Cancel all fetches. Their data is discarded."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._open.aclose()

    async def manifest(self, cid: Cid, *, is_asked_by_node: bool = False) -> DatasetManifest:
        """Return a manifest of the store or of an upstream node.

        A node's request is answered only from the store, to avoid request loops between nodes that use each other as
        upstream. Raises ArchiveError, such as NoSuchContentError if no node returns the manifest.
        """
        if is_asked_by_node or self._store.exists(cid):
            return self._store.manifest(cid)
        for client in self._clients:
            try:
                return await client.manifest(cid)
            except ArchiveError as error:
                self._log_failure(client, cid, error)
        return self._store.manifest(cid)

    async def fetch(self, cid: Cid, *, is_asked_by_node: bool = False) -> None:
        """Fetch a missing dataset into the store. Do nothing with `is_asked_by_node` or without upstream nodes.

        Raises NoSuchContentError, NoRoomError, and StorageError.
        """
        if not self._store.exists(cid) and not is_asked_by_node and self._clients:
            await asyncio.shield(self.begin(cid))

    def begin(self, cid: Cid) -> asyncio.Task[DatasetManifest]:
        """Return the task that fetches a dataset; start it if necessary. Raises NoRoomError if too many tasks run."""
        if cid in self._running:
            return self._running[cid]
        if len(self._running) >= limits.MAX_CONTENT_FETCHES:
            raise NoRoomError(
                f"too many fetches: {counted(len(self._running), 'dataset')} in progress. Try again later"
            )
        task = asyncio.get_running_loop().create_task(self._fetch(cid))
        self._running[cid] = task
        task.add_done_callback(lambda _: self._end(cid))
        return task

    def _end(self, cid: Cid) -> None:
        task = self._running.pop(cid)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.warning("dataset not fetched", extra={"cid": str(cid), "reason": str(error)})

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
                    self._log_failure(client, cid, error)
        # Raised last: the claim of one node may be false, and another node may have the dataset.
        if no_room is not None:
            raise no_room
        raise NoSuchContentError(f"dataset {cid} not found in the content store or on an upstream node")

    def _log_failure(self, client: ContentClient, cid: Cid, error: ArchiveError) -> None:
        _LOG.info(
            "fetch from an upstream node failed", extra={"node": client.url, "cid": str(cid), "reason": str(error)}
        )
