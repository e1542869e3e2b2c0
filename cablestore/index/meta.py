"""The two rows that describe a database as a whole.

    !meta  -> msgpack {"format": 1, "dialect": "legacy", "views": {name: version}}
    !sizes -> msgpack map of view name to [rows, bytes of keys and values]

Every batch updates the sizes. They only depend on the rows, so a rebuild computes the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from cablestore.errors import ArgumentError, CorruptStoreError, OpenError, OutdatedViewError
from cablestore.index.database import Row
from cablestore.index.packing import pack, unpack
from cablestore.index.view import Catalog
from cablestore.protocol.dialect import Dialect, dialect_named

META_KEY: Final = b"!meta"
SIZES_KEY: Final = b"!sizes"


class Size(NamedTuple):
    """Number of rows of a view, and the bytes of their keys and values before compression."""

    rows: int
    size_bytes: int


Sizes = Mapping[str, tuple[int, int]]
"""The rows and bytes of each view, by its name."""

NO_SIZE: Final = (0, 0)


def meta_row(catalog: Catalog, dialect: Dialect, format_version: int) -> Row:
    """Return the meta row of a database with this catalog."""
    return META_KEY, pack({"format": format_version, "dialect": dialect.name, "views": catalog.versions})


def dialect_of(value: bytes | None, format_version: int, where: str) -> Dialect | None:
    """Return the dialect in the meta row, None if the row is missing or unreadable.

    Raises OpenError if the database has another format.
    """
    try:
        found_meta = None if value is None else unpack(value)
    except CorruptStoreError:
        return None
    match found_meta:
        case {"format": int(found), "dialect": str(name)} if found == format_version:
            return dialect_named(name)
        case {"format": int(found)}:
            raise OpenError(
                f"{where} has format {found}, but this version of cablestore reads {format_version}. Use the version "
                "that wrote it"
            )
    return None


def check_meta(value: bytes, catalog: Catalog, dialect: Dialect, where: str) -> None:
    """Raise OpenError for another dialect, OutdatedViewError for a missing or outdated view.

    Raises CorruptStoreError for a damaged row. `require_views` checks for views that the catalog lacks.
    """
    match unpack(value):
        case {"dialect": str(name), "views": dict()}:
            pass
        case _:
            raise CorruptStoreError(
                f"the database of {where} lacks its dialect and views. Run `cablestore rebuild` to create a new one"
            )
    if name != dialect.name:
        raise OpenError(f"{where} has the dialect {dialect.name}, but its database has {name}")
    outdated = [
        f"{name} (found {'none' if found is None else found}, expected {catalog.versions[name]})"
        for name, found in outdated_views(value, catalog).items()
    ]
    if outdated:
        raise OutdatedViewError(
            f"views of {where} were built by another version: {', '.join(outdated)}. Run `cablestore rebuild` to build "
            "them again from the posts; a program opens the store with upgrade=True"
        )


def outdated_views(value: bytes, catalog: Catalog) -> dict[str, int | None]:
    """Return the views that differ from the catalog, with the version in the database, or None if it lacks the view."""
    found: dict[str, int] = unpack(value)["views"]
    return {name: found.get(name) for name, version in catalog.versions.items() if found.get(name) != version}


def missing_views(value: bytes | None, catalog: Catalog) -> dict[str, int]:
    """Return names and versions of views in a database that the catalog lacks, {} if the row is unreadable."""
    try:
        meta = None if value is None else unpack(value)
    except CorruptStoreError:
        return {}
    match meta:
        case {"views": dict(found)}:
            return {str(name): version for name, version in found.items() if name not in catalog.versions}
    return {}


def require_views(value: bytes | None, catalog: Catalog, where: str, drop: frozenset[str] = frozenset()) -> None:
    """Raise OpenError if a database has views that the catalog lacks, except for the views in `drop`.

    Raises ArgumentError for a name in `drop` that is not the name of such a view.
    """
    found = missing_views(value, catalog)
    if drop - found.keys():
        raise ArgumentError(
            f"cannot drop {', '.join(sorted(drop - found.keys()))} from {where}: only stored views that are not "
            f"installed can be dropped. These are: {', '.join(sorted(found)) or 'none'}"
        )
    if found.keys() - drop:
        raise missing_error({name: version for name, version in found.items() if name not in drop}, where)


def missing_error(views: dict[str, int], where: str) -> OpenError:
    """Return the error for a store with views whose code is not installed."""
    names = ", ".join(f"{name} {version}" for name, version in sorted(views.items()))
    drop = " ".join(f"--drop-view {name}" for name in sorted(views))
    return OpenError(
        f"{where} has views that are not installed: {names}. Install the package that provides them (entry points of "
        f"the group cablestore.views). Without it the store can only be read. `cablestore rebuild {drop}` removes "
        "them from the store"
    )


def encode_sizes(sizes: Sizes) -> bytes | None:
    """Return the value of the row of sizes, which omits empty views. Return None if all views are empty."""
    present = {name: sizes[name] for name in sorted(sizes) if sizes[name][0]}
    return pack(present) if present else None


def decode_sizes(value: bytes | None) -> dict[str, Size]:
    """Decode the result of `encode_sizes`. An empty database has no such row. Raises CorruptStoreError."""
    match None if value is None else unpack(value):
        case None:
            return {}
        case dict() as sizes if all(map(_is_size, sizes.values())):
            return {str(name): Size(*size) for name, size in sizes.items()}
    raise CorruptStoreError("the row of view sizes is not a map of view names to sizes. Run `cablestore rebuild`")


def _is_size(fields: object) -> bool:
    match fields:
        case [int(), int()]:
            return True
    return False


def add_sizes(sizes: Sizes, change: Sizes) -> Sizes:
    """Return the sums of `sizes` and `change`, whose numbers may be negative."""
    summed = dict(sizes)
    for name, (rows, size_bytes) in change.items():
        before = summed.get(name, NO_SIZE)
        summed[name] = (before[0] + rows, before[1] + size_bytes)
    return summed
