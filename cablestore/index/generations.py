"""Databases in the folder of a store: their names, and the marks of generations that the header does not list."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from cablestore.files import sync_folder, write_atomically
from cablestore.index.leveldb_files import holds_database

_GENERATION: Final = "generation-"
_DAMAGED: Final = "damaged-"
NUMBERED: Final = re.compile(f"({_GENERATION}|{_DAMAGED})([0-9]{{6,18}})")
DRAFT: Final = ".new"
"""Suffix of a file before it is renamed."""

_MARK: Final = "UNNAMED"
"""File in a generation that STORE does not name, or does not name yet. It contains one of the following lines."""
UNFINISHED: Final = "unfinished"
FINISHED: Final = "finished"
REPLACED_BY: Final = "replaced by "


def names_of(path: Path) -> tuple[str, ...]:
    """Return the names of all generations in the folder, oldest first."""
    return in_order({entry.name for entry in path.iterdir() if is_generation(entry.name)})


def databases_of(path: Path) -> list[str]:
    """Return the names of the generations that contain a database, oldest first."""
    return [name for name in names_of(path) if holds_database(path / name)]


def is_generation(name: str) -> bool:
    """Return True if this is a valid name of a generation."""
    match = NUMBERED.fullmatch(name)
    return match is not None and match[1] == _GENERATION


def next_name(path: Path, named: Iterable[str]) -> str:
    """Return the name of a new generation. Its number is above the numbers of all entries in `path` and of `named`."""
    entries = path.iterdir() if path.is_dir() else ()
    taken = [NUMBERED.fullmatch(name) for name in (*named, *(entry.name for entry in entries))]
    return f"{_GENERATION}{max((int(match[2]) for match in taken if match), default=0) + 1:06d}"


def in_order(generations: Iterable[str]) -> tuple[str, ...]:
    """Return names of generations, oldest first."""
    return tuple(sorted(generations, key=lambda name: int(name.removeprefix(_GENERATION))))


def mark_of(database: Path) -> str:
    """Return the text of the mark in a generation, or "" if it is not marked."""
    try:
        return (database / _MARK).read_text(encoding="utf-8", errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def put_mark(database: Path, text: str) -> None:
    """Mark a generation. After the return, a power failure does not undo this."""
    write_atomically(database / _MARK, f"{text}\n".encode(), DRAFT)


def unmark(database: Path) -> None:
    """Remove the mark of a generation, if it has one."""
    with suppress(FileNotFoundError, NotADirectoryError):
        (database / _MARK).unlink()
        sync_folder(database)


def damaged_name(generation: str) -> str:
    """Return the name of a damaged generation after it is set aside."""
    return generation.replace(_GENERATION, _DAMAGED)
