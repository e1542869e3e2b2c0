"""Fetching a community's archives by a link: first the index, which is verified, then the selected archives.

    with fetching(parse_link(link), folder, control_key, store.dialect, ArchiveSources(peers=peers)) as community:
        entries = wanted(community.verified, imported)
        for entry, found in import_noted(store, community.verified, community.fetch(entries), imported):
            print(entry.period, found.posts)

A verified index replaces the earlier index atomically. Until then, stored files do not change. Stored archives that are
in both indexes are not fetched again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cablestore.archive.content.community import CidFolder
from cablestore.archive.folder import ArchiveFolder
from cablestore.archive.format.announcement import Link
from cablestore.archive.format.cid import Cid
from cablestore.archive.format.index import VerifiedIndex
from cablestore.archive.format.magnet import Magnet
from cablestore.archive.format.profile import Entry
from cablestore.archive.local import LocalArchives, cid_archives, community_folder, torrent_archives
from cablestore.archive.member import verified_by_any_profile
from cablestore.archive.remote import ByteProgress, PlaceT, Remote, Span
from cablestore.errors import ArchiveError
from cablestore.limits import METADATA_TIMEOUT_S, STALL_TIMEOUT_S
from cablestore.protocol.dialect import Dialect

if TYPE_CHECKING:
    from cablestore.archive.torrent.config import TorrentConfig

_INCOMING: Final = "incoming"
"""Folder beside the folders of communities. It contains the unverified index of a torrent."""


@dataclass(frozen=True, slots=True)
class ArchiveSources:
    """Sources of archives: `peers`, `trackers` and `dht` for torrents, and URLs of `nodes` for content ids."""

    peers: tuple[tuple[str, int], ...] = ()
    trackers: tuple[str, ...] = ()
    dht: bool = False
    nodes: tuple[str, ...] = ()
    timeout_s: float | None = None
    """Timeout for an unresponsive peer. None means the limits METADATA_TIMEOUT_S and STALL_TIMEOUT_S."""

    @property
    def are_local(self) -> bool:
        """True if all sources of torrents are on this machine."""
        return not self.dht and not self.trackers and all(_is_loopback(host) for host, _ in self.peers)


@dataclass(frozen=True, slots=True)
class RemoteArchives:
    """Archives of a community on other nodes, with their verified index."""

    verified: VerifiedIndex
    _fetch: Callable[[list[Entry], ByteProgress | None], Iterator[tuple[Entry, bytes]]]

    def fetch(self, entries: list[Entry], progress: ByteProgress | None = None) -> Iterator[tuple[Entry, bytes]]:
        """Yield archives with their unverified bytes, in the given order.

        `progress` is called with the numbers of received bytes and of requested bytes.

        Raises ArchiveError, such as NoRoomError and UnreachableError. Received data is kept for the next call.
        """
        return self._fetch(entries, progress)


@contextmanager
def fetching(
    link: Link, folder: Path, control_key: bytes, dialect: Dialect, sources: ArchiveSources, key: bytes | None = None
) -> Iterator[RemoteArchives]:
    """Fetch the index of a link into a folder of communities, and yield an object that fetches its archives.

    Raises ArchiveError if no source returns the index, or if it is invalid or older than the stored index. Also raises
    ArchiveError if another process writes to the folder.
    """
    work = _FetchTask(folder, control_key, dialect, sources, key)
    by_link = work.by_cid(link) if isinstance(link, Cid) else work.by_torrent(link)
    with ArchiveFolder(work.community_folder).claimed(), by_link as found:
        yield found


@dataclass(frozen=True, slots=True)
class _FetchTask:
    """Arguments of `fetching`. Engines are imported on use, because each needs a separate library."""

    folder: Path
    control_key: bytes
    dialect: Dialect
    sources: ArchiveSources
    key: bytes | None = field(repr=False)

    @property
    def community_folder(self) -> Path:
        return community_folder(self.folder, self.control_key)

    @contextmanager
    def by_torrent(self, magnet: Magnet) -> Iterator[RemoteArchives]:
        """Fetch and verify the index, store it, and yield an object that fetches its archives.

        The index is fetched outside the community's folder, because libtorrent writes data before it is verified.
        """
        from cablestore.archive.torrent.engine import TorrentEngine, keep_torrent  # noqa: PLC0415 - needs libtorrent

        community = self.control_key.hex()
        incoming = self.folder / _INCOMING
        with TorrentEngine(self._config(incoming)) as engine, engine.open(str(magnet), community=community) as remote:
            data, data_size_bytes = remote.index(), remote.metainfo.data_size_bytes
        verified = self._verified(data, data_size_bytes)
        self._check_not_older(verified, torrent_archives)
        # The torrent file is written first, because reading the index needs the file.
        keep_torrent(incoming / f"{community}.torrent", self.folder, community)
        ArchiveFolder(self.community_folder).write_index(data)

        def fetch(entries: list[Entry], progress: ByteProgress | None) -> Iterator[tuple[Entry, bytes]]:
            if not entries:
                return
            torrent = incoming / f"{community}.torrent"
            with (
                TorrentEngine(self._config(self.folder)) as engine,
                engine.open(torrent, community=community) as remote,
            ):
                places = {Span(entry.offset_bytes, entry.size_bytes): entry for entry in entries}
                yield from _fetched(remote, places, progress)

        yield RemoteArchives(verified, fetch)

    @contextmanager
    def by_cid(self, cid: Cid) -> Iterator[RemoteArchives]:
        from cablestore.archive.content.remote import ContentRemote  # noqa: PLC0415 - needs aiohttp

        files = CidFolder(self.community_folder)
        timeout_s = self.sources.timeout_s or STALL_TIMEOUT_S
        with ContentRemote(cid, files, self.sources.nodes, stall_timeout_s=timeout_s) as remote:
            verified = self._verified(remote.index(), None)
            self._check_not_older(verified, cid_archives)
            files.put_index(cid)
            yield RemoteArchives(
                verified,
                lambda entries, progress: _fetched(remote, {entry.cid or "": entry for entry in entries}, progress),
            )

    def _verified(self, data: bytes, data_size_bytes: int | None) -> VerifiedIndex:
        return verified_by_any_profile(
            data, self.control_key, self.dialect, data_size_bytes=data_size_bytes, key=self.key
        )

    def _check_not_older(self, verified: VerifiedIndex, local: _Local) -> None:
        """Raise ArchiveError if the stored index contains all archives of this index and further archives."""
        try:
            here = local(self.folder, self.control_key, self.dialect, self.key)
        except ArchiveError:  # the stored index is damaged or has another key, and is replaced
            return
        if here is not None and verified.commitments.keys() < here.verified.commitments.keys():
            raise ArchiveError(
                f"the index is older than the stored index: it lists only {len(verified.commitments):,} of the "
                f"{len(here.verified.commitments):,} known archives. Use the control node's newest link"
            )

    def _config(self, folder: Path) -> TorrentConfig:
        from cablestore.archive.torrent.engine import TorrentConfig  # noqa: PLC0415 - needs libtorrent

        sources = self.sources
        return TorrentConfig(
            enabled=True,
            port=0,
            listen_address="127.0.0.1" if sources.are_local else "0.0.0.0",  # noqa: S104 - peers are on other machines
            data_folder=folder,
            torrent_folder=folder,
            peers=sources.peers,
            trackers=sources.trackers,
            dht=sources.dht,
            metadata_timeout_s=sources.timeout_s or METADATA_TIMEOUT_S,
            stall_timeout_s=sources.timeout_s or STALL_TIMEOUT_S,
        )


_Local = Callable[[Path, bytes, Dialect, bytes | None], LocalArchives | None]


def _fetched(
    remote: Remote[PlaceT], entries: dict[PlaceT, Entry], progress: ByteProgress | None
) -> Iterator[tuple[Entry, bytes]]:
    """Yield each archive with its bytes when it arrives. `entries` maps places on the remote to archives."""
    if entries:
        for place, stored in remote.fetch([*entries], progress):
            yield entries[place], stored


def _is_loopback(host: str) -> bool:
    """Return True for a loopback address, and for text that is not an address, which the engine rejects."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return True
