"""What a database says of itself, in one row.

!meta -> msgpack {"format": 1, "dialect": "legacy", "views": {name: version}}
"""

from __future__ import annotations

from typing import Final

from cablestore.errors import CorruptStoreError, FormatError, OutdatedViewError
from cablestore.index.database import Row
from cablestore.index.packing import pack, unpack
from cablestore.index.view import Catalog
from cablestore.protocol.dialect import Dialect, dialect_named

KEY: Final = b"!meta"


def meta_row(catalog: Catalog, dialect: Dialect, format_version: int) -> Row:
    """Return the row that a database made by this catalog has."""
    return KEY, pack({"format": format_version, "dialect": dialect.name, "views": catalog.versions})


def dialect_of(value: bytes | None, format_version: int, where: str) -> Dialect | None:
    """Return the dialect that a database says, None where it says nothing that can be read.

    Raises FormatError where the database is of another format.
    """
    try:
        said = None if value is None else unpack(value)
    except CorruptStoreError:
        return None
    match said:
        case {"format": int(found), "dialect": str(name)} if found == format_version:
            return dialect_named(name)
        case {"format": int(found)}:
            raise FormatError(f"{where} has format {found}, this version of cablestore reads {format_version}")
    return None


def check_meta(value: bytes, catalog: Catalog, dialect: Dialect, where: str) -> None:
    """Raise FormatError for another dialect, OutdatedViewError where a view was made by another version of its code."""
    meta = unpack(value)
    if meta["dialect"] != dialect.name:
        raise FormatError(f"{where} says dialect {dialect.name}, its database says {meta['dialect']}")
    found: dict[str, int] = meta["views"]
    outdated = [
        f"{name} (found {found.get(name, 'none')}, expected {version})"
        for name, version in catalog.versions.items()
        if found.get(name) != version
    ]
    outdated += [f"{name} (found {found[name]}, expected none)" for name in found if name not in catalog.versions]
    if outdated:
        raise OutdatedViewError(
            f"views of {where} were built by another version: {', '.join(outdated)}. Run `cablestore rebuild` to build them "
            "anew from the posts"
        )
