"""Torrents of communities: the metainfo of a folder of `data` and `index` (BEP 3).

    info = {"files": [{"length", "path": ["data"]}, {"length", "path": ["index"]}], "name": community,
            "piece length": 102400, "pieces": SHA-1 of each piece of data + index}

`data` consists of whole pieces. Therefore the index begins with a new piece, and appending to `data` does not change
earlier pieces. A dictionary with more keys is rejected, so equal content always has the same info-hash. libtorrent can
load torrents with this piece size but cannot create them. Therefore this module builds the dictionary, and libtorrent
only encodes it.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import libtorrent as lt

from cablestore import limits
from cablestore.archive.format.magnet import Magnet, check_community, check_tracker
from cablestore.archive.names import DATA, INDEX
from cablestore.errors import ArchiveError

_DIGEST_SIZE_BYTES: Final = 20
_INFO_KEYS: Final = (b"files", b"name", b"piece length", b"pieces")


@dataclass(frozen=True, slots=True)
class Metainfo:
    """Metainfo of a community's folder. `make_metainfo`, `read_info` and `read_torrent` create and check it."""

    community: str
    """Name of the folder, in hex digits."""
    data_size_bytes: int
    index_size_bytes: int
    piece_hashes: bytes
    """SHA-1 of each piece, 20 bytes each: first the pieces of `data`, then the pieces of the index."""

    @property
    def size_bytes(self) -> int:
        """Size of both files."""
        return self.data_size_bytes + self.index_size_bytes

    @property
    def data_pieces(self) -> int:
        """Number of pieces of `data`. The pieces of the index follow."""
        return self.data_size_bytes // limits.PIECE_SIZE_BYTES

    @property
    def pieces(self) -> int:
        """Number of all pieces."""
        return len(self.piece_hashes) // _DIGEST_SIZE_BYTES

    def piece_hash(self, piece: int) -> bytes:
        """Return the SHA-1 of a piece, 20 bytes. Pieces count from 0."""
        return self.piece_hashes[piece * _DIGEST_SIZE_BYTES : (piece + 1) * _DIGEST_SIZE_BYTES]

    def piece_size_bytes(self, piece: int) -> int:
        """Return the size of a piece. Only the last piece may be shorter."""
        return min(limits.PIECE_SIZE_BYTES, self.size_bytes - piece * limits.PIECE_SIZE_BYTES)

    @property
    def index_hashes(self) -> tuple[int, bytes]:
        """Identity of the index: its size in bytes, and the SHA-1 of its pieces."""
        return self.index_size_bytes, self.piece_hashes[self.data_pieces * _DIGEST_SIZE_BYTES :]

    @property
    def pieces_of_zeros(self) -> frozenset[int]:
        """Numbers of the pieces of `data` that contain only zeros: holes of archives that were not fetched."""
        nothing = piece_sha1(bytes(limits.PIECE_SIZE_BYTES))
        return frozenset(piece for piece in range(self.data_pieces) if self.piece_hash(piece) == nothing)

    @property
    def info(self) -> bytes:
        """Encoded info dictionary."""
        return _encoded(self._info())

    @property
    def info_hash(self) -> str:
        """Name of the torrent: the SHA-1 of `info`, 40 hex digits."""
        return piece_sha1(self.info).hex()

    def torrent(self, trackers: tuple[str, ...] = ()) -> bytes:
        """Return a .torrent file, with each tracker in a separate tier (BEP 12).

        Raises ArchiveError for an invalid tracker URL.
        """
        document: dict[bytes, Any] = {b"info": self._info()}
        if trackers:
            urls = [check_tracker(url).encode() for url in trackers]
            document |= {b"announce": urls[0], b"announce-list": [[url] for url in urls]}
        return _encoded(document)

    def magnet(self, trackers: tuple[str, ...] = ()) -> Magnet:
        """Return the magnet link of this torrent."""
        return Magnet(self.info_hash, self.community, tuple(map(check_tracker, trackers)))

    def _info(self) -> dict[bytes, Any]:
        files = [(DATA, self.data_size_bytes), (INDEX, self.index_size_bytes)]
        return {
            b"files": [{b"length": size_bytes, b"path": [name.encode()]} for name, size_bytes in files],
            b"name": self.community.encode(),
            b"piece length": limits.PIECE_SIZE_BYTES,
            b"pieces": self.piece_hashes,
        }


def make_metainfo(community: str, data: BinaryIO, index: BinaryIO, *, earlier: Metainfo | None = None) -> Metainfo:
    """Hash a community's two files, which must be open for reading and seekable.

    `earlier` is the metainfo of the folder before archives were appended to `data`. If the last piece of `data` in
    `earlier` is still the same, the pieces before it are not hashed again. Raises ArchiveError for invalid sizes.
    """
    data_size_bytes, index_size_bytes = data.seek(0, io.SEEK_END), index.seek(0, io.SEEK_END)
    _check_sizes(data_size_bytes, index_size_bytes)
    known = _known_hashes(earlier, data, data_size_bytes) if earlier and earlier.community == community else b""
    data.seek(len(known) // _DIGEST_SIZE_BYTES * limits.PIECE_SIZE_BYTES)
    index.seek(0)
    hashes = known + _piece_hashes(data) + _piece_hashes(index)
    metainfo = Metainfo(check_community(community), data_size_bytes, index_size_bytes, hashes)
    _check_pieces(metainfo)
    return metainfo


def index_hashes_of(index: bytes) -> tuple[int, bytes]:
    """Return the `Metainfo.index_hashes` of a folder with this index."""
    return len(index), _piece_hashes(io.BytesIO(index))


def read_torrent(raw: bytes, community: str) -> Metainfo:
    """Parse a .torrent file of this community from any source. Only its info dictionary is used.

    Raises ArchiveError unless it is exactly the torrent of a folder of `data` and `index`.
    """
    document = _decoded(raw)
    if not isinstance(document, dict) or not isinstance(document.get(b"info"), dict):
        raise ArchiveError("invalid torrent: expected a dictionary with an info dictionary")
    return _read(document[b"info"], community)


def read_info(raw: bytes, community: str) -> Metainfo:
    """Parse the info dictionary that peers send for a magnet link. Raises ArchiveError as `read_torrent` does."""
    return _read(_decoded(raw), community)


def piece_sha1(piece: bytes) -> bytes:
    """Return the SHA-1 of a piece, 20 bytes, as in BitTorrent v1. Trust in an archive must not depend on it."""
    return hashlib.sha1(piece, usedforsecurity=False).digest()


def _read(info: object, community: str) -> Metainfo:
    if not isinstance(info, dict) or sorted(info) != sorted(_INFO_KEYS):
        found = ", ".join(repr(key)[1:] for key in sorted(info)[:8]) if isinstance(info, dict) else type(info).__name__
        raise ArchiveError(f"invalid torrent: expected exactly 'files', 'name', 'piece length', 'pieces', got {found}")
    if info[b"name"] != check_community(community).encode():
        raise ArchiveError(f"wrong torrent: expected the community {community}, got {_shown(info[b'name'])}")
    if info[b"piece length"] != limits.PIECE_SIZE_BYTES:
        raise ArchiveError(
            f"invalid torrent: expected pieces of {limits.PIECE_SIZE_BYTES} bytes, got {_shown(info[b'piece length'])}"
        )
    data_size_bytes, index_size_bytes = _read_files(info[b"files"])
    _check_sizes(data_size_bytes, index_size_bytes)
    if not isinstance(info[b"pieces"], bytes):
        raise ArchiveError("invalid torrent: expected a byte string with 20 bytes per piece as 'pieces'")
    metainfo = Metainfo(community, data_size_bytes, index_size_bytes, info[b"pieces"])
    _check_pieces(metainfo)
    return metainfo


def _read_files(files: object) -> tuple[int, int]:
    """Return the sizes of data and index. Raises ArchiveError for other files and for further fields of a file."""
    match files:
        case [
            {b"length": int(data_size_bytes), b"path": [b"data"], **more_of_data},
            {b"length": int(index_size_bytes), b"path": [b"index"], **more_of_index},
        ]:
            if not more_of_data and not more_of_index:
                return data_size_bytes, index_size_bytes
    raise ArchiveError(
        f"invalid torrent: expected the files data and index in this order, each with only a length and a path, got "
        f"{_shown(files)}"
    )


def _check_sizes(data_size_bytes: int, index_size_bytes: int) -> None:
    piece_size_bytes = limits.PIECE_SIZE_BYTES
    if data_size_bytes <= 0 or data_size_bytes % piece_size_bytes:
        raise ArchiveError(
            f"invalid size of data: expected whole pieces of {piece_size_bytes:,} bytes, got {data_size_bytes:,} bytes"
        )
    if not 0 < index_size_bytes <= limits.MAX_INDEX_SIZE_BYTES:
        raise ArchiveError(
            f"invalid size of an index: expected 1 to {limits.MAX_INDEX_SIZE_BYTES:,} bytes (MAX_INDEX_SIZE_BYTES), "
            f"got {index_size_bytes:,}"
        )
    if data_size_bytes + index_size_bytes > limits.MAX_TORRENT_SIZE_BYTES:
        raise ArchiveError(
            f"torrent too large: {data_size_bytes + index_size_bytes:,} bytes, the maximum is "
            f"{limits.MAX_TORRENT_SIZE_BYTES:,} (MAX_TORRENT_SIZE_BYTES)"
        )


def _check_pieces(metainfo: Metainfo) -> None:
    """Raise ArchiveError unless there is one hash for each piece.

    The size of a file may have changed while it was hashed.
    """
    pieces = -(-metainfo.size_bytes // limits.PIECE_SIZE_BYTES)
    if len(metainfo.piece_hashes) != pieces * _DIGEST_SIZE_BYTES:
        raise ArchiveError(
            f"invalid piece hashes: expected {pieces * _DIGEST_SIZE_BYTES:,} bytes, 20 per piece, for "
            f"{metainfo.size_bytes:,} bytes of files, got {len(metainfo.piece_hashes):,}"
        )


def _known_hashes(earlier: Metainfo, data: BinaryIO, data_size_bytes: int) -> bytes:
    """Return the hashes of the pieces of `data` in `earlier`, or b"" if the last of them has changed or is missing."""
    if earlier.data_size_bytes > data_size_bytes:
        return b""
    data.seek(earlier.data_size_bytes - limits.PIECE_SIZE_BYTES)
    if piece_sha1(data.read(limits.PIECE_SIZE_BYTES)) != earlier.piece_hash(earlier.data_pieces - 1):
        return b""
    return earlier.piece_hashes[: earlier.data_pieces * _DIGEST_SIZE_BYTES]


def _piece_hashes(stream: BinaryIO) -> bytes:
    hashes = []
    while piece := stream.read(limits.PIECE_SIZE_BYTES):
        hashes.append(piece_sha1(piece))
    return b"".join(hashes)


def _encoded(document: dict[bytes, Any]) -> bytes:
    return bytes(lt.bencode(document))


def _decoded(raw: bytes) -> object:
    """Decode a document in its canonical encoding: sorted, distinct keys, plain numbers, and no bytes after it."""
    if len(raw) > limits.MAX_METAINFO_SIZE_BYTES:
        raise ArchiveError(
            f"torrent metadata too large: {len(raw):,} bytes, the maximum is {limits.MAX_METAINFO_SIZE_BYTES:,} "
            "(MAX_METAINFO_SIZE_BYTES)"
        )
    try:
        document = lt.bdecode(raw)
    except RuntimeError as error:
        raise ArchiveError(f"invalid torrent: {error}") from None
    if lt.bencode(document) != raw:
        raise ArchiveError("invalid torrent: not in canonical bencoding, or followed by other bytes")
    return document


def _shown(value: object) -> str:
    """Return a foreign value as text, truncated for a message."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
