"""Fetching and verifying archives by content id, from nodes with Codex' REST API into a member's folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Final, Self, TypeVar

from cablestore.archive.content.client import ContentClient
from cablestore.archive.content.community import CidFolder
from cablestore.archive.content.dataset import check_disk
from cablestore.archive.errors import NoRoomError, UnreachableError
from cablestore.archive.format.cid import Cid, DatasetHasher, DatasetManifest
from cablestore.archive.remote import ByteProgress
from cablestore.errors import ArchiveError
from cablestore.files import storage_errors
from cablestore.limits import MAX_INDEX_SIZE_BYTES, MAX_STORED_ARCHIVE_SIZE_BYTES, STALL_TIMEOUT_S

_MANIFESTS_AT_ONCE: Final = 8
_CANCELLED: Final = "fetch by content id cancelled: received data is kept"
_T = TypeVar("_T")


class ContentRemote:
    """Archives of a community on nodes that are tried in order.

    Implements `remote.Remote`, with content ids as strings. Use it as a context manager.

    `folder` keeps fetched datasets under their content ids. An interrupted download is resumed, even after the process
    was killed. The nodes may fetch missing data from other nodes. `stall_timeout_s` is the timeout for an unresponsive
    node.
    """

    def __init__(
        self, index: Cid, folder: CidFolder, nodes: Sequence[str], *, stall_timeout_s: float = STALL_TIMEOUT_S
    ) -> None:
        if not nodes:
            raise ArchiveError("cannot fetch by content id: no node given. Add the URL of a node with /api/codex/v1")
        self._index = index
        self._folder = folder
        self._clients = [ContentClient(url, network=True, stall_timeout_s=stall_timeout_s) for url in nodes]
        self._runner = asyncio.Runner()
        self._open = AsyncExitStack()
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False
        self._is_closed = False

    def __enter__(self) -> Self:
        """Create the folder. Do not send requests."""
        self._folder.make()
        self._run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def index(self) -> bytes:
        """Fetch only the index and return it."""
        manifest = self._run(self._manifest(self._index))
        return self._whole(self._index, manifest, MAX_INDEX_SIZE_BYTES)

    def fetch(self, places: Sequence[str], progress: ByteProgress | None = None) -> Iterator[tuple[str, bytes]]:
        """Yield the archives with these content ids, in this order. See `remote.Remote`.

        The manifests, which contain the sizes, are fetched first. Raises NoRoomError if the disk lacks space.
        """
        cids = [Cid.parse(place) for place in places]
        manifests = self._run(self._manifests(cids))
        sizes = {cid: manifest.dataset_size_bytes for cid, manifest in zip(cids, manifests, strict=True)}
        for cid, size_bytes in sizes.items():
            _check_size(cid, size_bytes, MAX_STORED_ARCHIVE_SIZE_BYTES)
        missing = [cid for cid in cids if not self._folder.path_of(cid).exists()]
        with storage_errors(self._folder.path):
            check_disk(self._folder.path, sum(sizes[cid] for cid in missing))
        return self._fetch(list(zip(cids, manifests, strict=True)), progress)

    def cancel(self) -> None:
        """Make running and later calls raise ArchiveError."""
        self._is_cancelled = True
        task = self._task
        if task is not None:
            with suppress(RuntimeError):  # the task's loop may be closed
                task.get_loop().call_soon_threadsafe(task.cancel)

    def close(self) -> None:
        """Close all connections."""
        self._is_cancelled = True
        if not self._is_closed:
            self._is_closed = True
            self._runner.run(self._open.aclose())
            self._runner.close()

    # --- steps of a fetch ------------------------------------------------------------------------

    def _fetch(
        self, wanted: list[tuple[Cid, DatasetManifest]], progress: ByteProgress | None
    ) -> Iterator[tuple[str, bytes]]:
        total_bytes = sum(manifest.dataset_size_bytes for _, manifest in wanted)
        here_bytes = 0
        for cid, manifest in wanted:
            content = self._whole(cid, manifest, MAX_STORED_ARCHIVE_SIZE_BYTES)
            here_bytes += len(content)
            if progress:
                progress(here_bytes, total_bytes)
            yield str(cid), content

    def _whole(self, cid: Cid, manifest: DatasetManifest, limit_bytes: int) -> bytes:
        """Return the bytes of a dataset of at most `limit_bytes`. Fetch them if they are missing or damaged."""
        _check_size(cid, manifest.dataset_size_bytes, limit_bytes)
        content = self._held(cid, manifest)
        if content is None:
            self._run(self._download(cid, manifest))
            content = self._held(cid, manifest)
        if content is None:
            raise ArchiveError(f"data in {self._folder.path} differs from the received data. Check the disk")
        return content

    def _held(self, cid: Cid, manifest: DatasetManifest) -> bytes | None:
        """Return the bytes of a stored dataset, or None if they are missing or do not match `manifest`."""
        content = self._folder.content(cid)
        if not content or len(content) != manifest.dataset_size_bytes:
            return None
        hasher = DatasetHasher()
        hasher.update(content)
        return content if hasher.finish()[0] == manifest.tree else None

    # --- requests to the nodes -------------------------------------------------------------------

    async def _start(self) -> None:
        for client in self._clients:
            await self._open.enter_async_context(client)

    async def _manifests(self, cids: list[Cid]) -> list[DatasetManifest]:
        """Fetch the manifests with these ids, at most 8 at a time, and return them in the same order."""
        turns = asyncio.Semaphore(_MANIFESTS_AT_ONCE)

        async def one(cid: Cid) -> DatasetManifest:
            async with turns:
                return await self._manifest(cid)

        return await asyncio.gather(*map(one, cids))

    async def _manifest(self, cid: Cid) -> DatasetManifest:
        return await self._asked(lambda client: client.manifest(cid))

    async def _download(self, cid: Cid, manifest: DatasetManifest) -> None:
        target = self._folder.path_of(cid)
        await self._asked(lambda client: client.download(cid, target, manifest=manifest))

    async def _asked(self, work: Callable[[ContentClient], Coroutine[Any, Any, _T]]) -> _T:
        """Call `work` with the client of each node in turn until one succeeds, and return its result.

        If all nodes fail, raises the first NoRoomError. If none of the errors is a NoRoomError, raises the last error.
        """
        errors: list[ArchiveError] = []
        for client in self._clients:
            try:
                return await work(client)
            except ArchiveError as error:
                errors.append(error)
        chosen = next((error for error in errors if isinstance(error, NoRoomError)), errors[-1])
        if isinstance(chosen, UnreachableError):
            raise UnreachableError(f"{chosen}. Received data is kept. Try again later, or use another node")
        raise chosen

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` in the caller's thread and return its result. Raises ArchiveError after `cancel`."""
        if self._is_cancelled:
            work.close()
            raise ArchiveError(_CANCELLED)
        try:
            return self._runner.run(self._cancellable(work))
        except asyncio.CancelledError:
            raise ArchiveError(_CANCELLED) from None

    async def _cancellable(self, work: Coroutine[Any, Any, _T]) -> _T:
        self._task = asyncio.current_task()
        try:
            if self._is_cancelled:
                work.close()
                raise ArchiveError(_CANCELLED)
            return await work
        finally:
            self._task = None


def _check_size(cid: Cid, size_bytes: int, limit_bytes: int) -> None:
    """Raise ArchiveError for a dataset that is too large for an index or an archive."""
    if size_bytes > limit_bytes:
        raise ArchiveError(f"dataset too large: {cid} has {size_bytes:,} bytes, the maximum is {limit_bytes:,}")
