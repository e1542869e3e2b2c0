"""A Bloom filter of one generation, as deployed nodes have it."""

from __future__ import annotations

from collections.abc import Iterable

from cablestore.sds.bloom import FilterParameters


class BloomFilter:
    """Filter to which ids are added."""

    def __init__(self, parameters: FilterParameters) -> None:
        self._bits = bytearray(parameters.size_bytes)

    def add(self, found: Iterable[int]) -> None:
        """Add the id with these `positions`."""
        for position in found:
            self._bits[position >> 3] |= 1 << (position & 7)

    def contains(self, found: Iterable[int]) -> bool:
        """Return False if the id with these `positions` is not in it. True may be wrong."""
        return all(self._bits[position >> 3] >> (position & 7) & 1 for position in found)

    @property
    def bits(self) -> bytes:
        """The bits as `parameters.size_bytes` bytes."""
        return bytes(self._bits)
