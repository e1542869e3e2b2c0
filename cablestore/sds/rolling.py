"""A Bloom filter of the newest ids that stays at one size (SDS, "Participant state": rolled over at capacity). Pure.

Two generations have the same bits. The newer one takes ids until it has half of the capacity, then the older one goes and
the next begins. On the wire goes the union of both, which has the last capacity / 2 to capacity ids: none of them is
missing, and there are never more than the filter was made for, so it is wrong no more often than it promises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from cablestore.sds.bloom import FilterParameters, positions, to_wire
from cablestore.sds.dialects import SdsDialect

BLOCK_SIZE_BYTES: Final = 512
"""What is written when a bit in it was set: 10 ids and 100 ids of one write touch about as many."""

_SLOTS: Final = (0, 1)


def block_part(slot: int, block: int) -> bytes:
    """Return the key part of a block of one of the two generations."""
    return bytes((slot,)) + block.to_bytes(2, "big")


class RollingFilter:
    """The filter, in memory. `changed_blocks` is what has to be written of it."""

    def __init__(
        self,
        parameters: FilterParameters,
        dialect: SdsDialect,
        *,
        newer_slot: int = 0,
        newer_count: int = 0,
        read_block: Callable[[bytes], bytes | None] = lambda _: None,
    ) -> None:
        """Make the filter of the blocks that `read_block` finds at their key parts; those that it does not find are empty."""
        self._parameters = parameters
        self._dialect = dialect
        self._half = max(1, parameters.capacity // 2)
        self.newer_slot = newer_slot
        self.newer_count = newer_count
        """How many ids the newer generation has."""
        self._generations = [bytearray(parameters.size_bytes) for _ in _SLOTS]
        self._changed: set[tuple[int, int]] = set()
        for slot in _SLOTS:
            for block in range(self.blocks):
                row = read_block(block_part(slot, block))
                if row is not None:
                    at = block * BLOCK_SIZE_BYTES
                    self._generations[slot][at : at + len(row)] = row
        self._union = self._united()
        self._wire: bytes | None = None

    @property
    def blocks(self) -> int:
        """How many blocks a generation has."""
        return -(-self._parameters.size_bytes // BLOCK_SIZE_BYTES)

    def add(self, message_id: str) -> None:
        """Put an id in. Where the newer generation is full, the older one makes room for the next."""
        if self.newer_count >= self._half:
            self._roll()
        self._wire = None
        newer, slot = self._generations[self.newer_slot], self.newer_slot
        union, changed = self._union, self._changed
        for position in positions(message_id, self._parameters, self._dialect):
            at, bit = position >> 3, 1 << (position & 7)
            newer[at] |= bit
            union[at] |= bit
            changed.add((slot, at // BLOCK_SIZE_BYTES))
        self.newer_count += 1

    def contains(self, message_id: str) -> bool:
        """Tell whether the id is in it; wrong at most as often as the parameters say where it is not."""
        union = self._union
        return all(union[at >> 3] >> (at & 7) & 1 for at in positions(message_id, self._parameters, self._dialect))

    def wire(self) -> bytes:
        """Return the bytes that go with a message, always the same number of them."""
        if self._wire is None:
            self._wire = to_wire(bytes(self._union), self._parameters, self._dialect)
        return self._wire

    def changed_blocks(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield key parts and blocks that changed since the last call."""
        for slot, block in sorted(self._changed):
            at = block * BLOCK_SIZE_BYTES
            yield block_part(slot, block), bytes(self._generations[slot][at : at + BLOCK_SIZE_BYTES])
        self._changed.clear()

    def _roll(self) -> None:
        self.newer_slot = 1 - self.newer_slot
        self.newer_count = 0
        self._generations[self.newer_slot] = bytearray(self._parameters.size_bytes)
        self._changed |= {(self.newer_slot, block) for block in range(self.blocks)}
        self._union = self._united()

    def _united(self) -> bytearray:
        first, second = (int.from_bytes(generation, "little") for generation in self._generations)
        return bytearray((first | second).to_bytes(self._parameters.size_bytes, "little"))
