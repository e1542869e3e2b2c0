"""Store of datasets by content id, in a folder. `content.folder` describes the layout.

A dataset is written as two files in `incoming`. After they are complete and synced to the disk, they are moved to their
final folders, and the manifest is written last. Therefore the bytes of each manifest are stored. Opening the store
removes bytes without a manifest, which a killed process left. Two datasets with equal bytes and different filenames
have two manifests and one file.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

from msgspec import Struct, field

from cablestore import limits
from cablestore.archive.content.dataset import (
    PART_SIZE_BYTES,
    DatasetReader,
    DatasetWriter,
    check_disk,
    has_its_size,
)
from cablestore.archive.content.folder import DATA, INCOMING, LEAVES, MANIFESTS, lock_folder
from cablestore.archive.errors import NoRoomError, NoSuchContentError
from cablestore.archive.format.cid import (
    BLOCK_SIZE_BYTES,
    CODEC_MANIFEST,
    Cid,
    DatasetManifest,
    ManifestFormat,
    manifest_cid,
)
from cablestore.closable import Closable
from cablestore.errors import ArchiveError, StorageError
from cablestore.files import atomic_file, is_foreign, read_small, storage_errors, sync_folder, unlock, usable_path
from cablestore.forks import ProcessBound, bind

DEFAULT_QUOTA_SIZE_BYTES: Final = 21_474_836_480
"""20 GiB, as in nim-codex."""


class Space(Struct, frozen=True):
    """Space of a node, as in Codex. Datasets occupy full blocks of 64 KiB, and manifests their size in bytes."""

    total_blocks: int = field(name="totalBlocks")
    quota_size_bytes: int = field(name="quotaMaxBytes")
    used_size_bytes: int = field(name="quotaUsedBytes")
    reserved_size_bytes: int = field(name="quotaReservedBytes")
    """Space of datasets that are being written."""


class ContentStore(Closable, ProcessBound):
    """Store of datasets in a folder, open in one process at a time. Thread-safe.

    >>> with ContentStore.open(Path("content")) as store:
    ...     manifest = store.put([b"payload"], filename="hello.txt", mimetype="text/plain")
    ...     b"".join(store.get(manifest_cid(manifest)))
    """

    def __init__(self, folder: Path, lock: int, quota_size_bytes: int) -> None:
        self.folder: Final = folder
        self.quota_size_bytes: Final = quota_size_bytes
        self.damaged: Final[set[Cid]] = set()
        """Ids of damaged manifests. Their datasets cannot be read and are not removed. Delete the manifests, or put the
        datasets again."""
        self._lock: int | None = lock
        self._guard = threading.RLock()
        self._manifests: dict[Cid, DatasetManifest] = {}
        self._users: Counter[Cid] = Counter()
        """Number of manifests of each tree."""
        self._used_size_bytes = 0
        self._reserved_size_bytes = 0
        bind(self)

    @classmethod
    def open(cls, folder: Path, *, quota_size_bytes: int = DEFAULT_QUOTA_SIZE_BYTES) -> Self:
        """Open the store in a folder, or create one in a new or empty folder. Files of a killed process are removed.

        Raises StoreLockedError if another process has it open, ArchiveError for a folder with other files, and
        StorageError.
        """
        folder = usable_path(folder).absolute()
        with storage_errors(folder):
            lock = lock_folder(folder)
            try:
                store = cls(folder, lock, quota_size_bytes)
                store._load()
            except BaseException:
                unlock(lock)
                raise
        return store

    def _load(self) -> None:
        for path in (self.folder / INCOMING).iterdir():
            if path.is_file() and not is_foreign(path.name):
                path.unlink()
        for path in (self.folder / MANIFESTS).iterdir():
            self._load_manifest(path)
        if self.damaged:
            return  # files without a readable manifest may belong to a damaged manifest
        for name in (DATA, LEAVES):
            for path in (self.folder / name).iterdir():
                cid = _cid_named(path)
                if cid is not None and cid not in self._users:
                    path.unlink()

    def _load_manifest(self, path: Path) -> None:
        cid = _cid_named(path)
        if cid is None:
            return
        try:
            manifest = DatasetManifest.decode(read_small(path))
        except (ArchiveError, OSError):  # the other datasets are served
            self.damaged.add(cid)
            return
        if manifest_cid(manifest) == cid:
            self._know(cid, manifest)
        else:
            self.damaged.add(cid)

    def close(self) -> None:
        """Close the store, so that other processes can open it.

        Datasets that are being written cannot be committed afterwards.
        """
        with self._guard:
            if self._lock is not None:
                unlock(self._lock)
                self._lock = None

    # --- writing ---------------------------------------------------------------------------------

    def put(
        self,
        chunks: Iterable[bytes],
        *,
        filename: str | None = None,
        mimetype: str | None = None,
        manifest_format: ManifestFormat = ManifestFormat.CODEX,
    ) -> DatasetManifest:
        """Store the chunks as a dataset. Return its manifest after it is synced to the disk.

        Raises ArchiveError for zero bytes or an invalid filename or media type, NoRoomError if the dataset does not
        fit, and StorageError if writing fails. After an error, the dataset is not stored.
        """
        with self.incoming() as incoming:
            for chunk in chunks:
                for at in range(0, len(chunk), PART_SIZE_BYTES):
                    incoming.write(chunk[at : at + PART_SIZE_BYTES])
            return incoming.commit(filename=filename, mimetype=mimetype, manifest_format=manifest_format)

    @contextmanager
    def incoming(self) -> Iterator[IncomingDataset]:
        """Yield a dataset that is written in parts. It is discarded unless the caller commits it."""
        with self._guard:
            self._check_open()
        name = self.folder / INCOMING / secrets.token_hex(8)
        with storage_errors(self.folder):
            incoming = IncomingDataset(self, name)
        try:
            yield incoming
        except BaseException:
            with suppress(StorageError):  # the first error is more relevant
                incoming.abort()
            raise
        incoming.abort()

    def _reserve(self, size_bytes: int) -> None:
        """Reserve bytes for a dataset that is being written, or raise NoRoomError. A negative number releases bytes."""
        with self._guard:
            taken = self._used_size_bytes + self._reserved_size_bytes
            if size_bytes > 0 and taken + size_bytes > self.quota_size_bytes:
                raise NoRoomError(
                    f"quota exceeded: the content store uses {taken} of {self.quota_size_bytes} bytes and needs "
                    f"{size_bytes} more. Delete datasets, or raise the quota"
                )
            if size_bytes > 0:
                check_disk(self.folder, size_bytes)
            self._reserved_size_bytes += size_bytes

    def _adopt(self, name: Path, manifest: DatasetManifest) -> None:
        """Store a complete dataset: move its two files to their final folders, then write the manifest.

        The paths of the files in `incoming` are `name` with two suffixes. Earlier files of the tree are replaced.
        """
        cid, encoded = manifest_cid(manifest), manifest.encode()
        with self._guard, storage_errors(self.folder):
            self._check_open()
            if cid not in self._manifests:
                self._check_fits(manifest, len(encoded))
            try:
                self._move_in(name, manifest.tree, cid, encoded)
            except BaseException:
                if cid not in self._manifests and cid not in self.damaged:
                    self._move_out(cid, manifest.tree)
                raise
            self.damaged.discard(cid)
            if cid not in self._manifests:
                self._know(cid, manifest)

    def _move_in(self, name: Path, tree: Cid, cid: Cid, encoded: bytes) -> None:
        for kind in (LEAVES, DATA):
            name.with_suffix(f".{kind}").replace(self.folder / kind / str(tree))
            sync_folder(self.folder / kind)
        # Written in `incoming`, which `open` empties, so that a killed process leaves no unfinished manifest.
        unfinished = name.with_suffix(".manifest")
        with atomic_file(unfinished) as file:
            file.write(encoded)
        unfinished.replace(self.folder / MANIFESTS / str(cid))
        sync_folder(self.folder / MANIFESTS)

    def _move_out(self, cid: Cid, tree: Cid) -> None:
        """Remove the moved files of a new dataset: its manifest, and its bytes unless another manifest may use them."""
        manifest = self.folder / MANIFESTS / str(cid)
        with suppress(OSError):
            manifest.unlink(missing_ok=True)
        if not manifest.is_file() and not self._users[tree] and not self.damaged:
            with suppress(OSError):
                self._remove_bytes(tree)

    def _check_fits(self, manifest: DatasetManifest, manifest_size_bytes: int) -> None:
        """Raise NoRoomError if one more manifest, or the blocks of a new tree, would exceed a limit."""
        if len(self._manifests) >= limits.MAX_DATASETS:
            raise NoRoomError(f"too many datasets: the maximum is {limits.MAX_DATASETS}. Delete datasets")
        blocks = 0 if self._users[manifest.tree] else manifest.block_count
        if self._used_size_bytes + blocks * BLOCK_SIZE_BYTES + manifest_size_bytes > self.quota_size_bytes:
            raise NoRoomError(
                f"quota exceeded: the content store uses {self._used_size_bytes} of {self.quota_size_bytes} bytes and "
                f"needs {blocks} more blocks of 64 KiB. Delete datasets, or raise the quota"
            )

    def _know(self, cid: Cid, manifest: DatasetManifest) -> None:
        self._manifests[cid] = manifest
        self._used_size_bytes += len(manifest.encode())
        if not self._users[manifest.tree]:
            self._used_size_bytes += manifest.block_count * BLOCK_SIZE_BYTES
        self._users[manifest.tree] += 1

    # --- reading ---------------------------------------------------------------------------------

    def manifest(self, cid: Cid) -> DatasetManifest:
        """Return the manifest with this id. Raises NoSuchContentError, and ArchiveError if it is damaged."""
        with self._guard:
            self._check_open()
            found = self._manifests.get(cid)
            if found is not None:
                return found
            if cid in self.damaged:
                raise ArchiveError(f"manifest {cid} is damaged. Delete it and upload the dataset again")
        hint = "" if cid.codec == CODEC_MANIFEST else ". Use the id of its manifest"
        raise NoSuchContentError(f"dataset {cid} not found in the content store{hint}")

    def exists(self, cid: Cid) -> bool:
        """Return True if the store has the dataset with this id, in files of the right size."""
        with self._guard:
            manifest = self._manifests.get(cid)
            if manifest is None:
                return False
            return self._has_files(manifest.tree, self._sizes_bytes()[manifest.tree])

    def is_intact(self, cid: Cid) -> bool:
        """Return True if all blocks of a dataset are intact. Read the whole dataset."""
        try:
            return all(self.get(cid))  # no part is empty
        except (ArchiveError, StorageError):
            return False

    def _has_files(self, tree: Cid, sizes_bytes: Collection[int]) -> bool:
        data, leaves = (self.folder / kind / str(tree) for kind in (DATA, LEAVES))
        return has_its_size(data, leaves, sizes_bytes)

    def reader(self, cid: Cid, start: int = 0) -> DatasetReader:
        """Open a dataset to read its bytes from `start`.

        The reader also works after the dataset is deleted. The caller must close the reader.

        Raises NoSuchContentError, and ArchiveError if the leaves are damaged.
        """
        while True:
            manifest = self.manifest(cid)
            data, leaves = (self.folder / kind / str(manifest.tree) for kind in (DATA, LEAVES))
            try:
                return DatasetReader(data, leaves, manifest.tree, manifest.dataset_size_bytes, start)
            except ArchiveError:
                with self._guard:
                    # Otherwise another thread deleted the dataset, and may have stored it again.
                    if self._manifests.get(cid) is manifest:
                        raise

    def get(self, cid: Cid, start: int = 0) -> Iterator[bytes]:
        """Yield a dataset's bytes from `start`, in parts of at most 1 MiB.

        Each block is verified before it is yielded. Raises NoSuchContentError, and ArchiveError for a damaged block.
        """
        with self.reader(cid, start) as reader:
            while part := reader.read():
                yield part

    def datasets(self) -> list[tuple[Cid, DatasetManifest]]:
        """Return the ids and manifests of all datasets except `incomplete` datasets, sorted by id."""
        with self._guard:
            self._check_open()
            whole = self._whole_trees()
            return sorted(item for item in self._manifests.items() if item[1].tree in whole)

    def incomplete(self) -> list[Cid]:
        """Return the ids of datasets whose files are missing or have a wrong size. Put them again, or delete them."""
        with self._guard:
            self._check_open()
            whole = self._whole_trees()
            return sorted(cid for cid, manifest in self._manifests.items() if manifest.tree not in whole)

    def _whole_trees(self) -> set[Cid]:
        return {tree for tree, sizes_bytes in self._sizes_bytes().items() if self._has_files(tree, sizes_bytes)}

    def _sizes_bytes(self) -> dict[Cid, set[int]]:
        """Return the sizes of the datasets of each tree."""
        sizes: dict[Cid, set[int]] = {}
        for manifest in self._manifests.values():
            sizes.setdefault(manifest.tree, set()).add(manifest.dataset_size_bytes)
        return sizes

    def space(self) -> Space:
        """Return the used space, the reserved space and the quota."""
        with self._guard:
            self._check_open()
            sizes = {manifest.tree: manifest.block_count for manifest in self._manifests.values()}
            blocks = sum(sizes.values()) + len(self._manifests)
            return Space(blocks, self.quota_size_bytes, self._used_size_bytes, self._reserved_size_bytes)

    # --- deleting --------------------------------------------------------------------------------

    def delete(self, cid: Cid) -> bool:
        """Delete a dataset: its manifest, and its bytes unless another manifest uses them.

        Returns True if the store contained the manifest.
        """
        with self._guard, storage_errors(self.folder):
            self._check_open()
            manifest = self._manifests.pop(cid, None)
            if manifest is None and cid not in self.damaged:
                return False
            try:
                (self.folder / MANIFESTS / str(cid)).unlink(missing_ok=True)
                sync_folder(self.folder / MANIFESTS)
                if manifest is not None and self._users[manifest.tree] == 1:
                    self._remove_bytes(manifest.tree)
            except BaseException:
                if manifest is not None:
                    self._manifests[cid] = manifest  # the caller may retry
                raise
            self.damaged.discard(cid)
            if manifest is not None:
                self._forget(manifest)
        return True

    def _remove_bytes(self, tree: Cid) -> None:
        for kind in (DATA, LEAVES):
            (self.folder / kind / str(tree)).unlink(missing_ok=True)

    def _forget(self, manifest: DatasetManifest) -> None:
        self._used_size_bytes -= len(manifest.encode())
        self._users[manifest.tree] -= 1
        if not self._users[manifest.tree]:
            del self._users[manifest.tree]
            self._used_size_bytes -= manifest.block_count * BLOCK_SIZE_BYTES

    def _check_open(self) -> None:
        if self._lock is None:
            raise ArchiveError(f"the content store at {self.folder} is closed")


class IncomingDataset(ProcessBound):
    """Dataset that is being written to a store. `ContentStore.incoming` creates it."""

    def __init__(self, store: ContentStore, name: Path) -> None:
        self._store = store
        self._name = name
        self._guard = threading.Lock()  # one thread may abort an upload while another thread still writes
        self._writer = DatasetWriter(name.with_suffix(f".{DATA}"), name.with_suffix(f".{LEAVES}"))
        self._reserved_size_bytes = 0
        self._is_finished = False
        self._is_over = False
        bind(self)

    @property
    def size_bytes(self) -> int:
        """Number of written bytes."""
        return self._writer.size_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes.

        Raises NoRoomError if the bytes exceed the quota, the free disk space or the maximum size of a dataset. Raises
        StorageError if writing fails.
        """
        with self._guard:
            self._check()
            if self._writer.size_bytes + len(data) > limits.MAX_DATASET_SIZE_BYTES:
                raise NoRoomError(
                    f"dataset too large: the maximum is {limits.MAX_DATASET_SIZE_BYTES} bytes. Split the data"
                )
            self._store._reserve(len(data))  # noqa: SLF001 - a part of the store
            self._reserved_size_bytes += len(data)
            with storage_errors(self._store.folder):
                self._writer.write(data)

    def commit(
        self,
        *,
        filename: str | None = None,
        mimetype: str | None = None,
        manifest_format: ManifestFormat = ManifestFormat.CODEX,
    ) -> DatasetManifest:
        """Store the written bytes.

        Returns the manifest after the dataset is synced to the disk. Raises the errors of `ContentStore.put`.
        """
        with self._guard:
            manifest = DatasetManifest(*self._finish(), filename, mimetype, manifest_format)
            self._store._adopt(self._name, manifest)  # noqa: SLF001 - a part of the store
            return manifest

    def commit_as(self, manifest: DatasetManifest) -> None:
        """Store the written bytes with a manifest from another node. Raises ArchiveError if they do not match it."""
        with self._guard:
            tree, size_bytes = self._finish()
            if (tree, size_bytes) != (manifest.tree, manifest.dataset_size_bytes):
                raise ArchiveError(
                    f"wrong dataset: received {size_bytes} bytes with the tree {tree}, expected "
                    f"{manifest.dataset_size_bytes} bytes with the tree {manifest.tree}. Use another node"
                )
            self._store._adopt(self._name, manifest)  # noqa: SLF001 - a part of the store

    def _finish(self) -> tuple[Cid, int]:
        self._check()
        self._is_finished = True
        with storage_errors(self._store.folder):
            return self._writer.finish(), self._writer.size_bytes

    def abort(self) -> None:
        """Remove the written bytes unless they are committed. Any thread may call this at any time."""
        with self._guard:
            if self._is_over:
                return
            self._is_over = True
            self._store._reserve(-self._reserved_size_bytes)  # noqa: SLF001 - a part of the store
            with suppress(OSError):  # the file is discarded, so unwritten bytes do not matter
                self._writer.close()
            with storage_errors(self._store.folder):
                for kind in (DATA, LEAVES, "manifest"):
                    self._name.with_suffix(f".{kind}").unlink(missing_ok=True)

    def _check(self) -> None:
        if self._is_over or self._is_finished:
            raise ArchiveError("this dataset is already committed or aborted. Begin another dataset")


def _cid_named(path: Path) -> Cid | None:
    try:
        return Cid.parse(path.name)
    except ArchiveError:
        return None
