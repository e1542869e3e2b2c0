"""A Bloom filter of one generation, by itself: what the filters of deployed nodes are."""

from __future__ import annotations

from collections.abc import Iterable

from cablestore.sds.bloom import FilterParameters


class BloomFilter:
    """Filter that ids are put into."""

    def __init__(self, parameters: FilterParameters) -> None:
        self._bits = bytearray(parameters.size_bytes)

    def add(self, found: Iterable[int]) -> None:
        """Put in the id whose `positions` these are."""
        for position in found:
            self._bits[position >> 3] |= 1 << (position & 7)

    def contains(self, found: Iterable[int]) -> bool:
        """Tell whether the id whose `positions` these are may be in it. False is always right."""
        return all(self._bits[position >> 3] >> (position & 7) & 1 for position in found)

    @property
    def bits(self) -> bytes:
        """Return the bits, `parameters.size_bytes` bytes."""
        return bytes(self._bits)
