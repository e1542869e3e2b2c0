"""Seeding and opening the torrents of communities with libtorrent."""

from __future__ import annotations

import shutil
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import libtorrent as lt

from cablestore import limits
from cablestore.advice import advice
from cablestore.archive.errors import IncompleteError
from cablestore.archive.format.magnet import Magnet, check_community
from cablestore.archive.names import DATA, INDEX
from cablestore.archive.torrent.config import Peer, TorrentConfig, check_peers
from cablestore.archive.torrent.metainfo import (
    Metainfo,
    index_hashes_of,
    make_metainfo,
    read_info,
    read_torrent,
)
from cablestore.archive.torrent.remote import TorrentRemote, private_params, torrent_params
from cablestore.archive.torrent.session import Swarm, TorrentSession
from cablestore.errors import ArchiveError, StorageError
from cablestore.files import atomic_file, make_folder
from cablestore.forks import ProcessBound, bind
from cablestore.plurals import counted

__all__ = ["TorrentConfig", "TorrentEngine", "TorrentRemote", "TorrentStatus"]


@dataclass(frozen=True, slots=True)
class TorrentStatus:
    """State of one community's torrent. Bytes count only payload, since the torrent was added."""

    info_hash: str
    peers: int
    uploaded_bytes: int
    downloaded_bytes: int
    pieces_here: int
    pieces_refused: int
    """Number of pieces that arrived with a wrong SHA-1."""


class TorrentEngine(ProcessBound):
    """Engine with the torrents of this node, one for each community. Use it as a context manager.

        with TorrentEngine(TorrentConfig(enabled=True, data_folder=data, torrent_folder=torrents)) as engine:
            magnet = engine.seed(community)

    Calls for one community must come one at a time. Calls for different communities may run concurrently.
    """

    def __init__(self, config: TorrentConfig) -> None:
        self.config: Final = config
        self._session: TorrentSession | None = None
        self._lock = threading.Lock()
        self._seeds: dict[str, Swarm] = {}
        self._remotes: dict[str, TorrentRemote] = {}
        self._hashes: dict[str, Metainfo] = {}
        """For each seeded community, the metainfo of its folder, whose pieces this engine hashed."""
        bind(self)

    def __enter__(self) -> Self:
        """Start listening. Raises ArchiveError if torrents are not enabled, or if listening fails."""
        if not self.config.enabled:
            raise ArchiveError("torrents are disabled. Set `enabled` in their configuration")
        try:
            for folder in (self.config.data_folder, self.config.torrent_folder):
                make_folder(folder)
        except OSError as error:
            raise ArchiveError(
                f"cannot create {error.filename}: {error.strerror}. Check the parent folder and its permissions"
            ) from None
        self._session = TorrentSession(self.config)
        return self

    def __exit__(self, *_: object) -> None:
        """Close all torrents and end all threads."""
        session, self._session = self._session, None
        if session:
            session.close()

    @property
    def port(self) -> int:
        """Port on which the engine listens."""
        return self._running().port

    def seed(self, community: str, *, is_verified: bool = False) -> str:
        """Seed a community's folder and return its magnet link. This replaces an earlier seed of the community.

        The folder must be complete, and may be read-only. A member that fetched only parts seeds them by keeping its
        remote open. If the torrent file has the same index as the folder, the folder is checked against that file.
        Without such a file, a piece of zeros is treated as missing, unless the caller checked the archives against their
        index (`is_verified`). Pieces that this engine hashed are not hashed again. Raises ArchiveError without changes,
        such as IncompleteError for missing pieces.
        """
        session = self._running()
        metainfo = self._whole(self._hashed(check_community(community)), is_verified=is_verified)
        remote = self._remotes.get(community)
        if remote and not remote.is_closed:
            raise ArchiveError(f"cannot seed {community}: this engine is fetching it. Close the TorrentRemote first")
        with self._lock:
            seeded = self._seeds.get(community)
        if seeded is None or seeded.info_hash != metainfo.info_hash or seeded.ended:
            with suppress(ArchiveError):  # the folder may be read-only or full, and seeding does not need the file
                _put(self._torrent_path(community), metainfo.torrent(self.config.trackers))
            self.unseed(community)
            params = torrent_params(self.config, metainfo.torrent())
            # libtorrent checks the SHA-1 of a piece when it is first requested, and never writes to the folder.
            params.flags |= lt.torrent_flags.seed_mode | lt.torrent_flags.upload_mode
            params.peers = list(self.config.peers)
            swarm = session.add(params, set(range(metainfo.pieces)))
            with self._lock:
                self._seeds[community] = swarm
                self._hashes[community] = metainfo
            # Wait until libtorrent accepts peers. A peer that connects earlier is rejected, and retries only seconds
            # later.
            otherwise = f"libtorrent did not accept the torrent of {community}. Try again"
            session.until(swarm, lambda: swarm.is_checked, self.config.stall_timeout_s, otherwise)
        return str(metainfo.magnet(self.config.trackers))

    def check_seed(self, community: str) -> None:
        """Raise StorageError if a seeded folder could not be read or has changed.

        Raises ArchiveError if the folder is not seeded, or seeding ended for another reason.
        """
        self._running().check()
        swarm = self._seeds.get(community)
        if swarm is None:
            raise ArchiveError(f"{community} is not seeded. Call `seed` first")
        if swarm.is_lost_to_disk or len(swarm.have) < self._hashes[community].pieces:
            lost = swarm.ended or "the files changed since they were hashed"
            raise StorageError(
                f"{self.config.data_folder / community} can no longer be seeded: {lost}. Check the disk, then "
                "seed the archives again"
            )
        if swarm.ended:
            raise ArchiveError(swarm.ended)

    def unseed(self, community: str) -> None:
        """Stop seeding a community's folder, if it is seeded. The files are kept."""
        with self._lock:
            swarm = self._seeds.pop(community, None)
        if swarm:
            self._running().remove(swarm, f"{community} is no longer seeded")

    def open(self, link: str | Path, *, community: str, peers: tuple[Peer, ...] = ()) -> TorrentRemote:
        """Open a community's torrent to fetch from it, by magnet link or by the path of a .torrent file.

        `peers` are used in addition to the configured peers. An open torrent of the community is closed. Pieces in its
        folder that belong to the torrent are kept. Raises ArchiveError, before a file is created, if the torrent does
        not exactly match this community, or if no peer sends its metadata within `config.metadata_timeout_s`.
        """
        session = self._running()
        check_community(community)
        check_peers(peers)
        if community in self._seeds:
            raise ArchiveError(f"nothing to fetch: this engine seeds {community}, so its folder is complete")
        if isinstance(link, str) and link.startswith("magnet:"):
            metainfo = self._by_magnet(Magnet.parse(link), community, peers)
        else:
            metainfo = _read_torrent_file(Path(link), community)
        if earlier := self._remotes.pop(community, None):
            earlier.close()
        _put(self._torrent_path(community), metainfo.torrent(self.config.trackers))
        remote = self._remotes[community] = TorrentRemote(session, self.config, metainfo, peers)
        return remote

    def status(self, community: str) -> TorrentStatus | None:
        """Return the state of a community's torrent, or None if the engine has not added it."""
        seeded, remote = self._seeds.get(community), self._remotes.get(community)
        swarm = seeded or (remote.swarm if remote else None)
        if swarm is None or not swarm.handle.is_valid():
            return None
        status = swarm.handle.status(0)
        return TorrentStatus(
            info_hash=swarm.info_hash,
            peers=status.num_peers,
            uploaded_bytes=status.total_payload_upload,
            downloaded_bytes=status.total_payload_download,
            pieces_here=len(swarm.have),
            pieces_refused=swarm.pieces_refused,
        )

    # --- metainfo ------------------------------------------------------------------------------

    def _hashed(self, community: str) -> Metainfo:
        """Return the metainfo of a community's folder. Pieces that this engine hashed before are not hashed again."""
        folder = self.config.data_folder / community
        earlier = self._hashes.get(community)
        try:
            with (folder / DATA).open("rb") as data, (folder / INDEX).open("rb") as index:
                return make_metainfo(community, data, index, earlier=earlier)
        except OSError as error:
            raise ArchiveError(f"cannot seed {folder}: {error.strerror} ({error.filename})") from None

    def _whole(self, metainfo: Metainfo, *, is_verified: bool) -> Metainfo:
        """Return the metainfo of the torrent file if it has the same index as `metainfo`, otherwise `metainfo`.

        `metainfo` describes the folder. Raises IncompleteError for pieces that differ from the torrent file. Without
        such a file, raises it for pieces of zeros, unless `is_verified`.
        """
        known = self._torrent_of(metainfo.community)
        if known is not None and known.index_hashes == metainfo.index_hashes:
            missing = frozenset(
                piece
                for piece in range(known.data_pieces)
                if piece >= metainfo.data_pieces or metainfo.piece_hash(piece) != known.piece_hash(piece)
            )
            metainfo = known  # an unfinished archive may follow the torrent's data
        else:
            missing = frozenset() if is_verified else metainfo.pieces_of_zeros
        if missing:
            raise IncompleteError(
                f"{len(missing):,} of {counted(metainfo.data_pieces, 'piece')} of {metainfo.community} missing or "
                "damaged in "
                f"{self.config.data_folder}. Fetch all archives before you seed them"
            )
        return metainfo

    def _torrent_of(self, community: str) -> Metainfo | None:
        """Return the metainfo of the torrent file, or None if it is missing or invalid."""
        try:
            return _read_torrent_file(self._torrent_path(community), community)
        except ArchiveError:
            return None

    def _by_magnet(self, magnet: Magnet, community: str, peers: tuple[Peer, ...]) -> Metainfo:
        if magnet.community != community:
            raise ArchiveError(f"wrong magnet link: expected the community {community}, got {magnet.community}")
        known = self._torrent_of(community)
        if known and known.info_hash == magnet.info_hash:
            return known
        # A separate folder, so that foreign metadata cannot affect our files. Its name is fixed, so that the next call
        # removes the folder of a killed process.
        scratch = self.config.torrent_folder / f"{community}.metadata"
        try:
            return read_info(self._fetch_metadata(magnet, peers, str(scratch)), community)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _fetch_metadata(self, magnet: Magnet, peers: tuple[Peer, ...], scratch: str) -> bytes:
        """Fetch the info dictionary of `magnet` from peers and return it. libtorrent checks only its info-hash."""
        session = self._running()
        params: Any = lt.parse_magnet_uri(f"magnet:?xt=urn:btih:{magnet.info_hash}")
        params = private_params(self.config, params)
        params.save_path = scratch
        params.peers = [*peers, *self.config.peers]
        params.flags |= lt.torrent_flags.default_dont_download | lt.torrent_flags.upload_mode
        swarm = session.add(params)
        timeout_s = self.config.metadata_timeout_s
        otherwise = (
            f"no peer sent the metadata of {magnet.community} within {timeout_s:g} s "
            f"({counted(len(params.peers), 'peer')} given). Check that the control node can be reached, or add other peers"
        )
        try:
            session.until(swarm, lambda: swarm.metadata is not None, timeout_s, otherwise)
        except ArchiveError as error:
            raise ArchiveError(f"{error}. {swarm.metadata_refused}".rstrip(". ")) from None
        finally:
            session.remove(swarm, "metadata received")
        return swarm.metadata or b""

    def _torrent_path(self, community: str) -> Path:
        return self.config.torrent_folder / f"{community}.torrent"

    def _running(self) -> TorrentSession:
        if self._session is None:
            raise ArchiveError("the torrent engine is closed. Use it in a `with` block")
        return self._session


def keep_torrent(torrent: Path, folder: Path, community: str) -> None:
    """Copy the torrent file `torrent` of a community to `folder`, the `torrent_folder` of another engine.

    Raises ArchiveError if the file is invalid, or cannot be read or written.
    """
    _put(folder / f"{community}.torrent", _read_torrent_file(torrent, community).torrent())


def has_index_of(magnet: Magnet, folder: Path, torrent_folder: Path) -> bool:
    """Return True if the index below `folder` is the index of the torrent of `magnet`.

    This is decided with the community's torrent file in `torrent_folder`. Return False if a file is missing or invalid.
    """
    try:
        known = _read_torrent_file(torrent_folder / f"{magnet.community}.torrent", magnet.community)
        index = (folder / magnet.community / INDEX).read_bytes()
    except (ArchiveError, OSError):
        return False
    return known.info_hash == magnet.info_hash and known.index_hashes == index_hashes_of(index)


def _read_torrent_file(path: Path, community: str) -> Metainfo:
    try:
        with path.open("rb") as file:
            return read_torrent(file.read(limits.MAX_METAINFO_SIZE_BYTES + 1), community)
    except OSError as error:
        usual = "Check the path and its permissions"
        raise ArchiveError(f"cannot read {path}: {error.strerror}. {advice(error.strerror, usual)}") from None


def _put(path: Path, content: bytes) -> None:
    """Replace a file atomically. Raises ArchiveError if writing fails."""
    try:
        with atomic_file(path, ".new") as file:
            file.write(content)
    except OSError as error:
        usual = "Check the free space on its disk and its permissions"
        raise ArchiveError(f"cannot write {path}: {error.strerror}. {advice(error.strerror, usual)}") from None
