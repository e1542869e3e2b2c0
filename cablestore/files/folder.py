"""A folder of whole files, on this disk or in an object store, named by a path or URI.

A file has its name only when it is whole, so a reader needs no other sign that it is complete. A folder is a small
value that can be pickled: another process opens its own connection, with the credentials of its own environment.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO

from cablestore.errors import MissingFileError, StorageError
from cablestore.files.local import storage_errors, sync_folder, unique_suffix, whole_file, write_whole


class ObjectFolder(ABC):
    """A folder of whole files. `str` of it is what messages show.

    Methods raise StorageError if the disk or the object store fails, and MissingFileError, which is a FileNotFoundError
    too, if a file is not there. A folder is made by writing into it; one without files is an empty folder.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def uri(self) -> str:
        """The path or URI, as messages show it. It has no credentials."""

    @property
    def is_local(self) -> bool:
        """Whether it is on a disk of this machine, so that it has a `path`."""
        return False

    @property
    def path(self) -> Path:
        """The path of a local folder. Raises StorageError for any other."""
        raise StorageError(f"{self.uri} is not on this disk: choose a local folder")

    def file(self, name: str) -> str:
        """Return the path or URI of a file, as messages show it."""
        return f"{self.uri.rstrip('/')}/{name}"

    def __str__(self) -> str:
        return self.uri

    @abstractmethod
    def child(self, name: str) -> ObjectFolder:
        """Return a folder in this one. Nothing is read or made."""

    def names(self, glob: str = "*") -> list[str]:
        """Return the sorted names of the files directly in this folder; none if it does not exist."""
        return sorted(self.sizes(glob))

    @abstractmethod
    def sizes(self, glob: str = "*") -> dict[str, int]:
        """Return the size in bytes of each file directly in this folder, by one listing."""

    @abstractmethod
    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""

    def exists(self, name: str) -> bool:
        """Tell whether there is a file of this name."""
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
        """Open a file to be read as a stream, in bounded memory. Reading from the stream raises OSError."""

    @abstractmethod
    def writing(self, name: str, *, sync: bool = True) -> AbstractContextManager[BinaryIO]:
        """Write a file as a stream. It gets its name after the `with`; after an exception there is no such file.

        Without `sync` a local file may be lost when the machine stops. An object store keeps what it took.
        """

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Write a small file as a whole."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file. One that is not there is no error."""

    @abstractmethod
    def remove_all(self) -> None:
        """Remove the folder with all that it holds. One that is not there is no error."""


@dataclass(frozen=True, slots=True)
class LocalFolder(ObjectFolder):
    """A folder on this disk. A file is written under another name, synced and renamed."""

    folder: Path

    @property
    def uri(self) -> str:
        """Its path."""
        return str(self.folder)

    @property
    def is_local(self) -> bool:
        """It is."""
        return True

    @property
    def path(self) -> Path:
        """The path."""
        return self.folder

    def file(self, name: str) -> str:
        """Return the path of a file."""
        return str(self.folder / name)

    def __str__(self) -> str:
        return self.uri

    def child(self, name: str) -> LocalFolder:
        """Return a folder in this one."""
        return LocalFolder(self.folder / name)

    def sizes(self, glob: str = "*") -> dict[str, int]:
        """Return the sizes of the files."""
        with storage_errors(self.folder):
            try:
                return {
                    entry.name: entry.stat().st_size
                    for entry in self.folder.iterdir()
                    if fnmatchcase(entry.name, glob) and entry.is_file()
                }
            except FileNotFoundError:
                return {}

    def size(self, name: str) -> int:
        """Return the size of a file."""
        with self._reading(name) as path:
            return path.stat().st_size

    def read(self, name: str) -> bytes:
        """Return all bytes of a file."""
        with self._reading(name) as path:
            return path.read_bytes()

    def open(self, name: str) -> BinaryIO:
        """Open a file to be read."""
        with self._reading(name) as path:
            return path.open("rb")

    @contextmanager
    def writing(self, name: str, *, sync: bool = True) -> Iterator[BinaryIO]:
        """Write a file under a name that no other process uses, sync it and rename it."""
        path = self._made() / name
        with storage_errors(path):
            with whole_file(path, unique_suffix(), sync=sync) as file:
                yield file
            if sync:
                sync_folder(path.parent)

    def write(self, name: str, data: bytes) -> None:
        """Write a small file."""
        write_whole(self._made() / name, data)

    def remove(self, name: str) -> None:
        """Remove a file."""
        with storage_errors(self.folder / name):
            (self.folder / name).unlink(missing_ok=True)

    def remove_all(self) -> None:
        """Remove the folder."""
        with storage_errors(self.folder):
            if self.folder.exists():
                shutil.rmtree(self.folder)

    def _made(self) -> Path:
        with storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder

    @contextmanager
    def _reading(self, name: str) -> Iterator[Path]:
        path = self.folder / name
        with storage_errors(path):
            try:
                yield path
            except (FileNotFoundError, NotADirectoryError):
                raise MissingFileError(f"{path} is missing") from None
