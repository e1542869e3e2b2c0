"""Folders of complete files, on this disk or in an object store, at a path or URI.

A file gets its name when it is complete, so readers never find incomplete files. A folder object can be pickled: another
process opens its own connection, with the credentials in its environment.
"""

from __future__ import annotations

import shutil
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO

from cablestore.errors import StorageError
from cablestore.files.access import make_folder
from cablestore.files.foreign import is_foreign
from cablestore.files.local import atomic_file, storage_errors, sync_folder, unique_suffix


class MissingFileError(StorageError, FileNotFoundError):
    """The requested file is missing from the folder or object store, or is not a regular file."""


class ObjectFolder(ABC):
    """Folder of complete files. `str()` returns its path or URI for messages.

    Entries of the system (`is_foreign`) are not listed. Methods raise StorageError if the disk or the object store
    fails, and MissingFileError, which is also a FileNotFoundError, if a file is missing. The first write creates a
    missing folder. Before that, reads find an empty folder.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def uri(self) -> str:
        """Path or URI for messages, without credentials."""

    @property
    def full_uri(self) -> str:
        """Path or URI with its options, from which `folder_of` recreates this folder."""
        return self.uri

    @property
    def is_local(self) -> bool:
        """True if the folder is on a disk of this machine. Then it has a `path`."""
        return False

    @property
    def path(self) -> Path:
        """Path of a local folder. Raises StorageError for other folders."""
        raise StorageError(f"{self.uri} is not on this machine. Choose a local folder")

    def file(self, name: str) -> ObjectFile:
        """Return a file of this folder, which may not exist."""
        return ObjectFile(self, name)

    def __str__(self) -> str:
        return self.uri

    @abstractmethod
    def make(self) -> None:
        """Create the folder and its parents. Do nothing in object stores, which do not support empty folders."""

    @abstractmethod
    def child(self, name: str) -> ObjectFolder:
        """Return a subfolder, without reading or creating it."""

    def names(self, glob: str = "*") -> list[str]:
        """Return the sorted names of the files directly in this folder, or [] if the folder does not exist."""
        return sorted(self.sizes(glob))

    @abstractmethod
    def is_empty(self) -> bool:
        """Return True if this folder is empty or does not exist."""

    @abstractmethod
    def sizes(self, glob: str = "*") -> dict[str, int]:
        """Return the size in bytes of each file directly in this folder, with one listing."""

    @abstractmethod
    def folders(self) -> list[str]:
        """Return the sorted names of the folders directly in this folder."""

    @abstractmethod
    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""

    def exists(self, name: str) -> bool:
        """Return True if a file of this name exists."""
        try:
            self.size(name)
        except FileNotFoundError:
            return False
        return True

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return all bytes of a file."""

    @abstractmethod
    def open(self, name: str) -> BinaryIO:
        """Open a file as a stream, in bounded memory. Reading from the stream raises OSError."""

    @abstractmethod
    def open_parts(self, name: str) -> BinaryIO:
        """Open a file to read parts. Only these parts are requested from an object store."""

    @abstractmethod
    def writing(self, name: str, *, sync: bool = True) -> AbstractContextManager[BinaryIO]:
        """Write a file as a stream.

        The file gets its name at the end of the `with` block. After an exception, the file is discarded. Without
        `sync`, a power failure may lose a local file. Object stores are always durable.
        """

    @abstractmethod
    def write(self, name: str, data: bytes, *, sync: bool = True) -> None:
        """Write a small file at once, with `sync` as in `writing`."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file. A missing file is not an error."""

    @abstractmethod
    def remove_all(self) -> None:
        """Remove the folder and its content. A missing folder is not an error."""


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """File in an ObjectFolder, which may not exist. `str()` returns its path or URI for messages."""

    folder: ObjectFolder
    name: str

    def __str__(self) -> str:
        return str(self.folder.path / self.name) if self.folder.is_local else f"{self.folder.uri}/{self.name}"


def file_of(file: Path | ObjectFile) -> ObjectFile:
    """Return an ObjectFile unchanged, or the ObjectFile of a path on this disk."""
    return file if isinstance(file, ObjectFile) else LocalFolder(file.parent).file(file.name)


@dataclass(frozen=True, slots=True)
class LocalFolder(ObjectFolder):
    """Folder on this disk. A file is written under another name, synced and renamed."""

    folder: Path

    @property
    def uri(self) -> str:
        """Path as text."""
        return str(self.folder)

    @property
    def is_local(self) -> bool:
        """Always True."""
        return True

    @property
    def path(self) -> Path:
        """Path of the folder."""
        return self.folder

    def __str__(self) -> str:
        return self.uri

    def child(self, name: str) -> LocalFolder:
        """Return a subfolder."""
        return LocalFolder(self.folder / name)

    def is_empty(self) -> bool:
        """Return True if this folder is empty or does not exist. A file is not empty."""
        with storage_errors(self.folder):
            try:
                return all(is_foreign(entry.name) for entry in self.folder.iterdir())
            except FileNotFoundError:
                return True
            except NotADirectoryError:
                return False

    def sizes(self, glob: str = "*") -> dict[str, int]:
        """Return the sizes of the files."""
        found = {}
        with storage_errors(self.folder):
            for entry in self._entries():
                with suppress(FileNotFoundError):  # another process may remove files meanwhile
                    if fnmatchcase(entry.name, glob) and entry.is_file():
                        found[entry.name] = entry.stat().st_size
        return found

    def folders(self) -> list[str]:
        """Return the sorted names of the subfolders."""
        with storage_errors(self.folder):
            return sorted(entry.name for entry in self._entries() if entry.is_dir())

    def _entries(self) -> list[Path]:
        try:
            return [entry for entry in self.folder.iterdir() if not is_foreign(entry.name)]
        except FileNotFoundError:
            return []

    def size(self, name: str) -> int:
        """Return the size of a file."""
        with self._reading(name) as path:
            return path.stat().st_size

    def read(self, name: str) -> bytes:
        """Return all bytes of a file."""
        with self._reading(name) as path:
            return path.read_bytes()

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading."""
        with self._reading(name) as path:
            return path.open("rb")

    def open_parts(self, name: str) -> BinaryIO:
        """Open a file for reading."""
        return self.open(name)

    @contextmanager
    def writing(self, name: str, *, sync: bool = True) -> Iterator[BinaryIO]:
        """Write a file under a unique temporary name, sync it if requested, and rename it."""
        path = self._made() / name
        with storage_errors(path):
            with atomic_file(path, unique_suffix(), sync=sync) as file:
                yield file
            if sync:
                sync_folder(path.parent)

    def write(self, name: str, data: bytes, *, sync: bool = True) -> None:
        """Write a small file. Several processes may write it at the same time."""
        with self.writing(name, sync=sync) as file:
            file.write(data)

    def remove(self, name: str) -> None:
        """Remove a file."""
        with storage_errors(self.folder / name):
            (self.folder / name).unlink(missing_ok=True)

    def remove_all(self) -> None:
        """Remove the folder."""
        with storage_errors(self.folder):
            if self.folder.exists():
                shutil.rmtree(self.folder)

    def make(self) -> None:
        """Create the folder."""
        with storage_errors(self.folder):
            make_folder(self.folder)

    def _made(self) -> Path:
        self.make()
        return self.folder

    @contextmanager
    def _reading(self, name: str) -> Iterator[Path]:
        path = self.folder / name
        with storage_errors(path):
            try:
                if not stat.S_ISREG(path.stat().st_mode):  # a device or pipe may never end
                    raise MissingFileError(f"{path} is not a regular file")
                yield path
            except (FileNotFoundError, NotADirectoryError) as error:
                if isinstance(error, MissingFileError):
                    raise
                raise MissingFileError(f"{path} is missing") from None
