"""Folder of a community: `data`, to which archives are appended, and `index`, which lists the valid archives.

data     concatenated archives, each padded to whole pieces
index    the index, replaced atomically by renaming

An archive is valid when the index lists it. Bytes in `data` after the last valid archive come from an unfinished
append. The next append truncates them. Therefore a process that is killed at any time leaves the earlier archives
intact.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cablestore.archive.format.index import Index
from cablestore.archive.format.profile import Entry
from cablestore.archive.names import DATA, INDEX
from cablestore.errors import ArchiveError
from cablestore.files import (
    ObjectFolder,
    create,
    folder_of,
    make_folder,
    open_folder,
    restrict,
    storage_errors,
    try_lock,
    write_atomically,
)
from cablestore.forks import released_in_child
from cablestore.limits import MAX_INDEX_SIZE_BYTES

SCRATCH_PREFIX: Final = "scratch-"
"""Prefix of temporary folders that a writer uses while it has claimed the folder."""


class ArchiveReader:
    """Reader of the files of one community, on this disk or in an object store.

    Methods raise StorageError if reading fails.
    """

    def __init__(self, folder: ObjectFolder) -> None:
        self.folder: Final = folder

    def index_bytes(self) -> bytes | None:
        """Return the bytes of the index, or None if the index is missing.

        Raises ArchiveError for a file that is too large for an index.
        """
        try:
            with storage_errors(self.folder.file(INDEX)), self.folder.open(INDEX) as file:
                size_bytes = file.seek(0, os.SEEK_END)
                if size_bytes > MAX_INDEX_SIZE_BYTES:
                    raise ArchiveError(
                        f"index too large: {self.folder.file(INDEX)} has {size_bytes:,} bytes, the maximum is "
                        f"{MAX_INDEX_SIZE_BYTES:,} (MAX_INDEX_SIZE_BYTES). Fetch it again"
                    )
                file.seek(0)
                return file.read()
        except FileNotFoundError:
            return None

    def stored(self, entry: Entry) -> bytes:
        """Return an archive's bytes. Raises ArchiveError if `data` ends before the end of the archive."""
        with storage_errors(self.folder.file(DATA)), self.folder.open_parts(DATA) as file:
            file.seek(entry.offset_bytes)
            stored = file.read(entry.size_bytes)
        if len(stored) != entry.size_bytes:
            raise ArchiveError(
                f"{self.folder.file(DATA)} is truncated within archive {entry.archive_id}. Fetch it again, or create "
                "the archives again from scratch"
            )
        return stored


class ArchiveFolder(ArchiveReader):
    """Files of one community on this disk. Methods raise StorageError if reading or writing fails."""

    def __init__(self, path: Path) -> None:
        super().__init__(folder_of(path))
        self.path: Final = path
        self.data_path: Final = path / DATA
        self.index_path: Final = path / INDEX

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Create the folder if necessary, and lock out other writers.

        Raises ArchiveError if there is another writer.
        """
        with storage_errors(self.path):
            make_folder(self.path)
        with open_folder(self.path) as descriptor:
            if not try_lock(descriptor):
                raise ArchiveError(f"another process is writing archives to {self.path}. Wait until it ends")
            with storage_errors(self.path):
                restrict(self.path, {DATA, INDEX}.__contains__, notify=self.index_path.exists())
                for left in self.path.glob(f"{SCRATCH_PREFIX}*"):  # left by a killed writer, and contains posts
                    shutil.rmtree(left)
            yield

    def is_claimed(self) -> bool:
        """Return True if a writer has claimed the folder. The call itself briefly locks out writers."""
        with open_folder(self.path) as descriptor:
            return not try_lock(descriptor, shared=True)

    def state(self) -> tuple[int, ...] | None:
        """Return numbers that change with each change of `data` or the index, or None if either file is missing."""
        with storage_errors(self.path):
            try:
                data, index = self.data_path.stat(), self.index_path.stat()
            except FileNotFoundError:
                return None
        return data.st_ino, data.st_size, index.st_ino, index.st_size, index.st_mtime_ns

    def data_size_bytes(self) -> int:
        """Return the size of `data`, or 0 if it is missing."""
        with storage_errors(self.data_path):
            return self.data_path.stat().st_size if self.data_path.exists() else 0

    def append(self, stored: Sequence[bytes], at_bytes: int) -> None:
        """Write archives to `data` from byte `at_bytes`, replacing later bytes, and sync them to the disk."""
        with storage_errors(self.data_path):
            os.close(create(str(self.data_path), os.O_WRONLY | os.O_CREAT))
            with self.data_path.open("r+b") as file, released_in_child(file.fileno()):
                file.truncate(at_bytes)
                file.seek(at_bytes)
                file.writelines(stored)
                file.flush()
                os.fsync(file.fileno())

    def write_index(self, data: bytes) -> None:
        """Replace the index."""
        write_atomically(self.index_path, data)


def end_of(index: Index | None) -> int:
    """Return the offset in `data` after the last archive of an index."""
    return max((entry.offset_bytes + entry.size_bytes for entry in index.entries), default=0) if index else 0
