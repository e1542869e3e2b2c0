"""Folders in object stores, through pyarrow's file systems: S3, Google Cloud Storage, Azure, Hadoop.

A stream of pyarrow completes its object when it is closed or garbage-collected, even if an exception interrupted the
writing. So a file is first written to a temporary file on this disk, and sent when it is complete. An interruption
before that does not create an object, and a failed upload can be repeated. During an upload to S3, `background_writes`
prevents a stream from completing an object after a part failed.
"""

from __future__ import annotations

import io
import mmap
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, BinaryIO, Final, TypeVar
from urllib.parse import SplitResult, parse_qsl, quote, urlsplit

from cablestore.errors import ArgumentError, StorageError
from cablestore.extras import naming_extras
from cablestore.files.folder import MissingFileError, ObjectFolder
from cablestore.files.foreign import is_foreign
from cablestore.files.local import storage_errors, unique_suffix
from cablestore.files.uri import escaped
from cablestore.interruptible import awaited, in_thread

T = TypeVar("T")

_ATTEMPTS: Final = 4
"""Number of attempts before a request fails. In each attempt, pyarrow's S3 client makes up to three requests."""
_RETRY_S: Final = 0.5
"""Pause before the second attempt. Each further pause is twice as long."""
_CONNECT_S: Final = 10
"""Timeout for connecting to S3."""
_PART_SIZE_BYTES: Final = 4_194_304
"""Number of bytes that one request reads from a stream."""
_WINDOW_SIZE_BYTES: Final = 31_457_280
"""Maximum number of bytes in memory during an upload to S3: three parts of 10 MB."""

_FINAL: Final = re.compile(
    r"ACCESS_DENIED|NO_SUCH_BUCKET|INVALID_ACCESS_KEY|INVALID_BUCKET|SIGNATURE_DOES_NOT|INVALID_CLIENT_TOKEN|EXPIRED_TOKEN"
    r"|HTTP status 40[013]|PERMANENT_REDIRECT|libhdfs"
)
"""Errors for which another attempt is useless."""
_NOISE: Final = re.compile(r" ?\(Request ID: [^)]*\)|\.? Detail: .*", re.DOTALL)
_RENAMING: Final = frozenset({"hdfs", "viewfs"})
"""Schemes of file systems that show incomplete files, and in which renaming is atomic."""


def uri_of(parts: SplitResult) -> str:
    """Return the URI of these parts. `urlunsplit` omits the // without a host, so that the result would be a path."""
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc}{parts.path}{query}"


class RemoteFolder(ObjectFolder):
    """Folder in an object store. Its connection is opened on first use, once per process."""

    __slots__ = ("_connection", "_uri")

    def __init__(self, uri: str, connection: tuple[Any, str] | None = None) -> None:
        """`uri` does not contain credentials. `connection` is pyarrow's file system and the path in it."""
        self._uri = uri
        self._connection = connection

    def __reduce__(self) -> tuple[type[RemoteFolder], tuple[str]]:
        return RemoteFolder, (self._uri,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteFolder) and other._uri == self._uri

    def __hash__(self) -> int:
        return hash(self._uri)

    def __repr__(self) -> str:
        return f"RemoteFolder({self._uri!r})"

    @property
    def uri(self) -> str:
        """URI without options."""
        return uri_of(urlsplit(self._uri)._replace(query=""))

    @property
    def full_uri(self) -> str:
        """URI with options."""
        return self._uri

    def opened(self) -> RemoteFolder:
        """Return this folder with an open connection. Raises ArgumentError if it cannot be opened."""
        self._open()
        return self

    def make(self) -> None:
        """Do nothing: a folder exists when it contains an object."""

    def child(self, name: str) -> RemoteFolder:
        """Return a subfolder, which shares the connection."""
        parts = urlsplit(self._uri)
        uri = uri_of(parts._replace(path=f"{parts.path}/{escaped(name)}"))
        connection = self._connection
        return RemoteFolder(uri, None if connection is None else (connection[0], f"{connection[1]}/{name}"))

    def is_empty(self) -> bool:
        """Return True if no object exists below this folder."""
        system, root = self._open()
        from pyarrow.fs import FileSelector  # noqa: PLC0415 - an extra; opening has imported it

        selector = FileSelector(root, allow_not_found=True, recursive=True)
        found = _retried(self.uri, lambda: system.get_file_info(selector))
        return not any(entry.is_file and not is_foreign(entry.base_name) for entry in found)

    def sizes(self, glob: str = "*") -> dict[str, int]:
        """Return the sizes of the objects."""
        entries = (entry for entry in self._entries() if entry.is_file and fnmatchcase(entry.base_name, glob))
        return {entry.base_name: int(entry.size) for entry in entries}

    def folders(self) -> list[str]:
        """Return the sorted names of the subfolders."""
        return sorted(entry.base_name for entry in self._entries() if not entry.is_file)

    def _entries(self) -> list[Any]:
        system, root = self._open()
        from pyarrow.fs import FileSelector  # noqa: PLC0415 - an extra; opening has imported it

        found = _retried(self.uri, lambda: list(system.get_file_info(FileSelector(root, allow_not_found=True))))
        return [entry for entry in found if not is_foreign(entry.base_name)]

    def size(self, name: str) -> int:
        """Return the size of an object."""
        system, root = self._open()
        found = _retried(str(self.file(name)), lambda: system.get_file_info(f"{root}/{name}"))
        if not found.is_file:
            raise MissingFileError(f"{self.file(name)} is missing")
        return int(found.size)

    def read(self, name: str) -> bytes:
        """Return all bytes of an object."""
        with self.open(name) as file:
            return file.read()

    def open(self, name: str) -> BinaryIO:
        """Open an object. Each part is requested when it is read, and again after a failure."""
        system, root = self._open()
        where = str(self.file(name))
        file = _retried(where, lambda: system.open_input_file(f"{root}/{name}"))
        return io.BufferedReader(_Parts(where, file), _PART_SIZE_BYTES)

    def open_parts(self, name: str) -> BinaryIO:
        """Open an object to read parts. Each read is one request, and one more returns the object's size."""
        system, root = self._open()
        where = str(self.file(name))
        file = _retried(where, lambda: system.open_input_file(f"{root}/{name}"))
        return io.BufferedReader(_Parts(where, file), 1)

    @contextmanager
    def writing(self, name: str, *, sync: bool = True) -> Iterator[BinaryIO]:  # noqa: ARG002 - object stores are durable
        """Write an object to a temporary file on this disk, then upload the file."""
        where = str(self.file(name))
        with storage_errors(f"{where} in {tempfile.gettempdir()}"):
            spool = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
        with spool:
            with storage_errors(f"{where} in {tempfile.gettempdir()}"):
                yield spool
                size_bytes = spool.seek(0, os.SEEK_END)
            content = mmap.mmap(spool.fileno(), size_bytes, access=mmap.ACCESS_READ) if size_bytes else b""
        self._send(name, content)

    def write(self, name: str, data: bytes, *, sync: bool = True) -> None:  # noqa: ARG002 - as above
        """Write a small object."""
        self._send(name, data)

    def remove(self, name: str) -> None:
        """Remove an object."""
        system, root = self._open()
        with suppress(FileNotFoundError):
            _retried(str(self.file(name)), lambda: system.delete_file(f"{root}/{name}"))

    def remove_all(self) -> None:
        """Remove all objects below this folder."""
        system, root = self._open()
        with suppress(FileNotFoundError):
            _retried(self.uri, lambda: system.delete_dir(root))

    def _open(self) -> tuple[Any, str]:
        if self._connection is None:
            told = tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_")))
            self._connection = _connected(self._uri, os.getpid(), told)
        return self._connection

    def _send(self, name: str, content: bytes | mmap.mmap) -> None:
        system, root = self._open()
        path = f"{root}/{name}"

        def send() -> None:
            if urlsplit(self._uri).scheme not in _RENAMING:
                _written(system, path, content)
                return
            unfinished = path + unique_suffix()
            system.create_dir(root, recursive=True)
            _written(system, unfinished, content)
            system.move(unfinished, path)

        _retried(str(self.file(name)), send)


class _Parts(io.RawIOBase):
    """Seekable stream of an object. A failed request of a part is repeated."""

    def __init__(self, where: str, file: Any) -> None:
        self._where = where
        self._file = file
        self._size_bytes = int(_retried(where, file.size))
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence] + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._size_bytes - self._at)
        if wanted <= 0:
            return 0
        data = _retried(self._where, lambda: self._file.read_at(wanted, self._at))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def readall(self) -> bytes:
        left = self._size_bytes - self._at
        data: bytes = _retried(self._where, lambda: self._file.read_at(left, self._at)) if left > 0 else b""
        self._at += len(data)
        return data


@lru_cache(maxsize=64)
def _connected(uri: str, _process: int, _environment: tuple[tuple[str, str], ...]) -> tuple[Any, str]:
    """Return pyarrow's file system for a URI, and the path in it.

    The result is cached, because thousands of tasks may unpickle the same folder. `_process` and `_environment` only
    select the cached result.
    """
    with naming_extras("URIs need", extra="storage"):
        import pyarrow as pa  # noqa: PLC0415 - an extra
        from pyarrow.fs import FileSystem  # noqa: PLC0415 - an extra
    parts = urlsplit(uri)
    shown = uri_of(parts._replace(query=""))
    try:
        system, root = _retried(shown, lambda: FileSystem.from_uri(_quoted(uri)))
        return (_s3(uri, system) if parts.scheme == "s3" else system), str(root)
    except pa.ArrowInvalid as error:
        raise ArgumentError(
            f"cannot open {shown}: {_reason(error)}. Expected a path, or a URI such as s3://BUCKET/FOLDER"
        ) from None
    except (pa.ArrowNotImplementedError, ImportError, ValueError) as error:
        raise ArgumentError(f"cannot open {shown} with the installed pyarrow: {_reason(error)}") from None


def _quoted(uri: str) -> str:
    """Return a URI in a form that pyarrow can parse, for any characters in its folders."""
    parts = urlsplit(uri)
    return uri_of(parts._replace(path=quote(parts.path, safe="/%")))


def _s3(uri: str, found: Any) -> Any:
    """Return an S3 client for a URI, with the region of the client `found` and settings that a URI cannot contain.

    Without `background_writes`, a stream completes an object even if a part is missing. With `allow_delayed_open`, a
    small object takes one request instead of three.
    """
    from pyarrow.fs import S3FileSystem  # noqa: PLC0415 - an extra

    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    options = {} if endpoint is None else {"endpoint_override": endpoint}
    options |= {
        name: value for name, value in parse_qsl(urlsplit(uri).query) if name in {"scheme", "endpoint_override"}
    }
    return S3FileSystem(
        region=found.region,
        background_writes=True,
        allow_delayed_open=True,
        connect_timeout=_CONNECT_S,
        **options,
    )


def _written(system: Any, path: str, content: bytes | mmap.mmap) -> None:
    """Write an object. On S3, memory is bounded. Other systems get all data at once: a flush could publish a part."""
    window_bytes = _WINDOW_SIZE_BYTES if system.type_name == "s3" else max(len(content), 1)
    view = memoryview(content)
    with system.open_output_stream(path, compression=None) as stream:
        for start in range(0, len(view), window_bytes):
            stream.write(view[start : start + window_bytes])
            if start + window_bytes < len(view):
                stream.flush()


_in_progress: Final[set[object]] = set()


def request(work: Callable[[], T]) -> Future[T]:
    """Run `work` in a thread and return its future. `is_request_in_progress` returns True until `work` has ended.

    The request is counted before the thread starts, because Ctrl-C may arrive before the caller receives the future.
    """
    token = object()
    _in_progress.add(token)

    def run() -> T:
        try:
            return work()
        finally:
            _in_progress.discard(token)

    return in_thread(run)


def is_request_in_progress() -> bool:
    """Return True if a request has not ended. Python would wait for its thread at exit, perhaps forever."""
    return bool(_in_progress)


def _retried(where: str, work: Callable[[], T]) -> T:
    """Run `work` and return its result. Repeat it up to 3 times after errors of the network or the server.

    `where` names the file in messages. Raises MissingFileError if it is missing, and StorageError for other errors.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return awaited(request(work))  # Ctrl-C ends the wait, not the work, so that uploads are complete
        except FileNotFoundError:
            raise MissingFileError(f"{where} is missing") from None
        except OSError as error:
            if attempt == _ATTEMPTS or _FINAL.search(str(error)):
                raise StorageError(
                    f"{where}: {_reason(error)}. Check the URI, its credentials in the environment and the network"
                ) from None
            time.sleep(_RETRY_S * 2 ** (attempt - 1))
    raise AssertionError


def _reason(error: BaseException) -> str:
    """Return the message of a pyarrow error as one line."""
    return " ".join(_NOISE.sub("", str(error)).split()).rstrip(".")
