"""Unfinished download: two files beside the target, the received bytes and the leaves to verify them.

    .TREE.part      the received bytes; locked while a download runs
    .TREE.leaves    the SHA-256 of each block, if the node served them

The target appears only after all bytes are verified and synced to the disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Self

from cablestore.archive.content.dataset import check_disk, check_leaves
from cablestore.archive.format.cid import BLOCK_SIZE_BYTES, LEAF_SIZE_BYTES, DatasetHasher, DatasetManifest
from cablestore.errors import ArchiveError
from cablestore.files import storage_errors, sync_folder, try_lock, unlock
from cablestore.forks import ProcessBound, bind, close_released, open_released


class PartialDownload(ProcessBound):
    """Unfinished download to `target`.

    The download is locked while this object is open. Raises ArchiveError if another download of the same bytes to the
    same folder runs, and StorageError if writing fails.
    """

    def __init__(self, target: Path, manifest: DatasetManifest) -> None:
        self._target = target
        self._manifest = manifest
        self._data_path = target.parent / f".{manifest.tree}.part"
        self._leaves_path = target.parent / f".{manifest.tree}.leaves"
        self._hasher = DatasetHasher()
        with storage_errors(target):
            self._data = _locked(self._data_path)
            try:
                self._leaves = open_released(self._leaves_path, os.O_RDWR | os.O_CREAT)
            except BaseException:
                unlock(self._data)
                raise
        self.has_leaves = self._has_good_leaves()
        """True if each block can be verified on arrival."""
        bind(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.has_leaves:
            self._leaves_path.unlink(missing_ok=True)
        if not os.fstat(self._data).st_size:
            self._data_path.unlink(missing_ok=True)
        close_released(self._leaves)
        unlock(self._data)

    # --- leaves ----------------------------------------------------------------------------------

    def add_leaves(self, data: bytes, at_bytes: int) -> None:
        """Write leaves at this offset. Raises ArchiveError for more leaves than the dataset has blocks."""
        expected = self._manifest.block_count * LEAF_SIZE_BYTES
        if at_bytes + len(data) > expected:
            raise ArchiveError(
                f"the node sent more than {expected} bytes of leaves for {self._manifest.tree}. Use another node"
            )
        with storage_errors(self._target):
            os.pwrite(self._leaves, data, at_bytes)

    def check_leaves(self) -> None:
        """Raise ArchiveError unless the added leaves match the dataset."""
        check_leaves(self._read_leaves(), self._manifest.tree, self._manifest.dataset_size_bytes)
        self.has_leaves = True

    def _has_good_leaves(self) -> bool:
        try:
            self.check_leaves()
        except ArchiveError:
            with storage_errors(self._target):
                os.ftruncate(self._leaves, 0)
            return False
        return True

    def _read_leaves(self) -> Iterator[bytes]:
        at = 0
        while len(leaf := os.pread(self._leaves, LEAF_SIZE_BYTES, at)) == LEAF_SIZE_BYTES:
            yield leaf
            at += LEAF_SIZE_BYTES

    def _are_right(self, leaves: bytes, first: int) -> bool:
        """Return True if these leaves match the stored leaves from block `first`, or if no leaves are stored."""
        return not self.has_leaves or os.pread(self._leaves, len(leaves), first * LEAF_SIZE_BYTES) == leaves

    # --- bytes -----------------------------------------------------------------------------------

    def resume(self) -> int:
        """Keep the bytes of an earlier download up to the first wrong or incomplete block, and return their number.

        Raises NoRoomError if the disk lacks space for the remaining bytes.
        """
        size_bytes, at = self._manifest.dataset_size_bytes, 0
        while at < size_bytes:
            wanted = min(BLOCK_SIZE_BYTES, size_bytes - at)
            with storage_errors(self._target):
                block = os.pread(self._data, wanted, at)
            leaf = sha256(block.ljust(BLOCK_SIZE_BYTES, b"\0")).digest()
            if len(block) < wanted or not self._are_right(leaf, at // BLOCK_SIZE_BYTES):
                break
            self._hasher.update(block)
            at += wanted
        with storage_errors(self._target):
            os.ftruncate(self._data, at)
            check_disk(self._target.parent, size_bytes - at)
        return at

    def restart(self) -> None:
        """Discard the received bytes, because the node sends the dataset from its beginning."""
        self._hasher = DatasetHasher()
        with storage_errors(self._target):
            os.ftruncate(self._data, 0)

    @property
    def size_bytes(self) -> int:
        """Number of received bytes."""
        return self._hasher.size_bytes

    def write(self, data: bytes) -> None:
        """Write the next bytes. Raises ArchiveError for too many bytes and, with leaves, for a wrong block."""
        at = self._hasher.size_bytes
        if at + len(data) > self._manifest.dataset_size_bytes:
            raise ArchiveError(
                f"the node sent more than the {self._manifest.dataset_size_bytes} bytes of {self._manifest.tree}. Use "
                "another node"
            )
        leaves = self._hasher.update(data)
        if not self._are_right(leaves, at // BLOCK_SIZE_BYTES):
            raise ArchiveError(f"the node sent wrong bytes for {self._manifest.tree} at offset {at}. Use another node")
        view = memoryview(data)
        with storage_errors(self._target):
            while view:
                written = os.pwrite(self._data, view, at)
                view, at = view[written:], at + written

    def finish(self) -> None:
        """Rename the file of received bytes to the target. Raises ArchiveError if they do not match the dataset."""
        found, expected = self._hasher.size_bytes, self._manifest.dataset_size_bytes
        if found != expected:
            raise ArchiveError(
                f"the node sent only {found} of the {expected} bytes of {self._manifest.tree}. Try again, or use "
                "another node"
            )
        if self._hasher.finish()[0] != self._manifest.tree:
            raise ArchiveError(f"the node sent {found} bytes that do not match {self._manifest.tree}. Use another node")
        with storage_errors(self._target):
            os.fsync(self._data)
            # The leaves are removed first: if the process were killed between both steps, no later download would
            # remove leaves beside a complete target.
            self._leaves_path.unlink(missing_ok=True)
            self._data_path.replace(self._target)
            sync_folder(self._target.parent)

    def remove(self) -> None:
        """Remove both files."""
        with storage_errors(self._target):
            self._data_path.unlink(missing_ok=True)
            self._leaves_path.unlink(missing_ok=True)


def _locked(path: Path) -> int:
    """Open and lock a file. Raises ArchiveError if another download has locked it."""
    file = open_released(path, os.O_RDWR | os.O_CREAT)
    # The download that held the lock may have renamed the file to its target, which must not be overwritten.
    with suppress(FileNotFoundError):
        if try_lock(file) and os.fstat(file).st_ino == path.stat().st_ino:
            return file
    close_released(file)
    raise ArchiveError(f"another download to {path} is running. Wait until it ends")
