"""Sources of chat logs: files, folders, compressed files and nested archives, all read as streams.

Files are not unpacked to the disk. The first bytes of a file determine its type. A file that cannot be used raises
ArgumentError with its name and the reason; an I/O error raises StorageError.
"""

from __future__ import annotations

import bz2
import gzip
import heapq
import io
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, Any, Final, cast

from cablestore import limits
from cablestore.errors import ArgumentError
from cablestore.files import is_foreign, storage_errors
from cablestore.irc.lines import shortened

_CHUNK_SIZE_BYTES: Final = 65_536
_BLOCK_SIZE_BYTES: Final = 512
"""Size of a block of a tar archive."""
_UNREAD: Final = {b"7z\xbc\xaf\x27\x1c": "7z", b"Rar!": "RAR", b"\x28\xb5\x2f\xfd": "Zstandard"}


@dataclass(frozen=True, slots=True)
class LogStream:
    """File of lines: its path, including the archives that contain it, and its number within its source.

    Read `stream` before you request the next file, which may close it. Use `size_bytes` to report progress.
    """

    path: PurePath
    number: int
    stream: IO[bytes]
    size_bytes: int


def _is_hidden(path: PurePath) -> bool:
    """Return True if a file, or a folder on its relative path, is hidden or was created by a system."""
    return any(part.startswith(".") or is_foreign(part) for part in path.parts)


def files_below(path: Path) -> list[Path]:
    """Return a file, or the files below a folder except hidden files and files in hidden folders.

    Raises ArgumentError if the path does not exist or does not contain such files.
    """
    with storage_errors(path):
        if path.is_dir():
            found = sorted(
                file for file in path.rglob("*") if file.is_file() and not _is_hidden(file.relative_to(path))
            )
            if not found:
                raise ArgumentError(f"no logs found: the folder {path} is empty")
            return found
        if not path.is_file():
            raise ArgumentError(f"file or folder not found: {path}")
    return [path]


def logs_in(source: Path) -> Iterator[LogStream]:
    """Yield the files of lines in a source, including empty files, in stored order.

    A packed file is read to its end, so that a damaged file is never accepted as complete.
    """
    path = source.absolute()
    with storage_errors(source):
        file = path.open("rb")
    with file:
        reading = _Reading(source)
        size_bytes = path.stat().st_size
        for number, (name, stream, found_bytes) in enumerate(_unwrapped(reading, path, file, size_bytes, 0)):
            yield LogStream(name, number, stream, found_bytes)


def logs_in_order(source: Path, numbers: Sequence[int]) -> Generator[LogStream]:
    """Yield the files with these numbers, in the order of `numbers`, independent of the stored order.

    Files for later turns are kept packed in memory, up to a limit. If they do not fit, the source is read again.
    """
    turns = {number: turn for turn, number in enumerate(numbers)}
    turn = 0
    while turn < len(numbers):
        before, held = turn, _Held()
        for found in logs_in(source):
            own = turns.get(found.number, -1)
            if own > turn:
                held.put(own, found)
            elif own == turn:
                yield found
                turn += 1
                while (waiting := held.pop(turn)) is not None:
                    yield waiting
                    turn += 1
                if turn == len(numbers):
                    return
        if turn == before:
            raise ArgumentError(f"{source} changed while it was read. Import it again")


class _Held:
    """Packed files for later turns in one reading of their source, up to a limit.

    Files with the latest turns are dropped first. A file after a dropped file is not kept, because its turn cannot come
    in this reading.
    """

    def __init__(self) -> None:
        self._packed: dict[int, tuple[LogStream, bytes]] = {}
        self._latest: list[int] = []
        self._size_bytes = 0
        self._before = 2**63

    def put(self, turn: int, found: LogStream) -> None:
        if turn >= self._before:
            return
        packer, packed = zlib.compressobj(1, wbits=31), bytearray()
        while chunk := found.stream.read(_CHUNK_SIZE_BYTES):
            packed += packer.compress(chunk)
            if len(packed) > limits.MAX_LOGS_HELD_SIZE_BYTES:
                self._before = turn
                return
        packed += packer.flush()
        self._packed[turn] = found, bytes(packed)
        self._size_bytes += len(packed)
        heapq.heappush(self._latest, -turn)
        while self._size_bytes > limits.MAX_LOGS_HELD_SIZE_BYTES:
            self._before = -heapq.heappop(self._latest)
            self.pop(self._before)

    def pop(self, turn: int) -> LogStream | None:
        """Remove and return a kept file, or None if it is not kept."""
        if turn not in self._packed:
            return None
        found, packed = self._packed.pop(turn)
        self._size_bytes -= len(packed)
        return replace(found, stream=_ungzipped(io.BytesIO(packed)))


# --- nested files -----------------------------------------------------------------------------------


class _Reading:
    """One source during reading: its name for errors, and its unpacked size so far."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.unpacked_bytes = 0

    def count(self, size_bytes: int) -> None:
        self.unpacked_bytes += size_bytes
        if self.unpacked_bytes > limits.MAX_LOGS_UNPACKED_SIZE_BYTES:
            raise ArgumentError(
                f"{self.source} is too large: the maximum is {limits.MAX_LOGS_UNPACKED_SIZE_BYTES:,} bytes after "
                "decompression. Import it in parts"
            )


@contextmanager
def _damage(name: PurePath) -> Iterator[None]:
    """Convert exceptions of decompressors and archives to an error with the file's name."""
    try:
        yield
    except ArgumentError:  # the error already names the file
        raise
    except OSError as error:
        if error.errno is not None:  # an I/O error, not an error of a decompressor
            with storage_errors(Path(name)):
                raise
        raise _damaged(name) from None
    except (
        EOFError,
        ValueError,
        NotImplementedError,
        lzma.LZMAError,
        zlib.error,
        tarfile.TarError,
        zipfile.BadZipFile,
    ):
        raise _damaged(name) from None


def _damaged(name: PurePath) -> ArgumentError:
    return ArgumentError(f"{name} is damaged or truncated: decompression failed. Download or copy it again")


def _unwrapped(
    reading: _Reading, name: PurePath, file: IO[bytes], size_bytes: int, wrappings: int
) -> Iterator[tuple[PurePath, IO[bytes], int]]:
    """Yield the path, stream and size of each file of lines in `file`. A packed file is read to its end.

    `size_bytes` is the size of `file`, and `wrappings` the number of packed files around it. The yielded size of a
    compressed file is its compressed size.
    """
    if wrappings > limits.MAX_LOG_WRAPPINGS:
        raise ArgumentError(f"{name} is compressed more than {limits.MAX_LOG_WRAPPINGS} times. Decompress it first")
    with _damage(name):
        head = file.read(_BLOCK_SIZE_BYTES)
    whole = _rest(name, head, file)
    unpack = next((unpack for magic, unpack in _COMPRESSIONS.items() if head.startswith(magic)), None)
    if unpack is not None:
        inner = _counted(reading, name, unpack(whole))
        yield from _unwrapped(reading, name, inner, size_bytes, wrappings + 1)
        while inner.read(_CHUNK_SIZE_BYTES):
            pass
    elif head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        if wrappings:
            raise ArgumentError(f"{name} is a zip archive in another archive. Extract the outer archive first")
        for path, stream, entry_bytes in _zip_entries(reading, name, file):
            yield from _unwrapped(reading, path, stream, entry_bytes, wrappings + 1)
    elif _is_tar(name, head):
        for path, stream, entry_bytes in _tar_entries(name, whole):
            yield from _unwrapped(reading, path, stream, entry_bytes, wrappings + 1)
    else:
        kind = next((kind for magic, kind in _UNREAD.items() if head.startswith(magic)), None)
        if kind is not None:
            raise ArgumentError(f"{name} uses the unsupported compression {kind}. Decompress it first")
        yield name, whole, size_bytes


class _LogInput(io.RawIOBase):
    """Stream over a function that reads up to a number of bytes."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        super().__init__()
        self._read = read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        found = self._read(len(buffer))
        buffer[: len(found)] = found
        return len(found)


def _rest(name: PurePath, head: bytes, file: IO[bytes]) -> IO[bytes]:
    """Return a stream of a whole file, of which the first bytes, `head`, were already read from `file`."""
    begun = io.BytesIO(head)

    def read(size: int) -> bytes:
        with _damage(name):
            return begun.read(size) or file.read(size)

    return io.BufferedReader(_LogInput(read))


def _counted(reading: _Reading, name: PurePath, file: IO[bytes]) -> io.BufferedReader:
    """Return the stream of a decompressor. Its bytes are counted, and errors contain the file's name."""

    def read(size: int) -> bytes:
        with _damage(name):
            found = file.read(min(size, _CHUNK_SIZE_BYTES))
        reading.count(len(found))
        return found

    return io.BufferedReader(_LogInput(read))


def _decompressed(
    file: IO[bytes], make: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]
) -> io.BufferedReader:
    """Decompress concatenated streams of bzip2 or xz. The standard library's class does not limit the memory of xz."""
    decompressor = make()

    def read(size: int) -> bytes:
        nonlocal decompressor
        while True:
            data = b""
            if decompressor.eof:
                data = (decompressor.unused_data or file.read(_CHUNK_SIZE_BYTES)).lstrip(b"\0")
                if not data:
                    return b""
                decompressor = make()
            elif decompressor.needs_input and not (data := file.read(_CHUNK_SIZE_BYTES)):
                raise EOFError
            found = decompressor.decompress(data, size)
            if found:
                return found

    return io.BufferedReader(_LogInput(read))


def _ungzipped(file: IO[bytes]) -> IO[bytes]:
    return cast(IO[bytes], gzip.GzipFile(fileobj=file))


def _xz() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(memlimit=limits.MAX_LOG_XZ_MEMORY_SIZE_BYTES)


_COMPRESSIONS: Final[dict[bytes, Callable[[IO[bytes]], IO[bytes]]]] = {
    b"\x1f\x8b": _ungzipped,
    b"BZh": lambda file: _decompressed(file, bz2.BZ2Decompressor),
    b"\xfd7zXZ\0": lambda file: _decompressed(file, _xz),
}


# --- archives --------------------------------------------------------------------------------------


def _is_tar(name: PurePath, head: bytes) -> bool:
    if head == bytes(_BLOCK_SIZE_BYTES):
        return ".tar" in name.name  # an empty archive
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):
        return False
    return True


def _tar_entries(name: PurePath, file: IO[bytes]) -> Iterator[tuple[PurePath, IO[bytes], int]]:
    forward = _Forward(name, file)
    with _damage(name), tarfile.open(fileobj=cast(IO[bytes], forward), mode="r:") as archive:
        entries = 0
        while (entry := archive.next()) is not None:
            cast(Any, archive).members.clear()  # otherwise the archive would keep all entries
            entries = _counted_entry(name, entries)
            kind = _kind_of(entry)
            if kind:
                raise ArgumentError(
                    f"{name} contains {kind}, {_shown(entry.name)}: only files and folders are supported. Extract it "
                    "first"
                )
            path = _inside(name, entry.name)
            content = archive.extractfile(entry)
            if content is not None and not _is_hidden(path.relative_to(name)):
                forward.begin_content()
                yield path, content, entry.size
            forward.begin_header()
    if forward.last_block.strip(b"\0") or not forward.last_block:
        raise _damaged(name)  # the block of zeros at the end of an archive is missing
    while file.read(_CHUNK_SIZE_BYTES):
        pass


def _kind_of(entry: tarfile.TarInfo) -> str:
    """Return the kind of an entry in words, or "" for a file or a folder."""
    if entry.issym() or entry.islnk():
        return "a link"
    if entry.ischr() or entry.isblk():
        return "a device"
    if entry.isfifo():
        return "a FIFO"
    return "" if (entry.isreg() or entry.isdir()) and not entry.issparse() else "a special file"


class _Forward:
    """Forward-only stream for `tarfile`. The size of an entry's headers is limited."""

    def __init__(self, name: PurePath, file: IO[bytes]) -> None:
        self._name, self._file, self._position = name, file, 0
        self.last_block = b""
        self._left = 0
        self.begin_header()

    def begin_header(self) -> None:
        """Count the following reads as headers of the next entry."""
        self._left = limits.MAX_LOG_ENTRY_HEADER_SIZE_BYTES

    def begin_content(self) -> None:
        """Count the following reads as content of an entry."""
        self._left = 2**63

    def read(self, size_bytes: int) -> bytes:
        self._left -= size_bytes
        if self._left < 0:
            raise ArgumentError(
                f"{self._name} contains an entry whose header is too large: the maximum is "
                f"{limits.MAX_LOG_ENTRY_HEADER_SIZE_BYTES:,} bytes. Extract the archive first"
            )
        found = self._file.read(size_bytes)
        self._position += len(found)
        if size_bytes == _BLOCK_SIZE_BYTES:
            self.last_block = found
        return found

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> int:
        while self._position < position:
            skipped = len(self._file.read(min(position - self._position, _CHUNK_SIZE_BYTES)))
            if not skipped:
                break
            self._position += skipped
        return self._position


def _zip_entries(reading: _Reading, name: PurePath, file: IO[bytes]) -> Iterator[tuple[PurePath, IO[bytes], int]]:
    with _damage(name), zipfile.ZipFile(file) as archive:
        entries = 0
        for entry in archive.infolist():
            entries = _counted_entry(name, entries)
            path = _inside(name, entry.filename)
            if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise ArgumentError(
                    f"{name} contains a special file, {_shown(entry.filename)}: only files and folders are supported. "
                    "Extract the archive first"
                )
            if entry.flag_bits & 1:
                raise ArgumentError(
                    f"{name} contains an encrypted entry, {_shown(entry.filename)}. Extract the archive first"
                )
            if entry.is_dir() or _is_hidden(path.relative_to(name)):
                continue
            unreadable = ArgumentError(
                f"{name} uses an unsupported compression for {_shown(entry.filename)}. Extract the archive first"
            )
            if entry.compress_type == zipfile.ZIP_LZMA:  # an LZMA dictionary may use any amount of memory
                raise unreadable
            try:
                content = archive.open(entry)
            except (NotImplementedError, RuntimeError):
                raise unreadable from None
            with content:
                stream = _counted(reading, path, content)
                yield path, stream, entry.file_size
                while stream.read(_CHUNK_SIZE_BYTES):
                    pass  # read to the end, so that the checksum is verified


def _counted_entry(name: PurePath, entries: int) -> int:
    if entries >= limits.MAX_LOG_ARCHIVE_ENTRIES:
        raise ArgumentError(
            f"{name} contains too many entries: the maximum is {limits.MAX_LOG_ARCHIVE_ENTRIES:,}. Import it in parts"
        )
    return entries + 1


def _inside(archive: PurePath, name: str) -> PurePath:
    """Return the path of an entry below its archive. Raises ArgumentError if it is outside the archive."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ArgumentError(
            f"unsafe path in {archive}: the entry {_shown(name)} is outside the archive. Nothing was imported from it"
        )
    return PurePath(archive, path)


def _shown(name: str) -> str:
    """Return the name of an entry for an error message."""
    return f'"{shortened(name)}"'
