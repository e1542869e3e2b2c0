"""Fetching from a torrent: the index, then the pieces of selected archives, each checked against its SHA-1."""

from __future__ import annotations

import errno
import io
import os
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

import libtorrent as lt

from cablestore import limits
from cablestore.archive.errors import NoRoomError
from cablestore.archive.names import DATA, INDEX
from cablestore.archive.remote import ByteProgress, Span
from cablestore.archive.torrent.config import Peer, TorrentConfig
from cablestore.archive.torrent.metainfo import Metainfo, piece_sha1
from cablestore.archive.torrent.session import Swarm, TorrentSession
from cablestore.closable import Closable
from cablestore.errors import ArchiveError
from cablestore.plurals import counted

_NOT_WANTED, _WANTED, _SOON, _NOW = 0, 4, 6, 7  # priorities of pieces in libtorrent

_POLL_S: Final = 1.0
"""Interval for checking whether libtorrent has abandoned all peers."""
_ATTEMPTS: Final = 3
"""Number of attempts to fetch pieces that cannot be read back from the disk."""


class TorrentRemote(Closable):
    """Torrent of a community, from which parts are fetched. Implements `remote.Remote`, with spans.

    `TorrentEngine.open` creates it. While it is open, it also seeds the fetched pieces.
    """

    def __init__(
        self, session: TorrentSession, config: TorrentConfig, metainfo: Metainfo, peers: tuple[Peer, ...]
    ) -> None:
        self.metainfo: Final = metainfo
        self._session = session
        self._config = config
        self._peers = peers
        self._folder = config.data_folder / metainfo.community
        self._is_cancelled = False
        self.is_closed = False
        """True after `close`."""
        self._cancelled: Final = f"fetch of archives of {metainfo.community} cancelled"
        self.swarm = self._start()
        """Torrent in its session."""

    def index(self) -> bytes:
        """Fetch only the index and return it."""
        pieces = range(self.metainfo.data_pieces, self.metainfo.pieces)
        wanted = _WantedPieces(self, pieces, None)
        try:
            return self._collect(pieces, wanted)
        finally:
            wanted.deselect()

    def fetch(self, places: Sequence[Span], progress: ByteProgress | None = None) -> Iterator[tuple[Span, bytes]]:
        """Yield the bytes of these spans of `data`, in this order. See `remote.Remote`."""
        spans = tuple(places)
        for span in spans:
            self._check(span)
        wanted = _WantedPieces(self, {piece for span in spans for piece in _pieces(span)}, progress)
        return self._fetch(spans, wanted)

    def cancel(self) -> None:
        """Make running and later calls raise ArchiveError."""
        self._is_cancelled = True
        self._session.end(self.swarm, self._cancelled)

    def close(self) -> None:
        """Stop fetching and seeding."""
        self._is_cancelled = self.is_closed = True
        self._session.remove(self.swarm, f"the torrent of {self.metainfo.community} was closed")

    # --- steps of a fetch ------------------------------------------------------------------------

    def _fetch(self, spans: tuple[Span, ...], wanted: _WantedPieces) -> Iterator[tuple[Span, bytes]]:
        try:
            for place, span in enumerate(spans):
                soon = _pieces(spans[place + 1]) if place + 1 < len(spans) else None
                content = self._collect(_pieces(span), wanted, soon)
                begin = span.offset_bytes % limits.PIECE_SIZE_BYTES
                yield span, content[begin : begin + span.size_bytes]
        finally:
            wanted.deselect()

    def _collect(self, pieces: range, wanted: _WantedPieces, soon: range | None = None) -> bytes:
        """Fetch `pieces` and return their bytes. Pieces in `soon` are requested next."""
        for _ in range(_ATTEMPTS):
            self._raise_if_cancelled()
            wanted.want(pieces)
            if soon:
                wanted.hurry(soon, _SOON)
            self._wait(pieces, wanted)
            content = self._read(pieces)
            if content is not None:
                return content
            self._session.remove(self.swarm, "checking the files again")
            self.swarm = self._start()
        raise ArchiveError(f"data in {self._folder} differs from the received data. Check the disk")

    def _wait(self, pieces: range, wanted: _WantedPieces) -> None:
        """Wait until `pieces` are complete. Raises ArchiveError if no valid data arrives within the stall timeout."""
        swarm, stall_s = self.swarm, self._config.stall_timeout_s
        arrived, kept_bytes = len(swarm.arrivals), _kept_bytes(swarm)
        deadline_s = time.monotonic() + stall_s
        seen = swarm.change_count
        while not wanted.is_here(pieces):
            self._session.wait_for_change(swarm, seen, min(_POLL_S, deadline_s - time.monotonic()))
            seen = swarm.change_count
            if not wanted.was_added_again and _has_given_up(swarm):
                swarm = self._add_again(wanted, pieces)
                arrived, kept_bytes, seen = len(swarm.arrivals), 0, swarm.change_count
            if len(swarm.arrivals) > arrived:
                arrived, deadline_s = len(swarm.arrivals), time.monotonic() + stall_s
            elif time.monotonic() >= deadline_s:
                now_bytes = _kept_bytes(swarm)
                if now_bytes <= kept_bytes:
                    raise ArchiveError(self._stalled(swarm.handle.status(0).num_peers))
                kept_bytes, deadline_s = now_bytes, time.monotonic() + stall_s  # a part of a piece arrived: wait again

    def _add_again(self, wanted: _WantedPieces, pieces: range) -> Swarm:
        """Remove the torrent and add it again with its wanted pieces, `pieces` first. Return its new state.

        This reconnects to seeds, which disconnect a peer that requests nothing.
        """
        wanted.was_added_again = True
        self._session.remove(self.swarm, "connecting to its peers again")
        self.swarm = self._start(wanted.missing)
        wanted.want(pieces)
        return self.swarm

    def _stalled(self, peers: int) -> str:
        refused = self.swarm.pieces_refused
        return (
            f"fetch timed out: no piece of {self.metainfo.community} received for {self._config.stall_timeout_s:g} s "
            f"from {counted(peers, 'peer')}"
            + (f"; {counted(refused, 'wrong piece')} rejected, and their senders banned" if refused else "")
            + ". Fetched data is kept. Try again later, or add other peers"
        )

    def _read(self, pieces: range) -> bytes | None:
        """Return the bytes of fetched pieces, or None if they cannot be read back from the disk.

        libtorrent reports a piece before it writes it to the file. Such a piece is read through libtorrent.
        """
        is_index = pieces[0] >= self.metainfo.data_pieces
        name, first = (INDEX, self.metainfo.data_pieces) if is_index else (DATA, 0)
        contents = []
        with _opened(self._folder / name) as file:
            file.seek((pieces[0] - first) * limits.PIECE_SIZE_BYTES)
            for piece in pieces:
                content = file.read(self.metainfo.piece_size_bytes(piece))
                if piece_sha1(content) != self.metainfo.piece_hash(piece):
                    content = self._read_by_libtorrent(piece)
                if not content:
                    return None
                contents.append(content)
        return b"".join(contents)

    def _read_by_libtorrent(self, piece: int) -> bytes:
        swarm = self.swarm
        swarm.pieces_read.pop(piece, None)
        swarm.handle.read_piece(piece)
        otherwise = f"cannot read piece {piece} of {self._folder}: no answer for {self._config.stall_timeout_s:g} s"
        self._session.until(swarm, lambda: piece in swarm.pieces_read, self._config.stall_timeout_s, otherwise)
        content = swarm.pieces_read.pop(piece)
        return content if piece_sha1(content) == self.metainfo.piece_hash(piece) else b""

    def _check(self, span: Span) -> None:
        end_bytes = span.offset_bytes + span.size_bytes
        if span.offset_bytes < 0 or not 0 < span.size_bytes <= limits.MAX_STORED_ARCHIVE_SIZE_BYTES:
            raise ArchiveError(
                f"invalid span {span}: an archive has 1 to {limits.MAX_STORED_ARCHIVE_SIZE_BYTES:,} bytes "
                "(MAX_STORED_ARCHIVE_SIZE_BYTES)"
            )
        if end_bytes > self.metainfo.data_size_bytes:
            raise ArchiveError(f"invalid span {span}: the data has {self.metainfo.data_size_bytes:,} bytes")

    def check_space(self, needed_bytes: int) -> None:
        """Raise NoRoomError if the disk lacks space for this many bytes and the reserve MIN_FREE_DISK_SIZE_BYTES."""
        available_bytes = shutil.disk_usage(self._config.data_folder).free
        reserve_bytes = limits.MIN_FREE_DISK_SIZE_BYTES
        if needed_bytes and needed_bytes + reserve_bytes > available_bytes:
            raise NoRoomError(
                f"not enough disk space in {self._config.data_folder}: {needed_bytes:,} bytes and a reserve of "
                f"{reserve_bytes:,} needed, {available_bytes:,} available. Free disk space, or fetch fewer archives"
            )

    # --- the torrent in its session --------------------------------------------------------------

    def _start(self, wanted: Collection[int] = ()) -> Swarm:
        """Add the torrent to the session, with the pieces in its folder, and request `wanted`. Return its state."""
        try:
            have = held_pieces(self._folder, self.metainfo)
        except OSError as error:
            raise ArchiveError(f"cannot read {self._folder}: {error.strerror}") from None
        self._raise_if_cancelled()
        params = torrent_params(self._config, self.metainfo.torrent())
        params.piece_priorities = [_WANTED if piece in wanted else _NOT_WANTED for piece in range(self.metainfo.pieces)]
        params.peers = [*self._peers, *self._config.peers]
        if have:
            params.have_pieces = [piece in have for piece in range(self.metainfo.pieces)]
        swarm = self._session.add(params, have)
        otherwise = f"cannot check the files in {self._folder}: no answer for {self._config.stall_timeout_s:g} s"
        try:
            self._session.until(swarm, lambda: swarm.is_checked, self._config.stall_timeout_s, otherwise)
        except ArchiveError as error:
            self._session.remove(swarm, str(error))
            raise
        return swarm

    def _raise_if_cancelled(self) -> None:
        if self._is_cancelled:
            raise ArchiveError(self._cancelled)


def _kept_bytes(swarm: Swarm) -> int:
    """Return the number of received payload bytes, not counting rejected pieces."""
    status = swarm.handle.status(0)
    return int(status.total_payload_download - status.total_failed_bytes)


def _has_given_up(swarm: Swarm) -> bool:
    """Return True if libtorrent knows peers but will not connect to any, although no piece was rejected.

    A seed disconnects a peer that requests nothing, as this node does between two fetches. libtorrent then regards the
    seed as useless, and does not reconnect when pieces are requested again.
    """
    status = swarm.handle.status(0)
    is_alone = status.num_peers == 0 and status.connect_candidates == 0
    return bool(is_alone and status.list_peers > 0 and swarm.pieces_refused == 0)


class _WantedPieces:
    """Wanted pieces of one call. It tracks the missing pieces and sets their priorities in libtorrent."""

    def __init__(self, remote: TorrentRemote, pieces: Iterable[int], progress: ByteProgress | None) -> None:
        self._remote = remote
        self._progress = progress
        self._pieces = frozenset(pieces)
        self._total_bytes = self._size_bytes(self._pieces)
        self._swarm: Swarm | None = None
        self.was_added_again = False
        """True if the torrent was added again because libtorrent abandoned its peers."""
        self._count_pieces()

    def _count_pieces(self) -> None:
        swarm = self._remote.swarm
        self._arrivals_seen = len(swarm.arrivals)
        self.missing = set(self._pieces - swarm.have)
        self._missing_bytes = self._size_bytes(self.missing)
        self._remote.check_space(self._missing_bytes)

    def want(self, pieces: range) -> None:
        """Request `pieces` first, then all other wanted pieces."""
        if self._swarm is self._remote.swarm:
            self.hurry(pieces, _NOW)
            return
        self._swarm = self._remote.swarm  # the torrent was just added, without wanted pieces
        self._count_pieces()
        now = self.missing.intersection(pieces)
        self._prioritize({piece: _NOW if piece in now else _WANTED for piece in self.missing})

    def hurry(self, pieces: range, priority: int) -> None:
        """Request the missing pieces among `pieces` with this priority."""
        self._prioritize(dict.fromkeys(self.missing.intersection(pieces), priority))

    def is_here(self, pieces: range) -> bool:
        """Count the received pieces and report progress. Return True if all of `pieces` are complete."""
        arrived = self._remote.swarm.arrivals[self._arrivals_seen :]
        # Another thread may append to the list meanwhile, so its length is not used.
        self._arrivals_seen += len(arrived)
        new = self.missing.intersection(arrived)
        self.missing -= new
        self._missing_bytes -= self._size_bytes(new)
        if self._progress:
            self._progress(self._total_bytes - self._missing_bytes, self._total_bytes)
        return self.missing.isdisjoint(pieces)

    def deselect(self) -> None:
        """Stop fetching the missing pieces."""
        with suppress(RuntimeError):  # the torrent may be removed
            self._prioritize(dict.fromkeys(self.missing, _NOT_WANTED))

    def _prioritize(self, priorities: dict[int, int]) -> None:
        if priorities:
            self._remote.swarm.handle.prioritize_pieces(sorted(priorities.items()))

    def _size_bytes(self, pieces: Iterable[int]) -> int:
        return sum(map(self._remote.metainfo.piece_size_bytes, pieces))


def torrent_params(config: TorrentConfig, torrent: bytes) -> Any:
    """Return the session parameters of our own torrent, with only the configured ways to find peers."""
    params = lt.load_torrent_buffer(torrent)
    return private_params(config, params)


def private_params(config: TorrentConfig, params: Any) -> Any:
    """Disable unconfigured ways to find peers, and libtorrent's queueing, in the parameters of a torrent or link."""
    flags = lt.torrent_flags
    params.save_path = str(config.data_folder)
    params.trackers = list(config.trackers)
    params.flags &= ~(flags.auto_managed | flags.paused)
    if not config.is_public:
        params.flags |= flags.disable_dht | flags.disable_lsd | flags.disable_pex
    return params


def held_pieces(folder: Path, metainfo: Metainfo) -> set[int]:
    """Return the pieces in a community's folder with a correct SHA-1.

    Holes of a file that was fetched in parts are skipped; libtorrent's check would read them as zeros. An index that is
    longer than the torrent's is truncated.
    """
    have = _held_in(folder / DATA, metainfo, range(metainfo.data_pieces))
    index = folder / INDEX
    if index.exists() and index.stat().st_size > metainfo.index_size_bytes:
        os.truncate(index, metainfo.index_size_bytes)
    return have | _held_in(index, metainfo, range(metainfo.data_pieces, metainfo.pieces))


def _held_in(path: Path, metainfo: Metainfo, pieces: range) -> set[int]:
    have: set[int] = set()
    if not path.exists():
        return have
    with path.open("rb") as file:
        place = 0
        while place < len(pieces) and (place := _next_written(file.fileno(), place)) < len(pieces):
            file.seek(place * limits.PIECE_SIZE_BYTES)
            piece = pieces[place]
            if piece_sha1(file.read(metainfo.piece_size_bytes(piece))) == metainfo.piece_hash(piece):
                have.add(piece)
            place += 1
    return have


def _opened(path: Path) -> BinaryIO:
    """Open a file for reading, or an empty stream if it is missing. Raises ArchiveError if it cannot be opened."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        return io.BytesIO()
    except OSError as error:
        raise ArchiveError(f"cannot read {path}: {error.strerror}") from None


def _next_written(descriptor: int, place: int) -> int:
    """Return the number of the first piece from `place` on that is not a hole, or a number greater than any piece's.

    Pieces count from 0 at the beginning of the file.
    """
    try:
        return os.lseek(descriptor, place * limits.PIECE_SIZE_BYTES, os.SEEK_DATA) // limits.PIECE_SIZE_BYTES
    except OSError as error:
        if error.errno != errno.ENXIO:  # no data after this offset
            raise
        return limits.MAX_TORRENT_SIZE_BYTES


def _pieces(span: Span) -> range:
    end_bytes = span.offset_bytes + span.size_bytes
    return range(span.offset_bytes // limits.PIECE_SIZE_BYTES, -(-end_bytes // limits.PIECE_SIZE_BYTES))
