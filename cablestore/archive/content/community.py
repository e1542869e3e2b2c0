"""Folder of the datasets that a member fetched by content id: archives, and their index.

content/CONTENT-ID a complete dataset: an archive or an index
content/index      the content id of the current index, written after the index was verified
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cablestore.archive.format.cid import Cid
from cablestore.archive.format.profile import Entry
from cablestore.errors import ArchiveError
from cablestore.files import ObjectFolder, folder_of, make_folder, storage_errors, write_atomically
from cablestore.limits import MAX_STORED_ARCHIVE_SIZE_BYTES

_NAME: Final = "content"
_INDEX: Final = "index"
_MAX_CID_SIZE_BYTES: Final = 100


class CidReader:
    """Reader of the datasets below a community's folder, on this disk or in an object store.

    Methods raise StorageError if reading fails.
    """

    def __init__(self, community: ObjectFolder) -> None:
        self.folder: Final = community.child(_NAME)

    def content(self, cid: Cid) -> bytes | None:
        """Return the unverified bytes of a dataset, or None if it is missing."""
        return self._read(str(cid), MAX_STORED_ARCHIVE_SIZE_BYTES)

    def stored(self, entry: Entry) -> bytes:
        """Return an archive's bytes. Raises ArchiveError if it is missing."""
        found = self.content(Cid.parse(entry.cid or ""))
        if found is None:
            raise ArchiveError(f"archive {entry.archive_id} not found. Fetch the archive first")
        return found

    def index_cid(self) -> Cid | None:
        """Return the content id of the current index, or None if the index is missing.

        Raises ArchiveError for a malformed file.
        """
        found = self._read(_INDEX, _MAX_CID_SIZE_BYTES)
        return None if found is None else Cid.parse(found.decode("ascii", errors="replace").strip())

    def index_bytes(self) -> bytes | None:
        """Return the bytes of the current index, or None if it is missing. Raises the errors of `index_cid`."""
        cid = self.index_cid()
        return None if cid is None else self.content(cid)

    def _read(self, name: str, limit_bytes: int) -> bytes | None:
        """Read a file. Return None if it is missing.

        Of a longer file, returns the first `limit_bytes` + 1 bytes, which the decoder rejects.
        """
        try:
            with storage_errors(self.folder.file(name)), self.folder.open(name) as file:
                return file.read(limit_bytes + 1)
        except FileNotFoundError:
            return None


class CidFolder(CidReader):
    """Datasets below a community's folder on this disk.

    Methods raise StorageError if reading or writing fails.
    """

    def __init__(self, community_folder: Path) -> None:
        super().__init__(folder_of(community_folder))
        self.path: Final = community_folder / _NAME
        self._index_path: Final = self.path / _INDEX

    def make(self) -> None:
        """Create the folder if necessary."""
        with storage_errors(self.path):
            make_folder(self.path)

    def path_of(self, cid: Cid) -> Path:
        """Return the path of a dataset, which may be missing."""
        return self.path / str(cid)

    def size_bytes(self, entry: Entry) -> int | None:
        """Return an archive's size, or None if the archive is missing."""
        path = self.path_of(Cid.parse(entry.cid or ""))
        with storage_errors(path):
            return path.stat().st_size if path.exists() else None

    def put_index(self, cid: Cid) -> None:
        """Make a stored index the current index, and remove the previous index."""
        try:
            earlier = self.index_cid()
        except ArchiveError:  # the file is damaged, and is replaced
            earlier = None
        write_atomically(self._index_path, f"{cid}\n".encode())
        if earlier not in (None, cid):
            with storage_errors(self.path):
                self.path_of(earlier).unlink(missing_ok=True)
