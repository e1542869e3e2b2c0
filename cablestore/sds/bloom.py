"""Bloom filters of message ids: parameters, bits, and bytes in both dialects (SDS, "Participant state"). Pure.

In memory, bit p is in byte p // 8 with the value 1 << p % 8. On the wire, the same number of bytes forms words of eight
bytes. `spec` reverses the bytes of each word. `nim` writes a document of the words and their parameters.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from cablestore.errors import SdsError
from cablestore.limits import MAX_SDS_FILTER_HASHES, MAX_SDS_FILTER_SIZE_BYTES
from cablestore.protocol.protobuf import fields, number_field, sized_field
from cablestore.sds.dialects import SdsDialect

_WORD_SIZE_BYTES: Final = 8
_WORD_BITS: Final = 64
_MILLION: Final = 1_000_000
_WORDS_FIELD: Final = 1
_DESCRIPTION_FIELDS: Final = (2, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class FilterParameters:
    """Parameters of a filter for about `capacity` ids; `error` is its false positive rate at capacity.

    `bits` and `hashes` are computed as in both deployed implementations. `size_bytes` is the size of the words. `spec`
    sends only the words; `nim` adds about 16 bytes of description. Both implementations use the same defaults. Raises
    SdsError for invalid values or an exceeded limit.
    """

    capacity: int = 10_000
    error: float = 0.001
    bits: int = field(init=False)
    hashes: int = field(init=False)
    size_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        if self.capacity < 1 or not 0.0 < self.error < 1.0:
            raise SdsError(
                "invalid filter parameters: expected a capacity of at least 1 id and an error rate between 0 and 1, "
                f"got {self.capacity} and {self.error}"
            )
        bits_per_id = math.ceil(-math.log(self.error) / math.log(2) ** 2)
        hashes = max(1, math.floor(math.log(2) * bits_per_id + 0.5))
        size_bytes = size_of(self.capacity * bits_per_id)
        if size_bytes > MAX_SDS_FILTER_SIZE_BYTES or hashes > MAX_SDS_FILTER_HASHES:
            raise SdsError(
                f"filter too large: {self.capacity} ids with an error rate of {self.error} need {size_bytes} bytes and "
                f"{hashes} bits per id, the maximum is {MAX_SDS_FILTER_SIZE_BYTES} bytes and {MAX_SDS_FILTER_HASHES} "
                "bits. Use fewer ids or a higher error rate"
            )
        object.__setattr__(self, "bits", self.capacity * bits_per_id)
        object.__setattr__(self, "hashes", hashes)
        object.__setattr__(self, "size_bytes", size_bytes)


def size_of(bits: int) -> int:
    """Return the size of the words for this number of bits, with an additional word if the bits fill all words."""
    return (1 + bits // _WORD_BITS) * _WORD_SIZE_BYTES


def positions(message_id: str, shape: FilterParameters | ForeignFilter, dialect: SdsDialect) -> tuple[int, ...]:
    """Return the numbers of the bits that an id sets: `shape.hashes` numbers below `shape.bits`, possibly equal."""
    bits = shape.bits
    first = abs(dialect.filter_hash(message_id)) % bits
    step = abs(dialect.filter_hash(message_id + " b")) % bits
    return tuple([(first + n * step) % bits for n in range(shape.hashes)])


def to_wire(bits: bytes, parameters: FilterParameters, dialect: SdsDialect) -> bytes:
    """Return a filter's bytes on the wire. Raises SdsError unless `bits` has `parameters.size_bytes` bytes."""
    if len(bits) != parameters.size_bytes:
        raise SdsError(f"invalid filter: expected {parameters.size_bytes} bytes for these parameters, got {len(bits)}")
    if not dialect.describes_filter:
        return _turned(bits)
    described = (parameters.capacity, int(parameters.error * _MILLION), parameters.hashes, parameters.bits)
    return sized_field(_WORDS_FIELD, bits) + b"".join(map(number_field, _DESCRIPTION_FIELDS, described))


@dataclass(frozen=True, slots=True)
class ForeignFilter:
    """Filter of a received message.

    Query it with positions of its own shape: `positions(message_id, foreign, dialect)`. In `spec`, this is the shape
    with which it was decoded; in `nim`, the shape that the peer chose. `words` has the layout in memory.
    """

    words: bytes
    bits: int
    hashes: int

    @classmethod
    def read(cls, data: bytes | None, parameters: FilterParameters, dialect: SdsDialect) -> ForeignFilter | None:
        """Decode a message's filter. Return None if it is missing, malformed, or has another size.

        Never raises, so that a message with an invalid filter is still accepted. In `spec`, a filter does not contain
        its parameters, so it must have the size that `parameters` require.
        """
        if not data or len(data) > MAX_SDS_FILTER_SIZE_BYTES + _WORD_BITS:
            return None
        if dialect.describes_filter:
            words, hashes, bits = _described(data)
            is_sound = 1 <= hashes <= MAX_SDS_FILTER_HASHES and bits and size_of(bits) == len(words)
            return cls(words, bits, hashes) if is_sound else None
        if len(data) != parameters.size_bytes:
            return None
        return cls(_turned(data), parameters.bits, parameters.hashes)

    def contains(self, found: Iterable[int]) -> bool:
        """Return True if the id whose positions are `found` may be in the filter. They must be below `self.bits`."""
        return all(self.words[position >> 3] >> (position & 7) & 1 for position in found)

    @property
    def false_positive_rate(self) -> float:
        """Probability that an id that was not added seems to be in the filter, computed from the number of set bits.

        At capacity, about half of the bits are set.
        """
        share_set = min(1.0, int.from_bytes(self.words, "little").bit_count() / self.bits)
        return share_set**self.hashes


def _turned(bits: bytes) -> bytes:
    words = array("Q", bits)
    words.byteswap()
    return words.tobytes()


def _described(data: bytes) -> tuple[bytes, int, int]:
    """Return the words, and the numbers of hashes and of bits, in a nim-sds document; 0 bits if it is malformed."""
    words, numbers = b"", dict.fromkeys(_DESCRIPTION_FIELDS, 0)
    try:
        for number, value in fields(data, "filter", error=SdsError):
            if number == _WORDS_FIELD and isinstance(value, bytes):
                words = value
            elif number in numbers and isinstance(value, int):
                numbers[number] = value
            else:
                return b"", 0, 0
    except SdsError:
        return b"", 0, 0
    _, _, hashes, bits = numbers.values()
    return words, hashes, bits


BLOCK_SIZE_BYTES: Final = 512
"""Size of the blocks that are written after a change. 100 ids change about as many blocks as 10 ids."""

_SLOTS: Final = (0, 1)


def block_part(slot: int, block: int) -> bytes:
    """Return the key part of block number `block` of the generation in `slot`, 0 or 1."""
    return bytes((slot,)) + block.to_bytes(2, "big")


class RollingFilter:
    """Bloom filter of the newest ids with a fixed size (SDS, "Participant state": rolled over at capacity).

    Two generations have the same shape. The newer generation receives ids until it contains half of the capacity. Then
    the older generation is discarded, and a new generation begins. Messages carry the union of both. It contains the
    last capacity / 2 to capacity ids without gaps. Therefore its false positive rate is at most `parameters.error`.
    """

    def __init__(
        self,
        parameters: FilterParameters,
        dialect: SdsDialect,
        *,
        newer_slot: int = 0,
        newer_count: int = 0,
        read_block: Callable[[bytes], bytes | None] = lambda _: None,
    ) -> None:
        """Read the blocks with `read_block`, which gets their key parts. Blocks for which it returns None are empty.

        `newer_slot` is the slot of the newer generation, and `newer_count` the number of ids in it.
        """
        self._parameters = parameters
        self._dialect = dialect
        self._half = max(1, parameters.capacity // 2)
        self.newer_slot = newer_slot
        self.newer_count = newer_count
        """Number of ids in the newer generation."""
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
        """Number of blocks of a generation."""
        return -(-self._parameters.size_bytes // BLOCK_SIZE_BYTES)

    def add(self, message_id: str) -> None:
        """Add an id. If the newer generation is full, first discard the older generation and begin a new generation."""
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

    def wire(self) -> bytes:
        """Return the bytes to send with a message. Their number is constant."""
        if self._wire is None:
            self._wire = to_wire(bytes(self._union), self._parameters, self._dialect)
        return self._wire

    def changed_blocks(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the blocks that changed since the last call, with their key parts."""
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
