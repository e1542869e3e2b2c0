"""How many rows and bytes each view has, kept in one row that every batch updates.

    !sizes -> msgpack map of view name to [rows, bytes of keys and values]

It follows from the rows alone, so a rebuild arrives at the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from cablestore.errors import CorruptStoreError
from cablestore.packing import pack, unpack

KEY: Final = b"!sizes"


class Size(NamedTuple):
    """Rows of a view, and the bytes of their keys and values before compression."""

    rows: int
    size_bytes: int


Sizes = Mapping[str, Size]
"""The size of each view, by its name."""


def encode_sizes(sizes: Sizes) -> bytes:
    """Return the value of the row."""
    return pack(dict(sizes))


def decode_sizes(value: bytes | None) -> Sizes:
    """Read what `encode_sizes` wrote; nothing is written for an empty database."""
    match None if value is None else unpack(value):
        case None:
            return {}
        case dict() as sizes:
            return {name: Size(*size) for name, size in sizes.items()}
    raise CorruptStoreError("the row of sizes holds none. Run `cablestore rebuild`")


def add_sizes(sizes: Sizes, change: Mapping[str, Size]) -> Sizes:
    """Return the sizes after a change, whose numbers may be negative; views without rows are left out."""
    none = Size(0, 0)
    summed = dict(sizes)
    for name, (rows, size_bytes) in change.items():
        before = sizes.get(name, none)
        summed[name] = Size(before.rows + rows, before.size_bytes + size_bytes)
    return {name: summed[name] for name in sorted(summed) if summed[name].rows}
