"""The arrival log: the order in which this store received its posts. The rows of views do not depend on it.

    !arrival!log!<number of the first entry, 16 digits> -> the entries of one batch: (kind u8 | hash u8[32]) each
    !arrival!next                                       -> the number of the next entry, in decimal digits

Numbers start at 1, increase by 1 and never repeat. Views and `dump` do not contain these keys. `cablestore.index.notes`
defines the entries of changed local rows. Such an entry may be removed when the same local row changes again: its
number is then missing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from itertools import chain
from typing import Final, NamedTuple

from cablestore.errors import CorruptStoreError
from cablestore.index.database import Row
from cablestore.index.reader import Reader
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.protocol.keys import after_prefix
from cablestore.reprs import hex_repr

PREFIX: Final = b"!arrival!"
LOG_PREFIX: Final = b"!arrival!log!"
NEXT_KEY: Final = b"!arrival!next"
_AFTER_LOG: Final = after_prefix(LOG_PREFIX)
_KEY: Final = LOG_PREFIX + b"%016d"
"""Format of the key of a row, for the number of its first entry."""
_ENTRY: Final = struct.Struct(f"B{HASH_SIZE_BYTES}s")
"""Kind and hash of an entry."""
_MAX_DIGITS: Final = 16


class EventKind(IntEnum):
    """Kind of an entry: the event of a post, or LOCAL for a change that does not follow from a post."""

    ACCEPTED = 1
    DELETED = 2
    DISCARDED = 3
    LOCAL = 4


class Arrival(NamedTuple):
    """An entry of the log. `hash` is the hash of a post, or of the key of a local row."""

    sequence: int
    kind: EventKind
    hash: bytes

    def __repr__(self) -> str:
        return hex_repr(self)


def log_row(first_sequence: int, entries: Iterable[tuple[EventKind, bytes]]) -> Row:
    """Return the row with the `entries` of a batch, the first of which has the number `first_sequence`."""
    return _KEY % first_sequence, b"".join([_KIND_BYTES[kind] + digest for kind, digest in entries])


def next_sequence(reader: Reader) -> int:
    """Return the number of the next entry. Raises CorruptStoreError."""
    value = reader.get(NEXT_KEY)
    if value is None:
        return 1
    if not (value.isdigit() and len(value) <= _MAX_DIGITS and int(value)):
        raise CorruptStoreError(
            f"the row {NEXT_KEY!r} contains {value[:80]!r}, expected the next number of the arrival log. Run "
            "`cablestore rebuild`"
        )
    return int(value)


def entries(reader: Reader, after: int) -> Iterator[Arrival]:
    """Yield the entries with numbers greater than `after`, in order. Raises CorruptStoreError."""
    after = max(after, 0)
    start = _KEY % (after + 1)
    rows = reader.scan(start, _AFTER_LOG)
    following = next(rows, None)
    begun = None
    if following is None or following[0] != start:  # the next entry may be in the middle of a row
        begun = next(reader.scan(LOG_PREFIX, start, reverse=True), None)
    for row in chain(filter(None, (begun, following)), rows):
        first, _ = span_of(row)
        for number, (kind, digest) in enumerate(_ENTRY.iter_unpack(row[1]), first):
            if number > after:
                yield Arrival(number, _KINDS[kind], digest)


def post_entries(reader: Reader, after: int) -> Iterator[Arrival]:
    """Yield the entries of posts with numbers greater than `after`, in order."""
    return (entry for entry in entries(reader, after) if entry.kind is not EventKind.LOCAL)


def last_post_entry(reader: Reader, upto: int) -> Arrival | None:
    """Return the last entry of a post whose number is at most `upto`, None if no such entry exists."""
    for row in reader.scan(LOG_PREFIX, _KEY % (upto + 1), reverse=True, at_once=1):
        first, after = span_of(row)
        for sequence in range(min(upto, after - 1), first - 1, -1):  # usually one iteration
            kind, digest = _ENTRY.unpack_from(row[1], (sequence - first) * _ENTRY.size)
            if kind != EventKind.LOCAL:
                return Arrival(sequence, _KINDS[kind], digest)
    return None


def end_of_batch(reader: Reader, sequence: int) -> int:
    """Return the number of the last entry of the batch that contains the entry `sequence`."""
    row = next(reader.scan(LOG_PREFIX, _KEY % (sequence + 1), reverse=True), None)
    return sequence if row is None else max(sequence, span_of(row)[1] - 1)


def span_of(row: Row) -> tuple[int, int]:
    """Return the number of a row's first entry and the number after its last. Raises CorruptStoreError."""
    key, value = row
    digits = key[len(LOG_PREFIX) :]
    if (
        not digits.isdigit()
        or len(digits) != _MAX_DIGITS
        or not value
        or len(value) % _ENTRY.size
        or not _KINDS.keys() >= set(value[:: _ENTRY.size])
    ):
        raise CorruptStoreError(
            f"the row {key[:80]!r} of the arrival log does not contain valid entries. Run `cablestore rebuild`"
        )
    return int(digits), int(digits) + len(value) // _ENTRY.size


_KINDS: Final = {int(kind): kind for kind in EventKind}
_KIND_BYTES: Final = {kind: bytes((kind,)) for kind in EventKind}
