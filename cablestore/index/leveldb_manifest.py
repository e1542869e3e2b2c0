"""Manifests of LevelDB: lists of tables. With them, closed databases can be joined without reading rows.

    CURRENT            the name of the manifest, and a newline
    MANIFEST-<number>  records, each an edit of the list: added or removed tables, the last number of a write

`cablestore.index.leveldb_log` describes the format of records.

An edit is a sequence of fields, each after its number. Numbers are varints, and text follows its length:

    1 comparator text | 2 log number | 3 next number of a file | 4 last number of a write | 5 level, key text |
    6 level, number of a removed table | 7 level, number, size, first key text, last key text | 9 earlier log number

Keys of tables end with eight bytes that number the write. Source: doc/log_format.md and doc/impl.md of LevelDB.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from cablestore.errors import CorruptStoreError, DecodeError, StorageError
from cablestore.files import make_folder
from cablestore.index.leveldb_files import TABLE_SUFFIXES, link_table
from cablestore.index.leveldb_log import read_records, recorded
from cablestore.protocol.varint import encode_varint, read_varint

_COMPARATOR, _LOG, _NEXT_FILE, _LAST_WRITE, _COMPACTED, _GONE, _TABLE, _EARLIER_LOG = 1, 2, 3, 4, 5, 6, 7, 9
_BYTEWISE: Final = b"leveldb.BytewiseComparator"
_WRITE_NUMBER_SIZE_BYTES: Final = 8
_CURRENT_TEXT: Final = re.compile(rb"MANIFEST-[0-9]+\n")
_MANIFEST: Final = "MANIFEST-000001"

_FIRST_LIMIT_SIZE_BYTES: Final = 10 * 2**20
_LAST_LEVEL: Final = 6
"""The level without a limit. Level 1 may contain up to 10 MiB, and each further level ten times the level before."""


class LevelTable(NamedTuple):
    """A table: its file, and its first and last key in a manifest."""

    file: Path
    size_bytes: int
    first: bytes
    last: bytes


class TableList(NamedTuple):
    """The tables of a closed database, and the last number of a write to it."""

    tables: Sequence[LevelTable]
    last_write: int


def join_tables(parts: Sequence[Path], path: Path) -> None:
    """Join closed LevelDBs with disjoint ranges of keys into a new LevelDB in the folder `path`.

    Their tables are linked, not copied. The parts do not change. `path` must not contain a database.

    Raises StorageError if a part has rows outside its tables, because LevelDB does not report a failed write when it
    closes. Also raises StorageError if ranges overlap or a table is truncated or missing. Raises CorruptStoreError for
    a damaged list.
    """
    for part in parts:
        if any(log.stat().st_size for log in part.glob("[0-9]*.log")):
            raise StorageError(
                f"writing to {part} failed: some rows are not in its tables. Free space on the disk, then run "
                "the command again"
            )
    try:
        make_folder(path)
        write_database([read_tables(part) for part in parts], path)
    except OSError as error:
        raise StorageError(f"cannot merge {len(parts)} databases into {path}: {error.strerror}") from None


def read_tables(path: Path) -> TableList:
    """Return the tables of the closed database at `path`. Raises CorruptStoreError and OSError."""
    manifest = path / (path / "CURRENT").read_text(encoding="utf-8").strip()
    found: dict[int, LevelTable] = {}
    last_write = 0
    try:
        for kind, values in chain.from_iterable(map(_fields, read_records(manifest.read_bytes()))):
            if kind == _LAST_WRITE:
                (last_write,) = values
            elif kind == _GONE:
                found.pop(values[1], None)
            elif kind == _TABLE:
                _, number, *rest = values
                found[number] = LevelTable(_table_file(path, number), *rest)
    except DecodeError as error:
        raise CorruptStoreError(f"{manifest} is damaged: {error}. Run the command again") from None
    return TableList(list(found.values()), last_write)


class TableRange(NamedTuple):
    """The level of a table, and the keys of its first and last row."""

    level: int
    first: bytes
    last: bytes


class ReadableList(NamedTuple):
    """Content of a manifest up to its first damage."""

    live_log: int
    """Number of the oldest log whose writes are not in tables, 0 for joined databases that were not opened since."""
    tables: Mapping[int, TableRange]
    """The listed tables by number."""

    def shared_keys(self) -> list[bytes]:
        """Return the keys that two tables of one level contain. Tables of level 0 may overlap and are ignored."""
        ranges = sorted(table for table in self.tables.values() if table.level)
        return sorted({one.last for one, following in pairwise(ranges) if (one.level, one.last) == following[:2]})


def read_readable(path: Path) -> ReadableList:
    """Return the part of the list of tables that LevelDB reads when it opens the database at `path`."""
    oldest, tables = 0, dict[int, TableRange]()
    try:
        manifest = path / (path / "CURRENT").read_text(encoding="utf-8").strip()
        for kind, values in chain.from_iterable(map(_fields, read_records(manifest.read_bytes(), verify=False))):
            if kind == _LOG:
                (oldest,) = values
            elif kind == _GONE:
                tables.pop(values[1], None)
            elif kind == _TABLE:
                level, number, _, first, last = values
                tables[number] = TableRange(level, _row_key(first), _row_key(last))
    except (DecodeError, ValueError, OSError):  # a damaged name or list, or an incomplete last edit
        pass
    return ReadableList(oldest, tables)


def listed_tables(path: Path) -> list[Path]:
    """Return the files of the tables that LevelDB reads. Only these may be linked into a copy.

    A killed process leaves other tables, and LevelDB writes a table before it lists it. A copy would use their numbers
    again, and overwrite the original through the link.
    """
    listed = read_readable(path).tables
    tables = (file for file in path.iterdir() if file.suffix in TABLE_SUFFIXES and file.stem.isdigit())
    return [table for table in tables if int(table.stem) in listed]


def is_misnamed(path: Path) -> bool:
    """Return True if CURRENT exists but does not name a manifest. LevelDB opens any file or folder that it names."""
    try:
        return _CURRENT_TEXT.fullmatch((path / "CURRENT").read_bytes()) is None
    except FileNotFoundError:
        return False


def is_log_missing(path: Path, listed: ReadableList) -> bool:
    """Return True if the log with the latest writes is missing. LevelDB opens the database without it."""
    return bool(listed.live_log) and not (path / f"{listed.live_log:06d}.log").exists()


def is_outdated(path: Path, listed: ReadableList) -> bool:
    """Return True if the end of the list of tables is lost. LevelDB would remove the tables that it does not list.

    A killed process can leave such tables too, but then the log with their rows exists.
    """
    return is_log_missing(path, listed) and any(
        table.stem.isdigit() and int(table.stem) not in listed.tables for table in path.glob("*.ldb")
    )


def write_database(parts: Sequence[TableList], path: Path) -> None:
    """Create one database from tables with disjoint ranges of keys in `path`, which must not contain a database.

    The tables are linked with new numbers. All of them are on one level, the first level whose limit they do not
    exceed. Raises StorageError if two ranges overlap or a table is truncated, and OSError if writing fails.
    """
    tables = sorted((table for part in parts for table in part.tables), key=lambda table: _row_key(table.first))
    for one, following in pairwise(tables):
        if _row_key(one.last) >= _row_key(following.first):
            raise StorageError(f"the tables {one.file} and {following.file} overlap. Run the command again")
    for table in tables:
        if (found := table.file.stat().st_size) != table.size_bytes:
            raise StorageError(
                f"{table.file} has {found} bytes, expected {table.size_bytes}. Check the disk, then run "
                "the command again"
            )
    level = _level_of(sum(table.size_bytes for table in tables))
    edit = [
        _field(_COMPARATOR, _BYTEWISE),
        _field(_LOG, 0),
        _field(_NEXT_FILE, len(tables) + 2),
        _field(_LAST_WRITE, max((part.last_write for part in parts), default=0)),
    ]
    for number, table in enumerate(tables, 2):
        link_table(table.file, _table_file(path, number))
        edit.append(_field(_TABLE, level, number, table.size_bytes, table.first, table.last))
    (path / _MANIFEST).write_bytes(recorded(b"".join(edit)))
    (path / "CURRENT").write_text(f"{_MANIFEST}\n", encoding="utf-8")


def _table_file(path: Path, number: int) -> Path:
    return path / f"{number:06d}.ldb"


def _row_key(key: bytes) -> bytes:
    return key[:-_WRITE_NUMBER_SIZE_BYTES]


def _level_of(size_bytes: int) -> int:
    level, limit = 1, _FIRST_LIMIT_SIZE_BYTES
    while level < _LAST_LEVEL and size_bytes >= limit:
        level, limit = level + 1, limit * 10
    return level


# --- edits ---------------------------------------------------------------------------------------


def _read_text(edit: bytes, at: int) -> tuple[bytes, int]:
    size, start = read_varint(edit, at)
    if start + size > len(edit):
        raise DecodeError(at, f"a string of {size} bytes is truncated")
    return edit[start : start + size], start + size


_FIELDS: Final[Mapping[int, Sequence[Callable[[bytes, int], tuple[Any, int]]]]] = {
    _COMPARATOR: (_read_text,),
    _LOG: (read_varint,),
    _NEXT_FILE: (read_varint,),
    _LAST_WRITE: (read_varint,),
    _COMPACTED: (read_varint, _read_text),
    _GONE: (read_varint, read_varint),
    _TABLE: (read_varint, read_varint, read_varint, _read_text, _read_text),
    _EARLIER_LOG: (read_varint,),
}


def _fields(edit: bytes) -> Iterator[tuple[int, list[Any]]]:
    """Yield the fields of an edit, each with its values. Raises DecodeError."""
    at = 0
    while at < len(edit):
        kind, at = read_varint(edit, at)
        if kind not in _FIELDS:
            raise DecodeError(at, f"an edit has a field of unknown type {kind}")
        values = []
        for read in _FIELDS[kind]:
            value, at = read(edit, at)
            values.append(value)
        yield kind, values


def _field(kind: int, *values: int | bytes) -> bytes:
    written = (
        encode_varint(value) if isinstance(value, int) else encode_varint(len(value)) + value for value in values
    )
    return encode_varint(kind) + b"".join(written)
