"""Checksums of the pages of the index file. SQLite detects damage to its structure, but not to the words in it.

    search.sqlite-sums    "CSUMS001" | size of a page u32 | salt of the log 8 | size of the log u64 | its CRC-32 u32 |
                          CRC-32 of each page u32... | CRC-32 of all before u32                     (all big-endian)

SQLite writes to its log, search.sqlite-wal, and copies pages from the log to the file in a checkpoint. Only the method
`checkpoint` runs checkpoints:

1. Record the size and the CRC-32 of the log in the sums.
2. SQLite copies the pages of the log to the file.
3. Update the sums of the copied pages, and remove the record of the log.
4. SQLite empties the log.

When the file is opened, each page must match its sum. If a process was killed in step 2 and the log matches the record,
its pages are copied again. A log whose salt differs from the salt in the sums belongs to another state, and is removed.
If a log is lost, truncated or from another copy, the index returns to the state before it, or the damage is detected.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final
from zlib import crc32

import apsw

from cablestore.files import atomic_file
from cablestore.index.folder import SEARCH_FILES, SEARCH_INDEX, SEARCH_SUMS

_MAGIC: Final = b"CSUMS001"
_HEADER: Final = struct.Struct(">8sI8sQI")
_SUM: Final = struct.Struct(">I")
_LOG_HEADER_SIZE_BYTES: Final = 32
_FRAME_HEADER_SIZE_BYTES: Final = 24
_SALT: Final = slice(16, 24)
"""Position of the salt in the header of the log: SQLite's "Write-Ahead Log" format."""
_NO_SALT: Final = bytes(8)
_LARGEST_LOG_SIZE_BYTES: Final = 32 * 2**20
"""Size of the log at which a checkpoint is due. At SQLite's default of 4 MB, the sums take a fifth of the build time."""
_READ_AT_ONCE_PAGES: Final = 256


class WrongSumsError(Exception):
    """The index file differs from its sums: a page, the sums or the log is damaged or missing."""


class PageSums:
    """Checksums of the index file in a folder. The file is open in one process, and changes only in checkpoints."""

    def __init__(self, folder: Path) -> None:
        """Use `begin` or `verify`."""
        self._file: Final = folder / SEARCH_INDEX
        self._log: Final = folder / f"{SEARCH_INDEX}-wal"
        self._path: Final = folder / SEARCH_SUMS
        self._page_size_bytes = 4096
        self._sums: list[int] = []
        self._salt = _NO_SALT
        self._seen: tuple[int, int, int] | None = None
        """Inode, size and modification time of the index file when its sums were last written or verified."""

    # --- opening -------------------------------------------------------------------------------

    def verify(self, *, read_only: bool = False) -> None:
        """Compare each page with its sum, before SQLite opens the file. Remove a log that does not belong to the file.

        Pages that SQLite will copy from the log again are not compared. With `read_only`, the log is not removed, and
        all pages are compared. Raises WrongSumsError if a sum does not match, and OSError if a file cannot be read.
        """
        log_size_bytes, log_sum = self._read()
        is_named = log_size_bytes > 0 and self._log_sum(log_size_bytes) == log_sum
        copied = set(self._pages_in_log(log_size_bytes)) if is_named and not read_only else set()
        count = self._file.stat().st_size / self._page_size_bytes
        if not copied and count != len(self._sums):
            raise WrongSumsError(f"{self._file} has {count:g} pages, expected {len(self._sums)}")
        checked = [page for page in range(len(self._sums)) if page not in copied]
        for page, found in zip(checked, self._sums_in_file(checked), strict=True):
            if found != self._sums[page]:
                raise WrongSumsError(f"page {page + 1} of {self._file} is damaged")
        is_next = not log_size_bytes and self._salt != _NO_SALT and self._log_salt() == self._salt
        if not (read_only or is_named or is_next):
            for name in set(SEARCH_FILES) - {SEARCH_INDEX, SEARCH_SUMS}:
                self._file.with_name(name).unlink(missing_ok=True)
        self._seen = self._state()

    def _read(self) -> tuple[int, int]:
        """Read the sums. Return size and CRC-32 of the recorded log."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            raise WrongSumsError(f"{self._path} is missing") from None
        body = data[: -_SUM.size]
        if len(data) < _HEADER.size + _SUM.size or _SUM.pack(crc32(body)) != data[-_SUM.size :]:
            raise WrongSumsError(f"{self._path} is damaged")
        magic, self._page_size_bytes, self._salt, log_size_bytes, log_sum = _HEADER.unpack_from(body)
        if magic != _MAGIC or (len(body) - _HEADER.size) % _SUM.size:
            raise WrongSumsError(f"{self._path} was written by another version")
        self._sums = [found for (found,) in _SUM.iter_unpack(body[_HEADER.size :])]
        return log_size_bytes, log_sum

    def require_unchanged(self) -> None:
        """Raise WrongSumsError if the file was replaced or written by another program."""
        if self._seen != self._state():
            raise WrongSumsError(f"{self._file} was changed by another program")

    def _state(self) -> tuple[int, int, int] | None:
        try:
            found = self._file.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    # --- writing -------------------------------------------------------------------------------

    def begin(self, connection: apsw.Connection) -> None:
        """Copy the log of a new index to its file, and create the sums of all pages."""
        self._page_size_bytes = connection.pragma("page_size")
        self._copy(connection, apsw.SQLITE_CHECKPOINT_FULL)
        self._take([])
        self._copy(connection, apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def note_log(self) -> None:
        """After a commit, record which log belongs to the file. Without the record, the next opening removes the log."""
        salt = self._log_salt()
        if salt != self._salt:
            self._salt = salt
            self._write(0, 0, sync=False)

    def is_due(self) -> bool:
        """Return True if the log is so large that a checkpoint is due."""
        return self._log_size_bytes() >= _LARGEST_LOG_SIZE_BYTES

    def checkpoint(self, connection: apsw.Connection) -> None:
        """Copy the pages of the log to the file, and empty the log. Raises OSError and errors of SQLite."""
        size_bytes = self._log_size_bytes()
        if not size_bytes:
            return
        self._write(size_bytes, self._log_sum(size_bytes))
        pages = self._pages_in_log(size_bytes)
        self._copy(connection, apsw.SQLITE_CHECKPOINT_FULL)
        self._take(pages)
        self._copy(connection, apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def remove_empty_log(self) -> None:
        """Remove the log if it is empty. Call this after SQLite closed the index file."""
        if not self._log_size_bytes():
            self._log.unlink(missing_ok=True)

    @staticmethod
    def _copy(connection: apsw.Connection, mode: int) -> None:
        frames, copied = connection.wal_checkpoint(mode=mode)
        if frames != copied:
            raise apsw.BusyError(f"{copied} of {frames} pages were copied")

    def _take(self, copied: list[int]) -> None:
        """Compute the sums of pages that SQLite has just written to the index file, and store them.

        These are the pages `copied` from the log, and the pages that were added at the end of the file.
        """
        before, count = len(self._sums), self._file.stat().st_size // self._page_size_bytes
        self._sums = [*self._sums[:count], *([0] * (count - before))]
        pages = sorted({*(page for page in copied if 0 <= page < count), *range(before, count)})
        for page, found in zip(pages, self._sums_in_file(pages), strict=True):
            self._sums[page] = found
        self._salt = _NO_SALT
        self._write(0, 0)
        self._seen = self._state()

    def _write(self, log_size_bytes: int, log_sum: int, *, sync: bool = True) -> None:
        body = _HEADER.pack(_MAGIC, self._page_size_bytes, self._salt, log_size_bytes, log_sum)
        body += struct.pack(f">{len(self._sums)}I", *self._sums)
        with atomic_file(self._path, sync=sync) as file:
            file.write(body + _SUM.pack(crc32(body)))

    # --- reading -------------------------------------------------------------------------------

    def _sums_in_file(self, pages: list[int]) -> Iterator[int]:
        """Compute and yield the CRC-32 of each of `pages` in the index file. `pages` are numbers from 0, sorted."""
        size = self._page_size_bytes
        with self._file.open("rb", buffering=size * _READ_AT_ONCE_PAGES) as file:
            at = 0
            for page in pages:
                if page != at:
                    file.seek(page * size)
                yield crc32(file.read(size))
                at = page + 1

    def _log_size_bytes(self) -> int:
        try:
            return self._log.stat().st_size
        except FileNotFoundError:
            return 0

    def _log_sum(self, size_bytes: int) -> int:
        """Return the CRC-32 of the first `size_bytes` of the log, 0 if the log is shorter."""
        found = 0
        with suppress(FileNotFoundError), self._log.open("rb") as log:
            if os.fstat(log.fileno()).st_size >= size_bytes:
                while size_bytes:
                    part = log.read(min(size_bytes, 2**20))
                    found = crc32(part, found)
                    size_bytes -= len(part)
        return found

    def _log_salt(self) -> bytes:
        header = b""
        with suppress(FileNotFoundError), self._log.open("rb") as log:
            header = log.read(_LOG_HEADER_SIZE_BYTES)
        return header[_SALT] or _NO_SALT

    def _pages_in_log(self, size_bytes: int) -> list[int]:
        """Return the sorted numbers, from 0, of the pages in the first `size_bytes` of the log.

        Pages of failed transactions may be included. They are harmless: their sums are only computed again.
        """
        pages = set()
        with self._log.open("rb") as log:
            step = _FRAME_HEADER_SIZE_BYTES + self._page_size_bytes
            for at in range(_LOG_HEADER_SIZE_BYTES, size_bytes - step + 1, step):
                (page,) = _SUM.unpack(os.pread(log.fileno(), _SUM.size, at))
                pages.add(page - 1)
        return sorted(pages)
