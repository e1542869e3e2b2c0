"""What a database says of itself, in one row.

!meta -> msgpack {"format": 1, "dialect": "legacy", "views": {name: version}}
"""

from __future__ import annotations

from typing import Final

from cablestore.errors import CorruptStoreError, FormatError, MissingViewError, OutdatedViewError, ViewError
from cablestore.index.packing import pack, unpack
from cablestore.index.database import Row
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
    """Check that a database was made for this dialect by this version of the views.

    Raises FormatError for another dialect, OutdatedViewError for a view of another version or one that the database lacks. Views that
    the catalog lacks are left to `require_views`.
    """
    meta = unpack(value)
    if meta["dialect"] != dialect.name:
        raise FormatError(f"{where} says dialect {dialect.name}, its database says {meta['dialect']}")
    found: dict[str, int] = meta["views"]
    outdated = [
        f"{name} (found {found.get(name, 'none')}, expected {version})"
        for name, version in catalog.versions.items()
        if found.get(name) != version
    ]
    if outdated:
        raise OutdatedViewError(
            f"views of {where} were built by another version: {', '.join(outdated)}. Run `cablestore rebuild` to build them "
            "anew from the posts"
        )


def missing_views(value: bytes | None, catalog: Catalog) -> dict[str, int]:
    """Return the names and versions of views that a database has and the catalog lacks, none for a row that cannot be read."""
    try:
        meta = None if value is None else unpack(value)
    except CorruptStoreError:
        return {}
    match meta:
        case {"views": dict(found)}:
            return {str(name): version for name, version in found.items() if name not in catalog.versions}
    return {}


def require_views(value: bytes | None, catalog: Catalog, where: str, drop: frozenset[str] = frozenset()) -> None:
    """Raise MissingViewError if a database has views that the catalog lacks, but for those that may be dropped.

    Raises ViewError for a name to drop that is not among them.
    """
    found = missing_views(value, catalog)
    if drop - found.keys():
        raise ViewError(
            f"{', '.join(sorted(drop - found.keys()))} cannot be dropped from {where}: only a view that the store has and that is "
            f"not installed can. These are: {', '.join(sorted(found)) or 'none'}"
        )
    if found.keys() - drop:
        raise missing_error({name: version for name, version in found.items() if name not in drop}, where)


def missing_error(views: dict[str, int], where: str) -> MissingViewError:
    """Return the error for a store that has views whose code is not installed."""
    names = ", ".join(f"{name} {version}" for name, version in sorted(views.items()))
    drop = " ".join(f"--drop-view {name}" for name in sorted(views))
    return MissingViewError(
        f"{where} has views that are not installed: {names}. Install the package that provides them (entry points of the group "
        f"cablestore.views). Without it the store can be read only; `cablestore rebuild {drop}` removes them from the store"
    )
