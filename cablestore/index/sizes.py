"""How many rows and bytes each view has, kept in one row that every batch updates.

    !sizes -> msgpack map of view name to [rows, bytes of keys and values]

It follows from the rows alone, so a rebuild arrives at the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from cablestore.errors import CorruptStoreError
from cablestore.index.packing import pack, unpack

KEY: Final = b"!sizes"


class Size(NamedTuple):
    """Rows of a view, and the bytes of their keys and values before compression."""

    rows: int
    size_bytes: int


Sizes = Mapping[str, tuple[int, int]]
"""The rows and bytes of each view, by its name."""

NO_SIZE: Final = (0, 0)


def encode_sizes(sizes: Sizes) -> bytes | None:
    """Return the value of the row, views without rows left out; None where none has any."""
    present = {name: size for name, size in sorted(sizes.items()) if size[0]}
    return pack(present) if present else None


def decode_sizes(value: bytes | None) -> dict[str, Size]:
    """Read what `encode_sizes` wrote; nothing is written for an empty database."""
    match None if value is None else unpack(value):
        case None:
            return {}
        case dict() as sizes:
            return {name: Size(*size) for name, size in sizes.items()}
    raise CorruptStoreError("the row of sizes holds none. Run `cablestore rebuild`")


def add_sizes(sizes: Sizes, change: Sizes) -> Sizes:
    """Return the sizes after a change, whose numbers may be negative."""
    summed = dict(sizes)
    for name, (rows, size_bytes) in change.items():
        before = summed.get(name, NO_SIZE)
        summed[name] = (before[0] + rows, before[1] + size_bytes)
    return summed
