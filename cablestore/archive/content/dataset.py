"""Files of a dataset: its bytes, and the leaf of each block. Writing hashes the bytes, reading verifies them.

The leaves, 32 bytes for each 64 KiB, are verified against the tree's id. Then each block is verified against its leaf
before any of its bytes are returned.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final

from cablestore import limits
from cablestore.archive.errors import NoRoomError
from cablestore.archive.format.cid import (
    BLOCK_SIZE_BYTES,
    CODEC_TREE,
    LEAF_SIZE_BYTES,
    Cid,
    DatasetHasher,
    RootHasher,
    block_count_of,
)
from cablestore.closable import Closable
from cablestore.errors import ArchiveError, StorageError
from cablestore.files import file_mode
from cablestore.forks import close_released, open_released

PART_SIZE_BYTES: Final = 16 * BLOCK_SIZE_BYTES
"""Bytes read, hashed or written at a time."""
_PART_LEAVES_SIZE_BYTES: Final = 4096 * LEAF_SIZE_BYTES


class DatasetWriter:
    """Writer of a dataset's two files. After `finish` they are complete and synced to the disk."""

    def __init__(self, data: Path, leaves: Path) -> None:
        self._hasher = DatasetHasher()
        self._data = _create(data)
        try:
            self._leaves = _create(leaves)
        except BaseException:
            _close(self._data)
            data.unlink()
            raise

    @property
    def size_bytes(self) -> int:
        """Number of written bytes."""
        return self._hasher.size_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes. Raises OSError if writing fails."""
        self._leaves.write(self._hasher.update(data))
        self._data.write(data)

    def finish(self) -> Cid:
        """Sync the files to the disk and return the tree's id. Raises ArchiveError if no bytes were written."""
        tree, leaf = self._hasher.finish()
        self._leaves.write(leaf)
        for file in (self._data, self._leaves):
            file.flush()
            os.fsync(file.fileno())
        self.close()
        return tree

    def close(self) -> None:
        """Close the files without finishing them."""
        try:
            _close(self._data)
        finally:
            _close(self._leaves)


def _create(path: Path) -> BinaryIO:
    return os.fdopen(
        open_released(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, file_mode(path.parent)), "wb", closefd=False
    )


def _close(file: BinaryIO) -> None:
    if not file.closed:
        descriptor = file.fileno()
        try:
            file.close()
        finally:
            close_released(descriptor)


class DatasetReader(Closable):
    """Reader of a dataset's bytes from `start`. It verifies each block before it returns it.

    The file may have more or fewer zeros at its end than the dataset. Datasets that differ only in these zeros have the
    same tree and share a file.

    The constructor and `read` raise ArchiveError for files that do not match the tree's id.
    """

    def __init__(self, data: Path, leaves: Path, tree: Cid, size_bytes: int, start: int = 0) -> None:
        self._tree = tree
        self._size_bytes = size_bytes
        self._at = start
        self._leaves_at_bytes = 0
        self._data = _open(data, tree)
        try:
            self._leaves = _open(leaves, tree)
        except ArchiveError:
            self._data.close()
            raise
        try:
            check_leaves(self._all_leaves(), tree, size_bytes)
            self._leaves_at_bytes = 0
        except ArchiveError:
            self.close()
            raise

    def _all_leaves(self) -> Iterator[bytes]:
        while part := self.read_leaves():
            yield from (part[i : i + LEAF_SIZE_BYTES] for i in range(0, len(part), LEAF_SIZE_BYTES))

    @property
    def leaves_size_bytes(self) -> int:
        """Size of all leaves."""
        return block_count_of(self._size_bytes) * LEAF_SIZE_BYTES

    def read_leaves(self) -> bytes:
        """Return up to 128 KiB of further leaves, or b"" at the end."""
        self._leaves.seek(self._leaves_at_bytes)
        part = _read(self._leaves, _PART_LEAVES_SIZE_BYTES)
        self._leaves_at_bytes += len(part)
        return part

    def read(self) -> bytes:
        """Return up to 1 MiB of further bytes, or b"" at the end. Raises ArchiveError for a damaged block."""
        if self._at >= self._size_bytes:
            return b""
        first = self._at // BLOCK_SIZE_BYTES
        begins = first * BLOCK_SIZE_BYTES
        blocks = min(PART_SIZE_BYTES // BLOCK_SIZE_BYTES, block_count_of(self._size_bytes) - first)
        self._data.seek(begins)
        self._leaves.seek(first * LEAF_SIZE_BYTES)
        part = _read(self._data, blocks * BLOCK_SIZE_BYTES).ljust(blocks * BLOCK_SIZE_BYTES, b"\0")
        leaves = _read(self._leaves, blocks * LEAF_SIZE_BYTES)
        for i in range(blocks):
            block = memoryview(part)[i * BLOCK_SIZE_BYTES : (i + 1) * BLOCK_SIZE_BYTES]
            if sha256(block).digest() != leaves[i * LEAF_SIZE_BYTES : (i + 1) * LEAF_SIZE_BYTES]:
                raise _damaged(self._tree, f"block {first + i} does not have the SHA-256 of its leaf")
        found = part[self._at - begins : self._size_bytes - begins]
        self._at += len(found)
        return found

    def close(self) -> None:
        """Close the files."""
        self._data.close()
        self._leaves.close()


def has_its_size(data: Path, leaves: Path, sizes_bytes: Collection[int]) -> bool:
    """Return True if the files of a tree fit its datasets, which have `sizes_bytes`. Read at most one block.

    The datasets of a tree differ only by zeros at the end, and `data` may have been written for a dataset that was
    deleted. Therefore `data` may have another size if the number of blocks is the same and the last block matches its
    leaf.
    """
    blocks = block_count_of(max(sizes_bytes))
    try:
        size_bytes = data.stat().st_size
        if leaves.stat().st_size != blocks * LEAF_SIZE_BYTES:
            return False
        if size_bytes in sizes_bytes:
            return True
        if not size_bytes or block_count_of(size_bytes) != blocks:
            return False
        with data.open("rb") as file, leaves.open("rb") as leaf:
            file.seek((blocks - 1) * BLOCK_SIZE_BYTES)
            leaf.seek((blocks - 1) * LEAF_SIZE_BYTES)
            last = file.read(BLOCK_SIZE_BYTES).ljust(BLOCK_SIZE_BYTES, b"\0")
            return sha256(last).digest() == leaf.read(LEAF_SIZE_BYTES)
    except OSError:
        return False


def check_leaves(leaves: Iterator[bytes], tree: Cid, size_bytes: int) -> None:
    """Raise ArchiveError unless these are the leaves of a dataset with this tree and size."""
    roots = RootHasher()
    for leaf in leaves:
        roots.add(leaf)
    count = block_count_of(size_bytes)
    if roots.leaf_count != count:
        raise _damaged(tree, f"it has {roots.leaf_count} leaves, expected {count} for {size_bytes} bytes")
    if Cid(CODEC_TREE, roots.root()) != tree:
        raise _damaged(tree, "its leaves belong to another dataset")


def check_disk(folder: Path, size_bytes: int) -> None:
    """Raise NoRoomError if the disk lacks space for this many bytes and the reserve MIN_FREE_DISK_SIZE_BYTES."""
    free = shutil.disk_usage(folder).free
    if size_bytes and free < size_bytes + limits.MIN_FREE_DISK_SIZE_BYTES:
        raise NoRoomError(
            f"not enough disk space for {folder}: {free} bytes free, {size_bytes} and a reserve of "
            f"{limits.MIN_FREE_DISK_SIZE_BYTES} needed. Free disk space"
        )


def _open(path: Path, tree: Cid) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise _damaged(tree, f"cannot open {path.name}: {error.strerror}") from None


def _read(file: BinaryIO, size_bytes: int) -> bytes:
    try:
        return file.read(size_bytes)
    except OSError as error:
        raise StorageError(f"cannot read {file.name}: {error.strerror}") from None


def _damaged(tree: Cid, reason: str) -> ArchiveError:
    return ArchiveError(f"dataset {tree} is damaged: {reason}. Delete the dataset, then upload it again")
