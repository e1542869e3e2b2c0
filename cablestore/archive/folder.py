"""The folder of a community's archives: `data`, to which archives are appended, and `index`, which says what counts of it.

    data     archives back to back, whole pieces each
    index    the index, written whole under another name and renamed

An archive counts once the index names it. What lies behind the last one in `data` was begun and not finished: it is cut
off before anything is appended, so that a process that is killed at any instant leaves the archives there were.
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
from cablestore.errors import ArchiveError
from cablestore.files import open_folder, storage_errors, try_lock, write_whole
from cablestore.limits import MAX_INDEX_SIZE_BYTES

DATA: Final = "data"
INDEX: Final = "index"
SCRATCH_PREFIX: Final = "scratch-"
"""Of folders within, for work that is under way while the folder is claimed."""


class ArchiveFolder:
    """The files of one community. Raises StorageError where the disk refuses."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self.data_path: Final = path / DATA
        self.index_path: Final = path / INDEX

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Make the folder if it is not there, and keep other writers out of it. Raises ArchiveError where one is there."""
        with storage_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        with open_folder(self.path) as descriptor:
            if not try_lock(descriptor):
                raise ArchiveError(f"archives are being written to {self.path} by another process: wait for it")
            with storage_errors(self.path):
                for left in self.path.glob(f"{SCRATCH_PREFIX}*"):  # by a writer that was killed: it holds posts
                    shutil.rmtree(left)
            yield

    def is_claimed(self) -> bool:
        """Tell whether somebody writes to the folder. For an instant this keeps writers out: ask seldom."""
        with open_folder(self.path) as descriptor:
            return not try_lock(descriptor, shared=True)

    def state(self) -> tuple[int, ...] | None:
        """Return what changes with every change of `data` or the index, None where one of them is not there."""
        with storage_errors(self.path):
            try:
                data, index = self.data_path.stat(), self.index_path.stat()
            except FileNotFoundError:
                return None
        return data.st_ino, data.st_size, index.st_ino, index.st_size, index.st_mtime_ns

    def index_bytes(self) -> bytes | None:
        """Return the index as it is on the disk, None where nothing was archived yet. Raises ArchiveError for a huge one."""
        with storage_errors(self.index_path):
            if not self.index_path.exists():
                return None
            size_bytes = self.index_path.stat().st_size
            if size_bytes > MAX_INDEX_SIZE_BYTES:
                raise ArchiveError(
                    f"{self.index_path} has {size_bytes:,} bytes, an index at most {MAX_INDEX_SIZE_BYTES:,} "
                    "(MAX_INDEX_SIZE_BYTES): it is none. Fetch it again"
                )
            return self.index_path.read_bytes()

    def data_size_bytes(self) -> int:
        """Return the size of `data`, 0 where there is none."""
        with storage_errors(self.data_path):
            return self.data_path.stat().st_size if self.data_path.exists() else 0

    def stored(self, entry: Entry) -> bytes:
        """Return an archive's bytes. Raises ArchiveError where `data` ends before it does."""
        with storage_errors(self.data_path), self.data_path.open("rb") as file:
            file.seek(entry.offset_bytes)
            stored = file.read(entry.size_bytes)
        if len(stored) != entry.size_bytes:
            raise ArchiveError(
                f"{self.data_path} ends within archive {entry.archive_id}. Fetch it again, or make the archives anew"
            )
        return stored

    def append(self, stored: Sequence[bytes], at_bytes: int) -> None:
        """Write archives behind byte `at_bytes` of `data`, in place of what is there; they are on the disk on return."""
        with storage_errors(self.data_path):
            self.data_path.touch()
            with self.data_path.open("r+b") as file:
                file.truncate(at_bytes)
                file.seek(at_bytes)
                file.writelines(stored)
                file.flush()
                os.fsync(file.fileno())

    def write_index(self, data: bytes) -> None:
        """Put an index in place of the one that is there: from now on what it names counts."""
        write_whole(self.index_path, data)


def end_of(index: Index | None) -> int:
    """Return the byte of `data` behind the last archive of an index."""
    return max((entry.offset_bytes + entry.size_bytes for entry in index.entries), default=0) if index else 0
